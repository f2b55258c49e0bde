"""A model's real weights for `autoport validate`: all in memory, or one unit at a time from disk.

A *unit* is a decoder layer, or another top module that holds weights (embedding, last norm, head).
Whether the whole model fits is estimated before anything is loaded. What does not fit is read
through accelerate's disk offload, which maps the checkpoint's own files and copies nothing.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from neuron_autoport.errors import AutoportError, ModelError
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.checkpoint import check_files, check_loaded, check_shape
from neuron_autoport.models.failures import BUILD_ERRORS, one_line
from neuron_autoport.models.source import ModelSource

GIB = 2**30
_LOAD_ERRORS: tuple[type[Exception], ...] = (OSError, KeyError, *BUILD_ERRORS)
# What the process itself takes: torch, transformers, traces, Python.
_BASE = int(0.8 * GIB)


@dataclass(frozen=True)
class Memory:
    """Bytes that are expected to be needed, and that there are.

    whole: with the model in memory. layered: one unit at a time. available: on this machine, or the
    limit that was given. weights: of the checkpoint in float32.
    """

    weights: int
    whole: int
    layered: int
    available: int

    @property
    def fits(self) -> bool:
        return self.whole <= self.available

    def text(self) -> str:
        parts = [f"{n} {b / GIB:.1f} GiB" for n, b in (
            ("in memory", self.whole), ("layer by layer", self.layered), ("available", self.available),
        )]  # fmt: skip
        return ", ".join(parts)


def available_memory() -> int:
    """Bytes this process may still take: the machine's free memory, or what its cgroup leaves."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        free = min(free, limit - used)
    return max(0, free)


def estimate_memory(
    source: ModelSource | PretrainedConfig,
    dtype: torch.dtype,
    tokens: int,
    limit: int | None = None,
) -> Memory:
    """Estimate before loading, from the shapes of the meta model.

    Args:
        dtype: of the port. tokens: all prompts together. limit: bytes to stay within; None for
            what the machine has.
    """
    model = meta_model(source, attn_implementation="eager")
    count = sum(p.numel() for p in model.parameters())
    largest = max(
        (sum(p.numel() for p in model.get_submodule(u).parameters()) for u in units_of(model)),
        default=count,
    )
    config = model.config.get_text_config()
    width = torch.finfo(dtype).bits // 8
    # Of a unit: float32, then reference, truth and port in the dtype's own and the higher width.
    unit = largest * (4 + 2 * width + 8)
    logits = 4 * tokens * config.vocab_size * 4
    states = 4 * tokens * config.hidden_size * 8 * len(units_of(model))
    activations = logits + states + _BASE
    # The reference in float32 beside reference and port in the dtype; in float32 the truth is float64.
    whole = count * (4 + (2 * width if width < 4 else 12)) + unit + activations
    layered = unit + activations
    return Memory(4 * count, whole, layered, available_memory() if limit is None else limit)


def units_of(model: nn.Module) -> list[str]:
    """Paths of the model's units in the order of its modules; together they hold its parameters.

    The elements of the uppermost lists of modules, and beside these every module that holds
    parameters. Parameters of a container itself are in no unit: they stay in memory.
    """
    found: list[str] = []

    def visit(module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            below = f"{path}.{name}" if path else name
            if isinstance(child, nn.ModuleList):
                found.extend(f"{below}.{i}" for i in range(len(child)))
            elif any(isinstance(m, nn.ModuleList) for m in child.modules()):
                visit(child, below)
            elif any(True for _ in child.parameters()):
                found.append(below)

    visit(model, "")
    return found


class Weights:
    """The reference in float32: `model` (weights on meta if layered) and `unit(path)`.

    layered: no more than one unit is in memory at a time.
    """

    def __init__(
        self, source: ModelSource | PretrainedConfig, model: nn.Module, maps: dict[str, Any] | None
    ) -> None:
        self.source, self.model, self._maps = source, model, maps
        for module in model.modules():
            # Experts by plain products: the grouped ones of some dtypes do not run in float64.
            config: Any = getattr(module, "config", None)
            if getattr(config, "_experts_implementation", None) is not None:
                config._experts_implementation = "eager"
        self.units = units_of(model)

    @property
    def layered(self) -> bool:
        return self._maps is not None

    def unit(self, path: str) -> nn.Module:
        """A copy of one unit with its real weights, float32."""
        made = copy.deepcopy(self.model.get_submodule(path))
        if self._maps is not None:
            _fill(made, path, self._maps)
        return made


def load_weights(
    source: ModelSource | PretrainedConfig, *, layered: bool = False, seed: int = 0
) -> Weights:
    """Load the reference: eager Hugging Face in float32.

    Args:
        source: a model with a checkpoint; a bare type or configuration gets adversarial weights.
        layered: leave the weights on disk.

    Raises:
        ModelError: the checkpoint cannot be read, or not layer by layer.
    """
    if not isinstance(source, ModelSource) or source.kind == "model_type":
        model = real_model(source, dtype=torch.float32, seed=seed, attn_implementation="eager")
        return Weights(source, model, None)
    kwargs: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    if source.trust_remote_code:
        kwargs["trust_remote_code"] = True
    name = str(source.folder) if source.folder is not None else source.name
    check_files(source.folder)
    # Shapes that do not fit are reported by name below, not as one that loading stopped at.
    kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with _quiet():
            if not layered:
                model, info = AutoModelForCausalLM.from_pretrained(name, **kwargs)
                check_loaded(info, name)
                return Weights(source, model.eval(), None)
            return _load_layered(source, name, kwargs)
    except _LOAD_ERRORS as error:
        raise ModelError(
            f"The weights cannot be loaded: {one_line(error)}", name, f"autoport inspect {name}"
        ) from error


def _load_layered(source: ModelSource, name: str, kwargs: dict[str, Any]) -> Weights:
    try:
        from accelerate.hooks import remove_hook_from_submodules
    except ImportError:
        raise ModelError(
            "To go layer by layer through a model that is larger than memory takes `accelerate`.",
            name,
            "pip install neuron-autoport[validate]",
        ) from None
    folder = tempfile.mkdtemp(prefix="autoport-offload-")
    model, info = AutoModelForCausalLM.from_pretrained(
        name, device_map={"": "disk"}, offload_folder=folder, **kwargs
    )
    check_loaded(info, name)
    model.eval()
    maps = {}
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        weights = getattr(hook, "weights_map", None)
        if weights is not None:
            maps[path] = weights
    remove_hook_from_submodules(model)
    for module in model.modules():
        # accelerate leaves the original forward on the instance, where it would hide a rewritten class's.
        module.__dict__.pop("forward", None)
    return Weights(source, model, maps)


def _fill(unit: nn.Module, path: str, maps: dict[str, Any]) -> None:
    for name, module in unit.named_modules():
        full = f"{path}.{name}" if name else path
        for local, parameter in list(module._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            if full not in maps:
                raise AutoportError(f"{full}.{local} has no weights on disk", full)
            value = maps[full][local].to(torch.float32)
            check_shape(f"{full}.{local}", value, parameter)
            module._parameters[local] = nn.Parameter(value, requires_grad=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and notices of the libraries: ours say what goes on."""
    from transformers.utils import logging as hf

    shown, level = hf.is_progress_bar_enabled(), hf.get_verbosity()
    root = logging.getLogger("accelerate")
    before = root.level
    hf.disable_progress_bar()
    hf.set_verbosity_error()
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)
        hf.set_verbosity(level)
        if shown:
            hf.enable_progress_bar()
