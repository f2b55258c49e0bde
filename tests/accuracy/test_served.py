"""The served model at level 2, and level 1's servers: on a tiny model in vLLM."""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from neuron_autoport.accuracy.candidate import Builder
from neuron_autoport.accuracy.explain import Asked
from neuron_autoport.accuracy.hf_server import reference_server
from neuron_autoport.accuracy.level2 import References
from neuron_autoport.accuracy.platforms import CPU
from neuron_autoport.accuracy.prompts import Prompt
from neuron_autoport.accuracy.served import Asking, ask_engine, cause, dense, judge_served
from neuron_autoport.accuracy.tasks import (
    BUILTIN_TASKS,
    GENERATED_TASKS,
    compare_tasks,
    run_lm_eval,
)
from neuron_autoport.accuracy.weights import load_weights
from neuron_autoport.models.source import load_model_config
from tests.helpers import small_config

IDS = [(5, 9, 17), tuple(range(3, 45)), (60, 61, 60, 61, 60)]


def test_missing_logits_are_nan() -> None:
    found = {"ids": [torch.tensor([2, 0])], "logits": [torch.tensor([1.5, -1.0])]}
    assert dense(found, 4)[0, [0, 2]].tolist() == [-1.0, 1.5]
    assert torch.isnan(dense(found, 4)[0, [1, 3]]).all()


def test_the_cause_of_a_failing_engine() -> None:
    log = "INFO start\nValueError: the real cause\nRuntimeError: See root cause above\nend\n"
    assert cause(log) == "ValueError: the real cause"
    assert cause("a\nb\n") == "a; b"
    place = "(Worker pid=11204) ERROR 11-30 18:46:52 [multiproc_executor.py:953] "
    assert (
        cause(f"{place}Traceback:\n{place}RuntimeError: no weights") == "RuntimeError: no weights"
    )
    died = "Worker proc VllmWorker-0 died unexpectedly, shutting down executor."
    assert cause(f"{place}{died}\nRuntimeError: cancelled") == died
    below = "  Value error, longer than 256. Mend it. [type=value_error, input_value=ArgsKwargs((), {'a'"
    first = "pydantic_core.ValidationError: 1 validation error for ModelConfig"
    assert cause(f"{first}\n{below}\nlink") == "Value error, longer than 256. Mend it."
    assert cause(f"{first}\nlink") == first


def test_the_reference_server_against_transformers() -> None:
    """Log probabilities by the API are those of the model, also for prompts of different lengths."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config("llama")).eval()
    body = {"prompt": [list(p) for p in IDS], "echo": True, "logprobs": 1, "max_tokens": 1}
    with reference_server(model, None) as url:
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            choices = json.load(answer)["choices"]
    for ids, choice in zip(IDS, choices, strict=True):
        with torch.no_grad():
            table = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found = choice["logprobs"]
        expected = [float(table[i, t]) for i, t in enumerate(ids[1:])]
        assert found["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-5)
        assert found["token_logprobs"][-1] == pytest.approx(float(table[-1].max()), abs=1e-5)
        best = [max(t.values()) for t in found["top_logprobs"][1:]]
        assert best == pytest.approx(table.max(-1).values.tolist(), abs=1e-5)


def test_tasks_are_paired_by_document() -> None:
    right = {str(i): 1.0 for i in range(100)}
    wrong = {**right, **{str(i): 0.0 for i in range(12)}}
    (same,) = compare_tasks({"t": {"acc": right}}, {"t": {"acc": right}}, 0.05)
    assert same.passed and same.documents == 100 and same.difference == 0.0
    (worse,) = compare_tasks({"t": {"acc": wrong}}, {"t": {"acc": right}}, 0.05)
    assert not worse.passed and worse.verdict == "worse" and worse.ported == 0.88
    (fewer,) = compare_tasks(
        {"t": {"acc": dict(list(right.items())[:9])}}, {"t": {"acc": right}}, 0.05
    )
    assert fewer.documents == 9 and not fewer.passed


WORDS = {"<unk>": 0, "<s>": 1, **{f"w{i}": i for i in range(2, 96)}}
DATA = "dataset_path: json\ndataset_kwargs: {data_files: {test: data.jsonl}}\ntest_split: test\n"
CHOICES = (
    f'task: two\n{DATA}output_type: multiple_choice\ndoc_to_text: "{{{{q}}}}"\n'
    'doc_to_choice: "{{c}}"\ndoc_to_target: "{{a}}"\nmetric_list: [{metric: acc}]\n'
)
WRITTEN = (
    f'task: word\n{DATA}output_type: generate_until\ndoc_to_text: "{{{{q}}}}"\n'
    'doc_to_target: "{{said}}"\ngeneration_kwargs: {until: ["\\n"], max_gen_toks: 2}\n'
    "metric_list: [{metric: exact_match}]\n"
)
needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
)


def word_tokenizer(folder: Path) -> Any:
    """One token per word, `w7` is token 7."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="<s>")
    tokenizer.save_pretrained(folder)
    return tokenizer


@needs_lm_eval
def test_lm_eval_on_a_local_folder(tmp_path: Path) -> None:
    """Offline, data beside the task files; the answers are those of the model's own logits."""
    words, tokenizer = WORDS, word_tokenizer(tmp_path / "model")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config("llama")).eval()
    rows: list[dict[str, Any]] = [
        {"q": f"w{i} w{i + 1}", "c": [f"w{i + 2}", f"w{90 - i}"], "a": i % 2} for i in range(5, 11)
    ]
    for number, row in enumerate(rows):
        ids = torch.tensor([[words[w] for w in row["q"].split()]])
        for _ in range(2):
            with torch.no_grad():
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        row["said"] = tokenizer.decode(ids[0, 2:]) if number % 2 else "something else"
    (tasks / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tasks / "t.yaml").write_text(CHOICES)
    (tasks / "w.yaml").write_text(WRITTEN)
    with reference_server(model, tokenizer) as url:
        found = run_lm_eval(url, str(tmp_path / "model"), tasks, None)
        written = run_lm_eval(url, str(tmp_path / "model"), tasks, None, generate_only=True)
    assert set(found) == {"two", "word"} and set(written) == {"word"}
    assert written["word"]["exact_match"] == {str(i): float(i % 2) for i in range(6)}
    for number, row in enumerate(rows):
        ids = torch.tensor([[words[w] for w in row["q"].split()]])
        with torch.no_grad():
            scores = model(ids).logits[0, -1]
        choice = int(scores[words[row["c"][1]]] > scores[words[row["c"][0]]])
        assert found["two"]["acc"][str(number)] == float(choice == row["a"])


@needs_lm_eval
def test_the_tasks_of_this_package_load(tmp_path: Path) -> None:
    """Two documents of each, by a model that knows nothing: every metric of every document is there."""
    tokenizer = word_tokenizer(tmp_path / "model")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config("llama")).eval()
    with reference_server(model, tokenizer) as url:
        given = run_lm_eval(url, str(tmp_path / "model"), BUILTIN_TASKS, 2)
        written = run_lm_eval(url, str(tmp_path / "model"), GENERATED_TASKS, 2, generate_only=True)
    assert {t: set(m) for t, m in (given | written).items()} == {
        "autoport_choices": {"acc", "acc_norm"},
        "autoport_sentences": {"log likelihood per word"},
        "autoport_answers": {"exact_match"},
    }
    assert all(set(d) == {"0", "1"} for m in (given | written).values() for d in m.values())


@pytest.mark.serve
def test_the_engine_passes_and_another_model_does_not(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from tests.hosts.vllm.serving import make_model

    source = load_model_config(str(make_model("llama", tmp_path)))
    prompts = [Prompt(str(i), ids) for i, ids in enumerate(IDS)]
    asking = Asking("neuron-transformers", "float32", steps=4, budget=16)
    answers = ask_engine(source, prompts, asking)
    assert set(answers) == {"one by one", "all at once"}
    for results in answers.values():
        for prompt, found in zip(prompts, results, strict=True):
            assert tuple(found["tokens"][: len(prompt.ids)]) == prompt.ids
            assert len(found["tokens"]) == len(prompt.ids) + 4 == len(found["ids"]) + 1
    references = References.of(Builder(load_weights(source), torch.float32))
    level2, failures = judge_served(references, prompts, answers, asking, Asked("m"))
    assert level2.passed and not failures, [m.why for m in level2.modes]
    assert all(m.agreement == 1.0 for m in level2.modes)
    # As on Neuron, where logits of prompt tokens are not to be had.
    few = replace(asking, place=replace(CPU, prompt_logits=False))
    last = ask_engine(source, prompts, few)
    for prompt, found in zip(prompts, last["all at once"], strict=True):
        assert (found["start"], len(found["ids"])) == (len(prompt.ids) - 1, 4)
    level2, failures = judge_served(references, prompts, last, few, Asked("m"))
    assert level2.passed and not failures, [m.why for m in level2.modes]
    assert {p.positions for m in level2.modes for p in m.prompts} == {4}
    other = References.of(Builder(load_weights(source), torch.float32))
    with torch.no_grad():
        for model in (other.truth, other.low):
            model.model.layers[1].mlp.down_proj.weight.mul_(1.1)
    for given, how in ((answers, asking), (last, few)):
        level2, failures = judge_served(other, prompts, given, how, Asked("m"))
        assert not level2.passed and len(failures) == 2
