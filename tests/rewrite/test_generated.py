"""Generated classes: importable, the same bytes each time, beside the originals, never in their place."""

from __future__ import annotations

import copy
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama as llama

from neuron_autoport import cache
from neuron_autoport.models.build import real_model
from neuron_autoport.port import Port, port_model
from neuron_autoport.prove.modules import prove_module
from neuron_autoport.rewrite.emit import Generated, generate
from neuron_autoport.rewrite.install import install
from neuron_autoport.rules.library import load_rules
from tests.helpers import (
    generated_of,
    meta_instance,
    plan_of,
    proof_of,
    real_instance,
    small_config,
    zoo_class,
)


@pytest.fixture(scope="module")
def port() -> Port:
    return port_model(small_config("llama"), load_rules())


@pytest.fixture(scope="module")
def made(port: Port) -> Generated:
    return generate(port.plans, "small llama")


def test_upstream_classes_are_untouched(port: Port, made: Generated) -> None:
    before = {n: c.forward for n, c in vars(llama).items() if isinstance(c, type)
              and issubclass(c, nn.Module)}  # fmt: skip
    model = real_model(small_config("llama"), attn_implementation="eager")
    twin = copy.deepcopy(model)
    ids = torch.arange(3, 16)[None]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        for path, plan in port.where.items():
            if plan in made.classes:
                install(twin.get_submodule(path), plan, made.classes[plan])
        changed = twin(ids, use_cache=False).logits
        again = model(ids, use_cache=False).logits
    for name, forward in before.items():
        assert getattr(llama, name).forward is forward
    assert torch.equal(again, expected)
    torch.testing.assert_close(changed, expected, rtol=1e-4, atol=1e-4)
    layer, new = model.model.layers[0], twin.model.layers[0]
    assert type(layer.mlp) is llama.LlamaMLP and type(new.mlp) is not llama.LlamaMLP
    assert isinstance(new.mlp, llama.LlamaMLP) and type(new.mlp).__name__ == "LlamaMLP"
    assert type(layer.mlp).forward is not type(new.mlp).forward
    assert hasattr(layer.mlp, "gate_proj") and not hasattr(new.mlp, "gate_proj")
    fresh = AutoModelForCausalLM.from_config(small_config("llama"))
    assert type(fresh.model.layers[0].mlp) is llama.LlamaMLP


def test_the_rewritten_forward_is_the_one_that_runs(
    port: Port, made: Generated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: every MLP and attention of the installed model calls NF."""
    from neuron_autoport import nf

    counts = {"mlp": 0, "qkv_proj": 0, "o_proj": 0}
    for name in counts:
        original = getattr(nf, name)

        def counted(
            *a: object, name: str = name, original: object = original, **k: object
        ) -> object:
            counts[name] += 1
            return original(*a, **k)  # type: ignore[operator]

        monkeypatch.setattr(nf, name, counted)
    model = real_model(small_config("llama"), attn_implementation="eager")
    for path, plan in port.where.items():
        if plan in made.classes:
            install(model.get_submodule(path), plan, made.classes[plan])
    with torch.no_grad():
        model(torch.arange(3, 9)[None], use_cache=False)
    assert counts == {"mlp": 2, "qkv_proj": 2, "o_proj": 2}


def test_the_file_is_importable_and_the_same_each_time(port: Port) -> None:
    title = "small llama of this test"
    made = generate(port.plans, title)
    again = generate(port_model(small_config("llama"), load_rules()).plans, title)
    assert again.text == made.text and again.path == made.path
    assert made.path.read_text(encoding="utf-8") == made.text
    assert made.path.is_relative_to(cache.cache_folder("generated"))
    spec = importlib.util.spec_from_file_location("a_copy", made.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.LlamaMLP, llama.LlamaMLP)
    source = inspect.getsource(next(c for c in made.classes.values() if c.__name__ == "LlamaMLP"))
    assert "# autoport: gated_mlp" in source and source in made.text
    compile(made.text, "generated", "exec")


def test_an_empty_cache_variable_is_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOPORT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder("x") == tmp_path / "neuron-autoport" / "x"


MLP = """
class MLP(nn.Module):
    def __init__(self, act="silu"):
        super().__init__()
        self.gate, self.up = nn.Linear(W, I), nn.Linear(W, I)
        self.down = nn.Linear(I, W)
        self.act = ACT2FN[act]

    def forward(self, x):
        {body}
{more}
"""
BODY = "return self.down(self.act(self.gate(x)) * self.up(x))"


def test_two_variants_of_one_class_have_names_of_their_own() -> None:
    cls = zoo_class(MLP.format(body=BODY, more="""
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = MLP("silu"), MLP("gelu"), MLP("silu")

    def forward(self, x):
        return self.a(x) + self.b(x) + self.c(x)
"""))  # fmt: skip
    from neuron_autoport.port import plan_trace
    from neuron_autoport.trace.tracer import trace_model

    model = meta_instance(cls)
    x = torch.empty(2, 7, 16, device="meta", dtype=torch.bfloat16)
    port = plan_trace(model, trace_model(model, (x,)), load_rules())
    made = generate(port.plans, "both")
    names = {path: made.classes[port.where[path]].__name__ for path in "abc"}
    assert names == {"a": "MLP", "b": "MLP_2", "c": "MLP"}
    assert "ActFnType.SiLU" in inspect.getsource(made.classes[port.where["a"]])
    assert "ActFnType.GELU" in inspect.getsource(made.classes[port.where["b"]])
    real = real_instance(cls)
    for path in "abc":
        plan, module = port.where[path], real.get_submodule(path)
        call = ((torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0)),), {})
        assert prove_module(path, module, plan, made.classes[plan], [call]).passed


def test_names_that_mean_two_things_in_one_file() -> None:
    """Two modeling files each with a `scale` of its own, and one that asks for a class by name."""
    body = "return scale(self.down(self.act(self.gate(x)) * self.up(x))) * isinstance(self, MLP)"
    classes = [
        zoo_class(MLP.format(body=body, more=f"def scale(x):\n    return {n} * x")) for n in (2, 3)
    ]
    plans = [plan_of(c) for c in classes]
    made = generate(plans, "two files")
    for cls, plan in zip(classes, plans, strict=True):
        call = ((torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0)),), {})
        proof = prove_module("", real_instance(cls), plan, made.classes[plan], [call])
        assert proof.passed, f"{proof.figures()}\n{made.text}"
    assert [made.classes[p].__name__ for p in plans] == ["MLP", "MLP_2"]


def test_text_constants_are_not_indented() -> None:
    cls = zoo_class(MLP.format(body=f'''
        self.note = """one
  two
        three"""
        {BODY}''', more=""))  # fmt: skip
    plan = plan_of(cls)
    module, twin = real_instance(cls), real_instance(cls)
    install(twin, plan, generated_of(plan).classes[plan])
    x = torch.zeros(1, 2, 16)
    with torch.no_grad():
        module(x), twin(x)
    assert twin.note == module.note == "one\n  two\n        three"


def test_weights_move_transposed_and_stacked() -> None:
    """NF weights are [in, out], biases [1, out]; a part without a bias gets zeros."""
    cls = zoo_class("""
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.q, self.k = nn.Linear(W, W), nn.Linear(W, 8, bias=False)
        self.v, self.o = nn.Linear(W, 8), nn.Linear(W, W, bias=False)

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], -1, D).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(attend(self, q, k, v)[0].flatten(2))
""")  # fmt: skip
    plan = plan_of(cls)
    assert not [s for s in plan.sites if s.rule.name == "qkv_proj"]  # made in a generator
    assert [s.rule.name for s in plan.sites] == ["o_proj"]
    module, twin = real_instance(cls), real_instance(cls)
    install(twin, plan, generated_of(plan).classes[plan])
    assert torch.equal(twin.o_weight, module.o.weight.t()) and not hasattr(twin, "o_bias")

    source = inspect.getsource(cls).replace(
        "q, k, v = (f(x).view(*x.shape[:2], -1, D).transpose(1, 2) for f in (self.q, self.k, self.v))",
        "s = (*x.shape[:2], -1, D)\n"
        "        q = self.q(x).view(s).transpose(1, 2)\n"
        "        k = self.k(x).view(s).transpose(1, 2)\n"
        "        v = self.v(x).view(s).transpose(1, 2)",
    )
    cls = zoo_class(source)
    plan = plan_of(cls)
    module, twin = real_instance(cls), real_instance(cls)
    install(twin, plan, generated_of(plan).classes[plan])
    weights = torch.cat([module.q.weight, module.k.weight, module.v.weight]).t()
    assert torch.equal(twin.qkv_weight, weights) and twin.qkv_sizes == [16, 8, 8]
    assert torch.equal(
        twin.qkv_bias, torch.cat([module.q.bias, torch.zeros(8), module.v.bias])[None]
    )
    assert set(dict(twin.named_parameters())) == {"qkv_weight", "qkv_bias", "o_weight"}
    assert proof_of(cls, plan).passed
