"""The decoder as vLLM compiles it, in a form whose compiled code can be kept for the next start.

vLLM writes the code that torch.compile makes to its cache and reads it at the next start. For a model of
transformers it cannot: the forward is wrapped in decorators, and pickle cannot name the function inside. Nor does
reading work with inductor's own format, to which vLLM's `finalize_loading` is missing. Here the decoder gets a plain
`forward` that calls the one it had, named after what was rewritten, and its code the missing method.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable
from torch._dynamo.exc import TorchDynamoException
from vllm.logger import init_logger

from neuron_autoport import __version__
from neuron_autoport.hosts.vllm.operations import kept
from neuron_autoport.hosts.vllm.packed.build import Kernel
from neuron_autoport.hosts.vllm.packed.layers import usable_kernel
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.rewrite.plan import ClassPlan

logger = init_logger("vllm.neuron_autoport")  # below vLLM's root, so that its lines are shown
_INPUTS = {"input_ids": 1, "inputs_embeds": 1, "position_ids": -1}  # with the axis of the tokens


def compile_decoder(model: Any, proved: ProvedPort) -> None:
    """Make the decoder of a hosted model one that vLLM compiles.

    Args:
        model: vLLM's model; `model.model` is transformers', with its modules already replaced.
        proved: what was rewritten. Compiled code of another rewrite is never read.
    """
    from vllm.compilation.decorators import DynamicArgDims
    from vllm.model_executor.models.transformers.utils import can_enable_torch_compile

    decoder: nn.Module = model.model.get_decoder()
    original = type(decoder)
    if not set(_INPUTS) <= set(inspect.signature(original.forward).parameters):
        return  # vLLM compiles by the inputs it knows; this one runs as it is
    members = {
        "__init__": _built,
        "forward": _forward_of(proved, usable_kernel(model.model_config.dtype)),
        "inner_forward": original.forward,
    }
    plain = type(original.__name__, (original,), members)
    dims = DynamicArgDims(**_INPUTS)
    model._decorate_cls_for_torch_compile(plain, dims, can_enable_torch_compile, is_encoder=False)
    keeping: Any = type(original.__name__, (_KeepsItsCode, plain), {})
    decoder.__class__ = keeping
    keeping.__init__(decoder)  # vLLM's part of it; the modules are there


def share_code(model: Any) -> None:
    """Let layers of one class be compiled once: code of the first runs for all whose graphs are the same.

    Only where all that tells vLLM's layers apart in a graph is a tensor; a name in the graph makes code for each.

    Args:
        model: vLLM's model, its attention layers made.
    """
    known = model.vllm_config.compilation_config.static_forward_context.values()
    if not all(getattr(layer, "in_one_call", False) for layer in known):
        return
    decoder: Any = model.model.get_decoder()
    if not hasattr(decoder, "alone"):  # it is not compiled
        return
    layers = _layers(decoder)
    classes = {cls: _as_region(cls) for cls in map(type, layers)}
    decoder.alone = [(layer, type(layer)) for layer in layers]
    for layer in layers:
        layer.__class__ = classes[type(layer)]


def _layers(decoder: nn.Module) -> list[nn.Module]:
    """What stands in the decoder's lists of modules, but in no such module itself."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in decoder.modules():  # the outer ones first
        if isinstance(module, nn.ModuleList) and module not in inside:
            found += module
            inside.update(*(layer.modules() for layer in module))
    return found


def _as_region(cls: type[Any]) -> type[Any]:
    """The class with its forward a region that torch.compile compiles once for all graphs that are the same.

    Torch would also take a later layer for the same without tracing it, by guards; they miss that a child is of another
    class. It does so only where tensors alone are returned, hence the None: then graphs are compared.
    """

    def traced(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        return cls.forward(self, *args, **kwargs), None

    region = torch.compiler.nested_compile_region(traced)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return region(self, *args, **kwargs)[0]

    return type(cls.__name__, (cls,), {"forward": forward})


def keep_tables(parts: Iterable[tuple[str, ClassPlan, nn.Module]]) -> None:
    """Let modules that only make sines and cosines make them once, not again wherever they are read."""
    for _, plan, module in parts:
        alone = next(module.children(), None) is None and next(module.parameters(), None) is None
        if alone and any(op.name in ("cos", "sin") for op in plan.graph.ops):
            cls = type(module)
            members = {"forward": _kept_forward, "inner_forward": cls.forward}
            module.__class__ = type(cls.__name__, (cls,), members)


def _kept_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    made = self.inner_forward(*args, **kwargs)
    return kept(made) if isinstance(made, torch.Tensor) else tuple(kept(x) for x in made)


def _built(self: nn.Module) -> None:
    """Nothing: the modules are already there."""


def _forward(
    self: Any,
    input_ids: Any = None,
    inputs_embeds: Any = None,
    position_ids: Any = None,
    **others: Any,
) -> Any:
    return self.inner_forward(
        input_ids=input_ids, inputs_embeds=inputs_embeds, position_ids=position_ids, **others
    )


def _forward_of(proved: ProvedPort, kernel: Kernel | None) -> types.FunctionType:
    """`_forward` under a name of its own, which is in the key vLLM keeps compiled code by.

    vLLM's key has its configuration and versions, not what we rewrote, what that calls, nor how we host it.
    """
    level = kernel.level.architecture if kernel is not None else ""
    digest = hashlib.sha256(f"{__version__}\0{level}\0{proved.generated.text}".encode())
    package = Path(__file__).parents[2]
    for part in ("hosts/vllm", "nf", "kernels"):
        for file in sorted((package / part).rglob("*.*")):
            if file.suffix in (".py", ".cpp", ".h"):
                digest.update(file.read_bytes())
    made = types.FunctionType(
        _forward.__code__, globals(), _forward.__name__, _forward.__defaults__
    )
    made.__qualname__ = f"forward_{digest.hexdigest()[:16]}"
    return made


class _Code(BundledAOTAutogradSerializableCallable):
    """Compiled code as torch keeps it, with the method that vLLM calls when it has read it."""

    def finalize_loading(self, vllm_config: Any) -> None:
        """Nothing is left to do."""


class _KeepsItsCode:
    """Over vLLM's decoration of a class: its code is written as `_Code`, and what cannot be compiled runs as it is.

    alone: layers that share code, with the class of each without that.
    """

    aot_compiled_fn: Any = None
    do_not_compile: bool
    alone: Sequence[tuple[nn.Module, type[Any]]] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = super().__call__  # type: ignore[misc]  # of the class it is mixed into
        if self.aot_compiled_fn is not None or self.do_not_compile:
            return run(*args, **kwargs)
        if self.alone:
            try:
                return run(*args, **kwargs)
            except (TorchDynamoException, RuntimeError) as error:
                logger.info("autoport: layers are compiled one by one: %s", _first_line(error))
            for layer, cls in self.alone:
                layer.__class__ = cls
            self.alone = ()
            torch.compiler.reset()
        try:
            return run(*args, **kwargs)
        except TorchDynamoException as error:
            logger.warning(
                "autoport: the model is not compiled, which makes it slower: torch.compile cannot follow it: %s",
                _first_line(error),
            )
        self.do_not_compile = True
        return run(*args, **kwargs)

    def save_aot_compiled_function(self) -> None:
        """Called by vLLM after compilation."""
        artifacts = self.aot_compiled_fn._artifacts
        if type(artifacts.compiled_fn) is BundledAOTAutogradSerializableCallable:
            artifacts.compiled_fn = _Code(artifacts.compiled_fn.compiled_fn)
        super().save_aot_compiled_function()  # type: ignore[misc]


def _first_line(error: BaseException) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
