"""What Hugging Face itself says: greedy continuation in float32 with eager attention.

    python -m tools.hf_reference FOLDER --prompt TEXT [--tokens N]

Prints one line of JSON: `prompt_ids`, `ids` (the new tokens, a final stop token included), `text`.
A process of its own, so that its memory is free again before vLLM starts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tools.prepare_model import quiet_environment


def greedy(folder: Path, prompt: str, tokens: int) -> dict[str, Any]:
    """Continue `prompt` by at most `tokens` tokens, each the most likely one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    inputs = tokenizer(prompt, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            max_new_tokens=tokens,
        )
    ids = output[0, length:].tolist()
    return {
        "prompt_ids": inputs["input_ids"][0].tolist(),
        "ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=True),
    }


def main() -> int:
    """Print the continuation asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.hf_reference")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    quiet_environment()
    print(json.dumps(greedy(arguments.folder, arguments.prompt, arguments.tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
