"""What a written-out attention computes: its way from scores to softmax is run with made-up scores.

`f(s) = scale * s + bias` must hold for every score, whatever the others are; the bias then says which keys a query
sees, and whether it falls linearly with their distance (ALiBi).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import fx, nn

from neuron_autoport.hosts.vllm.written_out.known import (
    TOKENS,
    WEIGHTS,
    Unknown,
    Values,
    name_of,
    run_node,
)
from neuron_autoport.hosts.vllm.written_out.read import NotPlain, WrittenOut, span_of
from neuron_autoport.trace.module_trace import ModuleTrace

# A bias above the first shows its key, one below the second hides it: no score is near either.
_SHOWN, _HIDDEN = -1e3, -9e3
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Form:
    """One attention layer as the interface is asked for it.

    heads: of queries. scale: of the scores. window: visible keys of a query, itself included; None for all.
    slopes: of the ALiBi bias `slope * (key - query)`, one for each head, or None. flat_out, flat_weights: are heads
    and batch one axis in what the source makes of output and weights?
    """

    heads: int
    scale: float
    window: int | None
    slopes: tuple[float, ...] | None
    flat_out: bool
    flat_weights: bool = False

    def __deepcopy__(self, memo: Any) -> Form:
        return self  # equal forms are one object, which tells traces alike


@lru_cache(maxsize=4096)
def one_form(form: Form) -> Form:
    """The one object of all equal forms."""
    return form


def read_form(found: WrittenOut, values: Values, trace: ModuleTrace, module: nn.Module) -> Form:
    """The form of one layer.

    Args:
        values: of the layer's call, as far as they are known. module: the layer, its buffers real.

    Raises:
        NotPlain: it is no causal attention with one scale, a window or ALiBi slopes.
    """
    _check_terms(found, values)
    batch, heads, tokens = _sizes(found)
    shape = found.scores.meta["val"].shape
    generator = torch.Generator().manual_seed(0)
    made = [torch.zeros(shape)]
    made += [torch.randn(shape, generator=generator) * 3 for _ in range(2)]
    runs = [_run(found.before, found.scores, s, values) for s in made]
    bias, *others = [r[-1].reshape(batch, heads, tokens, tokens) for r in runs]
    shown = bias > _SHOWN
    if bool((~shown & (bias > _HIDDEN)).any()) or bool(bias.isnan().any()):
        raise NotPlain("its mask neither shows nor hides a key", span_of(found.softmax))
    scale = _scale(found, made, runs, shown.reshape(shape))
    for one in others:
        if bool((one.masked_fill(shown, _HIDDEN * 2) > _HIDDEN).any()):
            raise NotPlain("a key is hidden by its score", span_of(found.softmax))
    window = _window(shown, found)
    slopes = _slopes(bias, shown, found)
    _check_weights(found, values)
    flat = found.output.meta["val"].dim() == 3
    return one_form(
        Form(heads, scale, table_window(found, values, trace, module, window), slopes, flat)
    )


def _sizes(found: WrittenOut) -> tuple[int, int, int]:
    """Sequences, heads and tokens, from the shapes of the two products."""
    scores, output = found.scores.meta["val"].shape, found.output.meta["val"].shape
    batch = found.softmax.meta["val"].shape[0]
    if len(scores) == 4 and scores[-1] == scores[-2]:
        return batch, int(scores[1]), int(scores[-1])
    if len(scores) == 3 and scores[-1] == scores[-2] and scores[0] % 2 == 0:
        return 2, int(scores[0]) // 2, int(scores[-1])  # traces have two sequences
    what = f"its scores have the shape {list(scores)}, its output {list(output)}"
    raise NotPlain(what, span_of(found.scores))


def _check_terms(found: WrittenOut, values: Values) -> None:
    """All but the scores themselves must be known: no tokens, no weights."""
    inside = {found.scores, *found.before, found.softmax, *found.after}
    extra = _bias_of(found.scores)
    terms = [(n, found.scores) for n in ([extra] if extra is not None else [])]
    terms += [(n, node) for node in (*found.before, *found.after) for n in node.all_input_nodes]
    for term, node in terms:
        value = values.get(term, Unknown(TOKENS))
        if term not in inside and isinstance(value, Unknown):
            learned = " (it is learned)" if value.of == WEIGHTS else ""
            what = f"`{name_of(node)}` takes a value made from {value.of}{learned}"
            raise NotPlain(what, span_of(node))


def _bias_of(scores: fx.Node) -> fx.Node | None:
    """What `baddbmm` adds to the product."""
    if name_of(scores) != "baddbmm":
        return None
    given = scores.kwargs.get("input", scores.args[0] if scores.args else None)
    return given if isinstance(given, fx.Node) else None


def _run(
    nodes: tuple[fx.Node, ...], start: fx.Node, made: torch.Tensor, values: Values
) -> list[torch.Tensor]:
    """The values after each step, with `made` in the place of the product."""
    own: Values = {
        n: v.clone() if isinstance(v, torch.Tensor) else v
        for n, v in values.items()
        if not isinstance(v, Unknown)
    }
    first = made.clone()
    extra = _bias_of(start)
    if extra is not None:
        factors: dict[str, Any] = {"alpha": 1, "beta": 1, **start.kwargs}
        first = first * factors["alpha"] + own[extra] * factors["beta"]
    own[start] = first
    steps = [first.clone()]
    for node in nodes:
        if node.op == "call_module":  # one that changes nothing
            own[node] = own[node.all_input_nodes[0]]
        else:
            own[node] = run_node(node, own)
        value = own[node]
        if isinstance(value, Unknown):
            raise NotPlain(f"its scores depend on {value.of}", span_of(node))
        if not isinstance(value, torch.Tensor) or value.numel() != made.numel():
            raise NotPlain(f"`{name_of(node)}` gives other scores than it takes", span_of(node))
        steps.append(value.float().clone())
    return steps


def _scale(
    found: WrittenOut,
    made: list[torch.Tensor],
    runs: list[list[torch.Tensor]],
    shown: torch.Tensor,
) -> float:
    """The one factor of all scores.

    Raises:
        NotPlain: there is none; the first step after which there is none is to blame.
    """
    scale: float | None = None
    for step, node in enumerate((found.scores, *found.before)):
        scale = _factor(made, [r[step].reshape(shown.shape) for r in runs], shown)
        if scale is None:
            what = f"`{name_of(node)}` does more than scale the scores and add to them"
            raise NotPlain(what, span_of(node))
    assert scale is not None
    return scale


def _factor(
    made: list[torch.Tensor], values: list[torch.Tensor], shown: torch.Tensor
) -> float | None:
    base = values[0]
    factor: float | None = None
    for scores, value in zip(made[1:], values[1:], strict=True):
        change, score = (value - base)[shown], scores[shown]
        if not bool(change.isfinite().all()):
            return None
        found = float((change @ score) / (score @ score))
        least = _TOLERANCE * (1 + float(base[shown].abs().max()))
        if bool(((change - found * score).abs() > least).any()):
            return None
        if factor is not None and abs(found - factor) > _TOLERANCE * abs(factor):
            return None
        factor = found
    return factor if factor else None


def _window(shown: torch.Tensor, found: WrittenOut) -> int | None:
    """The window of what is shown [B, N, T, T].

    Raises:
        NotPlain: it is not causal, or its window changes.
    """
    one = shown[0, 0]
    tokens = one.shape[-1]
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    width = int(one[-1].sum())
    expected = (distance >= 0) & (distance < width)
    if not bool((shown == one).all()):
        raise NotPlain("heads or sequences see different keys", span_of(found.softmax))
    if not torch.equal(one, expected):
        ahead = bool((one & (distance < 0)).any())
        why = "it sees later keys" if ahead else "its mask is not causal with one window"
        raise NotPlain(why, span_of(found.softmax))
    return width if width < tokens else None


def _slopes(bias: torch.Tensor, shown: torch.Tensor, found: WrittenOut) -> tuple[float, ...] | None:
    """The slope of each head's bias, up to a constant of each query; None if there is no bias."""
    tokens = bias.shape[-1]
    distance = (torch.arange(tokens) - torch.arange(tokens)[:, None]).double()
    own = bias.double() - bias.double().diagonal(dim1=-2, dim2=-1)[..., None]
    farthest = int(shown[0, 0, -1].nonzero()[0])  # the last query's, where rounding counts least
    slopes = own[0, :, -1, farthest] / min(farthest - tokens + 1, -1)
    expected = slopes[:, None, None] * distance
    least = _TOLERANCE * (1 + float(own[shown].abs().max()))
    if bool(((own - expected).abs() > least)[shown].any()):
        raise NotPlain("what is added to its scores is not linear in the distance of the key",
                       span_of(found.softmax))  # fmt: skip
    return None if not bool(slopes.any()) else tuple(float(s) for s in slopes)


def _check_weights(found: WrittenOut, values: Values) -> None:
    """From the softmax on, the weights must stay as they are."""
    generator = torch.Generator().manual_seed(1)
    made = torch.rand(found.softmax.meta["val"].shape, generator=generator)
    steps = _run(found.after, found.softmax, made, values)
    for node, value in zip(found.after, steps[1:], strict=True):
        if not torch.equal(value.flatten(), made.flatten()):
            raise NotPlain(f"`{name_of(node)}` changes the weights", span_of(node))


def table_window(
    found: WrittenOut,
    values: Values,
    trace: ModuleTrace,
    module: nn.Module,
    seen: int | None,
) -> int | None:
    """The window with what a mask table of the layer says beyond the tokens of the trace.

    Raises:
        NotPlain: the table is not that of a causal mask with one window, or disagrees with what was seen.
    """
    window = seen
    for table in tables(found, trace, module):
        wide = _table_window(table, span_of(found.softmax))
        tokens = found.output.meta["val"].shape[-2]
        if wide is not None and wide < tokens and wide != seen:
            raise NotPlain(f"a table with a window of {wide} for one of {seen}")
        if wide is not None and (window is None or wide < window):
            window = wide
    return window


def tables(found: WrittenOut, trace: ModuleTrace, module: nn.Module) -> list[torch.Tensor]:
    """The buffers [..., P, P] of the layer that enter its scores."""
    todo = [n for node in (*found.before, found.scores) for n in node.all_input_nodes]
    inside, seen = {found.scores, *found.before}, set[fx.Node]()
    made = []
    while todo:
        node = todo.pop()
        if node in seen or node in inside:
            continue
        seen.add(node)
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            value = module.get_submodule(owner)._buffers.get(name)
            if value is not None and value.dim() > 1 and value.shape[-1] == value.shape[-2]:
                made.append(value)
        elif node.op == "call_function" and name_of(node) not in ("matmul", "bmm"):
            todo += node.all_input_nodes
    return made


def _table_window(table: torch.Tensor, span: Any) -> int | None:
    shown = table.reshape(-1, *table.shape[-2:])[0] != 0
    for one in (shown, ~shown):
        size = one.shape[-1]
        width = int(one[-1].sum())
        whole = torch.ones(size, size, dtype=torch.bool)
        if width and torch.equal(one.cpu(), whole.tril() & ~whole.tril(-width)):
            return width if width < size else None
    raise NotPlain("a table of its own that is no causal mask", span)
