"""`autoport validate` as a function: options in, report out. The command line adds only the printing."""

from __future__ import annotations

import platform
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from neuron_autoport import __version__
from neuron_autoport.accuracy.bisect import smallest_set
from neuron_autoport.accuracy.candidate import Builder, Candidate
from neuron_autoport.accuracy.explain import (
    NOT_A_RULE,
    Asked,
    calls_of,
    commands,
    innermost,
    module_failures,
    prompt_failures,
    unit_of,
)
from neuron_autoport.accuracy.level2 import References, judge_prompts
from neuron_autoport.accuracy.modules import judge_modules, judge_unit
from neuron_autoport.accuracy.options import DTYPES, OUR_IMPL, Options
from neuron_autoport.accuracy.platforms import serving_platform
from neuron_autoport.accuracy.prompts import Prompt, load_prompts, rows_of
from neuron_autoport.accuracy.schema import Failure, Level2, Level3, Report, Settings
from neuron_autoport.accuracy.served import Asking, ask_engine, judge_served
from neuron_autoport.accuracy.weights import GIB, Memory, estimate_memory, load_weights
from neuron_autoport.errors import AutoportError
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.nf.dispatch import reference
from neuron_autoport.pipeline import expand_without, proved_port
from neuron_autoport.port import port_model, replan
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rules.rule import Rule


def validate(source: ModelSource, rules: tuple[Rule, ...], options: Options) -> Report:
    """Validate a port.

    Args:
        source: a model with weights; a bare model type stands for the small model of its kind with
            adversarial weights.
        rules: the library the port is made with.

    Raises:
        AutoportError: the model cannot be loaded, does not fit into the memory even layer by layer,
            or a level cannot be run here.
    """
    return _Validation(source, rules, options).run()


class _Validation:
    def __init__(self, source: ModelSource, rules: tuple[Rule, ...], options: Options) -> None:
        self.source, self.rules, self.options = source, rules, options
        self.small = source.kind == "model_type"
        self.target: Any = tiny_config(source) if self.small else source
        self.asked = Asked(source.name, options.folders)
        self.dropped: list[str] = []
        self.failures: list[Failure] = []
        self.candidate = self._candidate()
        self.prompts: list[Prompt] = []

    def run(self) -> Report:
        options, started = self.options, time.perf_counter()
        self.prompts = load_prompts(
            self.target, options.prompts, count=options.count, length=options.length
        )
        ids = rows_of(self.prompts, options.length)
        memory, layered = self._memory()
        answers = self._ask_engine(layered)
        level3, level2 = self._here(ids, layered, answers)
        level1 = self._tasks()
        levels = [*([level3] if level3 else []), *level2, *([level1] if level1 else [])]
        return Report(
            passed=all(x.passed for x in levels) and bool(levels) and not self.dropped,
            settings=self._settings(memory, layered),
            sites=self._sites(),
            level3=level3,
            level2=level2,
            level1=level1,
            failures=self.failures,
            not_shown=self._not_shown(ids, level2, level1 is not None),
            seconds=time.perf_counter() - started,
        )

    def _candidate(self) -> Candidate:
        options = self.options
        if options.prove:
            with reference():  # what is proved must not depend on the machine
                proved = proved_port(self.target, self.rules, without=frozenset(options.without))
            self.dropped = [
                f"{d.class_name}:{d.rule} ({d.code}: {d.figures})" for d in proved.proof.dropped
            ]
            return Candidate(proved.port, proved.generated, options.adjust)
        port = port_model(self.target, self.rules)
        off = expand_without(port, frozenset(options.without))
        port = replan(port, self.rules, off) if off else port
        return Candidate(port, generate(port.plans, "planned, not proved"), options.adjust)

    def _memory(self) -> tuple[Memory, bool]:
        options = self.options
        tokens = sum(len(p.ids) for p in self.prompts)
        memory = estimate_memory(self.target, DTYPES[options.dtype], tokens, options.memory)
        options.progress(f"memory: {memory.text()}", 0, 0)
        if memory.fits or not set(options.levels) & {2, 3} or options.impl != OUR_IMPL:
            return memory, False
        if memory.layered > memory.available or self.small:
            raise AutoportError(
                f"The model does not fit into memory even layer by layer: {memory.text()}.",
                self.source.name,
                f"autoport validate {self.source.name} --length {max(8, options.length // 2)}, or "
                f"--memory {memory.layered / GIB:.1f} if the estimate is too careful",
            )
        return memory, True

    def _ask_engine(self, layered: bool) -> dict[str, Any] | None:
        """What the served model says, before the reference is loaded: one of them is in memory."""
        options = self.options
        if 2 not in options.levels or not options.engine or layered:
            return None
        options.progress("level 2: vLLM engine", 0, 0)
        return ask_engine(self.source, self.prompts, self._asking())

    def _asking(self) -> Asking:
        options = self.options
        off = tuple(sorted(self.candidate.port.without))
        return Asking(
            options.impl, options.dtype, options.steps, 2 * options.chunk, off, options.folders,
            options.tp, serving_platform(),
        )  # fmt: skip

    def _here(
        self, ids: Tensor, layered: bool, answers: dict[str, Any] | None
    ) -> tuple[Level3 | None, list[Level2]]:
        """Levels 3 and 2: the port in this process, and what the engine answered."""
        options, ours = self.options, self.options.impl == OUR_IMPL
        level3: Level3 | None = None
        level2: list[Level2] = []
        if not (3 in options.levels or (2 in options.levels and (ours or answers))):
            return level3, level2
        options.progress("loading weights", 0, 0)
        builder = Builder(load_weights(self.target, layered=layered), DTYPES[options.dtype])
        if 3 in options.levels:
            level3 = judge_modules(builder, self.candidate, ids, options.progress)
            if not level3.passed:
                self.failures += module_failures(
                    builder, self.candidate, self.rules, ids, level3, self.asked
                )
        references = References.of(builder) if 2 in options.levels else None
        if references is not None and ours:
            found = self._level2(builder, self.candidate, references)
            level2.append(found)
            self.failures += prompt_failures(found, self.asked)
        failed = [x for x in (level3, *level2) if x is not None and not x.passed]
        if options.bisect and failed:
            self.failures.append(self._bisect(builder, ids, level3, level2, references))
        if references is not None and answers is not None:
            options.progress("level 2: engine's answers", 0, 0)
            served, failures = judge_served(
                references, self.prompts, answers, self._asking(), self.asked
            )
            level2.append(served)
            self.failures += failures
        return level3, level2

    def _level2(self, builder: Builder, candidate: Candidate, references: References) -> Level2:
        options = self.options
        return judge_prompts(
            builder, candidate, self.prompts, references=references, chunk=options.chunk,
            steps=options.steps, progress=options.progress,
        )  # fmt: skip

    def _bisect(
        self,
        builder: Builder,
        ids: Tensor,
        level3: Level3 | None,
        level2: list[Level2],
        references: References | None,
    ) -> Failure:
        """The smallest set of rules that explains all failures: modules first, then prompts."""
        failed = [m for m in level3.modules if not m.figures.passed] if level3 else []
        worst: dict[str, str] = {}  # one unit for each failing class is enough to ask
        for module in innermost(failed):
            worst.setdefault(module.class_name, unit_of(builder, module.path))
        units = sorted(set(worst.values()))
        calls = calls_of(builder, ids, units)
        ask_prompts = any(not x.passed for x in level2)
        asked = 0

        def passes(off: frozenset[str]) -> bool:
            nonlocal asked
            asked += 1
            self.options.progress(f"bisect: trial {asked}", 0, 0)
            part = self.candidate.without(off, self.rules) if off else self.candidate
            for unit in units:
                if not all(m.figures.passed for m in judge_unit(builder, part, unit, calls[unit])):
                    return False
            if not ask_prompts or references is None:
                return bool(off) or not units
            return self._level2(builder, part, references).passed

        guilty = smallest_set(self.candidate.pairs(), passes)
        explained = (
            NOT_A_RULE
            if guilty is None
            else f"bisect, {asked} trials: the smallest set of rules without which all passes is "
            f"{', '.join(guilty) or 'empty'}"
        )
        return Failure(
            level=3 if units else 2, where="bisect", layer=None, inputs="", why="", bad=None,
            rules=list(self.candidate.pairs()), guilty=list(guilty or ()), explained=explained,
            commands=commands(self.asked, guilty) if guilty else [],
        )  # fmt: skip

    def _tasks(self) -> Any:
        if 1 not in self.options.levels:
            return None
        from neuron_autoport.accuracy.tasks import judge_tasks

        options = self.options
        found, failures = judge_tasks(
            self.source, self._asking(), self.asked, tasks=options.tasks, limit=options.limit,
            margin=options.margin, progress=options.progress,
        )  # fmt: skip
        self.failures += failures
        return found

    def _sites(self) -> dict[str, int]:
        return dict(Counter(s.rule.name for _, s in self.candidate.port.sites()))

    def _settings(self, memory: Memory, layered: bool) -> Settings:
        options = self.options
        return Settings(
            model=self.source.name + (" (small model, adversarial weights)" if self.small else ""),
            architecture=self.source.architecture,
            impl=options.impl,
            dtype=options.dtype,
            levels=list(options.levels),
            layered=layered,
            without=sorted(self.candidate.port.without),
            dropped=self.dropped,
            memory={
                "weights": memory.weights, "in_memory": memory.whole,
                "layer_by_layer": memory.layered, "available": memory.available,
            },
            versions=_versions(),
            device=f"cpu: {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        )  # fmt: skip

    def _not_shown(self, ids: Tensor, level2: list[Level2], tasks: bool) -> list[str]:
        """What a reader may not take for shown."""
        served = tasks or any("engine" in x.host for x in level2)
        notes = serving_platform().not_shown(served)
        config = self.target.text_config if isinstance(self.target, ModelSource) else self.target
        window = getattr(config, "sliding_window", None)
        longest = max(len(p.ids) for p in self.prompts)
        if isinstance(window, int) and longest <= window:
            notes.append(
                f"the sliding window of {window}: the longest prompt has {longest} tokens; "
                f"--length {window + 64} with longer --prompts reaches it"
            )
        if not any("engine" in x.host for x in level2):
            notes.append("the served model at level 2: no engine was run")
        elif not self.options.prove:
            notes.append("--no-prove does not reach the engine: it serves what passed its proof")
        if not tasks and not any(x.startswith("tasks") for x in self.options.left_out):
            notes.append("tasks: level 1 was not asked for")
        notes += self.options.left_out
        notes += [f"mode {m}: {why}" for x in level2 for m, why in x.skipped.items()]
        notes.append(f"contexts longer than {max(longest, ids.shape[1])} tokens")
        return notes


def _versions() -> dict[str, str]:
    found = {"neuron-autoport": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "vllm", "lm_eval"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
