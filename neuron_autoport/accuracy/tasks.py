"""Level 1: tasks through lm_eval, the served model against the reference, document by document.

lm_eval runs in a process of its own and asks both by the same requests: vLLM's server with the port, and Hugging Face
eager in float32. A folder of tasks is all it needs; a small one comes with this package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from neuron_autoport.accuracy.difference import paired_difference
from neuron_autoport.accuracy.explain import Asked, commands
from neuron_autoport.accuracy.hf_server import reference_server
from neuron_autoport.accuracy.modules import Progress
from neuron_autoport.accuracy.schema import Failure, Level1, TaskResult
from neuron_autoport.accuracy.serve import vllm_server
from neuron_autoport.accuracy.served import Asking, cause
from neuron_autoport.accuracy.weights import load_weights
from neuron_autoport.errors import AutoportError
from neuron_autoport.models.source import ModelSource

BUILTIN_TASKS = Path(__file__).with_name("tasks_builtin")
GENERATED_TASKS = Path(__file__).with_name("tasks_generate")
_MAX_LENGTH = 512
_TIMEOUT = 3600
# Metrics for which less is better are turned round, so that a difference below zero is always a loss.
_LESS_IS_BETTER = ("bits_per_byte",)

Documents = dict[str, dict[str, dict[str, float]]]


def judge_tasks(
    source: ModelSource,
    asking: Asking,
    asked: Asked,
    *,
    tasks: Path | None = None,
    limit: int | None = None,
    margin: float = 0.05,
    progress: Progress,
) -> tuple[Level1, list[Failure]]:
    """Run level 1.

    Args:
        tasks: a folder of lm_eval task files; None for the one of this package. limit: documents per
            task. margin: see `Difference.verdict`.

    Raises:
        AutoportError: the server or lm_eval failed.
    """
    started = time.perf_counter()
    generate_only = not asking.place.prompt_logits
    folder = (tasks or (GENERATED_TASKS if generate_only else BUILTIN_TASKS)).resolve()
    if not any(folder.glob("**/*.yaml")):
        raise AutoportError(
            "There are no lm_eval tasks (*.yaml) in this folder.", str(folder),
            f"autoport validate {source.name} --level 1 uses the built-in ones",
        )  # fmt: skip
    model = str(source.folder or source.name)
    with vllm_server(
        model, impl=asking.impl, dtype=asking.dtype, max_model_len=_MAX_LENGTH, without=asking.without,
        folders=asking.folders, tp=asking.tp, place=asking.place,
        waiting=lambda s: progress("level 1: starting the server", int(s), 0),
    ) as url:  # fmt: skip
        progress("level 1: tasks on the served model", 0, 2)
        ported = run_lm_eval(url, model, folder, limit, generate_only=generate_only)
    progress("level 1: tasks on the reference", 1, 2)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=source.trust_remote_code)
    with reference_server(load_weights(source).model, tokenizer) as url:
        reference = run_lm_eval(url, model, folder, limit, generate_only=generate_only)
    progress("level 1", 2, 2)
    results = compare_tasks(ported, reference, margin)
    level = Level1(
        passed=all(r.passed for r in results) and bool(results),
        tasks=results,
        lm_eval=version("lm_eval"),
        seconds=time.perf_counter() - started,
    )
    return level, [_failure(r, asked) for r in results if not r.passed]


def run_lm_eval(
    url: str, tokenizer: str, tasks: Path, limit: int | None, *, generate_only: bool = False
) -> Documents:
    """All tasks of a folder against one server.

    Args:
        generate_only: leave out the tasks that ask for probabilities of given text.

    Raises:
        AutoportError: lm_eval failed; with the cause.
    """
    with tempfile.TemporaryDirectory(prefix="autoport-lm-eval-") as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "result.json"
        job.write_text(json.dumps({
            "url": url, "tokenizer": tokenizer, "tasks": str(tasks), "limit": limit,
            "max_length": _MAX_LENGTH, "generate_only": generate_only,
        }), encoding="utf-8")  # fmt: skip
        env = {
            **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1",
            "HF_DATASETS_CACHE": str(Path(folder) / "datasets"), "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "neuron_autoport.accuracy.lm_worker", str(job), str(result)],
            cwd=tasks, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode or not result.is_file():
            raise AutoportError(
                f"lm_eval failed: {cause(done.stdout + done.stderr)}",
                str(tasks),
                f"lm_eval validate --include_path {tasks} --tasks NAME",
            )
        found: Documents = json.loads(result.read_text(encoding="utf-8"))
    return found


def compare_tasks(ported: Documents, reference: Documents, margin: float) -> list[TaskResult]:
    """Every metric of every task, paired by document."""
    results = []
    for task, metrics in sorted(reference.items()):
        for metric, scores in sorted(metrics.items()):
            other: dict[str, float] = ported.get(task, {}).get(metric, {})
            documents = sorted(scores.keys() & other.keys())
            if documents:
                results.append(_compare(task, metric, documents, other, scores, margin))
    return results


def _compare(
    task: str, metric: str, documents: list[str], ported: Any, reference: Any, margin: float
) -> TaskResult:
    sign = -1.0 if metric in _LESS_IS_BETTER else 1.0
    found = paired_difference(
        [sign * ported[d] for d in documents], [sign * reference[d] for d in documents]
    )
    verdict, passed = found.verdict(margin)
    return TaskResult(
        task=task, metric=metric, documents=found.documents, ported=sign * found.ported,
        reference=sign * found.reference, difference=found.difference, interval=found.interval,
        p_value=found.p_value, margin=margin, verdict=verdict, passed=passed,
    )  # fmt: skip


def _failure(result: TaskResult, asked: Asked) -> Failure:
    low, high = result.interval
    return Failure(
        level=1, where=f"task {result.task}, {result.metric}", layer=None, inputs="",
        why=f"{result.verdict}: ported {result.ported:.4g}, reference {result.reference:.4g}, difference "
        f"{result.difference:+.3g} (95 %: {low:+.3g} … {high:+.3g}), margin {result.margin:g}",
        bad=None, rules=[], guilty=[],
        explained="levels 3 and 2 say which module; few documents leave a wide interval",
        commands=[asked.validate("--level", "3,2"), *commands(asked, ())],
    )  # fmt: skip
