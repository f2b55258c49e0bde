"""What vLLM's Transformers backend fuses in a model, and which of that no site of ours covers.

vLLM's own matching functions run on the model our port was planned from: no engine, no weights, one rank.
Sites are compared by module path: one of theirs is covered if one site of ours replaces all its modules. Linears
that theirs merges only because they share an input (`merged`, `mla`) may be in several sites of ours.

usage: python -m benchmarks.vllm_fusers [TYPE ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.architectures import TYPES, default_config
from neuron_autoport.hosts.vllm.moe_limits import refusal
from neuron_autoport.port import Port, port_model
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.moe import read_blocks


@dataclass(frozen=True)
class TheirSite:
    """One module that vLLM's backend fuses.

    kind: qkv, packed_qkv, mla, gate_up, merged (other linears of one input), norm, layer_norm or moe.
    path: of the module, below the model. parts: the modules that it replaces, from the model.
    """

    kind: str
    class_name: str
    path: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """A class of theirs that we do not cover: how many instances, and our reasons.

    beyond: what vLLM's own layer lacks there, so that its model computes something else; None if nothing
    is known of that.
    """

    kind: str
    class_name: str
    count: int
    example: str
    reasons: tuple[str, ...]
    beyond: str | None = None


def available() -> bool:
    """Is there a vLLM to compare with?"""
    return importlib.util.find_spec("vllm") is not None


def their_sites(model: Any, base_path: str) -> list[TheirSite]:
    """Every site of vLLM's fusers in the base model, as its `recursive_replace` would visit them."""
    # vLLM logs every trace it gives up, which is no fault here.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    base = model.get_submodule(base_path) if base_path else model
    with _quiet():
        return list(_Search(base, model.config, base_path).run())


class _Search:
    """One walk over a model."""

    def __init__(self, base: nn.Module, config: Any, prefix: str) -> None:
        from vllm.model_executor.models.transformers.fuser import Fusers

        text = config.get_text_config()
        settings: Any = SimpleNamespace(
            model_config=SimpleNamespace(
                use_mla=getattr(text, "kv_lora_rank", None) is not None,
                get_head_size=lambda: _head_size(text),
                dtype=torch.bfloat16,
            ),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            quant_config=None,
        )
        self.base, self.prefix = base, prefix
        self.experts = dict(_expert_modules(base)) if _is_moe(text) else {}
        self.fusers = Fusers(base, settings)

    def run(self) -> Iterator[TheirSite]:
        for path, module in self.base.named_modules():
            if any(path.startswith(f"{e}.") for e in self.experts):
                continue  # inside of what their expert layer replaces
            if path in self.experts:
                block = self.base.get_submodule(self.experts[path])
                yield self.site("moe", block, self.experts[path], (path,))
                continue
            yield from self.of_module(path, module)

    def of_module(self, path: str, module: nn.Module) -> Iterator[TheirSite]:
        from vllm.model_executor.models.transformers.fusers import AttentionFuser

        if type(module) is nn.LayerNorm:
            # Theirs takes a weight and a bias over one axis; others stay as they are.
            if len(module.normalized_shape) == 1 and module.bias is not None:
                yield self.site("layer_norm", module, path, (path,))
            return
        if path == "" or isinstance(module, nn.Linear | nn.Embedding):
            return
        for fuser in self.fusers[module]:
            if isinstance(fuser, AttentionFuser):
                continue  # found, not fused
            kind, names = _kind_and_parts(fuser)
            parts = tuple(f"{path}.{n}" for n in names) or (path,)
            if names or kind == "norm":
                yield self.site(kind, module, path, parts)

    def site(self, kind: str, module: nn.Module, path: str, parts: tuple[str, ...]) -> TheirSite:
        name = type(module).__name__
        return TheirSite(kind, name, self.full(path), tuple(map(self.full, parts)))

    def full(self, path: str) -> str:
        return f"{self.prefix}.{path}" if self.prefix and path else path or self.prefix


def _kind_and_parts(fuser: Any) -> tuple[str, list[str]]:
    """What a fuser of vLLM fuses, and the names of the children it replaces."""
    from vllm.model_executor.models.transformers import fusers

    kinds: dict[type, str] = {
        fusers.MLAFuser: "mla",
        fusers.GLUFuser: "gate_up",
        fusers.QKVFuser: "qkv",
        fusers.PackedQKVFuser: "packed_qkv",
        fusers.MergedColumnParallelFuser: "merged",
        fusers.RMSNormFuser: "norm",
    }
    kind = kinds[type(fuser)]
    if kind == "packed_qkv":
        return kind, [fuser.qkv_name]
    return kind, [] if kind == "norm" else [name for name, _ in fuser.shards]


def _head_size(text: Any) -> int:
    """As vLLM works it out where a module has no `head_dim` of its own."""
    head = getattr(text, "head_dim", None)
    return int(head or text.hidden_size // text.num_attention_heads)


def _is_moe(text: Any) -> bool:
    """vLLM takes a configuration with a number of experts for a mixture of experts.

    Its expert layer must find sizes under one of the names it knows, or it refuses the model.
    """
    names = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
    number = next((n for k in names if (n := getattr(text, k, None)) is not None), 0)
    known = any(getattr(text, k, None) is not None for k in ("num_experts_per_tok", "top_k"))
    return bool(number) and known


def _expert_modules(base: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules called `experts` that are a list or hold stacked weights only; with their block's path."""
    for path, module in base.named_modules():
        block, _, name = path.rpartition(".")
        stacked = [p.ndim for p in module.parameters()]
        packed = bool(stacked) and set(stacked) == {3}
        if name == "experts" and (packed or isinstance(module, nn.ModuleList)):
            yield path, block


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("vllm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def our_modules(port: Port) -> list[frozenset[str]]:
    """For each of our sites the paths it replaces: its own module's, and its child modules'.

    A block of experts counts if our vLLM host runs them in vLLM's layer, whatever the engine.
    """
    sites = [
        frozenset({path, f"{path}.{facts.experts_path}" if path else facts.experts_path})
        for path, facts in read_blocks(port.trace).items()
        if refusal(facts, cpu=False) is None
    ]
    for path, plan in port.where.items():
        for site in plan.sites:
            inner = {str(op.target) for op in site.match.interior if op.name == "module"}
            children = {f"{path}.{c}" if path else c for c in inner | site.modules}
            sites.append(frozenset({path, *children}))
    return sites


def not_covered(port: Port, theirs: list[TheirSite]) -> list[Missing]:
    """Classes of their sites that no site of ours covers, with our reasons."""
    by_path: dict[str, list[frozenset[str]]] = {}
    for ours in our_modules(port):
        for path in ours:
            by_path.setdefault(path, []).append(ours)
    lost = [t for t in theirs if not _covered(t, by_path)]
    counts = Counter((t.kind, t.class_name) for t in lost)
    first = {(t.kind, t.class_name): t for t in reversed(lost)}
    return [
        Missing(
            kind, name, n, first[kind, name].path, _reasons(port, first[kind, name]),
            _beyond(port, first[kind, name]),
        )
        for (kind, name), n in counts.items()
    ]  # fmt: skip


def _beyond(port: Port, site: TheirSite) -> str | None:
    """What vLLM's expert layer lacks: experts that the router names and that have no weights.

    vLLM's Transformers backend gives its layer one expert for each weight. `tests/hosts/vllm/test_moe_limits.py`
    shows by how much the result is off.
    """
    if site.kind != "moe":
        return None
    facts = read_blocks(port.trace).get(site.path)
    (path,) = site.parts
    stacked = [p.shape[0] for p in port.model.get_submodule(path).parameters() if p.ndim == 3]
    if facts is None or facts.reach is None or not stacked or facts.reach <= min(stacked):
        return None
    return f"the router chooses among {facts.reach} experts, {min(stacked)} of which have weights"


def _covered(site: TheirSite, ours: dict[str, list[frozenset[str]]]) -> bool:
    if site.kind in ("merged", "mla"):
        return all(part in ours for part in site.parts)
    return any(set(site.parts) <= o for o in ours.get(site.parts[0], []))


def _reasons(port: Port, site: TheirSite) -> tuple[str, ...]:
    """Our refusals in the module, or why its trace ended; of experts, why vLLM's layer does not run them."""
    if site.kind == "moe":
        facts = read_blocks(port.trace).get(site.path)
        return (str(refusal(facts, cpu=False)) if facts is not None else "no experts were read",)
    plan = port.where.get(site.path)
    if plan is None:
        return ("not traced",)
    said = [f"{r.rule}: {r.code} {r.message} ({r.steps})" for r in plan.refusals]
    said += [f"{name}: not proved" for name in plan.without]
    if plan.trace.end is not None:
        said.append(f"{plan.trace.end.code} {plan.trace.end.message}")
    return tuple(dict.fromkeys(said)) or ("no rule came near",)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", default=TYPES)
    warnings.simplefilter("ignore")
    rules = load_rules()
    missing: dict[str, list[Missing]] = {}
    for model_type in parser.parse_args().types:
        port = port_model(default_config(model_type), rules)
        theirs = their_sites(port.model, port.base)
        missing[model_type] = not_covered(port, theirs)
        counts = Counter(t.kind for t in theirs)
        print(f"{model_type:24} vLLM: {dict(counts) or 'nothing'}", flush=True)
        for m in missing[model_type]:
            print(f"    missing {m.kind} {m.class_name} x{m.count} at {m.example}: {m.reasons}")
            print(f"        vLLM's layer: {m.beyond}" if m.beyond else "")
    lost = {t: names for t, found in missing.items()
            if (names := [f"{m.kind} {m.class_name}" for m in found if m.beyond is None])}  # fmt: skip
    print(
        json.dumps({"architectures": len(missing), "superset_of_vllm": not lost, "missing": lost})
    )


if __name__ == "__main__":
    main()
