"""What a rewritten forward says where it would need a module that a fused call took in."""

from __future__ import annotations

from typing import NoReturn


def moved(name: str) -> NoReturn:
    """Refuse to go on: the branch was not taken when the model was traced, so it was not ported.

    Args:
        name: of the module, as the source has it.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"{name} is part of a fused call now, and this branch was not taken when the model was traced; "
        "serve the model without the rule that took it: autoport inspect MODEL shows which"
    )
