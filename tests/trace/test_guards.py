"""When a trace is good for another module or call of the same class: what was read, and the inputs, tell them apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neuron_autoport.trace.guards import input_signature
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import meta_instance, trace_of, zoo_class

PAIR = """
class Layer(nn.Module):
    def __init__(self, {args}):
        super().__init__()
        self.layer_idx = idx
        {init}

    def forward(self, x):
        {body}

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = {a}, {b}

    def forward(self, x):
        return self.b(self.a(x))
"""


@pytest.mark.parametrize(
    ("init", "body", "a", "b", "same"),
    [
        ("self.n = n", "return x * self.n", "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = n", "return x * self.n", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self._n = n", "return x * self._n", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = n", "return x * 2", "Layer(0, 2)", "Layer(1, 3)", True),
        ("self.n = [n]", "return x * self.n[0]", "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = [n]", "return x * self.n[0]", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = {'k': n}", "return x * self.n['k']", "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = {'k': n}", "return x * self.n['k']", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = {'k': [nn.ReLU, n]}", "return x * self.n['k'][1]",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = None if n == 2 else n", "return x if self.n is None else x * 2",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Parameter(torch.ones(n, W))", "return x * self.n.sum()",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Linear(W, W, bias=n == 2)", "return self.n(x)",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.ModuleList([nn.SiLU()] * n)", "for f in self.n: x = f(x)\n        return x",
         "Layer(0, 1)", "Layer(1, 2)", False),
        ("self.n = nn.ModuleList([nn.SiLU()] * n)", "for f in self.n: x = f(x)\n        return x",
         "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = nn.ModuleList([nn.ModuleList([nn.SiLU()] * n)])",
         "for f in self.n[0]: x = f(x)\n        return x", "Layer(0, 1)", "Layer(1, 2)", False),
        ("self.n = nn.Sequential(nn.Sequential(*[nn.SiLU()] * n))",
         "for f in self.n[0]: x = f(x)\n        return x", "Layer(0, 1)", "Layer(1, 2)", False),
        ("self.n = nn.ModuleList([nn.ModuleDict({'k': nn.SiLU() if n == 2 else nn.Tanh()})])",
         "return self.n[0]['k'](x)", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.ModuleList([nn.ModuleList([nn.SiLU()] * n)])",
         "for f in self.n[0]: x = f(x)\n        return x", "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = nn.SiLU() if n == 2 else nn.Tanh()", "return self.n(x)",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = n / 3", "return x * self.n", "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = n / 3", "return x * self.n", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Linear(W, W, dtype=torch.float32 if n == 2 else None).requires_grad_(n == 2)",
         "return x + self.n.weight.sum()", "Layer(0, 2)", "Layer(1, 3)", True),  # built in one dtype
        ("self.register_buffer('n', torch.ones(n, W))", "return x * self.n.sum()",
         "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.register_buffer('n', torch.ones(n, W))", "return x * self.n.sum()",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Parameter(torch.ones(W)) if n == 2 else None",
         "return x if self.n is None else x * self.n", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.m = n", "return x * self.n\n\n    @property\n    def n(self):\n        return self.m",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Identity(); self.n.k = n", "return x * self.n.k",
         "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = nn.Identity(); self.n.k = n", "return x * self.n.k",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Identity(); self.n.k = n", "return self.n(x) * self.n.k",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Identity(); self.n.k = n", "return self.n(x)",
         "Layer(0, 2)", "Layer(1, 3)", True),
        ("self.n = nn.Identity(); self.n.m = nn.Identity(); self.n.m.k = n", "return x * self.n.m.k",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.ModuleList([nn.Identity()]); self.n[0].k = n", "return x * self.n[0].k",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.ModuleList([nn.Identity()]); self.n[0].k = n",
         "for m in self.n: x = m(x) * m.k\n        return x", "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.ModuleList([nn.Identity()]); self.n[0].k = n",
         "for m in self.n: x = m(x)\n        return x", "Layer(0, 2)", "Layer(1, 3)", True),
        ("self.n = nn.Sequential(nn.Identity()); self.n[0].k = n",
         "return self.n(x)", "Layer(0, 2)", "Layer(1, 3)", True),
        ("self.n = nn.Linear(W, n)", "return x * self.n.weight.sum()",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Linear(W, n)", "return x * self.n.weight.sum()",
         "Layer(0, 2)", "Layer(1, 2)", True),
        ("self.n = nn.ParameterList([torch.ones(n)])", "return x * self.n[0].sum()",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.__dict__['n'] = nn.Identity(); self.n.k = n", "return x * self.n.k",
         "Layer(0, 2)", "Layer(1, 3)", False),
        ("self.n = nn.Identity(); self.n.k = n", "return self.call(self.n, x)\n\n"
         "    def call(self, part, x):\n        return x * part.k", "Layer(0, 2)", "Layer(1, 3)", False),
    ],
)  # fmt: skip
def test_layers_share_a_trace_if_all_they_read_is_equal(
    init: str, body: str, a: str, b: str, same: bool
) -> None:
    cls = zoo_class(PAIR.format(args="idx, n", init=init, body=body, a=a, b=b))
    module = meta_instance(cls)
    trace = trace_model(module, (torch.empty(2, 7, 16, device="meta", dtype=torch.bfloat16),))
    first, second = (c.trace for c in trace.children)
    assert (first is second) is same
    assert first.holds_for(module.b) is same
    assert "layer_idx" not in first.reads and not first.holds_for(nn.Linear(2, 2))


def test_what_a_method_of_a_child_reads_is_read_of_the_child() -> None:
    """The caller's trace hangs on it; the child, which nobody calls, has none. Afterwards all are what they were."""
    cls = zoo_class("""
    class Part(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k, self.other = k, k
            self.inner = nn.Linear(W, W)

        def scaled(self, x):
            return self.inner(x) * self.k

    class Layer(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.part = Part(k)

        def forward(self, x):
            return self.part.scaled(x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = Layer(2), Layer(3), Layer(2)

        def forward(self, x):
            return self.c(self.b(self.a(x)))
    """)
    module = meta_instance(cls)
    before = [type(m) for m in module.modules()]
    trace = trace_model(module, (torch.empty(2, 7, 16, device="meta", dtype=torch.bfloat16),))
    first, second, third = (c.trace for c in trace.children)
    assert first is third and first is not second
    assert first.reads["part.k"] == 2 and "part.other" not in first.reads
    assert [c.path for c in first.children] == ["part.inner"]
    assert not first.holds_for(module.b) and first.holds_for(module.c)
    assert [type(m) for m in module.modules()] == before


def test_a_child_reads_for_itself_while_it_is_called() -> None:
    """What it reads when called is no read of its caller's, whether it was made or found again."""
    cls = zoo_class("""
    class Part(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, x):
            return x * self.k

    class Layer(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.one, self.two = Part(2), Part(k)

        def forward(self, x):
            return self.two(self.one(x))

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Layer(2), Layer(3)

        def forward(self, x):
            return self.b(self.a(x))
    """)
    first, second = (c.trace for c in trace_of(cls).children)
    assert set(first.reads) == set(second.reads) == {"one", "two"}
    assert first.children[0].trace is first.children[1].trace is second.children[0].trace
    assert second.children[1].trace is not second.children[0].trace


def test_a_module_without_the_child_that_was_called_is_another() -> None:
    """No attribute was read that says what a list in a list holds."""
    cls = zoo_class("""
    class Layer(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.lists = nn.ModuleList([nn.ModuleList([nn.Linear(W, W) for _ in range(n)])])

        def forward(self, x):
            return self.lists[0][-1](x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = Layer(2), Layer(1), Layer(2)

        def forward(self, x):
            return self.c(self.b(self.a(x)))
    """)
    trace = trace_of(cls)
    first, second, third = (c.trace for c in trace.children)
    assert trace.end is None and first is third and first is not second
    assert [c.path for c in second.children] == ["lists.0.0"]


def test_what_a_model_registers_before_its_first_call_is_known_there() -> None:
    """The first call of a model shares its names while they are what a look would find."""
    cls = zoo_class("""
    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(W))

        def forward(self, x):
            return x * self.scale

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = Base()

        def forward(self, x):
            self.base.register_buffer("scale", self.base.scale * 2)
            return self.base(x)
    """)
    inner = trace_of(cls).children[0].trace
    assert [n.target for n in inner.graph.nodes if n.op == "get_attr"] == ["scale"]


def test_signature_tells_inputs_apart() -> None:
    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, y = tensor(2, 3), tensor(2, 3)
    equal: list[tuple[Any, Any]] = [
        (((x,), {}), ((y,), {})),
        (((x, y), {}), ((y, x), {})),
        (((x, x), {"n": 3}), ((y, y), {"n": 3})),
        (((), {"a": x, "b": [y]}), ((), {"b": [x], "a": y})),
    ]
    for one, other in equal:
        assert input_signature(*one) == input_signature(*other)
    different: list[tuple[Any, Any]] = [
        (((x, x), {}), ((x, y), {})),
        (((x,), {"k": x}), ((x,), {"k": y})),
        (((x,), {}), ((tensor(2, 4),), {})),
        (((x,), {}), ((tensor(2, 3, dtype=torch.float16),), {})),
        (((x,), {"n": 3}), ((x,), {"n": 4})),
        (((x,), {"n": None}), ((x,), {})),
        (((x,), {"n": True}), ((x,), {"n": 1})),
    ]
    for one, other in different:
        assert input_signature(*one) != input_signature(*other)


def test_one_tensor_as_two_arguments_is_not_two_tensors() -> None:
    """A self-attention's trace, `f(x, x)`, is not used for a cross-attention, `f(x, y)`."""
    cls = zoo_class("""
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(W, W), nn.Linear(W, W)

        def forward(self, x, y):
            return self.q(x) + self.k(y)

    class Both(nn.Module):
        INPUTS = [(2, 7, 16), (2, 7, 16)]

        def __init__(self):
            super().__init__()
            self.one, self.two = Attend(), Attend()

        def forward(self, x, y):
            return self.one(x, x) + self.two(x, y)
    """)
    one, two = (c.trace for c in trace_of(cls).children)
    assert one is not two
    sources = [n.args[0] for n in two.graph.nodes if n.op == "call_module"]
    assert sources[0] is not sources[1]
