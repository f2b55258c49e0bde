"""Forward hooks on a module that a site would take the place of: refused when planned, not only by the proof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import TOKENS, WIDTH, family, meta_instance, zoo_class

SOURCE = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))
        self.inner = nn.Identity()

    def forward(self, x):
        h = self.inner(x.float())
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.act = Norm(), nn.SiLU()
        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)

    def forward(self, x):
        x = x + x.tanh()
        h = self.norm(x)
        return self.down(self.act(self.gate(h)) * self.up(h)) + x
"""
ADD, MLP = "add_rms_norm", "gated_mlp"
BOTH = [ADD, MLP]


def quiet(*_: Any) -> None:
    """Computes nothing: the graph does not show it."""


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(quiet),
    "pre": lambda m: m.register_forward_pre_hook(quiet),
    "with keywords": lambda m: m.register_forward_hook(lambda *_: None, with_kwargs=True),
    "that computes": lambda m: m.register_forward_hook(lambda m, i, out: out * 2),
}


def layer() -> nn.Module:
    return meta_instance(zoo_class(SOURCE))


def planned(module: nn.Module) -> ClassPlan:
    x = torch.empty((2, TOKENS, WIDTH), dtype=torch.bfloat16, device="meta")
    return plan_class(trace_model(module, (x,)), family("norm", "mlp"))


def sites(plan: ClassPlan) -> list[str]:
    return sorted(s.rule.name for s in plan.sites)


def test_without_hooks_both_are_rewritten() -> None:
    assert sites(planned(layer())) == BOTH


@pytest.mark.parametrize("hook", ["forward", "pre", "with keywords"])
@pytest.mark.parametrize(
    ("path", "refused", "text"),
    [
        ("gate", MLP, "self.gate(h)"),
        ("down", MLP, "self.down(self.act(self.gate(h)) * self.up(h))"),
        ("act", MLP, "self.act(self.gate(h))"),
        ("norm", ADD, "self.norm(x)"),
        ("norm.inner", ADD, "self.norm(x)"),
    ],
)
def test_a_hook_on_what_a_site_replaces(hook: str, path: str, refused: str, text: str) -> None:
    module = layer()
    HOOKS[hook](module.get_submodule(path))
    plan = planned(module)
    assert refused not in sites(plan) and set(BOTH) - {refused} <= set(sites(plan))
    (refusal,) = [r for r in plan.refusals if r.rule == refused]
    assert refusal.code == "AP203" and "forward hooks" in refusal.message
    assert path.partition(".")[0] in refusal.message
    span = refusal.span
    assert span is not None
    line = Path(span.file).read_text(encoding="utf-8").splitlines()[span.line - 1]
    assert line[span.column : span.end_column] == text


def test_a_hook_that_computes_is_no_part_of_the_linear_map() -> None:
    module = layer()
    HOOKS["that computes"](module.get_submodule("gate"))
    assert MLP not in sites(planned(module))


def test_a_hook_on_the_module_itself_stays_with_it() -> None:
    """The module is called as before; only its forward is another."""
    module = layer()
    HOOKS["forward"](module)
    assert sites(planned(module)) == BOTH


@pytest.mark.parametrize(
    "kind", ["register_full_backward_hook", "register_load_state_dict_pre_hook"]
)
def test_a_hook_that_no_forward_runs_is_no_matter(kind: str) -> None:
    module = layer()
    getattr(module.get_submodule("norm"), kind)(quiet)
    assert sites(planned(module)) == BOTH


def test_a_module_with_hooks_does_not_share_the_trace_of_one_without() -> None:
    """Two layers of one class, of which the second is watched: only the first is rewritten."""
    first, second = layer(), layer()
    HOOKS["forward"](second.get_submodule("up"))
    trace = trace_model(
        nn.Sequential(first, second),
        (torch.empty((2, TOKENS, WIDTH), dtype=torch.bfloat16, device="meta"),),
    )
    one, other = (plan_class(c.trace, family("norm", "mlp")) for c in trace.children)
    assert sites(one) == BOTH and MLP not in sites(other)
    assert not first.training and trace.children[0].trace.holds_for(first)
    assert not trace.children[0].trace.holds_for(second)
