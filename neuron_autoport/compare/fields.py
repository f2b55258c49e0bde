"""Two configurations, field by field; and where a configuration says something else than the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from transformers import PretrainedConfig

from neuron_autoport.compare.points import point_of
from neuron_autoport.compare.reading import Reading
from neuron_autoport.compare.schema import Disagreement, FieldDiff
from neuron_autoport.models.source import ModelSource

# The header says what these would; versions and paths are of a file, not of a model.
_LEFT_OUT = ("architectures", "model_type", "transformers_version", "_name_or_path", "auto_map")
_SAME_ACTIVATION = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "relu2": "relu2",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}  # fmt: skip


def field_diffs(a: PretrainedConfig, b: PretrainedConfig) -> list[FieldDiff]:
    """All fields that differ, or that one of the text configurations has; by name."""
    one, other = (dict(flat_fields(c.to_dict())) for c in (a, b))
    found = []
    for name in sorted(one.keys() | other.keys()):
        in_a, in_b = name in one, name in other
        if in_a and in_b and one[name] == other[name]:
            continue
        left, right = one.get(name), other.get(name)
        point = point_of(name)
        found.append(FieldDiff(name=name, point=point, in_a=in_a, in_b=in_b, a=left, b=right))
    return found


def flat_fields(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields with dotted names; what JSON does not have becomes text."""
    for name, value in fields.items():
        if not prefix and name in _LEFT_OUT:
            continue
        if isinstance(value, dict) and value and all(isinstance(k, str) for k in value):
            yield from flat_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value)


def layout(source: ModelSource) -> str:
    """`flat`, or the parts a configuration is made of."""
    parts = [
        name
        for name in source.config.sub_configs
        if isinstance(getattr(source.config, name, None), PretrainedConfig)
    ]
    if source.config is source.text_config:
        return "flat" if not parts else f"flat, beside {', '.join(parts)}"
    return f"nested: {', '.join(parts)}"


def disagreements(side: Any, source: ModelSource, reading: Reading) -> list[Disagreement]:
    """Fields of one model that say something else than its graph. side: `a` or `b`."""
    fields = dict(flat_fields(source.text_config.to_dict()))
    found = []
    for pattern, check in _CHECKS:
        for name, value in fields.items():
            if not re.fullmatch(pattern, name) or value is None:
                continue
            graph = check(value, reading)
            if graph is not None:
                found.append(Disagreement(side=side, field=name, value=value, graph=graph))
    return found


def _count(key: str, text: str) -> Callable[[Any, Reading], str | None]:
    """A check of a number that every attention has."""

    def check(value: Any, reading: Reading) -> str | None:
        seen = sorted({getattr(f, key) for f in reading.attention.values()})
        if not seen or not isinstance(value, int) or seen == [value]:
            return None
        return f"{' and '.join(map(str, seen))} {text}"

    return check


def _window(value: Any, reading: Reading) -> str | None:
    seen = {f.window for f in reading.attention.values() if not f.written_out}
    if not seen or not isinstance(value, int) or value in seen:
        return None
    return f"window {reading.values['attention.window']}"


def _is(key: str, text: str, spell: Callable[[Any], str]) -> Callable[[Any, Reading], str | None]:
    """A check of a value that the reading has as a text."""

    def check(value: Any, reading: Reading) -> str | None:
        seen = reading.values.get(key, "none")
        return None if spell(value) == seen or seen.startswith("not ") else f"{text} {seen}"

    return check


def _activation(value: Any, reading: Reading) -> str | None:
    wanted = _SAME_ACTIVATION.get(str(value))
    seen = sorted(set(reading.by_layer.get("mlp.activation", {}).values()))
    return f"activation {', '.join(seen)}" if seen and wanted and wanted not in seen else None


def _eps(value: Any, reading: Reading) -> str | None:
    seen = re.findall(r"eps ([\d.e+-]+)", reading.values["norm.form"])
    numbers = sorted({float(n) for n in seen})
    if not numbers or not isinstance(value, float) or any(_close(value, n) for n in numbers):
        return None
    return f"eps {', '.join(f'{n:g}' for n in numbers)}"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-5 * abs(one)


def _rotary(value: Any, reading: Reading) -> str | None:
    seen = {f.rope_width / f.head_dim for f in reading.attention.values() if f.rope_width}
    if not seen or not isinstance(value, int | float) or any(_close(value, s) for s in seen):
        return None
    return f"rotated {reading.values['position.width']}"


_CHECKS: tuple[tuple[str, Callable[[Any, Reading], str | None]], ...] = (
    (r"num_attention_heads|n_heads?", _count("heads", "query heads")),
    (r"num_key_value_heads", _count("kv_heads", "key/value heads")),
    (r"head_dim", _count("head_dim", "numbers in a head")),
    (r"num_hidden_layers|n_layers?", _is("layers.count", "layers:", str)),
    (r"sliding_window", _window),
    (r"hidden_act|hidden_activation|activation_function", _activation),
    (r"rms_norm_eps|layer_norm_eps|layer_norm_epsilon|norm_eps", _eps),
    (r"(rope_parameters\.)?partial_rotary_factor", _rotary),
    (r"tie_word_embeddings", _is("head.tied", "tied head:", lambda v: "yes" if v else "no")),
    (r"final_logit_softcapping", _is("logits.soft_cap", "soft-cap of logits:", "{:g}".format)),
    (r"attn_logit_softcapping", _is("attention.softcap", "soft-cap of scores:", "{:g}".format)),
)
