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


def set_decoding(value: bool) -> None:
    """Say which phase the forward is in from here on.

    For a host whose forward is compiled: two plain calls, the last of which says False, are kept in a
    graph as they are. Of a context manager dynamo was seen to lose the end.
    """
    global _decoding
    _decoding = value


@contextmanager
def decode_phase() -> Iterator[None]:
    """While open, rewritten forwards use their decode form."""
    before = _decoding
    set_decoding(True)
    try:
        yield
    finally:
        set_decoding(before)
