"""Which `nki` a test gets, the double of `wrap_nki`, and that none of it is in the wheel."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hatchling.builders.wheel import WheelBuilder

from tests.nki_sim.errors import SimError
from tests.nki_sim.namespace import OURS, nisa, nki, nl
from tests.nki_sim.runner import lenient, real_nki, registered, run
from tests.nki_sim.wrap import wrap_nki

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["nki", "nki.language", "nki.isa", "nki.isa.constants"]

ours = pytest.mark.skipif(not OURS, reason="the real nki is installed")


@nki.jit
def doubled(x: Any, factor: float = 2.0) -> Any:
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@ours
def test_registered_and_taken_out_again() -> None:
    assert not any(name in sys.modules for name in NAMES)
    with registered() as simulated:
        assert simulated
        found = [importlib.import_module(name) for name in NAMES]
        from nki.isa.constants import reduce_cmd
        from nki.language import bfloat16

        assert reduce_cmd is found[2].reduce_cmd
        assert bfloat16 == "bfloat16"
        with registered():  # a fixture inside another one
            assert importlib.import_module("nki.isa") is found[2]
        assert importlib.import_module("nki.isa") is found[2]
    assert not any(name in sys.modules for name in NAMES)


@ours
def test_a_name_holder_is_not_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = ModuleType("nki")
    monkeypatch.setitem(sys.modules, "nki", holder)
    assert not real_nki()
    with registered() as simulated:
        assert simulated
        assert importlib.import_module("nki") is not holder
    assert sys.modules["nki"] is holder


def test_the_real_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an `nki.language` from elsewhere nothing is registered, and `run` goes to its simulate."""
    calls = []

    class Kernel:
        def __getitem__(self, lnc: int) -> tuple[str, int]:
            return ("kernel", lnc)

    def simulate(kernel: Any) -> Any:
        return lambda *args, **kwargs: calls.append((kernel, args, kwargs))

    root = ModuleType("nki")
    vars(root)["simulate"] = simulate
    monkeypatch.setitem(sys.modules, "nki", root)
    monkeypatch.setitem(sys.modules, "nki.language", ModuleType("nki.language"))
    with registered() as simulated:
        assert not simulated
        assert sys.modules["nki"] is root
        run(Kernel(), 1, lnc=2, eps=0.5)
    assert calls == [(("kernel", 2), (1,), {"eps": 0.5})]


@ours
def test_unwritten_memory_can_be_read_as_nan() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:2, :], src=x)
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        out = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = torch.ones(2, 3)
    with pytest.raises(SimError, match="unwritten-read"):
        kernel(x)
    with lenient():
        got = kernel(x)
    assert got[:2].tolist() == [[2.0] * 3] * 2
    assert got[2:].isnan().all()
    with pytest.raises(SimError, match="unwritten-read"):
        kernel(x)


def test_wrap_nki(nki_simulator: bool) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    call = wrap_nki(doubled)
    assert torch.equal(call[1](x=x), x * 2)
    assert torch.equal(run(doubled, x, 3.0), x * 3)
    with pytest.raises(SimError, match=r"without \[cores\]"):
        call(x=x)
    with pytest.raises(SimError, match="not hashable"):
        call[1](x=x, factor=[2.0])


def test_not_in_the_wheel() -> None:
    """The list of files a build would pack: the package and the rules, and nothing that names the simulator."""
    files = [*WheelBuilder(str(ROOT)).recurse_included_files()]
    assert {f.distribution_path.split("/")[0] for f in files} == {"neuron_autoport"}
    packed = {f.distribution_path for f in files}
    assert "neuron_autoport/kernels/device/rms_norm.py" in packed
    assert "neuron_autoport/patterns/norm/rms_norm.yaml" in packed
    for file in files:
        assert "nki_sim" not in file.distribution_path
        if file.path.endswith(".py"):
            assert "nki_sim" not in Path(file.path).read_text(encoding="utf-8"), file.path
