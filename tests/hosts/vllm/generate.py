"""Run as a script: serve a model folder through vLLM's `LLM` and print greedy tokens as JSON.

usage: generate.py FOLDER PROMPTS_JSON [--impl I] [--eager] [--tp N] [--ep] [--tokens N] [--trust]
                    [--logprobs N] [--batch-tokens N] [--block-size N] [--prefix-caching]
A process of its own per engine: what one engine leaves behind cannot help or hurt the next.
"""

from __future__ import annotations

import argparse
import json


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("prompts")
    parser.add_argument("--impl", default="neuron-transformers")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--logprobs", type=int, default=None)
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--batch-tokens", type=int, default=None)
    parser.add_argument("--block-size", type=int, default=None)
    parser.add_argument("--prefix-caching", action="store_true", help="as vLLM has it by itself")
    options = parser.parse_args()

    from vllm import LLM, SamplingParams

    llm = LLM(
        options.folder,
        model_impl=options.impl,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=8,
        enforce_eager=options.eager,
        tensor_parallel_size=options.tp,
        enable_expert_parallel=options.ep,
        enable_prefix_caching=None if options.prefix_caching else False,
        trust_remote_code=options.trust,
        max_num_batched_tokens=options.batch_tokens,
        block_size=options.block_size,
    )
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(options.prompts)]
    sampling = SamplingParams(
        temperature=0,
        max_tokens=options.tokens,
        detokenize=False,
        ignore_eos=True,
        logprobs=options.logprobs,
    )
    results = llm.generate(prompts, sampling)
    tokens = [list(r.outputs[0].token_ids) for r in results]
    logprobs = [
        [{t: p.logprob for t, p in step.items()} for step in r.outputs[0].logprobs or []]
        for r in results
    ]
    print("RESULT " + json.dumps({"tokens": tokens, "logprobs": logprobs}))


if __name__ == "__main__":
    main()
