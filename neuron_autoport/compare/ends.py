"""Both ends of a model: the embedding with what is done to it, and the head."""

from __future__ import annotations

from typing import Any

from neuron_autoport.compare.attention import reads_positions
from neuron_autoport.compare.flat import Flat, bare, linear
from neuron_autoport.compare.norms import norm_text
from neuron_autoport.compare.stream import Stream
from neuron_autoport.port import Port
from neuron_autoport.trace.head import UnknownHead, read_head
from neuron_autoport.trace.ops import Op


def embedding_values(flat: Flat, stream: Stream) -> dict[str, str]:
    """Sizes, factor, norm and position table, from the first value of the stream back to the ids."""
    said = {
        "embedding.sizes": "not understood",
        "embedding.scale": "none",
        "embedding.norm": "none",
    }
    said |= {"embedding.extra": "none", "position.table": "none"}
    op, factor = bare(stream.start), 1.0
    while isinstance(op, Op):
        if flat.norm(op) is not None:
            said["embedding.norm"] = norm_text(flat, op)
            op = bare(op.inputs[0])
        elif linear(op) is not None:
            facts = linear(op)
            assert facts is not None
            said["embedding.extra"] = f"a linear map {facts.in_features}→{facts.out_features}"
            op = bare(op.inputs[0])
        elif (scaled := flat.scaled(op)) is not None:
            op, factor = bare(scaled[0]), factor * scaled[1]
        elif op.name == "add" and (table := _table(op)) is not None:
            said["position.table"] = _size(table[1])
            op = table[0]
        else:
            break
    if isinstance(op, Op) and op.name == "embedding":
        said["embedding.sizes"] = _size(op)
    if factor != 1.0:
        said["embedding.scale"] = f"× {factor:.6g}"
    return said


def _table(op: Op) -> tuple[Any, Any] | None:
    """(the tokens' embedding, the one of positions) of their sum."""
    one, other = (bare(v) for v in op.inputs)
    for tokens, places in ((one, other), (other, one)):
        if isinstance(places, Op) and isinstance(tokens, Op) and reads_positions(places):
            return tokens, places
    return None


def _size(op: Op) -> str:
    table = bare(op.inputs[1]) if op.name == "embedding" else op
    rows = "×".join(str(n) for n in table.shape)
    return rows if op.name == "embedding" else f"computed, {rows}"


def head_values(port: Port, stream: Stream) -> dict[str, str]:
    """Tied or not, bias, factor and soft-cap of the logits."""
    said = {"head.tied": "not known", "head.bias": "none", "logits.scale": "none"}
    said |= {"logits.soft_cap": "none"}
    facts = linear(stream.head)
    if stream.head is not None and facts is not None:
        said["head.tied"] = "yes" if _is_tied(port, stream.head, facts.weight) else "no"
        said["head.bias"] = "yes" if facts.bias else "none"
    try:
        head = read_head(port.trace)
    except UnknownHead as error:
        return said | {"logits.scale": f"not understood: {error}"}
    scales = [s for s in (head.scale, head.scale_after_cap) if s != 1.0]
    if scales:
        said["logits.scale"] = ", ".join(f"× {s:.6g}" for s in scales)
    if head.soft_cap is not None:
        said["logits.soft_cap"] = f"{head.soft_cap:g}"
    return said


def _is_tied(port: Port, head: Op, weight: str) -> bool:
    """Is the head's weight one tensor with that of an embedding?"""
    model: Any = port.model
    own = model.get_parameter(f"{head.target}.{weight}")
    paths = [n for n, p in model.named_parameters(remove_duplicate=False) if p is own]
    return len(paths) > 1
