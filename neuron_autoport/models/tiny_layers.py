"""Which decoder layers of a model differ in kind, and how a configuration is cut to a few of them.

Kinds are read from the model as built on meta (classes, attributes, parameter shapes of each layer)
and from the per-layer lists of its configuration, so no field needs to be known for a kind to be
seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

LAYER_COUNTS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "num_layers_per_stack",
)  # fmt: skip
# "The first k layers are ...": becomes the number of kept layers among the first k.
_FIRST_K = ("first_k_dense_replace", "num_dense_layers", "max_window_layers")
# "The last k layers are ...".
_LAST_K = ("num_kv_shared_layers",)
_MOST_LAYERS = 6
_MOST_VALUES = 4

Column = tuple[str, str]


@dataclass(frozen=True)
class LayerKinds:
    """The kind of every layer of one stack.

    Attributes:
        exact: per layer, all that tells it from others, sizes included.
        abstract: per layer, its classes, flags and names without numbers: what a tiny model must
            still have.
    """

    exact: list[frozenset[tuple[Column, str]]]
    abstract: list[frozenset[tuple[Column, str]]]


def layer_stack(model: nn.Module, config: Mapping[str, Any]) -> list[nn.Module]:
    """The model's decoder layers: its largest list of modules, as long as `config` has layers.

    Lists inside other lists (experts, per-head norms) do not count. Empty if there is no such list.
    """
    counts = {config[name] for name in LAYER_COUNTS if isinstance(config.get(name), int)}
    found: list[list[nn.Module]] = []
    get_decoder = getattr(model, "get_decoder", None)  # leaves out vision and audio towers
    decoder = get_decoder() if get_decoder is not None else None
    for name, module in (decoder if isinstance(decoder, nn.Module) else model).named_modules():
        if isinstance(module, nn.ModuleList) and not re.search(r"\.\d+(\.|$)", name):
            found.append(list(module))
    fitting = [stack for stack in found if len(stack) in counts]
    sizes = [sum(p.numel() for m in stack for p in m.parameters()) for stack in fitting]
    return fitting[sizes.index(max(sizes))] if fitting else []


def layer_kinds(stack: Sequence[nn.Module], config: Mapping[str, Any]) -> LayerKinds:
    """Kind of each layer in `stack`; `config` is the text configuration as a dict."""
    rows = [_columns(layer) for layer in stack]
    for index, row in enumerate(rows):
        row |= {("config", key): value for key, value in _config_entries(config, index, len(rows))}
    names = sorted({name for row in rows for name in row})
    # More values than this count layers (an index, a depth-dependent constant): they make no kinds.
    columns = [c for c in names if len({repr(row.get(c)) for row in rows}) <= _MOST_VALUES]
    exact = [frozenset((c, repr(row.get(c))) for c in columns) for row in rows]
    abstract = [
        frozenset(
            ((_no_digits(c[0]), c[1]), repr(row[c]))
            for c in columns
            if isinstance(row.get(c, 0), bool | str | None)
        )
        for row in rows
    ]
    return LayerKinds(exact, abstract)


def lost_kinds(original: LayerKinds, tiny: LayerKinds) -> list[str]:
    """What differs between two models' kinds of layers, as "place name value"; empty if nothing.

    Compared are the columns both have: a cycle of three may look like a list per layer in a model
    of three layers, and per-head modules come and go with the number of heads.
    """
    left_columns, right_columns = (
        {column for kind in kinds.abstract for column, _ in kind} for kinds in (original, tiny)
    )
    both = left_columns & right_columns
    left, right = (
        {frozenset(item for item in kind if item[0] in both) for kind in kinds.abstract}
        for kinds in (original, tiny)
    )
    if left == right:
        return []
    common = frozenset.intersection(*left, *right)
    odd = frozenset().union(*(left ^ right)) - common
    return sorted(f"{place} {name} {value}".strip() for (place, name), value in odd)


def _columns(layer: nn.Module) -> dict[Column, Any]:
    row: dict[Column, Any] = {}
    for path, module in layer.named_modules():
        row[path, "class"] = type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            row[f"{path}.{name}", "shape"] = tuple(parameter.shape)
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, bool | int | float | str | None):
                row[path, name] = value
    return row


def _config_entries(
    config: Mapping[str, Any], index: int, layers: int
) -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, list) and len(value) == layers:
            yield key, value[index]
        elif key == "per_layer_config" and isinstance(value, dict):
            yield key, {int(k): v for k, v in value.items()}.get(index)


def _no_digits(path: str) -> str:
    return re.sub(r"\d+", "*", path)


def kept_layers(kinds: Sequence[object]) -> list[list[int]]:
    """Choices of layers that together have every kind, the preferred first; at least two layers.

    The shortest prefix if it is short (periods and offsets then keep their meaning), else the first
    layer of each kind. Then the long prefix, and at last one that has each repeated kind twice, for
    models that tie one layer's weights to another's.
    """
    if not kinds:
        return [[]]
    places: dict[object, list[int]] = {}
    for index, kind in enumerate(kinds):
        places.setdefault(kind, []).append(index)
    first = sorted(p[0] for p in places.values())
    prefix, twice = (
        list(range(min(len(kinds), max(2, last + 1))))
        for last in (first[-1], max(p[:2][-1] for p in places.values()))
    )
    picked = first if len(first) >= 2 else sorted({*first, *range(min(2, len(kinds)))})
    choices = [prefix, twice] if len(prefix) <= _MOST_LAYERS else [picked, prefix, twice]
    return [choice for i, choice in enumerate(choices) if choice not in choices[:i]]


def cut_layers(config: dict[str, Any], keep: Sequence[int], layers: int) -> dict[str, Any]:
    """`config` with only the layers `keep` of its `layers`: counts, lists, indices, overrides."""
    place = {old: new for new, old in enumerate(keep)}
    out = dict(config)
    for key, value in config.items():
        if key in LAYER_COUNTS and isinstance(value, int) and value % layers == 0:
            # A multiple counts a layer more than once (cycles, two attentions per layer).
            out[key] = value // layers * len(keep)
        elif key in _FIRST_K and isinstance(value, int):
            out[key] = sum(old < value for old in keep)
        elif key in _LAST_K and isinstance(value, int):
            out[key] = sum(old >= layers - value for old in keep)
        elif key == "per_layer_config" and isinstance(value, dict):
            out[key] = {place[int(k)]: v for k, v in value.items() if int(k) in place}
        elif key.endswith("_end_index") and isinstance(value, int) and value >= layers - 1:
            out[key] = len(keep) - 1
        elif isinstance(value, list) and _are_indices(value, layers):
            out[key] = [place[old] for old in value if old in place]
        elif isinstance(value, list) and len(value) == layers:
            out[key] = [value[old] for old in keep]
    if "attention_types" in out and isinstance(out.get("attention_layers"), list):
        out["attention_types"] = [[out["attention_layers"], 1]]
    return out


def _are_indices(value: list[Any], layers: int) -> bool:
    """True for a list of layer numbers, such as "the layers with experts"."""
    if not value or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return False
    return value == sorted(set(value)) and value[0] >= 0 and value[-1] < layers


def cut_to_two(config: dict[str, Any]) -> dict[str, Any]:
    """A nested configuration whose layers are not the decoder's: its first two layers."""
    layers = next((config[n] for n in LAYER_COUNTS if isinstance(config.get(n), int)), 0)
    return cut_layers(config, range(min(2, layers)), layers) if layers else config
