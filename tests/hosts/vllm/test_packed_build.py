"""The kernel for packed weights is compiled once, checked before it is kept, and refused where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import LEVELS, Level, NoKernel
from tests.hosts.vllm.packing import CAPABLE

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")


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


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler -O2", "there is no C\\+\\+ compiler `no-such-compiler`"),
        ('g++ "-O2', 'CXX is no command: `g\\+\\+ "-O2`: No closing quotation'),
    ],
)
def test_without_a_compiler_there_is_no_kernel(
    cache: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, message: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(NoKernel, match=message):
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
wanted, wrong, quick, sources = sys.argv[1:]
if quick:
    made = build._flags
    build._flags = lambda level: [*made(level), "-O0"]
build.LEVELS = tuple(level for level in build.LEVELS if level.architecture == wanted)
if wrong:
    old, _, new = wrong.partition(" -> ")
    folder, found = Path(sources), 0
    for file in build._SOURCE.parent.glob("*.[ch]*"):
        source = file.read_text()
        found += source.count(old)
        (folder / file.name).write_text(source.replace(old, new))
    assert found == 1, found
    build._SOURCE = folder / build._SOURCE.name
try:
    print("made", build.kernel().level.lanes)
except build.NoKernel as error:
    print("none:", error)
"""


def once(cache: Path, level: Level, wrong: str = "", *, quick: bool = True) -> str:
    """quick: compiled without optimization."""
    sources = cache.parent / "sources"
    sources.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-c",
        _ONCE,
        level.architecture,
        wrong,
        "quick" * quick,
        str(sources),
    ]
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
    assert once(cache, level, quick=False) == f"made {level.lanes}"
    (kept,) = cache.iterdir()
    written = kept.stat().st_mtime_ns
    assert once(cache, level, quick=False) == f"made {level.lanes}"
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
        "<< shift : 0 -> << shift / 2 : 0",  # an exponent that is not where it is read
        "rest - (static_cast -> rest - 0 * (static_cast",  # and one that is too large
        "| ((thirds << 8) & ~upper) -> ",  # the third byte of three is lost
        "& mask) * scale;\n      second -> & ~mask) * scale;\n      second",
        "2 * lane + 1 - second -> 2 * lane + second",  # two outputs change places
        "piece.stride = piece.depth * kPanel -> piece.stride = 0 * kPanel",  # of what is read in float32
    ],
)
def test_wrong_code_is_neither_used_nor_kept(cache: Path, wrong: str) -> None:
    assert once(cache, CAPABLE[0], wrong).startswith("none: the compiled code is wrong for ")
    assert not list(cache.iterdir())
