"""A model whose layers write out their attention, as one whose layers ask the attention interface for it.

Read from the graph of the model with its attention written out, on positions alone; rewritten in the source; proved on
a small model. What cannot be read stays as it is, with the reason.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from vllm.model_executor.models.transformers.utils import init_on_device_without_buffers

from neuron_autoport.hosts.vllm.written_out.attending import MASKLESS, Attending
from neuron_autoport.hosts.vllm.written_out.classes import make_class
from neuron_autoport.hosts.vllm.written_out.facts import Form, one_form, read_form, tables
from neuron_autoport.hosts.vllm.written_out.known import Values, known_values
from neuron_autoport.hosts.vllm.written_out.read import NotPlain, find_written_out
from neuron_autoport.hosts.vllm.written_out.region import rewrite_region
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import base_path, example_inputs
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.tracer import trace_model

# The longest prompt that a model traces with: some have tables for few positions.
_TOKENS = (61, 29, 11)
# Of a small model, which has few heads: longer than a window that is written in the code.
_SMALL_TOKENS = (521, *_TOKENS)


@dataclass
class Reading:
    """What one model's layers write out. forms: by path below the base model. classes: the rewritten ones.

    reasons: why a class stays as it is, by its name. tabled: paths whose mask is a table of the layer's own.
    """

    forms: dict[str, Form] = field(default_factory=dict)
    classes: dict[type[nn.Module], type[nn.Module]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    tabled: set[str] = field(default_factory=set)


def writes_out(trace: ModuleTrace) -> bool:
    """Does a class compute a softmax between two products of its own?"""
    try:
        return find_written_out(trace) is not None
    except NotPlain:
        return True


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """On the CPU and in float32 whatever is made; a host builds models under other defaults."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(default)


@plain_torch()
def read_layers(source: ModelSource, lengths: tuple[int, ...] = _TOKENS) -> Reading:
    """Read and rewrite the layers of a model; what cannot be is left, with its reason.

    Args:
        lengths: of the prompt, tried in turn.
    """
    reading = Reading()
    traced = _trace(source, lengths)
    if traced is None:
        return reading
    with init_on_device_without_buffers("meta"):
        model = _build(source)
    base = base_path(model)
    texts: dict[type, str] = {}

    def see(path: str, trace: ModuleTrace, values: Values) -> None:
        cls = trace.module_class
        try:
            found = find_written_out(trace)
            if found is None:
                return
            module = model.get_submodule(path)
            form = read_form(found, values, trace, module)
            made = rewrite_region(found, trace)
            if texts.setdefault(cls, made.text) != made.text:
                raise NotPlain("its layers take different branches")
            form = one_form(replace(form, flat_weights=made.flat_weights))
            below = path.removeprefix(f"{base}.") if base else path
            if reading.forms.setdefault(below, form) is not form:
                raise NotPlain("its passes attend differently")
        except NotPlain as why:
            reading.reasons.setdefault(cls.__name__, str(why))
            return
        reading.classes[cls] = make_class(cls, made)
        if tables(found, trace, module):
            reading.tabled.add(below)

    known_values(traced, model, see)
    for cls in [c for c in reading.classes if c.__name__ in reading.reasons]:
        del reading.classes[cls]
    return reading


def _trace(source: ModelSource, lengths: tuple[int, ...]) -> ModuleTrace | None:
    """The model traced with its attention as written, in float32 on meta; None if it does not run."""
    for tokens in lengths:
        model = meta_model(source, dtype=torch.float32, attn_implementation="eager")
        trace = trace_model(model, (), example_inputs(tokens))
        if all(part.end is None for _, part in trace.walk()):
            return trace
    return None


def _build(source: ModelSource) -> nn.Module:
    config = copy.deepcopy(source.config)
    kwargs = {"trust_remote_code": True} if source.trust_remote_code else {}
    model: nn.Module = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager", **kwargs
    )
    return model.eval()


class Speaker:
    """Makes the layers of a model ask the attention interface, right after the model is built.

    Args:
        source: the model as it is. reading: of it. classes: those that are rewritten.
    """

    def __init__(self, source: ModelSource, reading: Reading) -> None:
        self.source, self.classes = source, reading.classes
        self.readings = {_key(source.config): reading}

    def reading(self, config: PretrainedConfig) -> Reading:
        """Of a model of this kind, the full one or a small one."""
        key = _key(config)
        if key not in self.readings:
            text = config.get_text_config()
            small = replace(self.source, config=config, text_config=text)
            self.readings[key] = read_layers(small, _SMALL_TOKENS)
        return self.readings[key]

    def __call__(self, model: Any, implementation: str | None) -> None:
        """Change a model, built with its attention written out.

        Args:
            implementation: what its layers are to ask for; None as they are.
        """
        if implementation is None:
            return
        reading = self.reading(model.config)
        base = base_path(model)
        for path, module in model.named_modules():
            below = path.removeprefix(f"{base}.") if base else path
            made = reading.classes.get(type(module))
            if made is None or made is not self.classes.get(type(module)):
                continue
            module.__class__ = made
            module.attention_form = reading.forms[below]
            module.attention_call = implementation
        model.config._attn_implementation = MASKLESS


# Fields of a configuration that do not change what its layers compute.
_OTHERS = frozenset(
    ("transformers_version", "dtype", "_attn_implementation", "architectures", "_name_or_path")
)


def _key(config: PretrainedConfig) -> str:
    """Equal for configurations of the same model, in whatever dtype and however it is to attend."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if k not in _OTHERS}
        return value

    return json.dumps(kept(json.loads(config.to_json_string(use_diff=False))), sort_keys=True)


def asks_interface(module: nn.Module) -> bool:
    """Is this a layer that was rewritten to ask the interface?"""
    return isinstance(module, Attending)
