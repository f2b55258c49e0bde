"""Query, key and value in one call: `NF.qkv_proj` with an attention form's QK-norm and RoPE inside.

For prefill, chunks, and decode steps that `NF.attention_decode` does not take. Used where the kernel takes this
rank's sizes: its torch form would do in torch what `NK.qk_norm_rope` does in a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from neuron_autoport import nf as NF

if TYPE_CHECKING:
    from neuron_autoport.hosts.neuron.attention_form import AttentionForm, HeadNorm
    from neuron_autoport.hosts.neuron.call import LayerState

WIDEST, MOST_COLUMNS = 24576, 4096


class Heads(NamedTuple):
    """A rank's heads in a step of `batch` requests, as `NF.qkv_proj` counts them."""

    queries: int
    keys: int
    width: int
    batch: int

    def table(self, given: Tensor) -> Tensor:
        """cos or sin [1 or B, S, d or d/2] -> [B, S, d], both halves equal."""
        if given.shape[-1] < self.width:
            given = torch.cat((given, given), -1)
        return given.expand(self.batch, -1, -1)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, S, F] -> query [B, N, S, d], key and value [B, Nkv, S, d]."""
        counts = (self.queries, self.keys, self.keys)
        query, key, value = (
            part.unflatten(-1, (count, self.width)).transpose(1, 2)
            for part, count in zip(
                qkv.split([n * self.width for n in counts], -1), counts, strict=True
            )
        )
        return query, key, value


def heads_limit(width: int, columns: int) -> str | None:
    """Why the `qkv_proj` kernel cannot run on a rank; None if it can. Source: the plugin's contract.

    Args:
        width: of the hidden states. columns: of the fused weight on this rank.
    """
    if width % 128 or width > WIDEST:
        return f"hidden size {width}, the kernel takes a multiple of 128 up to {WIDEST}"
    if columns > min(MOST_COLUMNS, width):
        return f"{columns} columns per rank, the kernel takes {min(MOST_COLUMNS, width)}"
    return None


def heads_of(layer: LayerState, batch: int) -> Heads:
    """The heads of a layer on this rank."""
    return Heads(layer.heads, layer.kv_heads, layer.facts.head_dim, batch)


def norm_arguments(norm: HeadNorm | None, query: Any, key: Any) -> dict[str, Any]:
    """The QK-norm arguments of `NF.qkv_proj`.

    Args:
        query, key: the norms' weights, [1, d].
    """
    if norm is None:
        return {}
    stem = f"qk_norm_{'pre' if norm.before_rope else 'post'}_rope"
    return {
        f"{stem}_q_norm": NF.NormType.RMS_NORM,
        f"{stem}_k_norm": NF.NormType.RMS_NORM,
        f"{stem}_eps": norm.eps,
        f"{stem}_q_gamma": query,
        f"{stem}_k_gamma": key,
    }


def inside(form: AttentionForm) -> str:
    """What the call holds beside the projections: `QK-norm and RoPE`, one of them, or nothing."""
    held = [("QK-norm", form.norm), ("RoPE", form.cos)]
    return " and ".join(name for name, part in held if part is not None)


def project_heads(
    module: Any,
    layer: LayerState,
    form: AttentionForm,
    hidden: Tensor,
    tables: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [B, S, H] -> query [B, N, S, d], key and value [B, Nkv, S, d], normalized and rotated.

    Args:
        tables: cos and sin [1 or B, S, d or d/2].
    """
    heads = heads_of(layer, hidden.shape[0])
    cos, sin = (None if t is None else heads.table(t) for t in tables)
    found: Any = NF.qkv_proj(
        hidden,
        getattr(module, f"{form.qkv.attr}_weight"),
        bias=getattr(module, f"{form.qkv.attr}_bias", None),
        d_head=heads.width,
        cos_cache=cos,
        sin_cache=sin,
        num_q_heads=heads.queries,
        num_kv_heads=heads.keys,
        **norm_arguments(
            form.norm, getattr(module, "head_q_gamma", None), getattr(module, "head_k_gamma", None)
        ),
    )
    return heads.split(found)
