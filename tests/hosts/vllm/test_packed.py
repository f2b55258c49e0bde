"""The kernel for packed weights: its values against float64, what it refuses, and when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import LEVELS, Kernel, Level, NoKernel
from neuron_autoport.hosts.vllm.packed.layers import fits
from tests.hosts.vllm.packing import CAPABLE, distance, numbers

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")


@pytest.fixture(scope="module")
def made() -> Kernel:
    return build.kernel()


@settings(max_examples=60, deadline=None)
@given(
    outputs=st.integers(1, 300),
    inputs=st.sampled_from([1, 3, 4, 5, 64, 127, 2047, 2048, 2049, 4100]),
    rows=st.integers(0, 210),
    biased=st.booleans(),
)
def test_it_is_x_times_w_transposed(
    made: Kernel, outputs: int, inputs: int, rows: int, biased: bool
) -> None:
    x, weight = numbers(rows, inputs), numbers(outputs, inputs, seed=1)
    bias = numbers(outputs, seed=2) if biased else None
    y = made.run(x, made.pack(weight), outputs, bias)
    assert y.shape == (rows, outputs) and y.dtype == torch.float32
    assert distance(y, x, weight, bias) <= inputs + 1


def test_a_sum_of_ones_is_counted_exactly(made: Kernel) -> None:
    """A term left out or taken twice, at any border of pieces, panels and groups of rows, changes a whole number."""
    for rows in range(1, 40):
        for inputs in (1, 2047, 2048, 2050, 4097):
            y = made.run(torch.ones(rows, inputs), made.pack(torch.ones(130, inputs)), 130, None)
            assert (y == inputs).all(), (rows, inputs)


def test_a_row_does_not_depend_on_the_rows_beside_it(made: Kernel) -> None:
    x, weight = numbers(200, 577), numbers(96, 577, seed=1)
    packed = made.pack(weight)
    whole = made.run(x, packed, 96, None)
    for rows in (1, 2, 7, 12, 13, 16, 17, 24, 97):
        assert torch.equal(made.run(x[:rows], packed, 96, None), whole[:rows]), rows


def test_axes_before_the_last_and_strides_do_not_matter(made: Kernel) -> None:
    x, weight = numbers(2, 5, 3, 40), numbers(64, 40, seed=1)
    packed = made.pack(weight)
    y = made.run(x, packed, 64, None)
    assert y.shape == (2, 5, 3, 64) and distance(y, x, weight) <= 41
    for other in (x.transpose(0, 1), numbers(4, 80)[:, ::2], numbers(40, 6).t()):
        assert torch.equal(
            made.run(other, packed, 64, None), made.run(other.contiguous(), packed, 64, None)
        )


def test_infinite_and_undefined_values_stay_in_their_row(made: Kernel) -> None:
    x, weight = numbers(20, 64), numbers(70, 64, seed=1)
    x[3, 5], x[4, 6] = float("inf"), float("nan")
    y = made.run(x, made.pack(weight), 70, None)
    plain = [r for r in range(20) if r not in (3, 4)]
    assert y[plain].isfinite().all() and y[4].isnan().all() and not y[3].isfinite().any()


def test_two_threads_give_what_one_gives(made: Kernel) -> None:
    x, packed = numbers(30, 512), made.pack(numbers(1000, 512, seed=1))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = made.run(x, packed, 1000, None)
        torch.set_num_threads(2)
        assert torch.equal(made.run(x, packed, 1000, None), alone)
    finally:
        torch.set_num_threads(threads)


def test_the_compiler_sees_the_shape_and_keeps_it_a_variable(made: Kernel) -> None:
    weight = numbers(96, 32)
    packed = made.pack(weight)

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def twice(x: Tensor) -> Tensor:
        return made.run(x * 2, packed, 96, None)

    for rows in (3, 5, 9):
        assert torch.equal(
            twice(numbers(rows, 32)), made.run(numbers(rows, 32) * 2, packed, 96, None)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, p: (x[:, :-1], p, 96, None), "another packing"),
        (lambda x, p: (x, p.flatten(), 96, None), "another packing"),
        (lambda x, p: (x, p[..., :-1].contiguous(), 96, None), "another packing"),
        (lambda x, p: (x, p, 400, None), "as many outputs"),
        (lambda x, p: (x, p, 96, torch.zeros(95)), "one bias"),
        (lambda x, p: (x.double(), p, 96, None), "float32"),
        (lambda x, p: (x, p.bfloat16(), 96, None), "float32"),
        (lambda x, p: (x, p, 96, torch.zeros(96).double()), "float32"),
        (
            lambda x, p: (x, p.transpose(0, 1).contiguous().transpose(0, 1), 96, None),
            "in one piece",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    made: Kernel, change: Callable[[Tensor, Tensor], tuple[object, ...]], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        made.run(*change(numbers(4, 32), made.pack(numbers(96, 32))))  # type: ignore[arg-type]


def test_only_weights_the_kernel_is_made_for_are_packed(made: Kernel) -> None:
    wide = 2 * made.level.panel
    assert fits(torch.zeros(wide, 8), made)
    assert not fits(torch.zeros(wide - 1, 8), made)  # a router of a few experts
    assert not fits(torch.zeros(wide, 8, dtype=torch.bfloat16), made)
    assert not fits(torch.zeros(2, wide, 8), made)
    assert not fits(torch.zeros(wide, 8, device="meta"), made)
    assert not fits(torch.zeros(wide, 0), made)


def test_the_level_is_the_first_that_the_cpu_has_all_features_of() -> None:
    new, old = LEVELS
    every = dict.fromkeys((*new.features, *old.features), True)
    assert build.level_of(every) is new
    assert build.level_of(every | {"avx512_dq": False}) is old
    with pytest.raises(NoKernel, match="aarch64 has neither"):
        build.level_of({"architecture": "aarch64", "avx2": False})
    with pytest.raises(NoKernel, match="x86_64 has neither"):
        build.level_of(every | {"architecture": "x86_64", "fma3": False})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AUTOPORT_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    build.kernel.cache_clear()
    yield tmp_path / "kernels"
    build.kernel.cache_clear()


def test_without_a_compiler_there_is_no_kernel(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(NoKernel, match="there is no C\\+\\+ compiler `no-such-compiler`"):
        build.kernel()


def test_a_compiler_that_fails_is_quoted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("int broken( {\n", encoding="utf-8")
    monkeypatch.setattr(build, "_SOURCE", broken)
    with pytest.raises(NoKernel, match=r"g\+\+ failed: .*error"):
        build.kernel()
    assert not list(cache.iterdir())


def test_a_compiler_command_that_cannot_be_read_is_quoted(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", 'g++ "-O2')
    with pytest.raises(NoKernel, match='CXX is no command: `g\\+\\+ "-O2`: No closing quotation'):
        build.kernel()


def test_a_compiler_that_another_command_calls_is_asked_for_its_version(tmp_path: Path) -> None:
    """As ccache calls one."""
    compiler, digests = tmp_path / "compiler", []
    for version in ("old", "new", "old"):
        compiler.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
        compiler.chmod(0o755)
        digests.append(build._digest(["env", str(compiler)], []))
    assert digests[0] == digests[2] != digests[1]


def test_without_a_place_to_keep_it_there_is_none(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOPORT_CACHE", str(tmp_path / "file"))
    with pytest.raises(NoKernel, match=r"it cannot be kept: .*file"):
        build.kernel()


def test_it_can_be_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.SETTING, "0")
    with pytest.raises(NoKernel, match="AUTOPORT_PACKED_WEIGHTS is 0"):
        build.kernel()


# In a process of its own, because an operator can be defined once in a process.
_ONCE = """
import sys
from pathlib import Path
from neuron_autoport.hosts.vllm.packed import build
wanted, wrong = sys.argv[1:]
build.LEVELS = tuple(level for level in build.LEVELS if level.architecture == wanted)
if wrong:
    source = build._SOURCE.read_text()
    old, _, new = wrong.partition(" -> ")
    assert source.count(old) == 1
    changed = Path(build.cache_folder()) / "linear.cpp"
    changed.write_text(source.replace(old, new))
    build._SOURCE = changed
try:
    print("made", build.kernel().level.lanes)
except build.NoKernel as error:
    print("none:", error)
"""


def once(cache: Path, level: Level, wrong: str = "") -> str:
    command = [sys.executable, "-c", _ONCE, level.architecture, wrong]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"AUTOPORT_CACHE": str(cache.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("level", CAPABLE, ids=lambda level: level.architecture)
def test_every_level_of_this_cpu_is_right_and_kept(cache: Path, level: Level) -> None:
    """It is checked before it is kept: `made` means within float32's rounding of float64."""
    assert once(cache, level) == f"made {level.lanes}"
    (kept,) = cache.iterdir()
    written = kept.stat().st_mtime_ns
    assert once(cache, level) == f"made {level.lanes}"
    assert [f.stat().st_mtime_ns for f in cache.iterdir()] == [written]


@pytest.mark.parametrize("share", [0, 0.5, None], ids=["empty", "cut short", "changed"])
def test_what_is_no_longer_what_was_kept_is_made_anew(cache: Path, share: float | None) -> None:
    """A file that is cut short can end the process that loads it, one that is changed can compute anything."""
    once(cache, CAPABLE[0])
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    bad = whole[:-1] + bytes([whole[-1] ^ 1]) if share is None else whole[: int(len(whole) * share)]
    kept.write_bytes(bad)
    assert once(cache, CAPABLE[0]) == f"made {CAPABLE[0].lanes}"
    assert [f.read_bytes() for f in cache.iterdir()] == [whole]


@pytest.mark.parametrize(
    "wrong",
    [
        "for (; k < piece.depth; ++k) step(k); -> ",  # the last inputs are left out
        "!piece.first ? y[r * width + i + c] -> false ? 0.0f",  # only the last piece of the inputs counts
        "row += count; -> row += most;",  # rows are skipped
        "put(activated(sums[0], piece.act) * sums[1] -> put(activated(sums[1], piece.act) * sums[0]",
        "0.044715f -> 0.04f",
        "v / 2 * LANES + v % 2 * half -> v * LANES",
    ],
)
def test_wrong_code_is_neither_used_nor_kept(cache: Path, wrong: str) -> None:
    assert once(cache, CAPABLE[0], wrong).startswith("none: the compiled code is wrong for ")
    assert not list(cache.iterdir())
