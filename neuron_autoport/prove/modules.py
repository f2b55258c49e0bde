"""Prove one module: original and rewritten on the same inputs, in float32 and in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Callable
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
    """Figures of one module in both dtypes; `error` if the rewritten module did not run."""

    path: str
    class_name: str
    fp32: Comparison | None
    bf16: Comparison | None
    error: str | None = None

    @property
    def passed(self) -> bool:
        both = (self.fp32, self.bf16)
        return self.error is None and all(c is not None and c.passed for c in both)

    def figures(self) -> str:
        """One line: error ratios, or why it failed."""
        if self.error is not None:
            return self.error
        assert self.fp32 is not None and self.bf16 is not None
        parts = [f"{n} error {c.rewritten:.1e} (original's own {c.original:.1e})"
                 for n, c in (("fp32", self.fp32), ("bf16", self.bf16))]  # fmt: skip
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

    return prove_rewritten(path, type(module).__name__, module, rewrite, calls)


def prove_rewritten(
    path: str, name: str, module: nn.Module, rewrite: Callable[[], nn.Module], calls: list[Call]
) -> ModuleProof:
    """Compare `module` with what `rewrite` makes of it; `path` and `name` are for the report."""
    try:
        new = rewrite()
        fp32 = _compare_in(module, new, [*calls, *(_small(c) for c in calls)], torch.float32)
        bf16 = _compare_in(module, new, calls, torch.bfloat16)
    except RUN_ERRORS as error:
        return ModuleProof(path, name, None, None, f"{type(error).__name__}: {error}")
    return ModuleProof(path, name, fp32, bf16)


def _compare_in(
    module: nn.Module, new: nn.Module, calls: list[Call], dtype: torch.dtype
) -> Comparison:
    # The truth runs on the weights as rounded to `dtype`, so only the computation is compared.
    old, new = (copy.deepcopy(m).to(dtype) for m in (module, new))
    higher = torch.float64 if dtype is torch.float32 else torch.float32
    truth = copy.deepcopy(old).to(higher)
    worst: Comparison | None = None
    for call in calls:
        rounded = _to(call, dtype)
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
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, call)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module(*args, **kwargs)


def _to(call: Call, dtype: torch.dtype) -> Call:
    cast = lambda t: t.to(dtype) if t.is_floating_point() else t  # noqa: E731
    return pytree.tree_map_only(torch.Tensor, cast, call)


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
