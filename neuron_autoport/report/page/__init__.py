"""The page of `autoport inspect --html`: one file, nothing loaded from elsewhere."""
