"""Loads, turns, ratios and what is printed, with engines that answer by a table; no vLLM."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from neuron_autoport.bench import engines, view
from neuron_autoport.bench.engines import OURS, UNFUSED, Answer, BenchError, Engine, Settings
from neuron_autoport.bench.loads import KINDS, Load, load_of
from neuron_autoport.bench.memory import peak_memory
from neuron_autoport.bench.run import environment, measure
from neuron_autoport.bench.schema import BenchReport, EngineInfo, spread
from neuron_autoport.bench.view import figure_of, plot, print_bench
from tests.cli.conftest import SMALL, Run, run

__all__ = ["run"]


class Table(Engine):
    """An engine whose answers are a table: seconds of each call in turn. asked: who was asked, in order."""

    def __init__(
        self,
        impl: str,
        seconds: list[float],
        asked: list[tuple[str, list[list[int]]]],
        token: int = 0,
    ) -> None:
        self.impl, self.seconds, self.asked, self.token = impl, iter(seconds), asked, token

    def run(self, load: Load, vocabulary: int, seed: int) -> Answer:
        prompts = load.draw(vocabulary, seed)
        self.asked.append((self.impl, prompts))
        return Answer(next(self.seconds), [[self.token] * load.answer for _ in prompts])


def report(
    asked: list[tuple[str, list[list[int]]]],
    other_token: int = 0,
    seconds: Sequence[float] = (1.0, 4.0, 1.0),
) -> BenchReport:
    engines = [
        Table("vllm", [99.0, 2.0, 4.0, 3.0], asked),
        Table(OURS, [99.0, *seconds], asked, other_token),
    ]
    result = measure(engines, load_of("decode", 2), 3, 50)
    infos = [EngineInfo(impl=e.impl, how="engine", ready=1.5, memory=1000) for e in engines]
    return BenchReport(
        model="models/small", dtype="float32", eager=True, rounds=3, baseline="vllm",
        versions={"vllm": "0.32.0"}, machine="a machine", engines=infos, loads=[result],
    )  # fmt: skip


def test_loads_are_what_they_say() -> None:
    prefill, decode, mixed, serve = (load_of(kind, 4) for kind in KINDS)
    assert prefill.prompts == (512,) * 4 and prefill.answer == 1 and prefill.tokens == 2048
    assert (
        decode.tokens == 4 * decode.answer and decode.longest == decode.prompts[0] + decode.answer
    )
    assert serve.at_once == 4 and len(serve.prompts) == 16 and serve.name == "serve, batch 4"
    assert len(set(mixed.prompts)) == 4 and mixed.longest == max(mixed.prompts) + mixed.answer


def test_what_was_found_is_said_before_the_next_load_may_fail() -> None:
    told: list[str] = []
    engines = [Table("vllm", [9.0, 2.0, 4.0], []), Table(OURS, [9.0, 1.0, 1.0], [])]
    measure(engines, load_of("decode", 2), 2, 50, told.append)
    assert told[0] == "decode, batch 2: round 0 of 2, vllm"
    assert told[-1] == "decode, batch 2: vllm 1.00, neuron-transformers 3.00"


def test_prompts_are_new_in_each_round_and_the_same_for_all() -> None:
    load = load_of("mixed", 3)
    assert load.draw(50, 1) == load.draw(50, 1) != load.draw(50, 2)
    assert [len(p) for p in load.draw(50, 1)] == list(load.prompts)
    assert all(0 <= t < 50 for p in load.draw(50, 7) for t in p)


def test_engines_take_turns_and_the_first_round_does_not_count() -> None:
    asked: list[tuple[str, list[list[int]]]] = []
    found = report(asked)
    a, b = "vllm", OURS
    assert [impl for impl, _ in asked] == [a, b, b, a, a, b, b, a]
    for i in range(0, 8, 2):
        assert asked[i][1] == asked[i + 1][1]
    ours = found.loads[0].results[1]
    assert (ours.seconds.median, ours.seconds.least, ours.seconds.most) == (1.0, 1.0, 4.0)
    # Ratios round by round: 2/1, 4/4, 3/1.
    assert (ours.ratio.median, ours.ratio.least, ours.ratio.most) == (2.0, 1.0, 3.0)
    assert ours.over(found.loads[0].results[0]) == ours.ratio
    assert ours.rate.median == found.loads[0].tokens / 1.0
    assert found.loads[0].results[0].ratio == spread([1.0])


@pytest.mark.parametrize(("token", "same"), [(0, True), (1, False)])
def test_other_tokens_are_told(token: int, same: bool) -> None:
    found = report([], token)
    assert found.loads[0].results[1].same_tokens is same
    out = io.StringIO()
    print_bench(found, Console(file=out, width=100))
    assert ("other tokens than vllm" in out.getvalue()) is not same
    assert "neuron-transformers" in out.getvalue() and "2.00" in out.getvalue()
    assert "1.00 … 3.00" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [([1.0, 4.0, 1.0], False), ([1.0, 5.0, 1.0], True), ([3.0, 5.0, 6.0], False)],
)
def test_a_ratio_on_both_sides_of_one_is_told(seconds: list[float], told: bool) -> None:
    """The baseline takes 2, 4 and 3 seconds."""
    out = io.StringIO()
    print_bench(report([], seconds=seconds), Console(file=out, width=150))
    said = f"faster than vllm in one round and slower in another: {OURS}; --rounds 9 tells more"
    assert (said in out.getvalue()) is told


def test_the_json_is_read_back() -> None:
    found = report([])
    assert BenchReport.model_validate_json(found.to_json(), by_alias=True) == found


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(report([]), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_all_engines_get_the_same_settings() -> None:
    settings = Settings("m", "float32", 80, 8, True)
    made = [settings.arguments(impl) for impl in ("vllm", "transformers", OURS, UNFUSED)]
    assert [m.pop("model_impl") for m in made] == ["vllm", "transformers", OURS, OURS]
    assert all(m == made[0] for m in made)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--impl", "vlm"], ["`vlm`", "vllm"]),
        (["--load", "decoding"], ["`decoding`", "decode"]),
        (["--batch", "1,x"], ["`1,x`"]),
        (["--batch", "0"], ["`0`"]),
        (["--plot", "/nowhere/a.png"], ["/nowhere"]),
        (["--plot", "a.jpeg"], ["a.jpeg", "--plot a.png"]),
        (["--plot", "/"], ["--plot /bench.png"]),
        (["--impl", "vllm"], ["nothing to compare", "vllm,transformers,neuron-transformers"]),
        (["--dtype", "float33"], ["`float33`", "`float32`"]),
        ([], ["no weights", "demo-model"]),
    ],
)
def test_mistakes_are_explained_before_anything_starts(
    run: Run, arguments: list[str], words: list[str]
) -> None:
    ran = run("bench", "llama", *arguments)
    assert ran.code == 2 and ran.out == "" and "Traceback" not in ran.err
    for word in words:
        assert word in ran.err, ran.err


def test_without_matplotlib_nothing_is_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view.importlib.util, "find_spec", lambda name: None)
    ran = run("bench", "llama", "--plot", str(tmp_path / "a.png"))
    assert ran.code == 2 and "neuron-autoport[bench]" in ran.err, ran.err


def test_a_served_load_takes_a_tokenizer(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**SMALL, "architectures": ["LlamaForCausalLM"]})
    )
    ran = run("bench", str(tmp_path), "--load", "serve")
    assert ran.code == 2 and "no tokenizer" in ran.err and "prefill,decode,mixed" in ran.err, (
        ran.err
    )


@pytest.mark.parametrize(
    ("rope", "refused"),
    [({"rope_type": "default"}, True), ({"rope_type": "yarn", "factor": 4.0}, False)],
)
def test_a_load_longer_than_the_model_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rope: dict[str, Any], refused: bool
) -> None:
    """Positions that are scaled are vLLM's to count: then the engines are started."""
    monkeypatch.setattr(engines, "_WORKER", [sys.executable, "-c", "print('Error: asked')"])
    rope = {"rope_theta": 1e4, "original_max_position_embeddings": 100, **rope}
    config = {**SMALL, "max_position_embeddings": 100, "rope_parameters": rope}
    config["architectures"] = ["LlamaForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = run("bench", str(tmp_path), "--load", "decode,mixed", "--batch", "2", "--rounds", "1")
    assert ran.code == 2
    said = ("mixed, batch 2 takes 160 positions, the model has 100", "--load decode", "asked")
    assert [word in ran.err for word in said] == [refused, refused, not refused], ran.err


def test_bars_of_other_tokens_are_hatched() -> None:
    pytest.importorskip("matplotlib")
    for token, hatches in ((0, ["", ""]), (1, ["", "//"])):
        (axes,) = figure_of(report([], token)).axes
        assert [bar.get_hatch() for bar in axes.patches] == hatches
        labels = axes.get_legend_handles_labels()[1]
        assert ["hatched" in label for label in labels] == [h != "" for h in hatches]
        assert [bar.get_height() for bar in axes.patches] == [1.0, 2.0]


def test_variables_that_change_what_is_measured_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPORT_WITHOUT", "gated_mlp")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    found = environment()
    assert found["AUTOPORT_WITHOUT"] == "gated_mlp" and "VLLM_API_KEY" not in found
    out = io.StringIO()
    told = report([]).model_copy(update={"environment": {"AUTOPORT_WITHOUT": "gated_mlp"}})
    print_bench(told, Console(file=out, width=100))
    assert "every engine had AUTOPORT_WITHOUT=gated_mlp" in out.getvalue()


# What stands for an engine: it has a process below it, and after `ready` it listens to nobody.
_DEAF = """
import os, subprocess, sys, time
below = subprocess.Popen(["sleep", "1000"])
print(below.pid, flush=True)
os.write(int(sys.argv[2]), b'{"ready": 1}\\n' if "ready" in sys.argv[1] else b"")
time.sleep(1000)
"""


def alive(process: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def test_no_process_of_an_engine_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_WORKER", [sys.executable, "-c", _DEAF])
    monkeypatch.setattr(engines, "_GRACE", 0.2)
    with pytest.raises(KeyboardInterrupt), started("ready", tmp_path) as (engine,):
        assert engine.ready == 1
        below = int(engine.log.read_text())
        assert alive(below) and alive(engine.process.pid)
        raise KeyboardInterrupt
    assert not alive(below) and not alive(engine.process.pid)


def test_an_engine_that_the_system_ends_is_told_with_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = "import os; print('loading', flush=True); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(engines, "_WORKER", [sys.executable, "-c", killed])
    with pytest.raises(BenchError) as caught, started("m", tmp_path):
        pass
    assert caught.value.what == (
        "The engine was ended by SIGKILL, as a system does that is out of memory: "
        "all engines are alive at once: loading"
    )
    assert caught.value.where == UNFUSED
    assert caught.value.next_step == (
        "AUTOPORT_WITHOUT='*' vllm serve m --model-impl neuron-transformers --dtype float32 "
        "--max-model-len 80 --max-num-seqs 8 --no-enable-prefix-caching --seed 0 --enforce-eager"
    )


def test_a_worker_that_the_system_ended_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = (
        "print('Worker proc VllmWorker-0 died unexpectedly (exit code: -9)'); raise SystemExit(1)"
    )
    monkeypatch.setattr(engines, "_WORKER", [sys.executable, "-c", died])
    with (
        pytest.raises(BenchError, match="out of memory: all engines are alive at once"),
        started("m", tmp_path),
    ):
        pass


def test_what_an_engine_warned_of_before_it_was_ready_is_no_cause_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warns = (
        "import os, sys; print('ValueError: no tokenizer', flush=True);"
        "os.write(int(sys.argv[2]), b'{\"ready\": 1}\\n'); input();"
        "print('MemoryError: all is used', flush=True)"
    )
    monkeypatch.setattr(engines, "_WORKER", [sys.executable, "-c", warns])
    with pytest.raises(BenchError) as caught, started("m", tmp_path) as (engine,):
        engine.run(load_of("decode", 1), 50, 0)
    assert caught.value.what == "The engine ended: MemoryError: all is used"


def started(model: str, folder: Path) -> AbstractContextManager[list[Engine]]:
    return engines.engines(Settings(model, "float32", 80, 8, True), [UNFUSED], folder)


def test_memory_is_the_most_a_process_and_those_below_it_held() -> None:
    """A child holds 200 MiB for a moment and its child 100 MiB; they are asked when both hold little."""
    inner = "x = bytearray(100 << 20); del x; print('done', flush=True); input()"
    outer = (
        "import subprocess, sys; x = bytearray(200 << 20); del x;"
        f"subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    held = subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None and held.stdout.readline() == "done\n"
    found = peak_memory(held.pid)
    held.communicate("\n")
    assert 300 << 20 <= found < 400 << 20
    assert peak_memory(held.pid) == 0
