"""Value-guided tracing: one torch.fx graph per module class and configuration.

The model runs once on meta tensors. Every torch call is seen by a torch function mode, which runs it and
records a node: so sizes, dtypes and Python conditions on them are answered by real values, and
every node has a shape, a dtype and the source expression that made it. Child modules are leaves: a
call of one becomes a node, and the child is traced on its own, once per class, inputs and attribute
values (`ModuleTrace.holds_for`), however many layers repeat it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from neuron_autoport.trace.frame import Frame
from neuron_autoport.trace.guards import input_signature
from neuron_autoport.trace.members import Names
from neuron_autoport.trace.module_trace import ChildCall, ModuleTrace, TraceEnd, has_hooks
from neuron_autoport.trace.spans import running_spans, running_where
from neuron_autoport.trace.values import NoValue, Values
from neuron_autoport.trace.watching import is_watched, unwatched, watch_reads
from neuron_autoport.trace.writes import changed_since, has_tensor, tensors_in, versions_of

_session: Session | None = None


def active_session() -> Session | None:
    """The trace under way in this process, if any."""
    return _session


# What running a forward on tensors without data may raise; the trace then ends there.
_RUN_ERRORS = (
    RuntimeError, TypeError, ValueError, AttributeError, NameError, LookupError, ArithmeticError,
    AssertionError, ImportError,
)  # fmt: skip
# Questions with a yes-or-no answer: `if t`, `3 in t`, `torch.equal(t, u)`.
_YES_OR_NO = frozenset({"__bool__", "__contains__", "equal", "allclose", "is_nonzero"})
_SIZES = frozenset({"size", "numel", "nelement", "__len__", "stride"})
_NUMBERS = frozenset({"item", "tolist", "__int__", "__float__", "__index__"})


class CannotAnswer(Exception):
    """A Python value was asked of a tensor that has none, or a child's trace ended early."""

    def __init__(self, message: str, code: str = "AP101") -> None:
        super().__init__(message)
        self.code = code


class Session(TorchFunctionMode):
    """One run of a model under observation.

    names: of what is below the model. values: None, or what stands in where a forward asks for a value.
    """

    def __init__(self, names: Names, values: Values | None = None) -> None:
        super().__init__()
        self.names, self.values = names, values
        self.stack: list[Frame] = []
        self.cache: dict[Any, list[ModuleTrace]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.stack:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name in _YES_OR_NO | _NUMBERS and args[0].device.type == "meta":
            return self.answer(name, func, args, kwargs)
        run = self.values.run if self.values is not None else _call
        if name == "__get__":  # most often a shape or dtype: no operation, and nothing is written
            result = run(func, args, kwargs)
            if isinstance(result, torch.Size):
                self.stack[-1].size_read()
            elif has_tensor(result):
                self.stack[-1].record("call_function", func, args, kwargs, result, [])
            return result
        versions = versions_of(args, kwargs)
        result = run(func, args, kwargs)
        written = changed_since(versions)
        if name == "__set__":  # `x.data = y`: another storage, the version stays
            written = [args[0]]
        if has_tensor(result):
            self.stack[-1].record("call_function", func, args, kwargs, result, written)
        elif written:
            self.stack[-1].record("call_function", func, args, kwargs, args[0], written)
        elif name in _SIZES:
            self.stack[-1].size_read()
        return result

    def answer(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A Python value of a tensor without data; the trace says that it was answered."""
        frame = self.stack[-1]
        if self.values is not None:
            with suppress(NoValue):
                value = self.values.answer(func, args, kwargs)
                frame.assume(f"{name}() was made up: ")
                return value
        if name in _NUMBERS:
            raise CannotAnswer(f"{name}() asks for the value of a tensor")
        # No value to answer with: take the branch not taken, and say so. The source keeps both.
        frame.assume()
        return False

    def fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        """Another tensor like this one, of the same value where it has one."""
        copy = _fresh(tensor)
        return self.values.share(tensor, copy) if self.values is not None else copy

    def leaf_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run `function` unobserved and record it as one node."""
        frame = self.stack[-1]
        self.stack.append(Frame(nn.Module()))
        try:
            result = function(*args, **kwargs)
        finally:
            self.stack.pop()
        frame.record("call_function", function, args, kwargs, result)
        return result

    def call_module(self, module: nn.Module, args: Any, kwargs: Any, call: Any) -> Any:
        """A module was called: a leaf if it belongs to the module being traced, else inlined."""
        frame = self.stack[-1]
        path = frame.path_of(module)
        if path is None or module is frame.root:
            return call(module, *args, **kwargs)
        if is_watched(module):
            with unwatched(module):
                trace = self.trace(module, args, kwargs, call)
        else:
            trace = self.trace(module, args, kwargs, call)
        if trace.end is None:
            result = _each_tensor(self.fresh, trace.result)
        else:
            result = _guessed_result(path, module, trace, args, kwargs)
            frame.assumed.append(f"{path} returns one tensor shaped like its first input")
        # A trace found again did not run: what it writes is known from when it was made.
        written = [tensors_in(args, kwargs)[i] for i in trace.writes]
        frame.record("call_module", path, args, kwargs, result, written)
        frame.children.append(ChildCall(path, trace))
        if trace.asked and not all(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(result)):
            frame.asked.append(running_spans(frame.code))  # a plain value may hang on the answer
        return result

    def trace(self, module: nn.Module, args: Any, kwargs: Any, call: Any) -> ModuleTrace:
        """The trace of `module` for these inputs, made now or found again."""
        with torch._C.DisableTorchFunction():  # looking at tensors is no part of the trace
            key = (type(module), input_signature(args, kwargs))
            for known in self.cache.setdefault(key, []):
                if known.holds_for(module):
                    return known
        made = self._record(module, args, kwargs, call)
        self.cache[key].append(made)
        return made

    def _frame(self, module: nn.Module) -> Frame:
        """A frame that looks names up in the session's while they are what a look at the module would find.

        So do the model's and, in it, those of first calls: of its base, most often, which is nearly as large.
        """
        if not self.names.current:
            return Frame(module)
        if not self.stack:
            return Frame(module, self.names)
        caller = self.stack[-1]
        path = caller.path_of(module)
        if path is None or caller.names is not self.names or caller.children or not self.names.tree:
            return Frame(module)
        return Frame(module, self.names, f"{caller.prefix}{path}.")

    def _record(self, module: nn.Module, args: Any, kwargs: Any, call: Any) -> ModuleTrace:
        frame = self._frame(module)
        args, kwargs = _told_apart(args, kwargs, self.fresh)
        inputs = frame.bind_inputs(args, kwargs)
        self.stack.append(frame)
        result, end = None, None
        versions = versions_of(args, kwargs)
        try:
            with watch_reads(module, partial(self.names.repeated, type(module))) as reads:
                result = call(module, *args, **kwargs)
        except CannotAnswer as reason:
            end = TraceEnd(reason.code, str(reason), running_where(reason))
        except _RUN_ERRORS as error:
            message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            end = TraceEnd("AP102", message, running_where(error))
        finally:
            self.stack.pop()
        changed = changed_since(versions)
        frame.graph.output(tuple(frame.node_of(t) for t in tensors_in((result,), {})))
        return ModuleTrace(
            module_class=type(module),
            forward=inspect.unwrap(type(module).forward),
            graph=frame.graph,
            inputs=inputs,
            reads=dict(reads),
            children=tuple(frame.children),
            result=result,
            end=end,
            assumed=tuple(frame.assumed),
            asked=tuple(frame.asked),
            sized=frozenset(frame.sized),
            call=(tuple(args), dict(kwargs)),
            hooked=has_hooks(module),
            answers=frozenset(self.values.answers) if self.values is not None else None,
            writes=tuple(i for i, (t, _) in enumerate(versions) if any(t is w for w in changed)),
        )


def _call(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        if tensor.is_contiguous():  # what torch keeps is then known: it need not be worked out
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return torch.empty_like(tensor)


def _each_tensor(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    return pytree.tree_map_only(torch.Tensor, function, value)


def _guessed_result(
    path: str, module: nn.Module, trace: ModuleTrace, args: Any, kwargs: Any
) -> torch.Tensor:
    """What a module that could not be traced may return, so that its caller can be traced on.

    Only shapes rest on the guess; a caller that finds it wrong ends there, and every site is proved.

    Raises:
        CannotAnswer: it got no float tensor, so there is nothing to guess from.
    """
    for tensor in tensors_in(args, kwargs):
        if tensor.is_floating_point():
            return _fresh(tensor)
    assert trace.end is not None
    message = f"{type(module).__name__} ({path}): {trace.end.message}"
    raise CannotAnswer(message, trace.end.code)


def _told_apart(args: Any, kwargs: Any, fresh: Callable[..., Any]) -> tuple[Any, Any]:
    """The arguments with no tensor given twice: that two inputs are one here is no rule's to use."""
    seen: set[int] = set()

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in seen:
            return fresh(tensor)
        seen.add(id(tensor))
        return tensor

    return pytree.tree_map_only(torch.Tensor, other, (args, kwargs))


def trace_model(
    module: nn.Module,
    args: Any = (),
    kwargs: Any = None,
    *,
    with_values: bool = False,
) -> ModuleTrace:
    """Trace `module` called with these arguments, and every module it calls.

    Args:
        module: a module with parameters on the meta device.
        args, kwargs: what to call it with; tensors on the meta device.
        with_values: where a value is asked for, answer with one made up (`values.py`).

    Returns:
        The trace of `module`; those of its children hang from it. `end` says why one is not whole.
    """
    global _session
    values = Values() if with_values else None
    for tensor in tensors_in(args, kwargs or {}):
        if values is not None and tensor.dtype is torch.long:
            values.give_ids(tensor)
    names = Names(module)
    session = Session(names, values)
    original = nn.Module.__call__

    def observed(self: nn.Module, *a: Any, **k: Any) -> Any:
        return session.call_module(self, a, k, original)

    previous, _session = _session, session
    nn.Module.__call__ = observed  # type: ignore[method-assign]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), names.watched(), session:
            return session.trace(module, args, kwargs or {}, original)
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        _session = previous
