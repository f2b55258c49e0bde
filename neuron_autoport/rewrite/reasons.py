"""Why something was not rewritten: one value for every refusal, with a code and a place.

Codes: AP1xx trace, AP2xx structure, AP3xx values and rounding, AP4xx limits of the target,
AP5xx parallel plan, AP6xx weights, AP7xx proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_autoport.trace.spans import Span

CODES = {
    "AP101": "the value of a tensor decides what is computed",
    "AP102": "the forward could not be run on tensors without data",
    "AP201": "an inner value of the match is used elsewhere",
    "AP202": "the matched expression computes more than the match",
    "AP203": "a captured module is used by code that stays",
    "AP204": "a value of the match is written in place",
    "AP205": "parts of the match run in different branches",
    "AP206": "the matched code runs more than once",
    "AP207": "an input is not readable where the new call would stand",
    "AP208": "the forward's source cannot be rewritten",
    "AP209": "a name may hold another value where the new call would read it",
    "AP210": "only part of the pattern is there",
    "AP220": "a mixture-of-experts block is not computed by a known formula",
    "AP301": "a condition of the rule does not hold",
    "AP302": "another part of a head is rotated than the configuration says",
    "AP401": "a limit of the target's kernel does not hold: torch runs there",
    "AP402": "the target has no function for this: it stays in torch",
    "AP410": "vLLM's attention layer cannot compute this attention",
    "AP411": "tokens meet where vLLM has no cache",
    "AP412": "vLLM has no class for this model, or not its head",
    "AP501": "the sizes cannot be split over the ranks",
    "AP601": "the rewrite has the weights in another order than they are saved in",
    "AP701": "the rewrite did not compute what the original computes",
    "AP702": "the rewrite could not be proved",
}


# The target has no function for it: nothing a rule could have fused was lost.
STATED = "AP402"


@dataclass(frozen=True)
class Refusal:
    """A rule that nearly applied, and why it did not.

    code: one of `CODES`. message: what stood in the way. span: where. steps: how far the match
    got, "3 of 5"; a full match that was refused has all its steps.
    """

    code: str
    rule: str
    message: str
    span: Span | None
    steps: str


class Refused(Exception):
    """Raised inside planning when a match may not be rewritten."""

    def __init__(self, code: str, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.span = code, message, span
