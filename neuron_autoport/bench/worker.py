"""Run as a script: one implementation in vLLM's engine, that answers one batch after another.

usage: python -m neuron_autoport.bench.worker SETTINGS CHANNEL

SETTINGS is JSON: the arguments of `LLM`. CHANNEL is the number of an open file to which answers are written: a line of
JSON once the engine is ready, `{"ready": seconds}`, and one for each line read from standard input, `{"prompts":
[[ids]], "answer": n}`, namely `{"seconds": s, "tokens": [[ids]]}`. What vLLM prints goes elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Until standard input ends."""
    started = time.perf_counter()
    settings: dict[str, Any] = json.loads(sys.argv[1])
    with os.fdopen(int(sys.argv[2]), "w", buffering=1) as channel:
        from vllm import LLM

        llm = LLM(**settings)
        print(json.dumps({"ready": time.perf_counter() - started}), file=channel)
        for line in sys.stdin:
            print(json.dumps(answer(llm, json.loads(line))), file=channel)


def answer(llm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Generate, and time it."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=asked["answer"], ignore_eos=True, detokenize=False
    )
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    started = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return {"seconds": seconds, "tokens": tokens}


if __name__ == "__main__":
    main()
