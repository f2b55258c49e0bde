"""The norms of a model, in words."""

from __future__ import annotations

from neuron_autoport.compare.flat import Flat
from neuron_autoport.trace.ops import Op


def norm_text(flat: Flat, op: Op) -> str:
    """What the rule says that names this call a norm, its bias and its epsilon."""
    found = flat.norm(op)
    assert found is not None
    rule, match = found
    eps, bias = match.values.get("eps"), match.values.get("b")
    words = [rule.summary.split(", with or without")[0].replace("normalization", "norm")]
    if "with or without" in rule.summary:
        words.append("with weight" if isinstance(match.values.get("w"), Op) else "without weight")
    if isinstance(bias, Op):
        words.append("and bias" if words[1:] else "with bias")
    text = ", ".join(words[:2]) + (" and bias" if words[2:] else "")
    return f"{text}, eps {eps:g}" if isinstance(eps, int | float) else text
