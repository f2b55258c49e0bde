"""Models written by hand against the plugin's contract, to test the double and the runner with."""
