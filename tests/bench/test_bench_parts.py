"""Loads, turns, ratios and what is printed, with engines that answer by a table; no vLLM."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from neuron_autoport.bench.engines import OURS, UNFUSED, Answer, Engine, Settings
from neuron_autoport.bench.loads import KINDS, Load, load_of
from neuron_autoport.bench.memory import peak_memory
from neuron_autoport.bench.run import measure
from neuron_autoport.bench.schema import BenchReport, EngineInfo, spread
from neuron_autoport.bench.view import plot, print_bench
from tests.cli.conftest import Run, run

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


def report(asked: list[tuple[str, list[list[int]]]], other_token: int = 0) -> BenchReport:
    engines = [
        Table("vllm", [99.0, 2.0, 4.0, 3.0], asked),
        Table(OURS, [99.0, 1.0, 4.0, 1.0], asked, other_token),
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
