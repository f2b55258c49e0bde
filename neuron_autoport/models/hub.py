"""Is there a hub to ask? Known after one request, where a download would try again for half a minute."""

from __future__ import annotations

import errno
import socket

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

_NO_WAY = frozenset({errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})


def hub_answers(model: str, file: str) -> bool:
    """Is the file in the local cache, or does anybody answer at the hub's address?

    Only that there is no name or no way is a no. Whatever else goes wrong, a slow answer too, is left to the
    download and its retries.
    """
    if isinstance(try_to_load_from_cache(model, file), str):
        return True
    try:
        get_hf_file_metadata(hf_hub_url(model, file))
    except Exception as error:  # of whichever HTTP library the hub's client uses
        return not any(_no_way(reason) for reason in _chain(error))
    return True


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and those that led to it."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _no_way(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or (
        isinstance(error, OSError) and error.errno in _NO_WAY
    )
