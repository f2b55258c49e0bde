"""Level 3: every rewritten module and every layer, three ways, on real and on adversarial activations.

One float32 run of the reference gives each unit's inputs. Each unit is then built three times (truth, reference,
port) and called on the same rounded inputs, and so is every module inside it. Only one unit is in
work at a time. Error against depth comes from whole runs of reference and port.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from neuron_autoport.accuracy.candidate import Builder, Candidate, layer_number
from neuron_autoport.accuracy.schema import Depth, Level3, ModuleResult, bad_of, figures_of
from neuron_autoport.accuracy.three_way import ThreeWay, floats, three_way
from neuron_autoport.accuracy.view import first_bad
from neuron_autoport.prove.modules import RUN_ERRORS, Call, run

Progress = Callable[[str, int, int], None]
_OUTLIER_EVERY, _OUTLIER_SCALE = 8, 40.0


def silent(_what: str, _done: int, _total: int) -> None:
    """No progress shown."""


def judge_modules(
    builder: Builder, candidate: Candidate, ids: Tensor, progress: Progress = silent
) -> Level3:
    """Run level 3.

    Args:
        ids: token ids [rows, tokens], no padding. progress: told what is done, of how many.
    """
    started = time.perf_counter()
    results: list[ModuleResult] = []
    units = _called_units(builder, candidate)
    calls: dict[str, Call] = {}
    base = record_states(builder.model_fp32(), ids, units, calls)
    for number, path in enumerate(units):
        progress(f"level 3: {path}", number, len(units) + 2)
        call = calls.pop(path, None)
        if call is not None and candidate.changes(path):
            results += judge_unit(builder, candidate, path, call)
    progress("level 3: error against depth", len(units), len(units) + 2)
    depth = _depth(builder, candidate, ids, units, base)
    progress("level 3", len(units) + 2, len(units) + 2)
    passed = all(m.figures.passed for m in results) and all(d.passed for d in depth)
    return Level3(
        passed=passed,
        rows=ids.shape[0],
        tokens=ids.shape[1],
        modules=results,
        depth=depth,
        seconds=time.perf_counter() - started,
    )


def _called_units(builder: Builder, candidate: Candidate) -> list[str]:
    """Units that the model calls, without the output head: logits are level 2's."""
    model: Any = builder.weights.model
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found = []
    for path in builder.weights.units:
        is_head = model.get_submodule(path) is head
        if path in candidate.port.where and (not is_head or candidate.changes(path)):
            found.append(path)
    return found


def record_states(
    model: nn.Module, ids: Tensor, units: list[str], calls: dict[str, Call] | None = None
) -> dict[str, Tensor]:
    """Outputs of all units in one run, and, if `calls` is given, their arguments.

    Raises:
        RuntimeError and the like: what the model raises.
    """
    states: dict[str, Tensor] = {}
    hooks = []
    for path in units:

        def before(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            if calls is not None and path not in calls:
                calls[path] = pytree.tree_map_only(Tensor, torch.clone, (args, dict(kwargs)))

        def after(_: nn.Module, _args: Any, output: Any, path: str = path) -> None:
            found = floats(output)
            if found:
                states[path] = found[0].clone()

        module = model.get_submodule(path)
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(after))
    try:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return states


@dataclass
class Trio:
    """One unit three times, and which of its modules are compared."""

    truth: nn.Module
    reference: nn.Module
    ported: nn.Module
    dtype: torch.dtype
    higher: torch.dtype

    def compare(self, inner: str, call: Call, name: str) -> tuple[ThreeWay, Any]:
        """Compare the module at `inner` on one call; also what all three gave."""
        rounded = cast_call(call, self.dtype)
        expected = run(self.reference.get_submodule(inner), rounded)
        try:
            exact = run(self.truth.get_submodule(inner), cast_call(rounded, self.higher))
        except RUN_ERRORS:  # code that is written for one dtype: the reference itself is the truth
            exact = expected
        try:
            actual = run(self.ported.get_submodule(inner), rounded)
        except RUN_ERRORS as error:
            failed = three_way(exact, expected, None, name=name)
            problem = f"the port does not run: {type(error).__name__}: {error}"
            return replace(failed, problem=problem), None
        return three_way(exact, expected, actual, name=name), (exact, expected, actual)


def trio(builder: Builder, candidate: Candidate, path: str) -> Trio:
    return Trio(
        builder.truth(path),
        builder.reference(path),
        builder.ported(path, candidate),
        builder.dtype,
        builder.higher,
    )


def judge_unit(
    builder: Builder, candidate: Candidate, path: str, call: Call
) -> Iterator[ModuleResult]:
    """Every module of one unit worth comparing, innermost first, then the unit itself."""
    three = trio(builder, candidate, path)
    inner_calls = _inner_calls(three, candidate, path, call)
    for inner in [*_inner(three, candidate, path), ""]:
        where = f"{path}.{inner}" if inner else path
        given = call if not inner else inner_calls.get(inner)
        if given is None:
            continue
        for kind, made in variants(given).items():
            found, outputs = three.compare(inner, made, where)
            bad = first_bad(*outputs) if outputs is not None and not found.passed else None
            yield ModuleResult(
                path=where,
                class_name=type(three.reference.get_submodule(inner)).__name__,
                layer=layer_number(where),
                inputs=kind,
                rules=list(candidate.rules_at(where)),
                figures=figures_of(found),
                bad=bad_of(bad),
            )


def _inner(three: Trio, candidate: Candidate, path: str) -> list[str]:
    """Modules inside a unit that are rewritten or hold others, and still stand in the port."""
    ported = dict(three.ported.named_modules())
    found = []
    for where in candidate.port.where:
        inner = where[len(path) + 1 :]
        if not where.startswith(f"{path}.") or inner not in ported:
            continue
        composite = any(True for _ in ported[inner].children())
        if composite or candidate.rewritten(where) is not None:
            found.append(inner)
    return sorted(found, key=lambda p: -p.count("."))


def _inner_calls(three: Trio, candidate: Candidate, path: str, call: Call) -> dict[str, Call]:
    """Arguments the modules inside a unit get when its truth runs on `call`."""
    calls: dict[str, Call] = {}
    hooks = []
    for inner in _inner(three, candidate, path):

        def note(_: nn.Module, args: Any, kwargs: Any, inner: str = inner) -> None:
            if inner not in calls:
                calls[inner] = pytree.tree_map_only(Tensor, torch.clone, (args, dict(kwargs)))

        module = three.truth.get_submodule(inner)
        hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        run(three.truth, cast_call(cast_call(call, three.dtype), three.higher))
    except RUN_ERRORS:
        calls.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def variants(call: Call) -> dict[str, Call]:
    """The call as recorded, and two adversarial ones.

    small rows: every other row a thousand times smaller; there the epsilon of a norm decides.
    outliers: one channel in eight 40 times larger; there the order of rounding decides.
    """
    leaves, structure = pytree.tree_flatten(call)
    place = next(
        (i for i, t in enumerate(leaves)
         if isinstance(t, Tensor) and t.is_floating_point() and t.dim() > 1), None
    )  # fmt: skip
    made = {"real": call}
    if place is None:
        return made
    small, large = leaves[place].clone(), leaves[place].clone()
    small[..., ::2, :] *= 1e-3
    large[..., ::_OUTLIER_EVERY] *= _OUTLIER_SCALE
    for kind, value in (("small rows", small), ("outliers", large)):
        changed = [*leaves[:place], value, *leaves[place + 1 :]]
        made[kind] = pytree.tree_unflatten(changed, structure)
    return made


def cast_call(call: Call, dtype: torch.dtype) -> Call:
    """The call with its floating-point tensors in `dtype`.

    An additive mask has the lowest number of its dtype in masked places; its like in the other
    dtype stands there after the cast.
    """

    def cast(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        lowest = t == torch.finfo(t.dtype).min
        return t.to(dtype).masked_fill(lowest, torch.finfo(dtype).min)

    found: Call = pytree.tree_map_only(Tensor, cast, call)
    return found


def _depth(
    builder: Builder, candidate: Candidate, ids: Tensor, units: list[str], base: dict[str, Tensor]
) -> list[Depth]:
    """Error of hidden states against depth, in whole runs of reference and port."""
    reference = record_states(builder.model(), ids, units)
    if builder.dtype is torch.float32:
        base = record_states(builder.model(truth=True), ids, units)
    try:
        ported = record_states(builder.model(candidate), ids, units)
    except RUN_ERRORS:  # a unit that does not run is in the list of modules, with its reason
        return []
    found = []
    for path in units:
        if not all(path in states for states in (base, reference, ported)):
            continue
        three = three_way(base[path], reference[path], ported[path], name=path)
        found.append(
            Depth(
                path=path,
                layer=layer_number(path),
                reference=three.expected_error,
                ported=three.actual_error,
                coefficient=three.coefficient,
                # Errors add up by chance: only the rule's bounds on their size are asked for here.
                passed=three.bounded,
            )
        )
    return found
