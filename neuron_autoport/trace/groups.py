"""Group-limited routing: experts in equal groups, only those of the best groups can be chosen.

group score = sum of the best n scores of a group (n = 1: their maximum)
mask = 1 for the experts of the `kept` groups with the largest group score
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.routing import same, unbool, uncast, unknown


@dataclass(frozen=True)
class Groups:
    """count: groups; kept: groups whose experts can be chosen; best: scores of a group that are summed.

    fill: what the scores of the other experts are set to.
    """

    count: int
    kept: int
    best: int
    fill: float


def read_groups(mask: Op, scores: Op, fill: float) -> Groups:
    """The groups behind a mask [T, E] of experts that can be chosen.

    Args:
        mask: true or 1 where an expert can be chosen. scores: what the choice looks at.

    Raises:
        UnknownRouting: the mask is made in another way.
    """
    op = unbool(mask)
    experts = int(scores.shape[-1])
    if op.name != "expand" or len(op.shape) != 3:
        raise unknown(op, "the mask is not one value per group, spread over its experts")
    count, size = op.shape[-2:]
    placed = unbool(op.inputs[0])
    if count * size != experts or op.inputs[0].shape[-2:] != (count, 1):
        raise unknown(op, "the groups do not divide the experts")
    if placed.name != "scatter" or placed.attrs["dim"] != -1 or placed.shape[-1] != count:
        raise unknown(placed, "the mask is not set for the best groups")
    base, index, value = placed.inputs
    base = uncast(base)
    if base.name != "full" or base.attrs["value"] != 0 or value != 1:
        raise unknown(placed, "the mask is not zero but for the best groups")
    index = uncast(index)
    picked = index.inputs[0] if index.name == "getitem" and index.attrs["key"] == "1" else None
    if picked is None or picked.name != "topk" or picked.attrs["dim"] != -1:
        raise unknown(index, "the groups are not chosen by a top-k")
    if not picked.attrs["largest"]:
        raise unknown(picked, "the smallest groups are chosen")
    best = _group_score(uncast(picked.inputs[0]), scores, (int(count), int(size)))
    return Groups(int(count), int(picked.attrs["k"]), best, fill)


def _group_score(op: Op, scores: Op, sizes: tuple[int, int]) -> int:
    """How many of a group's best scores are summed."""
    if op.name == "sum" and op.attrs["dim"] == -1:
        values = uncast(op.inputs[0])
        if values.name == "getitem" and values.attrs["key"] == "0":
            picked = values.inputs[0]
            if picked.name == "topk" and picked.attrs["largest"] and picked.attrs["dim"] == -1:
                _check_grouped(picked.inputs[0], scores, sizes)
                return int(picked.attrs["k"])
    if op.name == "getitem" and op.attrs["key"] == "0" and op.inputs[0].name == "max":
        op = op.inputs[0]
    if op.name in ("max", "amax") and op.attrs["dim"] == -1:
        _check_grouped(op.inputs[0], scores, sizes)
        return 1
    raise unknown(op, f"`{op.label}` makes the groups' scores")


def _check_grouped(value: Op, scores: Op, sizes: tuple[int, int]) -> None:
    if not same(value, scores) or tuple(value.shape[-2:]) != sizes:
        raise unknown(value, "the groups' scores are of other numbers than the choice")
