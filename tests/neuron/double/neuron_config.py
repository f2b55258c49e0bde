"""NeuronConfig and OnDeviceSamplingConfig with the contract's fields and defaults.

`from_dict` drops unknown keys without a word, and on-device sampling is on unless the key is there
and None: both as the contract says.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tests.neuron.double.contract import TABLE, default

SAMPLING_KEYS = {k: default(v) for k, v in TABLE["nn"]["OnDeviceSamplingConfig"]["keys"].items()}


class OnDeviceSamplingConfig:
    """Sampling on the device; keyword arguments only."""

    all_greedy: bool
    max_top_k: int
    deterministic: bool
    sampling_dp_degree: int
    capture_topk: bool

    def __init__(self, **given: Any) -> None:
        unknown = set(given) - set(SAMPLING_KEYS)
        if unknown:
            raise TypeError(f"OnDeviceSamplingConfig has no {sorted(unknown)}")
        self.__dict__.update(SAMPLING_KEYS | given)


@dataclass
class NeuronConfig:
    """The plugin's settings for one model."""

    ep_degree: int = 1
    attention_dp_size: int = 1
    embedding_dp_size: int = 1
    lm_head_dp_size: int = 1
    mlp_dp_size: int = 1
    on_device_sampling_config: OnDeviceSamplingConfig | None = None
    max_logprobs: int = 0
    tensor_capture: Any = None
    tensor_replacement: Any = None
    kv_segment_size_buckets: list[int] | None = None
    debug_logits_dir: str | None = None
    quantization: str | None = None
    all2all_backend: str | None = None
    modules_to_not_convert: list[str] | None = None
    num_batched_tokens_buckets: list[int] | None = None
    num_seqs_buckets: list[int] | None = None
    decode_context_length_buckets: list[int] | None = None
    enable_structured_outputs: bool = False
    fp8_packed_kv: bool = False

    def __post_init__(self) -> None:
        for name in ("ep_degree", "attention_dp_size", "embedding_dp_size", "lm_head_dp_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if not isinstance(self.enable_structured_outputs, bool):
            raise ValueError("enable_structured_outputs must be a bool")

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> NeuronConfig:
        """From the user's dict: unknown keys are dropped, on-device sampling is on by default."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in given.items() if name in known}
        sampling = values.get("on_device_sampling_config", {})
        if sampling is not None and not isinstance(sampling, OnDeviceSamplingConfig):
            values["on_device_sampling_config"] = OnDeviceSamplingConfig(**sampling)
        return cls(**values)
