"""Planned sites in the place of vLLM's fusers.

vLLM's Transformers backend asks a mapping for the fusers of each module, registers their weight names and calls
`fuse`. `PlannedFusers` answers with one `RewriteModule` per module that has sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.models.transformers.fusers import BaseFuser
from vllm.model_executor.models.utils import maybe_prefix

from neuron_autoport.fused import FusedWeight, plain_attributes
from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.layers import IS_GATED, LayerHalf, LayerWeight, load_arranged
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site

# What a kind of layer is where every rank has all of it.
_WHOLE = {"qkv": "stacked", "merged": "stacked", "row": "replicate"}


@dataclass(frozen=True)
class Layer:
    """One vLLM layer that stands for fused weights of a module.

    name: where it is put. weights: those it serves, in the order of its outputs. kind: qkv, merged, row,
    replicate, or stacked: several outputs on every rank. sources: checkpoint modules with their shard
    ids; empty if the name is the checkpoint's. gated: are the two weights gate and up of one MLP?
    """

    name: str
    kind: str
    weights: tuple[FusedWeight, ...]
    sources: tuple[tuple[str, Any], ...]
    gated: bool = False


def plan_layers(
    plan: ClassPlan, columnwise: Callable[[str], bool], whole: bool = False
) -> list[Layer]:
    """The vLLM layers of one class: gate and up of a site in one merged layer, q/k/v in one.

    Args:
        columnwise: does the model's own parallel plan share the columns of this child module?
        whole: every rank has all columns and rows.
    """
    layers = []
    for site in plan.sites:
        columns = tuple(w for w in site.weights if w.shard == "column")
        if columns:
            layers.append(_merged(site, columns))
        layers += [_single(w, columnwise) for w in site.weights if w.shard != "column"]
    return [_on_every_rank(x) for x in layers] if whole else layers


def _on_every_rank(layer: Layer) -> Layer:
    """The layer where no rank shares it; a stacked one numbers its parts."""
    kind = _WHOLE.get(layer.kind, layer.kind)
    if kind != "stacked":
        return replace(layer, kind=kind)
    parts = tuple((name, i) for i, (name, _) in enumerate(layer.sources))
    return replace(layer, kind=kind, sources=parts)


def _merged(site: Site, weights: tuple[FusedWeight, ...]) -> Layer:
    parts = [p for w in weights for p in w.parts]
    gated = len(weights) == 2 and site.rule.call == "NF.mlp"
    if len({p.module for p in parts}) == 1:  # packed in the checkpoint: its name stays
        return Layer(parts[0].module, "merged", weights, (), gated)
    name = "_".join(w.name for w in weights) + "_proj"
    sources = tuple((p.module, i) for i, p in enumerate(parts))
    return Layer(name, "merged", weights, sources, gated)


def _single(weight: FusedWeight, columnwise: Callable[[str], bool]) -> Layer:
    if weight.shard == "plan" or (weight.shard == "heads" and len(weight.sizes) > 3):
        shared = weight.shard == "heads" or all(columnwise(p.module) for p in weight.parts)
        parts = tuple((p.module, i) for i, p in enumerate(weight.parts))
        return Layer(f"{weight.name}_proj", "merged" if shared else "stacked", (weight,), parts)
    if weight.shard == "heads":
        if len({p.module for p in weight.parts}) == 1:  # packed in the checkpoint: its name stays
            return Layer(weight.parts[0].module, "qkv", (weight,), ())
        ids = zip((p.module for p in weight.parts), ("q", "k", "v"), strict=True)
        return Layer(f"{weight.name}_proj", "qkv", (weight,), tuple(ids))
    (part,) = weight.parts
    return Layer(part.module, "row" if weight.shard == "row" else "replicate", (weight,), ())


@dataclass
class RewriteModule(BaseFuser):
    """Rewrites one module: vLLM layers in, the class of the proved rewrite on."""

    redefines_forward: ClassVar[bool] = True
    plan: ClassPlan
    rewritten: type[nn.Module]
    columnwise: Callable[[str], bool]
    whole: bool = False

    def __post_init__(self) -> None:
        self.layers = plan_layers(self.plan, self.columnwise, self.whole)

    def info(self, name: str) -> str:
        """A line for the log, which has each line once: the same for every layer of a list."""
        cls = self.plan.trace.module_class.__name__
        kind = cls if name.isdigit() else f"{name} ({cls})"
        sites = ", ".join(f"{s.rule.name} → {s.rule.call}" for s in self.plan.sites)
        return f"autoport: {kind}: {sites}"

    @classmethod
    def match(cls, graph: Any, module: nn.Module) -> None:
        """Sites are planned by our engine, never matched here."""
        return None

    def validate(self, module: nn.Module, vllm_config: Any) -> bool:
        return True

    def orig_to_new_stacked(self, prefix: str) -> dict[str, tuple[str, Any]]:
        return {
            maybe_prefix(prefix, source): (maybe_prefix(prefix, layer.name), shard)
            for layer in self.layers
            for source, shard in layer.sources
        }

    @property
    def packed_modules_mapping(self) -> dict[str, list[str]]:
        return {la.name: [s for s, _ in la.sources] for la in self.layers if la.sources}

    def fuse(self, module: nn.Module, prefix: str, vllm_config: Any) -> nn.Module:
        for layer in self.layers:
            bias = any(w.has_bias for w in layer.weights)
            made: Any = _build(layer, bias, prefix, vllm_config)
            if bias and layer.sources:  # a part without a bias of its own adds zero
                made.bias.data.zero_()
            for path in {p.module for w in layer.weights for p in w.parts}:
                owner, _, name = path.rpartition(".")
                delattr(module.get_submodule(owner), name)
            owner, _, name = layer.name.rpartition(".")
            setattr(module.get_submodule(owner), name, made)
            _attach(module, layer, made)
        module.__class__ = self.rewritten
        return module


def _build(layer: Layer, bias: bool, prefix: str, vllm_config: Any) -> nn.Module:
    weight = layer.weights[0]
    kwargs: dict[str, Any] = {
        "bias": bias,
        "quant_config": vllm_config.quant_config,
        "prefix": maybe_prefix(prefix, layer.name),
        "return_bias": False,
    }
    outputs = sum(w.out_features for w in layer.weights)
    made: nn.Module
    if layer.kind == "qkv":
        made = _build_qkv(layer, weight, vllm_config, kwargs)
    elif layer.kind in ("merged", "stacked"):
        alone = layer.kind == "stacked"
        sizes = [w.out_features for w in layer.weights]
        if len(layer.weights) == 1:
            sizes = list(weight.sizes)
        if not alone:
            _check_divides(layer, sizes, vllm_config)
        made = MergedColumnParallelLinear(weight.in_features, sizes, disable_tp=alone, **kwargs)
    elif layer.kind == "row":
        _check_divides(layer, [weight.in_features], vllm_config)
        made = RowParallelLinear(weight.in_features, outputs, **kwargs)
    else:
        made = ReplicatedLinear(weight.in_features, outputs, **kwargs)
    parts = [p for w in layer.weights for p in w.parts]
    columns = [c for p in parts for c in p.columns or ()]
    if columns:
        _check_reordered(layer, kwargs["prefix"], vllm_config)
    if columns or any(p.layout == "in_out" for p in parts):
        load_arranged(made, columns or None, transposed=parts[0].layout == "in_out")
    return made


def _check_reordered(layer: Layer, prefix: str, vllm_config: Any) -> None:
    """Quantized weights and LoRA adapters keep the checkpoint's order of columns."""
    for what, given in (("quantized", vllm_config.quant_config), ("LoRA", vllm_config.lora_config)):
        if given is not None:
            raise HostError(
                f"AP601: {layer.name}: its columns are put into another order, which {what} weights do not follow",
                prefix,
                "vllm serve MODEL --model-impl transformers",
            )


def _build_qkv(
    layer: Layer, weight: FusedWeight, vllm_config: Any, kwargs: dict[str, Any]
) -> nn.Module:
    query, key, value = weight.sizes
    head = weight.head_dim or 0
    heads, kv_heads = (query // head, key // head) if head else (0, 0)
    by_heads = head and query % head == 0 and key % head == 0 and value % kv_heads == 0
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if not by_heads:
        if ranks > 1:
            raise HostError(
                f"{layer.name}: {weight.sizes} are no whole heads of {head}, so {ranks} ranks cannot "
                "share them",
                kwargs["prefix"],
                "vllm serve MODEL --tensor-parallel-size 1",
            )
        return MergedColumnParallelLinear(weight.in_features, list(weight.sizes), **kwargs)
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise HostError(
            f"{heads} query and {kv_heads} key/value heads cannot be shared by {ranks} ranks",
            kwargs["prefix"],
            f"vllm serve MODEL --tensor-parallel-size {_largest_divisor(heads, ranks)}",
        )
    return QKVParallelLinear(
        weight.in_features, head, heads, kv_heads, v_head_size=value // kv_heads, **kwargs
    )


def _largest_divisor(heads: int, ranks: int) -> int:
    return max(n for n in range(1, ranks + 1) if heads % n == 0)


def _check_divides(layer: Layer, sizes: list[int], vllm_config: Any) -> None:
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if any(size % ranks for size in sizes):
        raise HostError(
            f"{layer.name}: width {sizes} is no multiple of {ranks} ranks",
            layer.name,
            "vllm serve MODEL --tensor-parallel-size 1",
        )


def _attach(module: nn.Module, layer: Layer, made: Any) -> None:
    """Give the module the attributes its rewritten forward reads."""
    owner_path, _, name = layer.name.rpartition(".")
    owner = module.get_submodule(owner_path)
    setattr(made, IS_GATED, layer.gated)
    for i, weight in enumerate(layer.weights):
        hosted: Any = LayerWeight(owner, name)
        if layer.kind in ("merged", "stacked") and len(layer.weights) == 2:
            hosted = LayerHalf(owner, name, second=i == 1)
        object.__setattr__(module, f"{weight.attr}_weight", hosted)
        object.__setattr__(module, f"{weight.attr}_bias", None)
        sizes = [size // made.tp_size for size in getattr(made, "output_sizes", ())]
        for attribute, value in plain_attributes(weight, sizes).items():
            object.__setattr__(module, attribute, value)


class PlannedFusers:
    """Module → its fusers, in the shape vLLM's backend asks for."""

    def __init__(self, rewrites: Iterable[tuple[nn.Module, RewriteModule]]) -> None:
        # The modules are kept: one that was replaced and freed could leave its identity to another.
        self.rewrites = {id(module): (module, rewrite) for module, rewrite in rewrites}

    def __getitem__(self, module: nn.Module) -> list[BaseFuser]:
        found = self.rewrites.get(id(module))
        return [] if found is None else [found[1]]
