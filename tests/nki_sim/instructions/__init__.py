"""The instructions of `nki.isa`, by what they do."""
