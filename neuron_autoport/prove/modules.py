"""Prove one module: original and rewritten on the same inputs, in float32 and in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from neuron_autoport.prove.compare import Comparison, compare
from neuron_autoport.rewrite.install import install
from neuron_autoport.rewrite.plan import ClassPlan

# What a wrong rewrite may raise when it runs: each is a proof that failed, not a fault of ours.
RUN_ERRORS = (
    RuntimeError, TypeError, ValueError, AttributeError, NameError, LookupError, ArithmeticError,
    AssertionError, ImportError,
)  # fmt: skip
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ModuleProof:
    """Figures of one module in both dtypes; `error` if the rewritten module did not run.

    no_bf16: why there is nothing to compare in bfloat16: the original itself does not run in it.
    """

    path: str
    class_name: str
    fp32: Comparison | None
    bf16: Comparison | None
    error: str | None = None
    no_bf16: str | None = None

    @property
    def passed(self) -> bool:
        in_bf16 = self.no_bf16 is not None or (self.bf16 is not None and self.bf16.passed)
        return self.error is None and self.fp32 is not None and self.fp32.passed and in_bf16

    def figures(self) -> str:
        """One line: error ratios, or why it failed."""
        if self.error is not None:
            return self.error
        both = (("fp32", self.fp32), ("bf16", self.bf16))
        parts = [f"{n} error {c.rewritten:.1e} (original's own {c.original:.1e})"
                 for n, c in both if c is not None]  # fmt: skip
        if self.no_bf16 is not None:
            parts.append(f"the original does not run in bf16 ({self.no_bf16})")
        return ", ".join(parts)


def prove_module(
    path: str, module: nn.Module, plan: ClassPlan, rewritten: type[nn.Module], calls: list[Call]
) -> ModuleProof:
    """Compare `module` with its rewritten form on recorded or made calls.

    Args:
        module: the original with real float32 weights; not changed.
        calls: arguments to call it with, float32.
    """

    def rewrite() -> nn.Module:
        new = copy.deepcopy(module)
        install(new, plan, rewritten)
        return new

    return prove_rewritten(
        path, type(module).__name__, module, rewrite, calls, traced=plan.trace.call
    )


def prove_rewritten(
    path: str,
    name: str,
    module: nn.Module,
    rewrite: Callable[[], nn.Module],
    calls: list[Call],
    traced: Call | None = None,
) -> ModuleProof:
    """Compare `module` with what `rewrite` makes of it; `path` and `name` are for the report.

    Args:
        traced: a call in a bfloat16 model; what is float32 there stays so in the bfloat16 comparison.
    """
    try:
        new = rewrite()
        in_fp32 = [_to(c, torch.float32) for c in (*calls, *(_small(c) for c in calls))]
        fp32 = _compare_in(module, new, in_fp32, torch.float32)
        in_bf16 = [_as_traced(c, traced) for c in calls]
        no_bf16 = _stopped_by(module, in_bf16)
        bf16 = None if no_bf16 else _compare_in(module, new, in_bf16, torch.bfloat16)
    except RUN_ERRORS as error:
        return ModuleProof(path, name, None, None, f"{type(error).__name__}: {error}")
    return ModuleProof(path, name, fp32, bf16, no_bf16=no_bf16)


def _as_traced(call: Call, traced: Call | None) -> Call:
    """The call in bfloat16, but for what is float32 in a traced call of the same structure.

    A residual stream kept in float32 is so in a bfloat16 model, too, and a norm's site may rest on that.
    """
    leaves, structure = pytree.tree_flatten(call)
    seen, same = pytree.tree_flatten(traced)
    if structure != same:
        return _to(call, torch.bfloat16)
    wide = [isinstance(t, torch.Tensor) and t.dtype is torch.float32 for t in seen]
    kept = [v if keep else _to(v, torch.bfloat16) for v, keep in zip(leaves, wide, strict=True)]
    return pytree.tree_unflatten(kept, structure)


def _stopped_by(module: nn.Module, calls: list[Call]) -> str | None:
    """The error that the original itself ends with in bfloat16; then no rewrite of it can do better.

    Args:
        calls: as they are in a bfloat16 model.
    """
    old = copy.deepcopy(module).to(torch.bfloat16)
    try:
        for call in calls:
            run(old, call)
    except RUN_ERRORS as error:
        return f"{type(error).__name__}: {error}"
    return None


def _compare_in(
    module: nn.Module, new: nn.Module, calls: list[Call], dtype: torch.dtype
) -> Comparison:
    # The truth runs on the weights as rounded to `dtype`, so only the computation is compared.
    old, new = (copy.deepcopy(m).to(dtype) for m in (module, new))
    higher = torch.float64 if dtype is torch.float32 else torch.float32
    truth = copy.deepcopy(old).to(higher)
    worst: Comparison | None = None
    for rounded in calls:
        original, rewritten = run(old, rounded), run(new, rounded)
        try:
            exact = run(truth, _to(rounded, higher))
        except RUN_ERRORS:  # code that is written for one dtype: the original itself is the truth
            exact = original
        found = compare(exact, original, rewritten, dtype)
        if worst is None or not found.passed or (worst.passed and found.ratio > worst.ratio):
            worst = found
        if not found.passed:
            break
    assert worst is not None
    return worst


def run(module: nn.Module, call: Call) -> Any:
    """Call the module on copies of the arguments, so a write in place spoils nobody else's.

    Whatever it draws at random (an active dropout) is the same in every run.
    """
    args, kwargs = _map_tensors(torch.clone, call)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module(*args, **kwargs)


def _to(call: Any, dtype: torch.dtype) -> Any:
    return _map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, call)


def _map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The value with all its tensors changed, and containers that a module may write to copied.

    Layers hand each other keys and values in mappings of a class that pytree does not know.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if not isinstance(leaf, MutableMapping):
            return leaf
        again = copy.copy(leaf)
        again.update({k: _map_tensors(change, v) for k, v in leaf.items()})
        return again

    return pytree.tree_map(one, value)


def _small(call: Call) -> Call:
    """The same call with every other row of its first float tensor a thousand times smaller.

    There the epsilon of a norm decides the result.
    """
    leaves, structure = pytree.tree_flatten(call)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() > 1:
            small = leaf.clone()
            small[..., ::2, :] *= 1e-3
            leaves[i] = small
            break
    return pytree.tree_unflatten(leaves, structure)
