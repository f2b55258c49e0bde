"""Which decoder layers of a model differ in kind, and how a configuration is cut to a few of them.

Kinds are read from the model as built on meta (classes, attributes, parameter shapes of each layer) and from
the per-layer lists of its configuration, so no field needs to be known for a kind to be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
# "The first k layers are ...": becomes the number of kept layers among the first k.
_FIRST_K = ("first_k_dense_replace", "num_dense_layers", "max_window_layers")
# "The last k layers are ...".
_LAST_K = ("num_kv_shared_layers",)
_MOST_LAYERS = 6

Column = tuple[str, str]


@dataclass(frozen=True)
class LayerKinds:
    """The kind of every layer of one stack.

    Attributes:
        exact: per layer, all that tells it from others, sizes included.
        abstract: per layer, the same without sizes: what a tiny model must still have.
    """

    exact: list[frozenset[tuple[Column, str]]]
    abstract: list[frozenset[tuple[Column, str]]]


def layer_stack(model: nn.Module, layers: int) -> list[nn.Module]:
    """The model's decoder layers: its largest list of `layers` modules outside any other list."""
    found: list[list[nn.Module]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not re.search(r"\.\d+(\.|$)", name):
            found.append(list(module))
    fitting = [stack for stack in found if len(stack) == layers] or found
    sizes = [sum(p.numel() for m in stack for p in m.parameters()) for stack in fitting]
    return fitting[sizes.index(max(sizes))] if fitting else []


def layer_kinds(stack: Sequence[nn.Module], config: Mapping[str, Any]) -> LayerKinds:
    """Kind of each layer in `stack`; `config` is the text configuration as a dict."""
    rows = [_columns(layer) for layer in stack]
    for index, row in enumerate(rows):
        row |= {("config", key): value for key, value in _config_entries(config, index, len(rows))}
    names = sorted({name for row in rows for name in row})
    # A column that is different in nearly every layer counts layers (an index, a depth-dependent
    # constant): it does not make kinds.
    limit = max(3, len(rows) // 4)
    columns = [c for c in names if len({repr(row.get(c)) for row in rows}) <= limit]
    exact = [frozenset((c, repr(row.get(c))) for c in columns) for row in rows]
    abstract = [
        frozenset(
            ((_no_digits(c[0]), c[1]), _no_size(row[c]))
            for c in columns
            if c in row and c[1] != "shape"
        )
        for row in rows
    ]
    return LayerKinds(exact, abstract)


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


def _no_size(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return "set" if isinstance(value, dict | list | tuple) else repr(value)


def kept_layers(kinds: Sequence[object]) -> list[list[int]]:
    """Choices of layers that together have every kind, the preferred first; at least two layers.

    The shortest prefix if it is short (periods and offsets then keep their meaning); else the first layer
    of each kind, and the long prefix as the second choice.
    """
    if not kinds:
        return [[]]
    first = {kind: i for i, kind in reversed(list(enumerate(kinds)))}
    prefix = list(range(min(len(kinds), max(2, max(first.values()) + 1))))
    if len(prefix) <= _MOST_LAYERS:
        return [prefix]
    picked = sorted(first.values())
    if len(picked) < 2:
        picked = sorted({*picked, 0, 1})
    return [picked, prefix]


def cut_layers(config: dict[str, Any], keep: Sequence[int], layers: int) -> dict[str, Any]:
    """`config` with only the layers `keep` of its `layers` layers: counts, lists, indices, overrides."""
    place = {old: new for new, old in enumerate(keep)}
    out = dict(config)
    for key, value in config.items():
        if key in LAYER_COUNTS and value == layers:
            out[key] = len(keep)
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
    return value == sorted(set(value)) and 0 <= value[0] and value[-1] < layers
