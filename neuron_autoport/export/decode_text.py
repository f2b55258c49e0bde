"""The statement at the top of an attention's forward that sends decode steps to `NF.attention_decode`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from neuron_autoport.hosts.neuron.decode_form import DecodeForm, Path


def decode_text(
    form: DecodeForm, parameters: Sequence[str], shared: bool, condition: str = ""
) -> str:
    """`if (step := fused_decode(...)) is not None: return ...` for an attention class.

    Args:
        parameters: of its forward, in order, without self. shared: its ranks' results are summed.
        condition: on self, of the layers that decode this way; empty for all.
    """
    hidden = _place(form.hidden, parameters)
    arguments = [hidden, f"W_qkv=self.{form.qkv.attr}_weight"]
    if form.qkv.has_bias:
        arguments.append(f"bias_qkv=self.{form.qkv.attr}_bias")
    if form.norm is not None:
        stem = f"rmsnorm_QK_{'pre' if form.norm.before_rope else 'post'}_rope"
        arguments += [
            f"{stem}_enabled=True",
            f"{stem}_eps={form.norm.eps!r}",
            f"{stem}_W_Q=self.decode_q_gamma",
            f"{stem}_W_K=self.decode_k_gamma",
        ]
    for name, path in (("cos", form.cos), ("sin", form.sin)):
        if path is not None:
            arguments.append(f"{name}=step.half({_place(path, parameters)})")
    arguments += [
        "active_blocks_table=step.table",
        "K_cache=step.k_cache",
        "V_cache=step.v_cache",
        "attention_mask=step.mask",
    ]
    if form.sinks is not None:
        arguments.append(f"sink=self.{form.sinks}.view(-1, 1)")
    arguments += [
        f"softmax_scale={form.scale!r}",
        "update_cache=True",
        "kv_cache_update_idx=step.slots",
        f"W_out=self.{form.out.attr}_weight",
    ]
    if form.out.has_bias:
        arguments.append(f"bias_out=self.{form.out.attr}_bias")
    listed = "".join(f"        {a},\n" for a in arguments)
    result = f"out.view_as({hidden})"
    result = f"self.tp.all_reduce({result})" if shared else result
    when = f"{condition} and " if condition else ""
    return (
        "# autoport: attention_decode\n"
        f"if {when}(step := fused_decode(self, {hidden})) is not None:\n"
        f"    out = NF.attention_decode(\n{listed}    )\n"
        f"    return {_result(form.result, result)}\n"
    )


def _place(path: Path, parameters: Sequence[str]) -> str:
    """An argument of the forward as its source says it."""
    kind, first, *keys = path
    name = parameters[first] if kind == "args" else str(first)
    return name + "".join(f"[{json.dumps(key)}]" for key in keys)


def _result(result: Any, text: str) -> str:
    if result is True:
        return text
    if isinstance(result, tuple):
        return ", ".join(_result(r, text) for r in result)
    return repr(result)
