"""One kernel of the catalogue: what it does, for which part of a model, and what it asks for."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_autoport.catalogue.sizes import TARGETS
from neuron_autoport.rules.expressions import evaluate, parse_expression

# What a part of a model may ask for, and how it is called where it is missing.
FEATURES = {
    "window": "a sliding window",
    "sink": "attention sinks",
    "softcap": "a soft-cap of scores",
    "gqa": "fewer key/value heads than query heads",
    "silu": "SiLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU by tanh",
    "other_act": "this activation",
    "ungated": "an MLP without a gate",
    "bias": "a bias",
    "rms": "an RMS norm",
    "layer": "a layer norm",
    "plain": "a result in the input's type and layout",
    "one_plus_weight": "a weight kept around zero (1 + w)",
    "fp32_weight": "the weight's product in float32",
    "weightless": "no weight",
    "fp8_out": "an fp8 result",
    "half": "half-split pairs",
    "interleaved": "interleaved pairs",
    "partial": "a rotation of a part of the head",
}
PARTS = {
    "attention": "attention",
    "qkv": "query/key/value projection",
    "o_proj": "output projection of attention",
    "mlp": "MLP",
    "norm": "norm",
    "add_norm": "residual add and norm",
    "rope": "rotary embedding",
    "moe": "experts",
    "embedding": "embedding",
    "lm_head": "logits",
    "conv": "convolution",
    "scan": "scan",
}
KINDS = {"nf": "NF", "own": "our own", "nkilib": "NKI library"}
_OPPOSITE = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<",
}  # fmt: skip


@dataclass(frozen=True)
class Need:
    """A limit: an expression over sizes that must hold.

    phase: it counts in this one only; None for every one. why: what sets it.
    """

    limit: str
    tree: ast.Expression
    phase: str | None = None
    why: str = ""

    @classmethod
    def of(cls, limit: str, phase: str | None = None, why: str = "") -> Need:
        return cls(limit, parse_expression(limit), phase, why)

    @property
    def names(self) -> frozenset[str]:
        """The sizes it speaks of."""
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name))

    def holds(self, sizes: Mapping[str, Any]) -> bool | None:
        """Whether it holds; None if one of its sizes is not known."""
        return bool(evaluate(self.tree, sizes)) if self.names <= set(sizes) else None

    def figures(self, sizes: Mapping[str, Any]) -> str:
        """The numbers of a limit that does not hold: `256 > 128`, or its sizes one by one."""
        body = self.tree.body
        if isinstance(body, ast.Compare) and len(body.ops) == 1:
            left, right = evaluate(body.left, sizes), evaluate(body.comparators[0], sizes)
            return f"{left} {_OPPOSITE[type(body.ops[0])]} {right}"
        return ", ".join(f"{name} {sizes[name]}" for name in sorted(self.names))


@dataclass(frozen=True)
class Entry:
    """One kernel.

    Attributes:
        name: as it is shown: `NF.mlp`, `NK.rms_norm`, `nkilib.mlp`.
        kind: nf, own or nkilib.
        module: where it is imported from.
        does: one line.
        words: what a query may call it, beside the words of the others.
        part: parts of a model it is for: keys of `PARTS`; none for helpers.
        phases: prefill, decode, training.
        targets: chips it runs on.
        takes, gives: shapes, in words.
        needs: limits. call_needs: limits in words that only a call can tell.
        can: features it has: keys of `FEATURES`. only: features a part must ask for.
        outside: what happens where a limit does not hold.
        notes: further facts.
        evidence: how far it is known.
    """

    name: str
    kind: str
    module: str
    does: str
    words: tuple[str, ...] = ()
    part: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    targets: tuple[str, ...] = TARGETS
    takes: str = ""
    gives: str = ""
    needs: tuple[Need, ...] = ()
    call_needs: tuple[str, ...] = ()
    can: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    outside: str = ""
    notes: tuple[str, ...] = ()
    evidence: str = ""

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        needs: list[dict[str, Any]] = [
            {"limit": n.limit, "phase": n.phase, "why": n.why} for n in self.needs
        ]
        needs += [{"limit": text, "phase": None, "why": "of a call"} for text in self.call_needs]
        return {
            "name": self.name, "kind": self.kind, "module": self.module, "does": self.does,
            "part": list(self.part), "phases": list(self.phases), "targets": list(self.targets),
            "takes": self.takes, "gives": self.gives, "needs": needs, "can": list(self.can),
            "only": list(self.only), "outside": self.outside, "notes": list(self.notes), "evidence": self.evidence,
        }  # fmt: skip
