"""A proof is read again for the same source, rules and configuration, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport import pipeline
from neuron_autoport.pipeline import proved_port
from tests.helpers import small_config
from tests.prove.test_wrong_rules import rules_with, sites


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("AUTOPORT_CACHE", str(folder))
    return folder


def test_the_second_run_reads_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("llama")
    first = proved_port(config)

    class NoProver:
        def __init__(self, *_: object) -> None:
            raise AssertionError("proved again")

    monkeypatch.setattr(pipeline, "Prover", NoProver)
    second = proved_port(config)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.proof.modules == first.proof.modules
    assert second.proof.logits == first.proof.logits and second.proof.how == first.proof.how
    assert second.generated.text == first.generated.text
    assert sites(second.port) == sites(first.port)


def test_what_was_dropped_is_read_too(tmp_path: Path) -> None:
    rules = rules_with(tmp_path, "rms_norm", "eps=eps", "eps=eps * 10")
    config = small_config("llama")
    first, second = (proved_port(config, rules) for _ in range(2))
    assert second.from_cache and second.proof.dropped == first.proof.dropped != ()
    assert sites(second.port) == sites(first.port)
    assert second.generated.text == first.generated.text


def test_another_rule_or_configuration_proves_anew(tmp_path: Path) -> None:
    config = small_config("llama")
    proved_port(config)
    rules = rules_with(tmp_path, "gated_mlp", "projected down", "then projected down")
    assert not proved_port(config, rules).from_cache
    assert not proved_port(small_config("llama", rms_norm_eps=1e-3)).from_cache
    assert proved_port(config).from_cache and proved_port(config, rules).from_cache
    assert not proved_port(config, use_cache=False).from_cache


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"modules": 3}', "\x00"])
def test_a_spoilt_file_proves_anew(fresh_cache: Path, content: str) -> None:
    config = small_config("opt")
    proved_port(config)
    (file,) = (fresh_cache / "proofs").glob("*.json")
    file.write_text(content)
    assert not proved_port(config).from_cache
    assert proved_port(config).from_cache
