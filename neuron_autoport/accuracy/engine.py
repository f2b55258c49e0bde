"""Run as a script: prompts through vLLM's own `LLM`, with the logits of every position, for level 2.

usage: python -m neuron_autoport.accuracy.engine JOB RESULT

JOB is JSON: model, impl, dtype, tp, platform (fields of `Platform`), prompts (token ids), steps, budget (tokens per
engine step), full (which prompts to report the whole vocabulary for), highest (how many logits else). RESULT is
written by torch.save: one list per way of asking ("one by one", "all at once") of {tokens, ids, logits, start} per
prompt. Only vLLM's public interface is used, so the same script runs on any platform of vLLM's. A process of its
own, so that its memory is given back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from neuron_autoport.accuracy.platforms import Platform


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    from vllm import LLM

    llm = LLM(**arguments(job))
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    sampling = [_sampling(job, i) for i in range(len(prompts))]
    found = {
        "one by one": [
            _result(llm.generate([p], [s])[0]) for p, s in zip(prompts, sampling, strict=True)
        ],
        "all at once": [_result(r) for r in llm.generate(prompts, sampling)],
    }
    torch.save(found, sys.argv[2])


def arguments(job: dict[str, Any]) -> dict[str, Any]:
    """What `LLM` is made with."""
    place = Platform(**job["platform"])
    count, longest = len(job["prompts"]), max(map(len, job["prompts"])) + job["steps"] + 1
    longest = -(-longest // place.bucket) * place.bucket
    chunked: dict[str, Any] = {"max_num_batched_tokens": longest}
    if place.chunked:
        budget = max(job["budget"], count)
        chunked = {"max_num_batched_tokens": budget, "enable_chunked_prefill": True}
    return {
        "model": job["model"], "model_impl": job["impl"], "dtype": job["dtype"],
        "trust_remote_code": job["trust_remote_code"], "tensor_parallel_size": job["tp"],
        "skip_tokenizer_init": True, "max_model_len": longest, "max_num_seqs": max(2, count), **chunked,
        "enable_prefix_caching": False, "enforce_eager": place.eager, "max_logprobs": -1,
        "logprobs_mode": "raw_logits",
    }  # fmt: skip


def _sampling(job: dict[str, Any], number: int) -> Any:
    from vllm import SamplingParams

    count = -1 if number in job["full"] else job["highest"]
    of_prompt = {"prompt_logprobs": count} if Platform(**job["platform"]).prompt_logits else {}
    return SamplingParams(
        temperature=0, max_tokens=job["steps"], ignore_eos=True, detokenize=False,
        logprobs=count, flat_logprobs=True, **of_prompt,
    )  # fmt: skip


def _result(output: Any) -> dict[str, Any]:
    """Tokens of prompt and answer; from position `start` on, ids and logits of what follows it."""
    answer = output.outputs[0]
    ids, logits = [], []
    for flat in (output.prompt_logprobs, answer.logprobs):
        if flat is None:
            continue
        for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
            if end > start:  # the first token of a prompt has no position before it
                ids.append(torch.tensor(flat.token_ids[start:end], dtype=torch.int32))
                logits.append(torch.tensor(flat.logprobs[start:end], dtype=torch.float32))
    tokens = [*output.prompt_token_ids, *answer.token_ids]
    return {"tokens": tokens, "ids": ids, "logits": logits, "start": len(tokens) - 1 - len(ids)}


if __name__ == "__main__":
    main()
