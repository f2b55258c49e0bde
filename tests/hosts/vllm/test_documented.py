"""Commands of the documentation that take whole engines, each as its page has it.

A model stands for MODEL, and what a test must have is put behind the command: a free port, one type of many, one round.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.docs.pages import SERVED, recipe
from tests.hosts.vllm.serving import make_model
from tools.demo import serve_environment
from tools.server import Server, free_port, fused_sites

pytestmark = pytest.mark.serve
SITES = 3 * 7 + 1
PATIENCE = 1200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer whose words are w0, w1, …; long enough for `bench` and the demo."""
    folder = make_model("llama", tmp_path_factory.mktemp("model"), max_position_embeddings=2048)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2", pad_token="w0"
    ).save_pretrained(folder)
    return folder


def run(command: str) -> str:
    """What a command line prints; it must end with 0."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**serve_environment(), "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("command", [c for c in SERVED if "vllm serve" in c])
def test_serve(command: str, model: Path, tmp_path: Path) -> None:
    port = free_port()
    line = f"{command.replace('MODEL', str(model))} --port {port}"
    url = f"http://127.0.0.1:{port}/health"
    with Server(["sh", "-c", line], tmp_path / "log", url, serve_environment()) as server:
        server.wait(PATIENCE, lambda seconds, message: None)
        found = fused_sites(server.read_log())
    assert found is not None
    # without `gated_mlp`, `stacked_pair` takes the two maps that read one input and `act_and_mul` the rest
    wanted = (SITES, SITES) if "WITHOUT" not in command else (SITES + 3, SITES + 6)
    assert found[:2] == wanted
    assert ("gated_mlp" in found[2]) == ("WITHOUT" not in command)


@pytest.mark.parametrize("command", [c for c in SERVED if c.startswith("autoport ")])
def test_a_command_of_ours(command: str, model: Path) -> None:
    quick = " --rounds 1 --enforce-eager" if " bench " in command else ""
    out = run(command.replace("MODEL", str(model)) + quick)
    assert ("all levels passed" if "validate" in command else "neuron-transformers") in out


@pytest.mark.parametrize("command", [c for c in SERVED if c.startswith("make ")])
def test_make(command: str, model: Path) -> None:
    """The recipe: the set-up before it is what this very test runs in."""
    _, target, *variables = command.replace("FOLDER", str(model)).split()
    assert "tokens are those of Hugging Face eager" in run(recipe(target, *variables))


@pytest.mark.parametrize("command", [c for c in SERVED if c.startswith("python ")])
def test_a_benchmark(command: str) -> None:
    out = run(f"{command} gpt2 --jobs 1")
    assert '"served": 1' in out
