"""Level 2 in this process: the rewritten Hugging Face model on whole prompts, in every way of running it.

The truth is the reference in the higher precision, one piece per prompt. Reference and port then run in each mode;
a mode the reference itself cannot run, or in which it computes something else, is left out and said so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuron_autoport.accuracy.candidate import Builder, Candidate
from neuron_autoport.accuracy.logits import Truth, broken_mode, judge_mode, measure
from neuron_autoport.accuracy.metrics import agreement
from neuron_autoport.accuracy.modules import Progress, silent
from neuron_autoport.accuracy.prompts import Prompt
from neuron_autoport.accuracy.schema import CacheResult, Level2, ModeResult, figures_of
from neuron_autoport.accuracy.teacher import MODES, Forced, Runner, runner
from neuron_autoport.accuracy.three_way import three_way
from neuron_autoport.prove.modules import RUN_ERRORS

HOST_HERE = "rewritten Hugging Face model, in this process"


@dataclass(eq=False)
class References:
    """The truth and the reference in the port's dtype, made once for every judgement."""

    truth: nn.Module
    low: nn.Module

    @classmethod
    def of(cls, builder: Builder) -> References:
        if builder.dtype is torch.float32:
            return cls(builder.model(truth=True), builder.model_fp32())
        return cls(builder.model_fp32(), builder.model())


def judge_prompts(
    builder: Builder,
    candidate: Candidate,
    prompts: list[Prompt],
    *,
    references: References | None = None,
    chunk: int = 16,
    steps: int = 8,
    progress: Progress = silent,
) -> Level2:
    """Run level 2 on the ported model in this process.

    Args:
        chunk: tokens per piece of the chunked prefill. steps: tokens decoded one by one.
    """
    started = time.perf_counter()
    references = references or References.of(builder)
    ported = builder.model(candidate)
    ids, pad = [p.ids for p in prompts], _pad(builder)
    exact = runner("whole", ids, chunk=chunk, steps=steps, pad=pad)(references.truth)
    judge = _Judge(references.low, ported, prompts, exact)
    for number, mode in enumerate(MODES):
        progress(f"level 2: {mode}", number, len(MODES))
        judge.mode(mode, runner(mode, ids, chunk=chunk, steps=steps, pad=pad))
    progress("level 2", len(MODES), len(MODES))
    passed = all(r.passed for r in judge.modes) and all(c.figures.passed for c in judge.caches)
    return Level2(
        passed=passed and bool(judge.modes),
        host=HOST_HERE,
        modes=judge.modes,
        cache=judge.caches,
        skipped=judge.skipped,
        seconds=time.perf_counter() - started,
    )


class _Judge:
    """Runs one mode after the other and keeps what was found."""

    def __init__(
        self, low: nn.Module, ported: nn.Module, prompts: list[Prompt], exact: list[Forced]
    ) -> None:
        self.low, self.ported, self.exact = low, ported, exact
        self.truths = [Truth(p.name, e.logits) for p, e in zip(prompts, exact, strict=True)]
        self.modes: list[ModeResult] = []
        self.caches: list[CacheResult] = []
        self.skipped: dict[str, str] = {}
        self.whole: tuple[list[Tensor], list[Tensor]] | None = None

    def mode(self, mode: str, run: Runner) -> None:
        try:
            expected = run(self.low)
        except RUN_ERRORS as error:
            self.skipped[mode] = f"the reference itself cannot: {_line(error)}"
            return
        own = [measure(t, f.logits) for t, f in zip(self.truths, expected, strict=True)]
        if mode != "whole" and not self.consistent(expected):
            self.skipped[mode] = "the reference itself computes other logits in this mode"
            return
        try:
            actual = run(self.ported)
        except RUN_ERRORS as error:
            problem = f"the port does not run: {_line(error)}"
            self.modes.append(broken_mode(mode, self.truths, problem))
            return
        mine = [measure(t, f.logits) for t, f in zip(self.truths, actual, strict=True)]
        found = judge_mode(mode, self.truths, own, mine)
        self.modes.append(self.agree(found, expected, actual))
        self.caches += judge_caches(mode, self.exact, expected, actual)

    def agree(self, found: ModeResult, expected: list[Forced], actual: list[Forced]) -> ModeResult:
        """Add how far the mode is from the same model's logits in one piece."""
        if self.whole is None:
            self.whole = [f.logits for f in expected], [f.logits for f in actual]
            return found
        scale = max(t.scale for t in self.truths)
        differences = [
            max(float((f.logits - w).abs().max()) for f, w in zip(side, whole, strict=True)) / scale
            for side, whole in zip((expected, actual), self.whole, strict=True)
        ]
        return found.model_copy(
            update={"reference_against_whole": differences[0], "against_whole": differences[1]}
        )

    def consistent(self, expected: list[Forced]) -> bool:
        """Does the reference compute in this mode what it computes in one piece, up to rounding?"""
        for truth, found in zip(self.truths, expected, strict=True):
            far = float((found.logits - truth.logits).abs().max()) / truth.scale
            if far > 0.15 and agreement(truth.logits, found.logits)[0] < 0.9:
                return False
        return True


def _pad(builder: Builder) -> int:
    model: Any = builder.weights.model
    pad = model.config.get_text_config().pad_token_id
    return pad if isinstance(pad, int) and pad >= 0 else 0


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def judge_caches(
    mode: str, exact: list[Forced], expected: list[Forced], actual: list[Forced]
) -> list[CacheResult]:
    """Keys and values of every layer, all prompts together; window layers by their last positions."""
    every = [f.cache for f in (*exact, *expected, *actual)]
    if any(c is None for c in every):
        return []
    layers = min(len(c) for c in every if c is not None)
    found = []
    for layer in range(layers):
        for part, word in ((0, "keys"), (1, "values")):
            sides: list[list[Tensor]] = [[], [], []]
            for trio in zip(exact, expected, actual, strict=True):
                parts = [f.cache[layer][part] for f in trio if f.cache is not None]
                shortest = min(p.shape[2] for p in parts)
                for side, tensor in zip(sides, parts, strict=True):
                    side.append(tensor[:, :, tensor.shape[2] - shortest :])
            # All prompts as one tensor: of a short prompt alone the errors are too few to be compared.
            flat = [torch.cat([t.flatten() for t in side]) for side in sides]
            three = three_way(*flat, name=f"layer {layer} {word}")
            found.append(CacheResult(layer=layer, part=word, mode=mode, figures=figures_of(three)))
    return found
