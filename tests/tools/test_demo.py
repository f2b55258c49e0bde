"""The demo's own decisions; the whole demo is run by `make demo`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from neuron_autoport.errors import AutoportError
from tools import demo

EXPECTED = {"prompt_ids": [5, 6], "ids": [1, 2, 3], "text": " a b c"}


def choice(prompt: list[int], ids: list[int]) -> SimpleNamespace:
    return SimpleNamespace(prompt_token_ids=prompt, token_ids=ids, text=" a b x")


def test_equal_tokens_pass(capsys: pytest.CaptureFixture[str]) -> None:
    demo.compare(choice([5, 6], [1, 2, 3]), EXPECTED, "neuron-transformers")
    assert "all 3 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prompt", "ids", "message"),
    [
        ([5, 6], [1, 9, 3], "the completion differs from Hugging Face at token 1"),
        ([5, 6], [1, 2], "the completion differs from Hugging Face at token 2"),
        ([5, 6], [1, 2, 3, 4], "the completion differs from Hugging Face at token 3"),
        ([2, 5, 6], [1, 2, 3], "the prompt differs from Hugging Face at token 0"),
    ],
)
def test_any_other_token_is_an_error(prompt: list[int], ids: list[int], message: str) -> None:
    with pytest.raises(AutoportError, match=message) as failure:
        demo.compare(choice(prompt, ids), EXPECTED, "neuron-transformers")
    assert failure.value.next_step is not None


def test_serve_command() -> None:
    command = demo.serve_command(Path("/m"), "neuron-transformers", 8123, eager=False)
    assert " ".join(command) == (
        "vllm serve /m --model-impl neuron-transformers --dtype float32 --max-model-len 2048 "
        "--host 127.0.0.1 --port 8123 --served-model-name demo"
    )
    assert demo.serve_command(Path("/m"), "x", 1, eager=True)[-1] == "--enforce-eager"


@pytest.mark.parametrize(("config", "served"), [({}, 2048), ({"max_position_embeddings": 64}, 64)])
def test_a_model_with_fewer_positions_is_served_with_those(
    config: dict[str, int], served: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert demo.longest(tmp_path) == served


def test_server_that_fuses_nothing_is_an_error_only_with_our_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text("INFO 1 2 [a.py:1] loading\n")
    server = demo.Server([], log, "", {})
    with pytest.raises(AutoportError, match="does not say what was fused"):
        demo.report_fused(server, "neuron-transformers")
    demo.report_fused(server, "transformers")
    log.write_text("INFO 1 2 [a.py:1] autoport: fused 4 of 5 sites (o_proj 4)\n")
    demo.report_fused(server, "neuron-transformers")
    assert "autoport: fused 4 of 5 sites (o_proj 4)" in capsys.readouterr().out


def test_chat_template_is_found_in_both_places(tmp_path: Path) -> None:
    assert not demo.has_chat_template(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"bos_token": "<s>"}))
    assert not demo.has_chat_template(tmp_path)
    settings.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert demo.has_chat_template(tmp_path)
    settings.unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert demo.has_chat_template(tmp_path)
