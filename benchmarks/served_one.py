"""One model type in one vLLM engine, in this process: a small model, Hugging Face's tokens, vLLM's tokens.

Imported once by the server that `served.py` forks from, so nothing here may start a thread on import.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import vllm.entrypoints.llm
import vllm.model_executor.models.transformers
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401
from transformers import PretrainedConfig
from transformers import logging as transformers_logging

from benchmarks.architectures import default_config
from neuron_autoport.errors import AutoportError
from neuron_autoport.models.build import real_model
from neuron_autoport.models.tiny import TinyConfigError, tiny_config
from neuron_autoport.models.tiny_sizes import Sizes
from neuron_autoport.port import port_model

# Head sizes of vLLM's CPU attention; a small model has one of them, or vLLM says what it lacks.
HEAD_SIZES = frozenset((32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512))
SIZES = (
    *(Sizes(hidden=h) for h in (128, 96, 192, 256, 384, 512)),
    Sizes(hidden=256, heads=8, expert_intermediate=64, rank=32),
    Sizes(hidden=128, heads=8, intermediate=256, expert_intermediate=128, rank=32),
)
LENGTHS = (1, 20, 9)
# Attention in chunks: the least that vLLM's cache has blocks of on a CPU, and prompts longer than it.
CHUNK, CHUNK_LENGTHS = 32, (1, 45, 9)
NEW_TOKENS = 8
# In one step of the engine: the longer prompts are read in pieces, beside tokens of other requests.
STEP_TOKENS = 8


def small_config(model_type: str) -> PretrainedConfig:
    """A small configuration whose attention has heads that vLLM's CPU engine can take, if there is one."""
    default = default_config(model_type)
    first: PretrainedConfig | None = None
    for sizes in SIZES:
        try:
            config = tiny_config(default, (sizes,))
        except TinyConfigError:
            continue
        first = first or config
        if head_sizes(config) <= HEAD_SIZES:
            return in_chunks(config)
    return in_chunks(first or tiny_config(default))


def in_chunks(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration, its chunks, if it attends in such, as large as a block of vLLM's cache."""
    if attends_in_chunks(config):
        config.get_text_config().attention_chunk_size = CHUNK
    return config


def attends_in_chunks(config: PretrainedConfig) -> bool:
    return "chunked_attention" in (getattr(config.get_text_config(), "layer_types", None) or ())


def head_sizes(config: PretrainedConfig) -> set[int]:
    """Head sizes of all attention calls of a model, keys and values."""
    ops = [op for plan in port_model(config, ()).plans for op in plan.graph.ops]
    asked = [op for op in ops if op.name == "attention"]
    return {value.shape[-1] for op in asked for value in op.inputs[:3] if value.shape}


def prompts(vocabulary: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Prompts of different lengths, the longest longer than every window."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, vocabulary - 20, (n,), generator=generator).tolist() for n in lengths]


def hugging_face(model_class: Any, folder: Path, asked: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of Hugging Face eager in float32, one prompt at a time, without a cache."""
    model = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found = []
    for ids in asked:
        tokens = torch.tensor([ids])
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                logits = model(input_ids=tokens, use_cache=False).logits[0, -1]
                tokens = torch.cat([tokens, logits.argmax().view(1, 1)], dim=1)
        found.append(tokens[0, len(ids) :].tolist())
    return found


class _NotConfigured(Exception):
    """vLLM refused the model when it read its configuration."""


def vllm_tokens(
    folder: Path, impl: str, asked: list[list[int]], block: int | None, compiled: bool
) -> tuple[list[list[int]], bool]:
    """Greedy tokens of vLLM's engine for the same prompts in one batch; did each request run alone?

    Args:
        block: of its cache, or its own choice.
    """
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    from neuron_autoport.hosts.vllm.alone import LAYER

    given: dict[str, Any] = {
        "model": str(folder),
        "model_impl": impl,
        "skip_tokenizer_init": True,
    }
    try:
        EngineArgs(**given).create_model_config()
    except Exception as error:
        raise _NotConfigured(" ".join(str(error).split())) from error
    llm = LLM(
        **given,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=STEP_TOKENS,
        enforce_eager=not compiled,
        enable_prefix_caching=False,
        block_size=block,
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, detokenize=False, ignore_eos=True
    )
    results = llm.generate([{"prompt_token_ids": ids} for ids in asked], sampling, use_tqdm=False)
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context
    return [list(r.outputs[0].token_ids) for r in results], LAYER in layers


def run(model_type: str, impl: str, folder: Path, compiled: bool = False) -> None:
    """Write `result` into `folder`, and beside it `log`: all that was printed."""
    _settings(folder / "log")
    try:
        result = _result(model_type, impl, folder / "model", compiled)
    except BaseException as error:  # an engine may end the process in any way
        traceback.print_exc()
        result = _reason(error).replace(str(folder / "model"), "MODEL")
    (folder / "result").write_text(result, encoding="utf-8")
    shutil.rmtree(folder / "model", ignore_errors=True)
    sys.stdout.flush()
    os._exit(0)  # what an engine leaves running would wait for ever


def _settings(log: Path) -> None:
    """Quiet, one thread, one process; all output into the log."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()


def _result(model_type: str, impl: str, folder: Path, compiled: bool) -> str:
    config = small_config(model_type)
    model = real_model(config)
    model.save_pretrained(folder)
    chunks = attends_in_chunks(config)
    lengths = CHUNK_LENGTHS if chunks else LENGTHS
    asked = prompts(int(config.get_text_config().vocab_size), lengths)
    expected = hugging_face(type(model), folder, asked)
    found, alone = vllm_tokens(folder, impl, asked, CHUNK if chunks else None, compiled)
    print("EXPECTED", expected)
    print("FOUND   ", found)
    if found != expected:
        return "wrong"
    return "served: each request alone" if alone else "served"


def _reason(error: BaseException) -> str:
    """`refused: ...` for an error of ours, whatever vLLM wraps it in, else `failed: ...`."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    ours = next((e for e in chain if isinstance(e, AutoportError)), None)
    if ours is not None:
        return f"refused: {ours.what}"
    if isinstance(error, _NotConfigured):
        return f"refused: vLLM's configuration: {str(error)[:300]}"
    return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
