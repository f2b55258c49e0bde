"""What the runner refuses: models that break the life cycle, the graph rules or the return values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.neuron.conftest import Checkpoints
from tests.neuron.double import ContractError
from tests.neuron.reference.llama import ReferenceLlama
from tests.neuron.runner import generate

PROMPT = [[5, 7, 11]]
Reference = ReferenceLlama


def run(checkpoint: Checkpoints, model: Any, **options: Any) -> Any:
    """One short prompt through one prefill and one decode bucket."""
    settings: dict[str, Any] = {"batch": 1, "buckets": (128,), "compile": False}
    return generate(model, checkpoint("llama").folder, PROMPT, 2, **settings | options)


class NoFrontEnd(Reference):
    is_text_generation_model = False


class NotMeta(Reference):
    def __init__(self, config: Any, neuron_config: Any) -> None:
        super().__init__(config, neuron_config)
        self.extra = nn.Parameter(torch.zeros(3, device="cpu"))


class LeftOnMeta(Reference):
    """A buffer: the checkpoint reader never loads those."""

    def __init__(self, config: Any, neuron_config: Any) -> None:
        super().__init__(config, neuron_config)
        self.register_buffer("frequencies", torch.arange(4.0))


class MissingTensor(Reference):
    """A parameter the checkpoint does not hold."""

    def __init__(self, config: Any, neuron_config: Any) -> None:
        super().__init__(config, neuron_config)
        self.unheard_of = nn.Parameter(torch.empty(4))


class Unregistered(Reference):
    def load_weights(self, path: str, device: torch.device, cache_dir: str | None = None) -> None:
        super().load_weights(path, device, cache_dir)
        self.table = torch.zeros(128, 64)


class ReadsConfigInForward(Reference):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        from vllm.config import get_current_vllm_config

        get_current_vllm_config()
        return super().forward(*args, **kwargs)


class OnlyLogits(Reference):
    """Logits although sampling is on the device."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.sampler = None
        return super().forward(*args, **kwargs)


class LongTokens(Reference):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tokens, logits = super().forward(*args, **kwargs)
        return tokens.long(), logits


class AlwaysGathers(Reference):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.neuron_config.max_logprobs = 1
        return super().forward(*args, **kwargs)


class OtherNames(Reference):
    """The caches are bound under other names than get_kv_spec gave."""

    def bind_kv_cache(self, caches: dict[str, list[Tensor]]) -> None:
        super().bind_kv_cache({f"model.{name}": cache for name, cache in caches.items()})


class DoubleName(Reference):
    def get_kv_spec(self) -> Any:
        spec = super().get_kv_spec()
        spec.layers[1].name = spec.layers[0].name
        return spec


LIFE_CYCLE: list[tuple[type, type[Exception], str]] = [
    (NoFrontEnd, ContractError, "is_text_generation_model"),
    (NotMeta, ContractError, "extra was built on cpu"),
    (LeftOnMeta, ContractError, r"left on meta after load_weights: \['frequencies'\]"),
    (MissingTensor, RuntimeError, r"no \['unheard_of'\]"),
    (Unregistered, ContractError, "table: 8192 numbers .* memory budget"),
    (ReadsConfigInForward, AssertionError, "vLLM config is not set"),
    (OnlyLogits, ContractError, "forward gives int32 tokens"),
    (LongTokens, ContractError, "forward gives int32 tokens"),
    (AlwaysGathers, ContractError, "gathered though nobody asked"),
    (OtherNames, KeyError, r"layers\.0\.self_attn"),
    (DoubleName, ValueError, "must name each layer once"),
]


@pytest.mark.parametrize(
    ("model", "error", "text"), LIFE_CYCLE, ids=lambda x: getattr(x, "__name__", "")
)
def test_life_cycle(checkpoint: Checkpoints, model: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(checkpoint, model)


def test_a_class_by_name(checkpoint: Checkpoints) -> None:
    """As vLLM's registry takes it: "module:Class"."""
    result = run(checkpoint, "tests.neuron.reference.llama:ReferenceLlama")
    assert result.tokens == [checkpoint("llama").greedy(PROMPT[0], 2)]
    with pytest.raises(ContractError, match="is no subclass"):
        run(checkpoint, "tests.neuron.runner:generate")


def test_a_vision_configuration_changes_the_keywords(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """As soon as the configuration has a `vision_config`, from_configs gets other arguments."""
    folder = tmp_path / "vision"
    shutil.copytree(checkpoint("llama").folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vision_config": {}}))
    with pytest.raises(TypeError, match="text_neuron_config"):
        generate(Reference, folder, PROMPT, 1, compile=False)


def changed(change: Callable[[dict[str, Any]], None]) -> type[ReferenceLlama]:
    """The reference model, with something done to its arguments first."""

    class Changed(ReferenceLlama):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            change(kwargs)
            return super().forward(*args, **kwargs)

    return Changed


def read_a_value(kwargs: dict[str, Any]) -> None:
    kwargs["positions"] = kwargs["positions"] + int(kwargs["input_ids"].max().item() * 0)


def branch_on_data(kwargs: dict[str, Any]) -> None:
    if kwargs["input_ids"].sum() > 4:
        kwargs["positions"] = kwargs["positions"] + 0


def multiply_in_place(kwargs: dict[str, Any]) -> None:
    kwargs["positions"].mul_(1)


def augmented(kwargs: dict[str, Any]) -> None:
    kwargs["positions"] *= 1


def write_through_a_mask(kwargs: dict[str, Any]) -> None:
    kwargs["positions"][kwargs["positions"] < 0] = 0


def draw(kwargs: dict[str, Any]) -> None:
    kwargs["input_ids"] = torch.multinomial(torch.ones(9), kwargs["input_ids"].shape[0], True).int()


GRAPH_RULES: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (read_a_value, "item"),
    (branch_on_data, "Data-dependent"),
    (multiply_in_place, "in-place mul_ is not rewritten"),
    (augmented, "in-place imul is not rewritten"),
    (write_through_a_mask, "a write through a boolean mask"),
    (draw, "multinomial cannot be compiled"),
]


@pytest.mark.parametrize(("change", "text"), GRAPH_RULES, ids=lambda x: getattr(x, "__name__", ""))
def test_graph_rules(
    checkpoint: Checkpoints, change: Callable[[dict[str, Any]], None], text: str
) -> None:
    with pytest.raises(Exception, match=f"(?i){text}"):
        run(checkpoint, changed(change), compile=True)


def look_at_parameters(kwargs: dict[str, Any]) -> None:
    """Fault: sampling parameters are None at run time although warmup gave a tensor."""
    if kwargs["sampling_params"] is not None:
        kwargs["positions"] = kwargs["positions"] + 0


class Counts(ReferenceLlama):
    """Fault: a Python number that changes from call to call is in the graph."""

    calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        kwargs["positions"] = kwargs["positions"] + self.calls * 0
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("model", [changed(look_at_parameters), Counts])
def test_recompiling_after_warmup_is_an_error(checkpoint: Checkpoints, model: Any) -> None:
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        run(checkpoint, model, compile=True, on_device_sampling=False)
