"""The limits of the plugin's expert kernels for one rank's sizes and a number of tokens.

Figures are the plugin's written contract (`build_blockwise_mapping`, `moe_cte`, `moe_block_tkg`); nothing was run
on a device.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 128  # tokens of a block of `moe_cte`
_CHUNK = 16384
_FEW = 128


@dataclass(frozen=True)
class MoESizes:
    """One rank's part. experts: of this rank. inner: columns of each here. biases: of its two products."""

    experts: int
    hidden: int
    inner: int
    biases: tuple[bool, bool] = (False, False)


def mapping_limit(experts: int, tokens: int) -> str | None:
    """Why `build_blockwise_mapping` does not run in a kernel; None if it does."""
    if tokens < 16:
        return f"{tokens} tokens, the mapping takes 16 at least"
    chunk = min(tokens, _CHUNK)
    part = min(128, tokens // 16)
    if experts % 2:
        return f"an odd number of experts per rank, {experts}"
    if tokens % chunk or chunk % 128 or tokens % part or tokens // part % 16:
        return f"{tokens} tokens do not tile for the mapping"
    return None


def experts_limit(sizes: MoESizes) -> str | None:
    """Why `moe_cte` does not run in a kernel; None if it does."""
    if sizes.inner < 128 or sizes.inner % 16:
        return f"{sizes.inner} columns per rank, the kernel takes a multiple of 16 from 128 on"
    if sizes.biases[0] != sizes.biases[1]:
        return "one of the two products has a bias, the kernel takes both or none"
    return None


def prefill_limit(sizes: MoESizes, tokens: int) -> str | None:
    """Why the blockwise experts do not run for so many tokens; None if they do."""
    return experts_limit(sizes) or mapping_limit(sizes.experts, tokens)


def decode_limit(sizes: MoESizes) -> str | None:
    """Why `moe_block_tkg` does not run in a kernel; None if it does."""
    if sizes.hidden % 256:
        return f"hidden size {sizes.hidden} is no multiple of 256"
    if sizes.inner % 128:
        return f"{sizes.inner} columns per rank are no multiple of 128"
    return None


def decode_tokens_limit(tokens: int) -> str | None:
    """The same for the number of tokens of a step."""
    return f"{tokens} tokens, the kernel takes {_FEW}" if tokens > _FEW else None
