"""How many look-alikes there are, by family: at least 80 that must be refused and as many that are right."""

from __future__ import annotations

from collections import Counter

from neuron_autoport.rules.library import load_rules
from tests.rules.attention_zoo import ATTENTIONS
from tests.rules.decided_zoo import DECIDED
from tests.rules.mlp_zoo import FUSED, GATED, PACKED
from tests.rules.more_zoo import MORE
from tests.rules.norm_zoo import NORMS


def counts() -> tuple[Counter[str], Counter[str]]:
    """Modules of the zoo by family: those that must be fused, and those that must not."""
    right: Counter[str] = Counter()
    alike: Counter[str] = Counter()
    for _, _, _, expected in NORMS:
        (right if expected.startswith("rms") else alike)["norm"] += 1
    for entry in (*GATED, *PACKED):
        (right if entry[3] == FUSED else alike)["mlp"] += 1
    for _, _, _, rules, _ in ATTENTIONS:
        # Each has two projections to fuse, and is a look-alike where one of them must not be.
        (right if len(rules) == 2 else alike)["attention"] += 1
    for family, _, _, _, rules in MORE:
        (right if rules else alike)[family] += 1
    for _, name, _, _, _, expected in DECIDED:
        (right if expected == name else alike)["decided"] += 1
    for rule in load_rules():
        right["examples"] += len(rule.examples)
        alike["examples"] += len(rule.rejects)
    return right, alike


def test_the_zoo_is_large() -> None:
    right, alike = counts()
    print(f"right: {dict(right)}, {right.total()} in all")
    print(f"look-alikes: {dict(alike)}, {alike.total()} in all")
    assert right.total() >= 80 and alike.total() >= 80
    # The families of the zoo alone, without the examples in the rule files.
    assert alike.total() - alike["examples"] >= 80
    assert {"norm", "mlp", "attention", "layer_norm", "add_norm", "ungated", "rope"} <= set(alike)
    assert min(alike.values()) >= 4


def test_no_name_stands_twice() -> None:
    """The name says why: two modules of one family with one reason would be one test."""
    zoos = (NORMS, GATED, PACKED, ATTENTIONS)
    for names in [[e[0] for e in zoo] for zoo in zoos] + [
        [f"{e[0]}: {e[1]}" for e in MORE],
        [e[2] for e in DECIDED],
    ]:
        twice = [n for n, c in Counter(names).items() if c > 1]
        assert not twice
