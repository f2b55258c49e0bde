"""What `autoport validate --json` writes: the result of every level, described in docs/validate.md.

Ratios that are infinite (the reference is exact and the port is not) are written as null, with `passed` and
`why` saying what that means.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict

from neuron_autoport.accuracy.three_way import ThreeWay
from neuron_autoport.accuracy.view import BadElement

SCHEMA_VERSION = 1


class Part(BaseModel):
    """Base: unknown fields are a mistake, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figures(Part):
    """One three-way comparison. `r` is the sigma ratio: error over the reference's own error."""

    coefficient: float
    r: float | None
    linf_ratio: float | None
    l2_ratio: float | None
    error: float | None
    reference_error: float
    verdict: str
    passed: bool
    why: str


class Bad(Part):
    """One element that errs more than the rule allows, and how many do."""

    output: int
    index: list[int]
    truth: float | None
    reference: float | None
    actual: float | None
    ulps: int
    error: float | None
    reference_error: float | None
    count: int
    elements: int
    text: str


class ModuleResult(Part):
    """Level 3: one module on one kind of input. `inputs`: real, small rows or outliers."""

    path: str
    class_name: str
    layer: int | None
    inputs: str
    rules: list[str]
    figures: Figures
    bad: Bad | None = None


class Depth(Part):
    """Error of the hidden states after one unit, relative to their RMS, in a run of the whole model."""

    path: str
    layer: int | None
    reference: float
    ported: float
    coefficient: float
    passed: bool


class Level3(Part):
    """All modules, and error against depth."""

    passed: bool
    rows: int
    tokens: int
    modules: list[ModuleResult]
    depth: list[Depth]
    seconds: float


class PromptResult(Part):
    """Level 2: one prompt in one mode. `errors`: by top-k ("5", "50", "1000", "all").

    linf_ratio, l2_ratio: error over the reference's own. first_divergence: first position whose most likely
    token is another; divergence_gap: between the truth's two highest logits there, relative to the largest.
    """

    prompt: str
    positions: int
    errors: dict[str, float]
    reference_errors: dict[str, float]
    linf_ratio: float | None
    l2_ratio: float | None
    kl_mean: float | None
    kl_max: float | None
    reference_kl_mean: float | None
    agreement: float
    reference_agreement: float
    first_divergence: int | None
    divergence_gap: float | None
    passed: bool


class ModeResult(Part):
    """Level 2: all prompts in one mode. within: errors stay inside the top-k tolerances.

    coefficient, r: of the logits' errors over all prompts. against_whole: largest difference from the
    same port's logits in one piece, relative to the largest logit; reference_against_whole: the
    reference's own such difference.
    """

    mode: str
    within: bool
    coefficient: float
    r: float | None
    agreement: float
    reference_agreement: float
    against_whole: float | None = None
    reference_against_whole: float | None = None
    passed: bool
    why: str
    prompts: list[PromptResult]


class CacheResult(Part):
    """Level 2: the KV cache of one layer after one mode, keys or values."""

    layer: int
    part: str
    mode: str
    figures: Figures


class Level2(Part):
    """Prompts by teacher forcing. `skipped`: modes the reference itself cannot run, with the reason."""

    passed: bool
    host: str
    modes: list[ModeResult]
    cache: list[CacheResult]
    skipped: dict[str, str]
    seconds: float


class TaskResult(Part):
    """Level 1: one metric of one task, ported against reference, paired by document."""

    task: str
    metric: str
    documents: int
    ported: float
    reference: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    margin: float
    verdict: str
    passed: bool


class Level1(Part):
    """Tasks through lm_eval."""

    passed: bool
    tasks: list[TaskResult]
    lm_eval: str
    seconds: float


class Failure(Part):
    """The failure view: the worst place, and what to do about it."""

    level: int
    where: str
    layer: int | None
    inputs: str
    why: str
    bad: Bad | None
    rules: list[str]
    guilty: list[str]
    explained: str
    commands: list[str]


class Settings(Part):
    """What was asked for, and with which versions."""

    model: str
    architecture: str
    impl: str
    dtype: str
    levels: list[int]
    layered: bool
    without: list[str]
    dropped: list[str]
    memory: dict[str, int]
    versions: dict[str, str]
    device: str


class Report(Part):
    """The whole report."""

    schema_version: int = SCHEMA_VERSION
    passed: bool
    settings: Settings
    sites: dict[str, int]
    level3: Level3 | None = None
    level2: list[Level2] = []
    level1: Level1 | None = None
    failures: list[Failure] = []
    not_shown: list[str] = []
    seconds: float = 0.0

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


def finite(value: float | None) -> float | None:
    """The value, or None if JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def figures_of(found: ThreeWay) -> Figures:
    return Figures(
        coefficient=found.coefficient,
        r=finite(found.r),
        linf_ratio=finite(found.linf_ratio),
        l2_ratio=finite(found.l2_ratio),
        error=finite(found.actual_error),
        reference_error=found.expected_error,
        verdict=str(found.verdict),
        passed=found.passed,
        why=found.why(),
    )


def bad_of(found: BadElement | None) -> Bad | None:
    if found is None:
        return None
    numbers: dict[str, Any] = {
        "truth": found.baseline, "reference": found.expected, "actual": found.actual,
        "error": found.actual_error, "reference_error": found.expected_error,
    }  # fmt: skip
    return Bad(
        output=found.output,
        index=list(found.index),
        ulps=found.ulps,
        count=found.over,
        elements=found.elements,
        text=found.text(),
        **{k: finite(v) for k, v in numbers.items()},
    )
