"""Requests that run alone: settings that are refused, the bytes that are counted for each, and what the log says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.alone import Alone, Requests, check_settings, size_of_request
from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model

OPTIONS = {
    "--tensor-parallel-size": {"tensor_parallel_size": 2},
    "--pipeline-parallel-size": {"pipeline_parallel_size": 2},
    "--data-parallel-size": {"data_parallel_size": 2},
    "--enable-lora": {"lora_config": object()},
    "--speculative-config": {"speculative_config": object()},
    "--kv-transfer-config": {"kv_transfer_config": object()},
}


def settings(**given: Any) -> Any:
    ranks = {f"{n}_parallel_size": 1 for n in ("tensor", "pipeline", "data")}
    none = dict.fromkeys(("lora_config", "speculative_config", "kv_transfer_config"))
    parallel = ranks | {k: v for k, v in given.items() if k in ranks}
    others = none | {k: v for k, v in given.items() if k in none}
    return SimpleNamespace(parallel_config=SimpleNamespace(**parallel), **others)


@pytest.mark.parametrize("option", OPTIONS)
def test_what_shares_tokens_or_caches_is_refused_by_its_option(option: str) -> None:
    with pytest.raises(HostError, match=option):
        check_settings(settings(**OPTIONS[option]), "model")


def test_a_request_has_one_block_that_is_never_full() -> None:
    requests = Requests(Alone("why", several=True), at_once=1, longest=16, size=2**22 + 4)
    spec = requests.get_kv_cache_spec(None)
    assert (spec.block_size, spec.page_size_bytes) == (16, 2**22 + 4)


def test_a_small_cache_has_no_small_block() -> None:
    """With blocks of 8 bytes vLLM would keep records of a hundred million."""
    requests = Requests(Alone("why", several=True), at_once=1, longest=16, size=8)
    assert requests.get_kv_cache_spec(None).page_size_bytes == 2**20


def test_the_line_of_the_log() -> None:
    known = Alone("why", several=True).line(96)
    assert "on transformers' own cache, 96 bytes at most" in known and known.endswith(": why")
    assert "of unknown size" in Alone("why", several=True).line(None)
    assert "read again from its first token" in Alone("why", several=True, again=True).line(96)
    assert "nothing is rewritten" in Alone("why", several=True, plain=True).line(96)


def test_a_cache_of_unknown_size_is_counted() -> None:
    requests = Requests(Alone("why", several=True), at_once=1, longest=16, size=None)
    assert requests.get_kv_cache_spec(None).page_size_bytes == 2**24


def test_bytes_of_a_request() -> None:
    config = tiny_config(CONFIG_MAPPING["llama"]())
    port = port_model(config, ())
    width = next(p.element_size() for p in port.model.parameters())
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * width
    assert size_of_request(Alone("why", several=True), port, 100) == 100 * token
    assert size_of_request(Alone("why", several=True, again=True), port, 100) == 100 * 8
