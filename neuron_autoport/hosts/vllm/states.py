"""Recurrent state on vLLM's engine: a mixer of transformers runs one request at a time on states in vLLM's cache.

Mixers (Mamba, gated delta rule, short convolution) keep their state through one interface of transformers' cache:
`update_conv_state` and `update_recurrent_state`. The host hands each call a cache whose tensors are the request's
block of vLLM's state cache. Which states there are, and their shapes, is read by running the mixer on meta.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicCache, LinearAttentionLayer
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from neuron_autoport.hosts.vllm.compat import HostError, refused
from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan

_UPDATES = ("update_conv_state", "update_recurrent_state")
CONV, RECURRENT = "conv", "recurrent"


@dataclass(frozen=True)
class State:
    """One state of a mixer. kind: `conv` or `recurrent`. index: among the layer's. shape: of one request."""

    kind: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


_arguments: dict[type, str | None] = {}


def state_argument(cls: type) -> str | None:
    """The parameter of a module's forward that is the cache its state is kept in, or None if it has no state."""
    if cls not in _arguments:
        _arguments[cls] = _read_argument(cls)
    return _arguments[cls]


def _read_argument(cls: Any) -> str | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        known = inspect.signature(cls.forward).parameters
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    for node in ast.walk(tree):
        call = node.func if isinstance(node, ast.Call) else None
        if isinstance(call, ast.Attribute) and call.attr in _UPDATES:
            owner = call.value
            if isinstance(owner, ast.Name) and owner.id in known:
                return owner.id
    return None


def read_states(module: nn.Module, width: int, config: PretrainedConfig) -> tuple[State, ...]:
    """The states of one mixer, read from a run on the meta device.

    Args:
        module: the mixer, with a `layer_idx`. width: of its rows. config: of the text model.
    """
    argument = state_argument(type(module))
    assert argument is not None
    alone = copy.deepcopy(module).to("meta").eval()
    cache = DynamicCache(config=config)
    dtype = next(p.dtype for p in alone.parameters())
    rows = torch.empty(1, 8, width, dtype=dtype, device="meta")
    with torch.no_grad():
        alone(rows, **{argument: cache})
    layer = cache.layers[int(alone.layer_idx)]  # type: ignore[arg-type]
    found = []
    for kind, states in ((CONV, layer.conv_states), (RECURRENT, layer.recurrent_states)):
        for index, state in states.items():
            if state is not None:
                found.append(State(kind, index, tuple(state.shape[1:]), state.dtype))
    return tuple(found)


class _RequestLayer(LinearAttentionLayer):
    """One request's states: tensors of vLLM's cache, written in place."""

    def __init__(self, count: int, held: dict[tuple[str, int], torch.Tensor], seen: bool) -> None:
        super().__init__(number_of_states=count)
        self.held = held
        if seen:
            for kind, index in held:
                self.take(kind, index)

    def take(self, kind: str, index: int) -> None:
        tensor = self.held[kind, index]
        self.dtype, self.device = tensor.dtype, tensor.device
        if kind == CONV:
            self.conv_states[index] = tensor
            self.conv_kernel_size[index] = tensor.shape[-1]
            self.is_conv_states_initialized[index] = True
            self.has_previous_state[index] = True
        else:
            self.recurrent_states[index] = tensor
            self.is_recurrent_states_initialized[index] = True

    def lazy_initialization(
        self,
        conv_states: torch.Tensor | None = None,
        recurrent_states: torch.Tensor | None = None,
        state_idx: int = 0,
        **_: Any,
    ) -> None:
        """The first chunk of a request: its block may hold another request's numbers."""
        for kind, given in ((CONV, conv_states), (RECURRENT, recurrent_states)):
            if given is not None:
                self.held[kind, state_idx].zero_()
                self.take(kind, state_idx)
        if conv_states is not None:
            self.has_previous_state[state_idx] = False


class MixerState(MambaBase):
    """The state cache of one mixer, known to vLLM by the name of its layer.

    Args:
        name: of the layer in vLLM's forward context. states: what the mixer keeps.
        continued: it goes on from its state with several tokens at once, else with one.
    """

    def __init__(self, name: str, states: tuple[State, ...], continued: bool) -> None:
        self.name, self.states, self.continued = name, states, continued
        self.kv_cache = ()

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return tuple(s.shape for s in self.states)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return tuple(s.dtype for s in self.states)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.LINEAR

    def request_cache(self, layer: int, block: int | None, *, seen: bool) -> Cache:
        """A cache of transformers for one request; `block` None: it is forgotten after the call."""
        held = {
            (s.kind, s.index): torch.zeros(1, *s.shape, dtype=s.dtype)
            if block is None
            else self.kv_cache[i][block : block + 1]
            for i, s in enumerate(self.states)
        }
        count = 1 + max((s.index for s in self.states), default=0)
        own = _RequestLayer(count, held, seen)
        return Cache(layers=[own] * (layer + 1))

    def run(self, module: Any, argument: str, rows: torch.Tensor, kwargs: dict[str, Any]) -> Any:
        """The mixer on rows [1, T, H] of several requests, each with its own state."""
        metadata = get_forward_context().attn_metadata
        own = metadata.get(self.name) if isinstance(metadata, dict) else None
        layer = int(module.layer_idx)
        call = functools.partial(type(module).forward, module)
        if own is None:  # vLLM measures memory
            return call(rows, **kwargs, **{argument: self.request_cache(layer, None, seen=False)})
        starts = own.query_start_loc.tolist()
        lengths, blocks = own.seq_lens.tolist(), own.state_indices_tensor.tolist()
        parts = []
        for start, end, length, block in zip(starts, starts[1:], lengths, blocks, strict=False):
            seen = length > end - start
            step = 1 if seen and not self.continued else max(end - start, 1)
            for at in range(start, end, step):
                cache = self.request_cache(layer, block, seen=seen)
                some = {k: _rows_of(v, at, at + step, rows.shape[1]) for k, v in kwargs.items()}
                parts.append(call(rows[:, at : at + step], **some, **{argument: cache}))
        return _joined(parts, rows.shape[1])


def _rows_of(value: Any, start: int, end: int, total: int) -> Any:
    """The part of one request of an argument that has a row per token."""
    if isinstance(value, tuple):
        return tuple(_rows_of(v, start, end, total) for v in value)
    if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == total:
        return value[:, start:end]
    return value


def _joined(parts: list[Any], total: int) -> Any:
    """What the requests gave, one after the other; rows after the last are padding."""
    if isinstance(parts[0], tuple):
        return tuple(
            None if p[0] is None else _joined(list(p), total) for p in zip(*parts, strict=True)
        )
    out = torch.cat(parts, dim=1)
    missing = total - out.shape[1]
    return out if not missing else nn.functional.pad(out, (0, 0, 0, missing))


def states_of(
    model: nn.Module, port: Port, config: PretrainedConfig
) -> dict[str, tuple[State, ...]]:
    """The states of every mixer of a base model, by path.

    Args:
        port: of the model, for the widths of what each mixer is given.
    """
    found = {}
    inside = f"{port.base}." if port.base else ""
    for path, module in model.named_modules():
        plan = port.where.get(f"{inside}{path}")
        if plan is not None and state_argument(type(module)) is not None:
            width = int(plan.graph.inputs()[0].shape[-1])
            found[path] = read_states(module, width, config)
    return found


def states_line(states: dict[str, tuple[State, ...]]) -> str:
    """For the start-up log."""
    size = sum(s.bytes for own in states.values() for s in own)
    return f"{len(states)} mixers keep their state in vLLM's cache, {size} bytes a request; each request runs alone"


def host_states(model: Any) -> dict[str, tuple[State, ...]]:
    """Give every mixer of the host's model a state cache; its states by path.

    Args:
        model: the host's model, its modules as transformers made them.

    Raises:
        HostError: attention inside a mixer, or a model that vLLM was not told has states.
    """
    port = model.proved.port
    found = states_of(model.model, port, model.text_config)
    where = str(model.model_config.model)
    if found and not model.with_states:
        what = f"{next(iter(found))} keeps a state that the configuration does not tell of"
        raise refused("AP411", what, where)
    if found and model.cache_config.enable_prefix_caching:
        what = "states of a shared prefix are not kept"
        raise HostError(f"AP411: {what}", where, "vllm serve MODEL --no-enable-prefix-caching")
    context = model.compilation_config.static_forward_context
    inside = f"{port.base}." if port.base else ""
    asking = {p.removeprefix(inside) for p, plan in port.where.items() if _attends(plan)}
    for path, states in found.items():
        if any(a == path or a.startswith(f"{path}.") for a in asking):
            what = f"{path} has both a state and an attention of its own"
            raise refused("AP411", what, where)
        module = model.model.get_submodule(path)
        argument = state_argument(type(module))
        assert argument is not None
        name = f"model.{path}.state"
        continued = model.continued.get(type(module).__name__, False)
        context[name] = state = MixerState(name, states, continued)
        module.forward = _hosted(state, module, argument)
    return found


def _attends(plan: ClassPlan) -> bool:
    return any(op.name == "attention" for op in plan.graph.ops)


def _hosted(state: MixerState, module: nn.Module, argument: str) -> Any:
    names = tuple(inspect.signature(type(module).forward).parameters)[1:]

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        given.pop(argument, None)
        return state.run(module, argument, given.pop(names[0]), given)

    return forward
