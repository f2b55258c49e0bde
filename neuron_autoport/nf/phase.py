"""Which phase the running forward is in: a rule may have another call for decode.

Prefill is what always works: one or many new tokens of a request, also a batch of both kinds. A host
that runs decode steps on their own (one new token of each request) says so while the step runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_decoding = False


def decoding() -> bool:
    """Is this a decode step, one new token of every request? A compiled graph holds for one answer."""
    return _decoding


@contextmanager
def decode_phase() -> Iterator[None]:
    """While open, rewritten forwards use their decode form."""
    global _decoding
    before, _decoding = _decoding, True
    try:
        yield
    finally:
        _decoding = before
