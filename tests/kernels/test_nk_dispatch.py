"""Where NK calls go: to the NKI kernel through the plugin's wrap_nki, or to the torch reference."""

from __future__ import annotations

import ast
import inspect
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from neuron_autoport import kernels as NK
from neuron_autoport.errors import AutoportError
from neuron_autoport.kernels import dispatch
from neuron_autoport.nf import dispatch as nf_dispatch
from neuron_autoport.nf.dispatch import Decision
from tests.kernels.data import rows, weight
from tests.nki_sim.wrap import WrappedKernel

Patch = pytest.MonkeyPatch
X, W = rows(130, 64), weight(64)
launches: list[tuple[str, int | None, list[str]]] = []


class Noted(WrappedKernel):
    """The double of wrap_nki, noting what is launched; one node in a graph, as the plugin's is."""

    def __getitem__(self, lnc: int) -> Noted:
        return Noted(self.kernel, lnc)

    def __call__(self, **kwargs: Any) -> Any:
        launches.append((self.kernel.__name__, self.lnc, sorted(kwargs)))
        return super().__call__(**kwargs)


def module(patch: Patch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    vars(made).update(content)
    patch.setitem(sys.modules, name, made)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: Patch) -> Iterator[None]:
    monkeypatch.delenv(dispatch.CORES, raising=False)
    dispatch.forget()
    launches.clear()
    torch._dynamo.reset()
    yield
    dispatch.forget()
    torch._dynamo.reset()


@pytest.fixture
def plugin(monkeypatch: Patch, nki_simulator: bool) -> list[bool]:
    """The plugin active, its gate open; the returned list holds what the gate answers."""
    gate = [True]
    module(monkeypatch, "libtorch_neuronx_lite")
    module(monkeypatch, "libtorch_neuronx_lite.nki")
    module(monkeypatch, dispatch.WRAPPER, wrap_nki=Noted)
    module(monkeypatch, "vllm_neuron")
    module(monkeypatch, "vllm_neuron.utils")
    module(monkeypatch, dispatch.GATE, can_run_kernel=lambda x: gate[0])
    monkeypatch.setattr(dispatch, "decide_nf", lambda: Decision("vllm_neuron", "a double"))
    return gate


def test_without_the_plugin_the_reference_runs() -> None:
    nf_dispatch.decide.cache_clear()
    assert NK.backend() == "torch"
    assert "vllm_neuron is not installed" in dispatch.decide().reason
    assert torch.equal(NK.rms_norm(X, W), dispatch.reference_of(NK.rms_norm)(X, W))


def test_only_device_modules_import_nki() -> None:
    """What imports nki is in kernels/device, and nothing else imports that."""
    for path in Path(inspect.getfile(NK)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            bad = ("nki", "nkilib", "libtorch_neuronx_lite", "vllm_neuron")
            assert not [n for n in names if n.split(".")[0] in bad or "kernels.device" in n], path


def test_the_kernel_runs_on_the_cores_of_the_runtime(
    plugin: list[bool], monkeypatch: Patch
) -> None:
    assert NK.backend() == "nki"
    got = NK.rms_norm(X, W, 1e-5)
    names = ["eps", "form", "offset", "weight", "x"]
    assert launches == [("rms_norm_kernel", 2, names)]
    torch.testing.assert_close(got, dispatch.reference_of(NK.rms_norm)(X, W, 1e-5))
    dispatch.forget()
    monkeypatch.setenv(dispatch.CORES, "1")
    assert torch.equal(NK.rms_norm(x=X, weight=W, eps=1e-5), got)
    assert launches[1] == ("rms_norm_kernel", 1, names)


def test_all_functions_reach_their_kernels(plugin: list[bool]) -> None:
    q, table = rows(2, 3, 5, 16), rows(2, 5, 16)
    NK.add_rms_norm(X, X, W)
    NK.layer_norm(X, W, None)
    NK.act_and_mul(X, X, "relu2", limit=3.0)
    NK.rope(q, table, table)
    NK.qk_norm_rope(q, q, None, None, table, table)
    NK.softcap_attention(q, q, q, sink=torch.zeros(3))
    called = [name.removesuffix("_kernel") for name, _, _ in launches]
    assert sorted([*called, "rms_norm"]) == NK.__all__


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, every second column of a wider tensor whose other columns are NaN."""
    wide = torch.stack((x, torch.full_like(x, torch.nan)), -1).flatten(-2)
    view = wide[..., ::2]
    assert torch.equal(view, x) and not view.is_contiguous()
    return view


def test_views_reach_the_kernels_as_what_they_show(plugin: list[bool]) -> None:
    """Heads exchanged with tokens, halves of a packed projection: kernels know shapes, not strides."""
    q, table = rows(2, 5, 3, 16).transpose(1, 2), rows(2, 5, 16)
    calls: dict[str, tuple[list[torch.Tensor], dict[str, Any]]] = {
        "rms_norm": ([strided(X), strided(W)], {}),
        "add_rms_norm": ([strided(X), X, W], {}),
        "layer_norm": ([strided(X), strided(W), strided(W)], {}),
        "act_and_mul": ([*rows(130, 128).chunk(2, -1)], {}),
        "rope": ([q, strided(table), strided(table)], {}),
        "qk_norm_rope": ([q, q, strided(weight(16)), strided(weight(16)), table, table], {}),
        "softcap_attention": ([q, q, q], {"sink": strided(torch.zeros(3))}),
    }
    assert sorted(calls) == NK.__all__
    for name, (args, options) in calls.items():
        function = getattr(NK, name)
        got, want = function(*args, **options), dispatch.reference_of(function)(*args, **options)
        torch.testing.assert_close(got, want, msg=lambda text, name=name: f"{name}: {text}")
    assert len(launches) == len(calls)


def test_the_gate_of_the_plugin_decides(plugin: list[bool]) -> None:
    plugin[0] = False
    NK.rms_norm(X, W)
    assert launches == []


def test_outside_the_limits_the_reference_runs_and_says_so(
    plugin: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            got = NK.rms_norm(X.double(), W.double())
    assert got.dtype == torch.float64 and launches == []
    assert [r.getMessage() for r in caplog.records] == [
        "NK.rms_norm runs in torch, not in its kernel: x.dtype is float64, not float32 or bfloat16 "
        "or float16: the engines have no other floating dtype"
    ]


def test_the_whole_call_is_one_graph(plugin: list[bool], monkeypatch: Patch) -> None:
    """Deciding, checking limits and launching trace into one graph around the kernel's node."""

    @torch.library.custom_op("autoport_test::rms", mutates_args=())
    def node(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out: torch.Tensor = Noted(kernel, 2)(
            x=x, weight=weight, eps=eps, form="rounded", offset=0.0
        )
        return out

    node.register_fake(lambda x, weight, eps: torch.empty_like(x))

    kernel: Any = None

    class Traced:
        def __init__(self, inner: Any) -> None:
            nonlocal kernel
            kernel = inner

        def __getitem__(self, lnc: int) -> Traced:
            return self

        def __call__(self, *, x: Any, weight: Any, eps: float, **_: Any) -> Any:
            return node(x, weight, eps)

    monkeypatch.setattr(sys.modules[dispatch.WRAPPER], "wrap_nki", Traced)
    monkeypatch.setattr(sys.modules[dispatch.GATE], "can_run_kernel", lambda x: True)
    compiled = torch.compile(lambda x, w: NK.rms_norm(x, w), fullgraph=True, backend="eager")
    want = dispatch.reference_of(NK.rms_norm)(X, W)
    torch.testing.assert_close(compiled(X, W), want)
    assert [name for name, _, _ in launches] == ["rms_norm_kernel"]
    wide = torch.compile(lambda x: NK.rms_norm(x), fullgraph=True, backend="eager")
    assert (
        wide(X.double()).dtype == torch.float64
    )  # outside the limits: the reference, in the graph


def test_a_holder_called_nki_is_not_nki(plugin: list[bool], monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "nki.language", None)
    assert NK.backend() == "torch"
    assert "nki.language cannot be used" in dispatch.decide().reason


def test_a_wrong_number_of_cores_is_an_error(plugin: list[bool], monkeypatch: Patch) -> None:
    monkeypatch.setenv(dispatch.CORES, "4")
    with pytest.raises(AutoportError, match="'4'; a logical core has 1 or 2"):
        NK.rms_norm(X, W)
