"""The commands of all pages, and how each is run: shared by the tests that run them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PROGRAM = r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:autoport|vllm|make|pip|python)"
# In backticks, over the end of a line, too; or indented.
_INLINE = re.compile(rf"`({_PROGRAM}\s[^`]+)`|^ {{4}}({_PROGRAM} .+)$", re.MULTILINE)

# Run with whole engines in tests/hosts/vllm/test_documented.py. [] are the options of a synopsis.
SERVED = (
    "vllm serve MODEL --model-impl neuron-transformers",
    "vllm serve MODEL --model-impl neuron-transformers --dtype float32",
    "AUTOPORT_WITHOUT=LlamaMLP:gated_mlp vllm serve MODEL --model-impl neuron-transformers",
    "autoport validate MODEL",
    "autoport validate MODEL --level 2",
    "autoport validate MODEL --without LlamaMLP:gated_mlp",
    "autoport bench MODEL",
    "autoport bench MODEL --impl vllm,transformers,neuron-transformers --load prefill,decode,mixed --batch 1,8",
    "make demo",
    "make demo MODEL=FOLDER",
    "python -m benchmarks.served",
)  # fmt: skip
# Run by no test, and why.
NOT_RUN = {
    "vllm serve MODEL --hf-overrides '{\"architectures\": [\"NeuronLlamaForCausalLM\"]}'":
        "needs the plugin; tests/export drives such packages with its double",
    "make demo MODEL=gemma3-270m":
        "the recipe of `make demo`; tests/hosts/vllm/test_real_models.py serves this model",
    "python -m benchmarks.coverage --update": "rewrites what is kept; without --update it is run",
    "pip install --no-deps lm_eval": "takes a package index; `make setup` does it",
    "pip install -e neuron_llama": "takes a package index; its files are held to pip's rules in tests/export",
    "pip install neuron-autoport": "takes a package index; `make setup` installs the clone",
    "pip install neuron-autoport[bench]": "takes a package index; `make setup` installs this extra",
    "pip install neuron-autoport[tasks]": "takes a package index; `make setup` installs this extra",
    "pip install neuron-autoport[validate]": "takes a package index; the extra is in pyproject.toml",
}  # fmt: skip


def consoles(page: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(exit code, command, lines below it) of a page's console fences."""
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        if match[2] != "console":
            continue
        code = int(match[3].strip().removeprefix("exit=") or 0)
        for part in textwrap.dedent(match[4]).split("$ ")[1:]:
            command, *output = part.rstrip("\n").split("\n")
            yield code, plain(command), [x for x in output if x.strip()]


def mentioned(page: Path) -> set[str]:
    """Commands of a page's text and of its `sh` fences, without what stands in other fences."""
    text = page.read_text(encoding="utf-8")
    found = {m[1] or m[2] for m in _INLINE.finditer(_FENCE.sub("", text))}
    for fence in _FENCE.finditer(text):
        if fence[2] == "sh":
            found |= set(fence[4].splitlines())
    return {plain(c) for c in found}


def plain(command: str) -> str:
    """One line without its comment; a model to be served is MODEL."""
    text = squeezed(command.split("  #")[0]).removeprefix(".venv/bin/")
    return text.replace("vllm serve FOLDER", "vllm serve MODEL")


def squeezed(text: str) -> str:
    return " ".join(text.split())


def recipe(target: str, *variables: str) -> str:
    """What `make TARGET` runs after the set-up, with the Python that runs the tests."""
    command = ["make", "-n", target, f"VENV={Path(sys.executable).parent}", *variables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = [x for x in done.stdout.splitlines() if not x.startswith("make")]
    assert lines[0] == "bash tools/setup.sh", lines
    return "\n".join(lines[1:])
