"""How a function of the double is made: the contract's argument list in front, one operator behind.

The front packs all arguments into one custom operator `vllm_neuron_double::NAME(given, written,
constants)`: opaque to the compiler, with a shape function, so a graph shows one node per plugin
call. Checks run both when shapes are traced and when
the call runs; the call log is written when it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.neuron.double.args import Args, ContractError
from tests.neuron.double.contract import ENUMS, FUNCTIONS, defaults
from tests.neuron.double.log import Call, Verdict
from tests.neuron.double.state import state

NAMESPACE = "vllm_neuron_double"
GROUP = "process group "
SIMPLE = (bool, int, float, str, torch.dtype)
Made = list[tuple[tuple[int, ...], torch.dtype]]


def _first(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return outputs[0]


@dataclass(frozen=True)
class Function:
    """One function of the double.

    check: refuses what the contract forbids; says what would run the call on the device.
    shapes: shape and dtype of each output. compute: the outputs; writes `written` in place.
    result: what the caller gets, from the arguments and the outputs. It is traced.
    """

    name: str
    check: Callable[[Args], str]
    shapes: Callable[[Args], Made]
    compute: Callable[[Args], list[Tensor]]
    result: Callable[[dict[str, Any], list[Tensor]], Any] = _first
    written: tuple[str, ...] = ()


def resolve_group(name: str) -> dist.ProcessGroup:
    """The process group of this name."""
    resolve: Any = dist.distributed_c10d._resolve_process_group
    found: dist.ProcessGroup = resolve(name.removeprefix(GROUP))
    return found


def _encode(name: str, value: Any) -> str:
    """An argument that is not a tensor, as text "name|kind|value"."""
    if isinstance(value, Enum):
        if ENUMS.get(type(value).__name__) is not type(value):
            raise ContractError(f"{name}: {value} is no member of the plugin's own enum")
        return f"{name}|enum|{type(value).__name__}.{value.name}"
    if isinstance(value, torch.dtype):
        return f"{name}|dtype|{value}"
    if isinstance(value, str):
        return f"{name}|text|{value}"
    if isinstance(value, (bool, int, float)):
        return f"{name}|value|{value}"
    raise ContractError(f"{name}: no argument of this kind is in the contract: {type(value)}")


def _decode(kind: str, text: str) -> Any:
    if kind == "enum":
        owner, _, member = text.partition(".")
        return ENUMS[owner][member]
    if kind == "dtype":
        return getattr(torch, text.removeprefix("torch."))
    if kind == "value":
        return float(text) if text in ("inf", "-inf", "nan") else ast.literal_eval(text)
    if text.startswith(GROUP):
        return resolve_group(text)
    return text


def _unpack(
    name: str, given: list[Tensor], written: list[Tensor], constants: str
) -> tuple[Args, dict[str, object]]:
    """All parameters by name (None where nothing was passed), and the constants alone."""
    values: dict[str, Any] = {row[0]: None for row in FUNCTIONS[name]["parameters"]}
    plain: dict[str, Any] = {}
    tensors = {"given": iter(given), "written": iter(written)}
    for entry in constants.splitlines():
        key, kind, text = entry.split("|", 2)
        if kind in tensors:
            values[key] = next(tensors[kind])
        else:
            values[key] = plain[key] = _decode(kind, text)
    return Args(name, values), plain


def _verdict(function: Function, args: Args) -> Verdict:
    text = function.check(args)
    return Verdict(text, tuple(args.traps))


def _record(args: Args, verdict: Verdict, plain: dict[str, Any]) -> None:
    tensors = {k: v for k, v in args.values.items() if isinstance(v, Tensor)}
    log = state().log
    shown = {k: v if isinstance(v, SIMPLE) else str(v) for k, v in plain.items()}
    log.calls.append(
        Call(
            args.function,
            log.step,
            verdict.text,
            {k: tuple(v.shape) for k, v in tensors.items()},
            {k: v.dtype for k, v in tensors.items()},
            shown,
        )
    )
    for trap in args.traps:
        log.trap(args.function, trap)


def _operator(function: Function) -> Any:
    """The custom operator behind a function."""

    def run(given: list[Tensor], written: list[Tensor], constants: str) -> list[Tensor]:
        args, plain = _unpack(function.name, given, written, constants)
        verdict = _verdict(function, args)
        outputs = function.compute(args)
        _record(args, verdict, plain)
        for got, (shape, dtype) in zip(outputs, function.shapes(args), strict=True):
            if tuple(got.shape) != tuple(shape) or got.dtype != dtype:
                raise RuntimeError(f"the double's {function.name} computed {got.shape} {got.dtype}")
        return [output.clone(memory_format=torch.contiguous_format) for output in outputs]

    def fake(given: list[Tensor], written: list[Tensor], constants: str) -> list[Tensor]:
        args, _ = _unpack(function.name, given, written, constants)
        _verdict(function, args)
        device = [*given, *written][0].device
        return [torch.empty(s, dtype=d, device=device) for s, d in function.shapes(args)]

    operator = torch.library.custom_op(
        f"{NAMESPACE}::{function.name}", run, mutates_args=("written",)
    )
    operator.register_fake(fake)
    return operator


def build(function: Function) -> Callable[..., Any]:
    """The callable with the contract's argument list for `function`."""
    operator = _operator(function)
    written_names = function.written

    def call(args: dict[str, Any]) -> Any:
        given: list[Tensor] = []
        written: list[Tensor] = []
        constants: list[str] = []
        for name, value in args.items():
            if value is None:
                continue
            if not isinstance(value, Tensor):
                constants.append(_encode(name, value))
            elif name in written_names:
                written.append(value)
                constants.append(f"{name}|written|")
            else:
                given.append(value)
                constants.append(f"{name}|given|")
        return function.result(args, operator(given, written, "\n".join(constants)))

    return front(function.name, FUNCTIONS[function.name]["parameters"], call)


def group_name(group: Any) -> str | None:
    """A process group, or a coordinator around one, by its name; traced by torch.compile."""
    return None if group is None else named_group(group)


def named_group(group: Any) -> str:
    """The name of a process group or coordinator, marked as one."""
    found = group if isinstance(group, dist.ProcessGroup) else group.device_group
    return f"{GROUP}{found.group_name}"


def front(
    name: str, parameters: list[list[Any]], call: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    """A function `name` with exactly these parameters that hands them on as one dict.

    torch.compile puts the inner call into the graph as one node, without tracing into it.
    """
    values = defaults(parameters)
    names = [parameter for parameter, _ in parameters]

    def inner(*args: Any) -> Any:
        return call(dict(zip(names, args, strict=True)))

    inner.__name__ = inner.__qualname__ = name
    in_graph: Any = inner
    in_graph.neuron_double = name
    torch.compiler.allow_in_graph(in_graph)
    listed = ", ".join(p if p not in values else f"{p}=_defaults[{p!r}]" for p in names)
    handed = ", ".join(f"_group({p})" if p.endswith("group") else p for p in names)
    source = f"def {name}({listed}):\n    return _inner({handed})\n"
    space: dict[str, Any] = {"_defaults": values, "_inner": inner, "_group": group_name}
    exec(compile(source, f"<double of {name}>", "exec"), space)
    made: Callable[..., Any] = space[name]
    return made
