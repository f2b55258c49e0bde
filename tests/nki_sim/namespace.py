"""`nki`, `nki.isa` and `nki.language` for the tests of this folder: the real ones if they are here.

So the tests of single instructions also compare the vendor's simulator with their formulas where it is
installed. `OURS` says whether it is the simulator of this folder.
"""

from __future__ import annotations

from tests.nki_sim.runner import registered

with registered() as OURS:
    import nki
    import nki.isa as nisa
    import nki.language as nl

__all__ = ["OURS", "nisa", "nki", "nl"]
