"""What the tracer answers, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuron_autoport.rewrite.plan import plan_class
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.tracer import active_session, trace_model
from tests.helpers import meta_instance, trace_of, zoo_class


def names(trace: ModuleTrace) -> list[str]:
    return [str(getattr(n.target, "__name__", n.target)) for n in trace.graph.nodes]


def block(body: str, init: str = "self.scale = 2.0") -> type[nn.Module]:
    lines = "\n".join(f"        {line}" for line in body.split("\n"))
    starts = "\n".join(f"        {line}" for line in init.split("\n"))
    return zoo_class(
        "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.lin = nn.Linear(W, W)\n{starts}\n\n    def forward(self, x):\n{lines}\n"
    )


def test_sizes_dtypes_and_python_conditions_are_answered() -> None:
    cls = block(
        "assert isinstance(x, torch.Tensor) and torch.is_tensor(x)\n"
        "b, s, h = x.shape\n"
        "if len(x) == 2 and x.size(1) > 6 and x.dtype == torch.bfloat16 and x.is_floating_point():\n"
        "    x = x.cos()\n"
        "for i in range(x.shape[0]):\n"
        "    x = x.sin()\n"
        "return x.view(b * s, h)"
    )
    trace = trace_of(cls)
    assert trace.end is None
    assert names(trace) == ["x", "cos", "sin", "sin", "view", "output"]


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("n = x.sum().item()", "item"),
        ("n = int(x.sum())", "__int__"),
        ("n = float(x.sum())", "__float__"),
        ("n = x[0, 0].tolist()", "tolist"),
        ("n = [1, 2][x.long().sum()]", "__index__"),
    ],
)
def test_data_dependent_forward_ends_with_a_place(question: str, line: str) -> None:
    cls = block(f"x = x.cos()\n{question}\nreturn x.sin()")
    trace = trace_of(cls)
    assert trace.end is not None and trace.end.code == "AP101"
    assert line in trace.end.message
    file = trace.forward.__code__.co_filename
    assert trace.end.where == f"{file}:{trace.forward.__code__.co_firstlineno + 2}"
    assert "cos" in names(trace) and "sin" not in names(trace)


CHILD_AND_PARENT = """
    class Child(nn.Module):
        def forward(self, x):
            {child}

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Child()

        def forward(self, x):
            {parent}
    """


@pytest.mark.parametrize(
    ("child", "code"), [("return x * x.max().item()", "AP101"), ("return x.view(3, 3)", "AP102")]
)
def test_the_parent_of_a_child_that_ends_is_traced_on_and_says_what_it_assumed(
    child: str, code: str
) -> None:
    parent = "return self.child(x.cos()).sin()"
    trace = trace_of(zoo_class(CHILD_AND_PARENT.format(child=child, parent=parent)))
    assert trace.end is None
    assert names(trace)[-2:] == ["sin", "output"]
    assert trace.assumed == ("child returns one tensor shaped like its first input",)
    (call,) = trace.children
    assert call.trace.end is not None and call.trace.end.code == code


def test_a_parent_that_finds_the_assumption_wrong_ends_there() -> None:
    child, parent = "return x, x.max().item()", "y, n = self.child(x); return y * n.foo"
    trace = trace_of(zoo_class(CHILD_AND_PARENT.format(child=child, parent=parent)))
    assert trace.end is not None and trace.end.code == "AP102"


def test_a_child_without_a_float_input_ends_its_parent_with_its_code() -> None:
    child, parent = "return x[0, 0].item()", "return x * self.child(x.long())"
    trace = trace_of(zoo_class(CHILD_AND_PARENT.format(child=child, parent=parent)))
    assert trace.end is not None and trace.end.code == "AP101"


def test_a_class_traced_in_part_has_no_sites() -> None:
    """What stands after the end may read any inner value."""
    body = "y = self.down(self.act(self.gate(x)) * self.up(x))\nn = y.max().item()\nreturn y * n"
    cls = block(body, "\n".join(
        f"self.{n} = nn.Linear(W, W)" for n in ("gate", "up", "down")
    ) + "\nself.act = nn.SiLU()")  # fmt: skip
    plan = plan_class(trace_of(cls), load_rules())
    assert plan.sites == ()
    assert ("AP101", "gated_mlp") in {(r.code, r.rule) for r in plan.refusals}


@pytest.mark.parametrize(
    "broken", ["{}['missing']", "[][0]", "missing", "1 / 0", "x.missing", "x.view(5)", "int('a')"]
)
def test_a_forward_that_fails_ends_its_trace(broken: str) -> None:
    trace = trace_of(block(f"y = x.cos()\nz = {broken}\nreturn y"))
    assert trace.end is not None and trace.end.code == "AP102"
    assert trace.end.where is not None and names(trace) == ["x", "cos", "output"]


@pytest.mark.parametrize(
    "question", ["if x.sum() > 0:", "if 3 in x:", "if torch.equal(x, x + 1):", "while x.any():"]
)
def test_a_condition_on_values_takes_no_branch_and_is_noted(question: str) -> None:
    trace = trace_of(block(f"{question}\n    x = x.exp()\nreturn x.cos()"))
    assert trace.end is None
    assert "cos" in names(trace) and "exp" not in names(trace)
    assert len(trace.assumed) == 1


def test_everything_is_put_back() -> None:
    original = nn.Module.__call__
    for cls in (block("return self.lin(x)"), block("return x.item()"), block("raise KeyError(1)")):
        module = meta_instance(cls)
        trace_model(module, (torch.empty(2, 7, 16, device="meta", dtype=torch.bfloat16),))
        assert nn.Module.__call__ is original
        assert type(module) is cls and type(module.lin) is nn.Linear
        assert active_session() is None
        assert not torch.overrides._get_current_function_mode_stack()


def test_everything_is_put_back_after_an_interrupt() -> None:
    original = nn.Module.__call__
    module = meta_instance(block("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        trace_model(module, (torch.empty(2, 7, 16, device="meta"),))
    assert nn.Module.__call__ is original and active_session() is None
    assert type(module).__name__ == "Block" and "__getattribute__" not in vars(type(module))


def test_parameters_and_buffers_used_directly() -> None:
    cls = block(
        "return x * self.w + self.inner.table + self.lin.weight[0]",
        "self.w = nn.Parameter(torch.ones(W))\nself.inner = nn.Module()\n"
        "self.inner.register_buffer('table', torch.ones(W))",
    )
    found = [n.target for n in trace_of(cls).graph.nodes if n.op == "get_attr"]
    assert found == ["w", "inner.table", "lin.weight"]


def test_writes_are_seen_whatever_they_are_called() -> None:
    body = (
        "y = x.clone()\ny.add_(1)\ny[0] = 2\ny += 3\nF.relu(y, inplace=True)\n"
        "torch.add(y, 1, out=y)\ny[..., :4].zero_()\nself.act(y)\nz = y.exp()\nreturn z.view(-1)"
    )
    trace = trace_of(block(body, "self.act = nn.ReLU(inplace=True)"))
    written = [str(getattr(n.target, "__name__", n.target)) for n in trace.graph.nodes
               if n.meta.get("inplace")]  # fmt: skip
    assert written == ["add_", "__setitem__", "add_", "relu", "add", "zero_", "act"]
    assert all(n.meta["written"] for n in trace.graph.nodes if n.meta.get("inplace"))


def test_a_child_found_again_is_still_known_to_write() -> None:
    trace = trace_of(
        block("y = x * 1\nself.act(y)\ny = y * 1\nself.act(y)\nreturn y",
              "self.act = nn.ReLU(inplace=True)")
    )  # fmt: skip
    writing = [n for n in trace.graph.nodes if n.op == "call_module"]
    assert len({id(c.trace) for c in trace.children}) == 1
    assert [bool(n.meta["inplace"]) for n in writing] == [True, True]


def test_a_child_called_with_two_shapes_has_two_traces() -> None:
    cls = block("return self.lin(x) + self.lin(x[0])")
    first, second = (c.trace for c in trace_of(cls).children)
    assert first is not second and first.call[0][0].dim() == 3 and second.call[0][0].dim() == 2
