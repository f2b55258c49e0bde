"""Where NF calls go: to a plugin that is really there and active, else to the torch reference."""

from __future__ import annotations

import inspect
import json
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from neuron_autoport import nf as NF
from neuron_autoport.errors import AutoportError
from neuron_autoport.nf import dispatch

CONTRACT: dict[str, Any] = json.loads((Path(__file__).parent / "signatures.json").read_text())
Calls = list[tuple[str, dict[str, Any]]]
Patch = pytest.MonkeyPatch


def module(patch: Patch, name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    patch.setitem(sys.modules, name, made)
    return made


def plugin_enums() -> dict[str, Any]:
    """Enums as the plugin has them: other classes, with values of their own."""
    return {
        name: Enum(name, [(each, 10 + i) for i, each in enumerate(members)])
        for name, members in CONTRACT["enums"].items()
    }


def strict(name: str, calls: Calls) -> Any:
    """A plugin function: takes the contract's names only, notes them, returns hidden * 2."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            parameter, kind, default=inspect.Parameter.empty if default is None else default
        )
        for parameter, default in CONTRACT["functions"][name]
    ]
    signature = inspect.Signature(parameters)

    def function(*args: Any, **kwargs: Any) -> torch.Tensor:
        bound = signature.bind(*args, **kwargs).arguments
        calls.append((name, dict(bound)))
        first: torch.Tensor = next(iter(bound.values()))
        return first * 2

    return function


@pytest.fixture
def plugin(monkeypatch: Patch) -> Calls:
    """A fake plugin in sys.modules, active through the environment; gives the list of its calls."""
    calls: Calls = []
    for name in ("vllm_neuron", "nkilib", "nkilib.core", "nkilib.core.utils"):
        module(monkeypatch, name)
    functions = {name: strict(name, calls) for name in CONTRACT["functions"]}
    module(monkeypatch, "vllm_neuron.functional", **functions)
    module(monkeypatch, "nkilib.core.utils.common_types", **plugin_enums())
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "1")
    return calls


def fake_platform(patch: Patch, owner: str) -> None:
    platform = type("SomePlatform", (), {"__module__": owner})()
    module(patch, "vllm")
    module(patch, "vllm.platforms", current_platform=platform)


def test_same_arguments_and_translated_enums(plugin: Calls) -> None:
    x, w, gamma = torch.ones(1, 2, 4), torch.ones(4, 8), torch.ones(1, 4)
    y = NF.qkv_proj(
        x,
        w,
        gamma,
        output_layout=NF.QKVOutputLayout.NBSd,
        d_head=2,
        norm_type=NF.NormType.RMS_NORM,
        qk_norm_pre_rope_q_norm=NF.NormType.LAYER_NORM,
        weight_layout=NF.QKVWeightLayout.MX_INTERLEAVED,
    )
    assert isinstance(y, torch.Tensor) and torch.equal(y, x * 2)
    [(name, got)] = plugin
    enums = sys.modules["nkilib.core.utils.common_types"]
    assert name == "qkv_proj"
    assert got["hidden"] is x and got["qkv_weights"] is w and got["norm_weights"] is gamma
    assert got["output_layout"] is enums.QKVOutputLayout.NBSd
    assert got["norm_type"] is enums.NormType.RMS_NORM
    assert got["qk_norm_pre_rope_q_norm"] is enums.NormType.LAYER_NORM
    assert got["weight_layout"] is enums.QKVWeightLayout.MX_INTERLEAVED
    assert got["d_head"] == 2
    assert len(got) == 8  # what was left to its default stays the plugin's own default
    assert NF.backend() == "vllm_neuron"


def test_positional_enums_and_the_plugins_own_members(plugin: Calls) -> None:
    enums = sys.modules["nkilib.core.utils.common_types"]
    x, w = torch.ones(2, 4), torch.ones(4, 4)
    NF.mlp(x, w, w, w, 1e-5, None, False, NF.ActFnType.GELU, norm_type=enums.NormType.NO_NORM)
    NF.o_proj(x, w, None, NF.QuantizationType.ROW_MX)
    (mlp_name, mlp), (o_name, o_proj) = plugin
    assert (mlp_name, o_name) == ("mlp", "o_proj")
    assert mlp["act_fn"] is enums.ActFnType.GELU and mlp["eps"] == 1e-5
    assert mlp["norm_type"] is enums.NormType.NO_NORM
    assert o_proj["quantization_type"] is enums.QuantizationType.ROW_MX


def test_wrong_name_reaches_neither_backend(plugin: Calls) -> None:
    with pytest.raises(TypeError, match="hiden"):
        NF.o_proj(torch.ones(1, 2, 4), torch.ones(4, 4), hiden=1)  # type: ignore[call-arg]
    assert plugin == []


def test_a_member_the_plugin_lacks(plugin: Calls, monkeypatch: Patch) -> None:
    enums = sys.modules["nkilib.core.utils.common_types"]
    monkeypatch.setattr(enums, "ActFnType", Enum("ActFnType", ["SiLU"]))
    w = torch.ones(4, 4)
    with pytest.raises(AutoportError, match=r"no ActFnType\.GELU"):
        NF.mlp(torch.ones(2, 4), w, w, w, act_fn=NF.ActFnType.GELU)


def test_hosted_weights_do_not_go_to_the_plugin(plugin: Calls) -> None:
    class Hosted:
        def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return x

    with pytest.raises(TypeError, match=r"NF\.o_proj: weight is a Hosted"):
        NF.o_proj(torch.ones(1, 2, 4), Hosted())
    with pytest.raises(TypeError, match=r"NF\.mlp: down_w is a Hosted"):
        NF.mlp(torch.ones(2, 4), torch.ones(4, 4), torch.ones(4, 4), down_w=Hosted())
    assert plugin == []


def test_plugin_inside_a_full_graph(plugin: Calls) -> None:
    """torch.compile runs the decision and the look-ups instead of tracing them."""
    enums = sys.modules["nkilib.core.utils.common_types"]
    seen: list[Any] = []

    def function(hidden: torch.Tensor, *weights: torch.Tensor, act_fn: Any) -> torch.Tensor:
        seen.append(act_fn)
        return hidden * 3 if act_fn == enums.ActFnType.GELU else hidden * 5

    sys.modules["vllm_neuron.functional"].mlp = function  # type: ignore[attr-defined]
    w = torch.ones(4, 4)

    @torch.compile(fullgraph=True, backend="eager")
    def run(x: torch.Tensor) -> Any:
        y: Any = NF.mlp(x, w, w, w, act_fn=NF.ActFnType.GELU)
        return y + 1

    assert torch.equal(run(torch.ones(2, 4)), torch.full((2, 4), 4.0))


def test_platform_instead_of_environment(plugin: Calls, monkeypatch: Patch) -> None:
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "0")
    fake_platform(monkeypatch, "vllm_neuron.platform")
    assert NF.backend() == "vllm_neuron"


def test_plugin_without_its_platform_is_not_used(plugin: Calls, monkeypatch: Patch) -> None:
    monkeypatch.delenv("VLLM_NEURON_CPU_MODE")
    fake_platform(monkeypatch, "vllm.platforms.cpu")
    assert NF.backend() == "torch"
    assert "SomePlatform" in dispatch.decide().reason


def test_plugin_without_vllm_is_not_used(plugin: Calls, monkeypatch: Patch) -> None:
    monkeypatch.delenv("VLLM_NEURON_CPU_MODE")
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    assert NF.backend() == "torch"


@pytest.mark.parametrize("gone", CONTRACT["functions"])
def test_a_module_without_the_functions_is_not_the_plugin(plugin: Calls, gone: str) -> None:
    delattr(sys.modules["vllm_neuron.functional"], gone)
    assert NF.backend() == "torch"
    assert f"has no {gone}" in dispatch.decide().reason


def test_decided_once(plugin: Calls, monkeypatch: Patch) -> None:
    assert NF.backend() == "vllm_neuron"
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "0")
    assert NF.backend() == "vllm_neuron"


def holder_on_disk(folder: Path, *files: str) -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@pytest.mark.parametrize(
    "files",
    [
        ("vllm_neuron/__init__.py",),
        ("vllm_neuron/__init__.py", "vllm_neuron/functional.py"),
        ("vllm_neuron.py",),
        ("vllm_neuron/functional/__init__.py",),  # a namespace package around an empty one
    ],
)
def test_name_holders_count_as_absent(
    monkeypatch: Patch, tmp_path: Path, files: tuple[str, ...]
) -> None:
    holder_on_disk(tmp_path, *files)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "vllm_neuron"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "1")
    try:
        assert NF.backend() == "torch"
        assert "vllm_neuron.functional" in dispatch.decide().reason
        y = NF.o_proj(torch.ones(1, 2, 4), torch.ones(4, 3))
        assert torch.equal(y, torch.full((1, 2, 3), 4.0))
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "vllm_neuron"]:
            del sys.modules[name]


def test_a_plugin_whose_own_import_fails(monkeypatch: Patch, tmp_path: Path) -> None:
    package = tmp_path / "vllm_neuron"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "functional.py").write_text("import a_neuron_library_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "1")
    try:
        assert NF.backend() == "torch"
        assert "a_neuron_library_that_is_missing" in dispatch.decide().reason
    finally:
        sys.modules.pop("vllm_neuron", None)


def test_no_plugin_at_all(monkeypatch: Patch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "1")
    assert dispatch.decide() == dispatch.Decision("torch", "vllm_neuron is not installed")


def test_unreadable_environment_is_an_error(plugin: Calls, monkeypatch: Patch) -> None:
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "true")
    with pytest.raises(AutoportError, match="export VLLM_NEURON_CPU_MODE=1"):
        NF.backend()
