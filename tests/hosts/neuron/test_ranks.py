"""Two and four gloo ranks give the tokens and logits that one rank and Hugging Face give, for many families."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuron_autoport.hosts.neuron import options
from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.build import host_source, port_of
from neuron_autoport.hosts.neuron.engine import current_ranks
from neuron_autoport.hosts.neuron.errors import NeuronHostError
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.options import ALONE, Served
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.selftest import RANKS, self_test
from neuron_autoport.port import port_model
from neuron_autoport.rules.sources import load_library
from tests.hosts.neuron.checkpoints import MODEL, small, write
from tests.hosts.neuron.test_families import CHANGES, FAMILIES
from tests.neuron.engine.options import Options
from tests.neuron.runner import Generation, Job, Round, generate, generate_jobs

LENGTHS, TOKENS = (6, 41), 3


@dataclass(frozen=True)
class Family:
    """A checkpoint, its model as it is hosted, and what Hugging Face's model gives."""

    name: str
    folder: Path
    ported: Ported
    without: Without
    prompts: list[list[int]]
    wanted: list[torch.Tensor]

    def job(self, served: Served = ALONE) -> Job:
        """To be run on any number of ranks: planned and tried before, as `from_configs` would."""
        ported, without = self.ported, self.without

        class Prepared(NeuronTransformersForCausalLM):
            @classmethod
            def from_configs(cls, hf_config: Any, neuron_config: Any = None, *_: Any) -> Any:
                with torch.device("cpu"):
                    ranks = current_ranks()
                    assembly = Assembly(ported, ranks, torch.float32, without, served)
                    made = assembly.make(cls, neuron_config)
                return made

        return Job(Prepared, self.folder, [Round(self.prompts, TOKENS)])


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Family]:
    """Every family, once."""
    library = load_library()
    found = []
    for name in FAMILIES:
        folder = tmp_path_factory.mktemp(name)
        saved = write(folder, small(name, **CHANGES.get(name, {})))
        source = host_source(saved.config)
        ported = port_of(source, port_model(source, library), read_layers(source))
        without = self_test(NeuronTransformersForCausalLM, ported, source, RANKS)
        prompts = saved.prompts(*LENGTHS)
        wanted = [saved.logits(p, TOKENS) for p in prompts]
        found.append(Family(name, folder, ported, without, prompts, wanted))
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_agree(ranks: int, families: list[Family]) -> None:
    """Key/value heads: as many as ranks, more, and fewer, which several ranks then hold."""
    settings = Options(
        tp=ranks, batch=2, buckets=(128,), seq_buckets=(2,), compile=False, max_logprobs=1
    )
    made = generate_jobs([family.job() for family in families], settings)
    wrong = {f.name: error for f, [m] in zip(families, made, strict=True) if (error := _off(f, m))}
    assert not wrong


SEQUENCE = ("llama", "qwen3", "gemma3_text", "olmo2", "mixtral", "qwen2_moe", "gpt_oss", "stablelm")


@pytest.mark.parametrize("ranks", [2, 4])
def test_sequence_parallel_prefill_gives_the_same(ranks: int, families: list[Family]) -> None:
    """Each rank with its own tokens between the shared parts, whole attention (OLMo-2) included."""
    settings = Options(
        tp=ranks, batch=2, buckets=(128,), seq_buckets=(2,), compile=False, max_logprobs=1
    )
    chosen = [family for family in families if family.name in SEQUENCE]
    made = generate_jobs([f.job(Served(sequence_parallel=True)) for f in chosen], settings)
    wrong = {f.name: error for f, [m] in zip(chosen, made, strict=True) if (error := _off(f, m))}
    assert not wrong and len(chosen) == len(SEQUENCE)
    llama, layers = made[0][0].log, 2
    assert llama.collectives["reduce_scatter"] == len(LENGTHS) * (2 * layers + 1)
    # The second request joins after the first one's first decode step.
    assert llama.collectives["all_reduce"] == TOKENS * (2 * layers + 1)


def test_asked_for_in_the_engine_s_configuration(families: list[Family]) -> None:
    """The whole way, `from_configs` and its self-test included."""
    llama = families[0]
    made = generate(
        MODEL, llama.folder, llama.prompts, TOKENS, tp=2, buckets=(128,), compile=False,
        max_logprobs=1, additional={"neuron_autoport": {"sequence_parallel": True}},
    )  # fmt: skip
    assert not _off(llama, made)
    assert made.log.collectives["reduce_scatter"] and made.log.collectives["all_reduce"]


def test_a_model_that_needs_all_tokens_at_once_is_refused(families: list[Family]) -> None:
    """GPT-2 adds the positions of all tokens to the embeddings of a rank's."""
    gpt2 = next(family for family in families if family.name == "gpt2")
    served = Served(sequence_parallel=True)
    with pytest.raises(NeuronHostError, match="tokens of a prefill shared by ranks"):
        self_test(NeuronTransformersForCausalLM, gpt2.ported, gpt2.ported.source, RANKS, served)


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"sequence_paralel": True}, "sequence_paralel is no setting"),
        ({"sequence_parallel": "yes"}, "not true or false"),
    ],
)
def test_settings_that_are_none(own: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(additional_config={"neuron_autoport": own})
    monkeypatch.setattr(options, "engine_config", lambda: engine)
    with pytest.raises(NeuronHostError, match=text):
        options.check_options(None, 2, "MODEL")


def test_a_prefill_that_does_not_divide_is_refused() -> None:
    model = SimpleNamespace(sequence_parallel=True, ranks=SimpleNamespace(size=4))
    own_tokens: Any = NeuronTransformersForCausalLM.own_tokens
    assert own_tokens(model, 128) == 32
    for tokens in (4, 126):
        with pytest.raises(NeuronHostError, match=f"{tokens} tokens in prefill"):
            own_tokens(model, tokens)


def _off(family: Family, made: Generation) -> str:
    """What is not as Hugging Face's model has it; empty if all is."""
    for tokens, got, want in zip(made.tokens, made.logits, family.wanted, strict=True):
        assert got is not None
        error = (got - want).abs().max() / want.abs().max()
        if tokens != [int(row.argmax()) for row in want] or not error <= 1e-4:
            return f"{tokens}, logits are off by {float(error):.1e}"
    return ""
