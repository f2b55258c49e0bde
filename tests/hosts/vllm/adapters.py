"""Run as a script: a model with a LoRA adapter, or as an embedding model, through vLLM.

usage: adapters.py lora FOLDER ADAPTER PROMPTS_JSON | adapters.py embed FOLDER PROMPTS_JSON
Prints `RESULT` and JSON: greedy tokens with the adapter, or one embedding per prompt.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def engine(folder: str, **more: Any) -> Any:
    from vllm import LLM

    return LLM(
        folder,
        model_impl="neuron-transformers",
        dtype="float32",
        max_model_len=128,
        enforce_eager=True,
        enable_prefix_caching=False,
        **more,
    )


def with_lora(folder: str, adapter: str, asked: list[list[int]]) -> list[list[int]]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    sampling = SamplingParams(temperature=0, max_tokens=12, detokenize=False, ignore_eos=True)
    llm = engine(folder, skip_tokenizer_init=True, enable_lora=True, max_lora_rank=8)
    results = llm.generate(
        [{"prompt_token_ids": ids} for ids in asked],
        sampling,
        lora_request=LoRARequest("adapter", 1, adapter),
    )
    return [list(r.outputs[0].token_ids) for r in results]


def embedded(folder: str, asked: list[list[int]]) -> list[list[float]]:
    results = engine(folder, runner="pooling", convert="embed").embed(
        [{"prompt_token_ids": ids} for ids in asked]
    )
    return [list(r.outputs.embedding) for r in results]


def main() -> None:
    asked = json.loads(sys.argv[-1])
    if sys.argv[1] == "lora":
        found: Any = with_lora(sys.argv[2], sys.argv[3], asked)
    else:
        found = embedded(sys.argv[2], asked)
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
