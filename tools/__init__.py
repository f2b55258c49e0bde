"""Set-up and demo of the repository: scripts that `make` runs, not part of the package."""
