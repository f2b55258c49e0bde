"""The statements at the top of an attention's forward that send it to fused calls: decode steps to
`NF.attention_decode`, other steps to `NF.qkv_proj` with QK-norm and RoPE inside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from neuron_autoport.hosts.neuron.attention_form import AttentionForm, Path
from neuron_autoport.hosts.neuron.fused_heads import inside


def fused_statements(
    form: AttentionForm, parameters: Sequence[str], shared: bool, condition: str = ""
) -> Iterator[tuple[str, str]]:
    """(name of the runtime, `if (step := name(...)) is not None: return ...`) for an attention class.

    Args:
        parameters: of its forward, in order, without self. shared: its ranks' results are summed.
        condition: on self, of the layers that run this way; empty for all.
    """
    if form.softcap is None:
        yield "fused_decode", _decode_text(form, parameters, shared, condition)
    if inside(form):
        yield "fused_heads", _heads_text(form, parameters, shared, condition)


def _decode_text(
    form: AttentionForm, parameters: Sequence[str], shared: bool, condition: str
) -> str:
    hidden = _place(form.hidden, parameters)
    arguments = [hidden, f"W_qkv=self.{form.qkv.attr}_weight"]
    if form.qkv.has_bias:
        arguments.append(f"bias_qkv=self.{form.qkv.attr}_bias")
    if form.norm is not None:
        stem = f"rmsnorm_QK_{'pre' if form.norm.before_rope else 'post'}_rope"
        arguments += [
            f"{stem}_enabled=True",
            f"{stem}_eps={form.norm.eps!r}",
            f"{stem}_W_Q=self.head_q_gamma",
            f"{stem}_W_K=self.head_k_gamma",
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
    return (
        "# autoport: attention_decode\n"
        f"if {_when(condition)}(step := fused_decode(self, {hidden})) is not None:\n"
        f"    out = NF.attention_decode(\n{_listed(arguments)}    )\n"
        f"    return {_result(form.result, _summed(f'out.view_as({hidden})', shared))}\n"
    )


def _heads_text(
    form: AttentionForm, parameters: Sequence[str], shared: bool, condition: str
) -> str:
    hidden, weight = _place(form.hidden, parameters), f"self.{form.qkv.attr}_weight"
    arguments = [hidden, weight]
    if form.qkv.has_bias:
        arguments.append(f"bias=self.{form.qkv.attr}_bias")
    arguments.append("d_head=heads.width")
    for name, path in (("cos_cache", form.cos), ("sin_cache", form.sin)):
        if path is not None:
            arguments.append(f"{name}=heads.table({_place(path, parameters)})")
    arguments += ["num_q_heads=heads.queries", "num_kv_heads=heads.keys"]
    if form.norm is not None:
        stem = f"qk_norm_{'pre' if form.norm.before_rope else 'post'}_rope"
        arguments += [
            f"{stem}_q_norm=NF.NormType.RMS_NORM",
            f"{stem}_k_norm=NF.NormType.RMS_NORM",
            f"{stem}_eps={form.norm.eps!r}",
            f"{stem}_q_gamma=self.head_q_gamma",
            f"{stem}_k_gamma=self.head_k_gamma",
        ]
    attend = ["self", "*heads.split(qkv)", f"scaling={form.scale!r}"]
    if form.softcap is not None:
        attend.append(f"softcap={form.softcap!r}")
    if form.sinks is not None:
        attend.append(f"s_aux=self.{form.sinks}")
    out = ["attended.flatten(2)", f"self.{form.out.attr}_weight"]
    if form.out.has_bias:
        out.append(f"self.{form.out.attr}_bias")
    summed = _summed(f"NF.o_proj({', '.join(out)})", shared)
    return (
        f"# autoport: qkv_proj, {inside(form)} inside\n"
        f"if {_when(condition)}(heads := fused_heads(self, {hidden}, {weight})) is not None:\n"
        f"    qkv = NF.qkv_proj(\n{_listed(arguments)}    )\n"
        f"    attended, _ = attention({', '.join(attend)})\n"
        f"    return {_result(form.result, summed)}\n"
    )


def _when(condition: str) -> str:
    return f"{condition} and " if condition else ""


def _listed(arguments: Sequence[str]) -> str:
    return "".join(f"        {a},\n" for a in arguments)


def _summed(text: str, shared: bool) -> str:
    return f"self.tp.all_reduce({text})" if shared else text


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
