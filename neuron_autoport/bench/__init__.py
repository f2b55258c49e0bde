"""`autoport bench`: the same load on several implementations, by turns, as ratios from one run."""
