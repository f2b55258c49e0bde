"""Run as a script: one lm_eval run against one server; every document's metrics as JSON.

usage: python -m neuron_autoport.accuracy.lm_worker JOB RESULT

JOB is JSON: url, tokenizer, tasks (a folder), limit, max_length, generate_only. Run with the task folder as
working directory, so that relative data files in its YAML are found. No network is used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# What a pair's quotient is, by the name of the metric lm_eval makes of it.
_PER = {"word_perplexity": "log likelihood per word", "byte_perplexity": "log likelihood per byte"}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager, get_task_dict

    manager = TaskManager(include_path=job["tasks"], include_defaults=False)
    tasks = list(manager.all_tasks)
    if job["generate_only"]:
        made: Any = get_task_dict(tasks, manager)
        tasks = [name for name, task in made.items() if task.OUTPUT_TYPE == "generate_until"]
    if not tasks:
        sys.exit("Error: none of these tasks generates text, and this server does nothing else")
    arguments = {
        "model": "model", "base_url": f"{job['url']}/v1/completions", "tokenizer": job["tokenizer"],
        "tokenizer_backend": "huggingface", "tokenized_requests": True, "batch_size": 16,
        "num_concurrent": 1, "max_length": job["max_length"],
    }  # fmt: skip
    found: Any = simple_evaluate(
        model="local-completions", model_args=arguments, tasks=tasks,
        task_manager=manager, limit=job["limit"], bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    Path(sys.argv[2]).write_text(json.dumps(_documents(found["samples"])), encoding="utf-8")


def _documents(samples: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, dict[str, float]]]:
    """task → metric → document → value; a pair (log likelihood, weight) becomes their quotient."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for task, documents in samples.items():
        metrics = found.setdefault(task, {})
        for sample in documents:
            for name in sample.get("metrics") or ():
                value = sample.get(name)
                if isinstance(value, list | tuple) and len(value) == 2:
                    value = value[0] / value[1] if value[1] else 0.0
                    name = _PER.get(name, name)
                if isinstance(value, int | float):
                    metrics.setdefault(name, {})[str(sample["doc_id"])] = float(value)
    return found


if __name__ == "__main__":
    main()
