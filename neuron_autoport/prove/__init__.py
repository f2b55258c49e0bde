"""Numeric proof that a rewritten class computes what its original computes."""
