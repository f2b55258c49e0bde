"""The config reader on configurations that are changed at random: a model, or a ModelError; never anything else."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_autoport.errors import ModelError
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.source import load_model_config

SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
GEMMA = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 4,
         "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
FIELDS = (
    *GEMMA,
    "architectures",
    "auto_map",
    "dtype",
    "quantization_config",
    "text_config",
    "is_decoder",
)
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.sampled_from([2**31, 2**63, 1e-300, -0.5, 1e308]),
    st.text(max_size=8), st.sampled_from(["gelu", "float16", "full_attention", "linear", "yarn"]),
)  # fmt: skip
value = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
changes = st.dictionaries(st.sampled_from(FIELDS), value, min_size=1, max_size=3)


def reads(content: bytes) -> Any:
    """What the reader makes of a config.json, and the builder of that."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(content)
        try:
            source = load_model_config(folder)
            return meta_model(source)
        except ModelError as error:
            assert error.what and error.next_step
            return error


@SETTINGS
@given(st.sampled_from([LLAMA, GEMMA]), changes, st.sets(st.sampled_from(FIELDS), max_size=2))
def test_changed_fields(base: dict[str, Any], changed: dict[str, Any], gone: set[str]) -> None:
    config = {k: v for k, v in {**base, **changed}.items() if k not in gone}
    reads(json.dumps(config).encode())


@SETTINGS
@given(st.integers(0, 400), st.binary(max_size=6))
def test_changed_bytes(place: int, noise: bytes) -> None:
    text = json.dumps(LLAMA).encode()
    reads(text[:place] + noise + text[place + len(noise) :])


@pytest.mark.parametrize("base", [LLAMA, GEMMA], ids=["llama", "gemma"])
def test_the_unchanged_one_is_built(base: dict[str, Any]) -> None:
    assert not isinstance(reads(json.dumps(base).encode()), ModelError)
