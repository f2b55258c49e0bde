"""Values for a trace that cannot go on without them: small real tensors beside the meta ones.

Some forwards ask for the value of a tensor (`sizes.tolist()`, `mask.nonzero()`). Values are then made up where the
meta tensors have none, for inputs, small parameters and results of large products, and everything small that
is computed from them is computed for real. So all answers of one run agree with each other, as they
would in a run of the model, while every tensor keeps the full model's own size: `top_k` of made-up logits
gives indices that are in range and distinct, and counts of them that sum to what they must.

An answer is one of many possible: a rewrite may assume none, and `ModuleTrace.assumed` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Elements of the largest tensor that gets a value, and of the largest that gets one when asked for.
_SMALL, _ASKED = 1 << 16, 1 << 22
_META = torch.device("meta")
_CPU = torch.device("cpu")

# What running an operation on real data may raise where meta data went through, and the other way.
_FAULTS = (RuntimeError, NotImplementedError, TypeError, ValueError, LookupError, ArithmeticError)


class NoValue(Exception):
    """A value was asked of a tensor that is too large to be given one."""


class Values:
    """The values of the meta tensors of one run.

    A tensor and its value are kept together, so that an id always means the same tensor.
    answers: the numbers that were given to Python code.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.random = torch.Generator().manual_seed(0)
        self.answers: set[float] = set()

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an operation on meta tensors, and on their values where all have one.

        Raises: what the operation raises on meta tensors, if it does not run on values either.
        """
        try:
            result = func(*args, **kwargs)
        except _FAULTS as fault:
            return self._by_value(func, args, kwargs, fault)
        if not _works_on_data(func, result, args):
            return result
        real = self._compute(func, args, kwargs)
        metas, reals = pytree.tree_leaves(result), pytree.tree_leaves(real)
        if len(metas) != len(reals):
            reals = [None] * len(metas)
        for meta, value in zip(metas, reals, strict=True):
            self._bind(meta, value)
        return result

    def answer(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The answer to a question for a Python value.

        Raises:
            NoValue: a tensor is too large.
        """
        args, kwargs = self._asked((args, kwargs))
        result = func(*args, **kwargs)
        numbers = [n for n in pytree.tree_leaves(result) if isinstance(n, int | float)]
        self.answers.update(n for n in numbers if n not in (0, 1))  # those are anybody's
        return result

    def share(self, source: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        """Give `copy` the value of `source`, if it has one; returns `copy`."""
        value = self._value(source)
        if value is not None:
            self._bind(copy, value)
        return copy

    def give_ids(self, tensor: torch.Tensor) -> None:
        """Make a tensor token ids: distinct small numbers, as any vocabulary has."""
        value = torch.arange(tensor.numel()).reshape(tensor.shape) + 3
        self._bind(tensor, value.to(tensor.dtype))

    def _by_value(self, func: Callable[..., Any], args: Any, kwargs: Any, fault: Exception) -> Any:
        """Results of an operation whose shape depends on values: computed, then without data.

        Where a large tensor takes part, as a weight that is indexed, only the small integers get values.
        """
        real = None
        for numbers_only in (False, True):
            try:
                real_args, real_kwargs = self._asked((args, kwargs), numbers_only)
                real = func(*real_args, **real_kwargs)
                break
            except (NoValue, *_FAULTS):
                continue
        else:
            raise fault from None

        def without_data(value: torch.Tensor) -> torch.Tensor:
            if value.device == _META:
                return value
            meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
            self._bind(meta, value)
            return meta

        return pytree.tree_map_only(torch.Tensor, without_data, real)

    def _compute(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The operation on values, or None if one is missing or it cannot run."""
        if getattr(func, "__name__", "").startswith(("empty", "new_empty")):
            return None
        values = [self._value(t) for t in _tensors((args, kwargs))]
        if any(v is None for v in values):
            return None
        args, kwargs = self._map((args, kwargs), lambda t: self._value(t))
        try:
            return func(*args, **kwargs)
        except _FAULTS:
            return None

    def _bind(self, meta: Any, value: Any) -> None:
        """Remember a value; where there is none for a small result of numbers, make one up."""
        if not isinstance(meta, torch.Tensor) or meta.device != _META:
            return
        fits = isinstance(value, torch.Tensor) and value.shape == meta.shape
        if fits and meta.numel() <= _ASKED:
            self.known[id(meta)] = (meta, value)
        elif meta.is_floating_point() and meta.numel() <= _SMALL:
            self.known[id(meta)] = (meta, self._made_up(meta))
        else:
            self.known.pop(id(meta), None)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor; small parameters get one when first met."""
        if tensor.device != _META:
            return tensor
        known = self.known.get(id(tensor))
        if known is None and tensor.numel() <= _SMALL:
            known = self.known[id(tensor)] = (tensor, self._made_up(tensor))
        return known[1] if known else None

    def _asked(self, value: Any, numbers_only: bool = False) -> Any:
        def value_of(tensor: torch.Tensor) -> torch.Tensor:
            if numbers_only and tensor.is_floating_point():
                return tensor
            known = self._value(tensor)
            if known is None and tensor.numel() <= _ASKED:
                known = self._made_up(tensor)
                self.known[id(tensor)] = (tensor, known)
            if known is None:
                raise NoValue(f"a tensor of {tensor.numel():,} elements is asked for its values")
            return known

        return self._map(value, value_of)

    def _map(self, value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
        def one(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return change(leaf)
            if isinstance(leaf, slice):  # no container to pytree
                return slice(one(leaf.start), one(leaf.stop), one(leaf.step))
            if leaf in (_META, "meta") if isinstance(leaf, torch.device | str) else False:
                return _CPU
            return leaf

        return pytree.tree_map(one, value)

    def _made_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """Normal numbers; zeros for integers, which are valid as any index; true for truth values."""
        with torch._C.DisableTorchFunction():
            if tensor.is_floating_point():
                made = torch.randn(tensor.shape, generator=self.random)
                return made.to(tensor.dtype)
            fill = 1 if tensor.dtype is torch.bool else 0
            return torch.full(tensor.shape, fill, dtype=tensor.dtype)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _works_on_data(func: Callable[..., Any], result: Any, args: Any) -> bool:
    """Does a call give or change tensors? Questions for shapes and dtypes do not."""
    name = getattr(func, "__name__", "")
    return bool(_tensors(result)) or (name.endswith("_") and bool(_tensors(args)))
