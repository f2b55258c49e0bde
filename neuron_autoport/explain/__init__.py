"""The pages of `autoport explain`: reason codes, rules, and words. `pages.py` makes them."""
