"""Shared by the engine's tests: modules from source text, and their way through trace, plan, proof.

A test's module is written as source text, because the engine reads source: `zoo_class` writes it to a file
and imports it. `plan_of` traces it on the meta device in bfloat16, as the product does, and
plans it; `proof_of` compares original and rewritten module on random inputs.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuron_autoport.models.weights import adversarial_
from neuron_autoport.prove.modules import ModuleProof, prove_module
from neuron_autoport.rewrite.emit import Generated, generate
from neuron_autoport.rewrite.install import install
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import OpGraph
from neuron_autoport.trace.tracer import trace_model

WIDTH, INNER, ROWS, TOKENS = 16, 24, 2, 7

PREAMBLE = '''\
"""A test module."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

W, I, HEADS, KV, D = 16, 24, 4, 2, 4


class Config:
    def __init__(self):
        self._attn_implementation = "eager"


def eager(module, query, key, value, attention_mask, scaling=1.0, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    return (scores.float().softmax(-1).to(query.dtype) @ value).transpose(1, 2).contiguous(), None


def attend(module, query, key, value, mask=None, **kwargs):
    function = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager)
    return function(module, query, key, value, mask, scaling=0.5, **kwargs)


'''


@lru_cache(maxsize=1)
def zoo_folder() -> Path:
    """Where this process keeps its test modules: below the tests' cache folder."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("AUTOPORT_CACHE")))


def zoo_module(source: str, preamble: str = PREAMBLE) -> Any:
    """Import `source`, put behind the preamble, as a module with a file of its own."""
    text = preamble + textwrap.dedent(source).lstrip("\n")
    name = "zoo_" + hashlib.sha256(text.encode()).hexdigest()[:12]
    if name in sys.modules:
        return sys.modules[name]
    path = zoo_folder() / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def zoo_class(source: str) -> type[nn.Module]:
    """The last `nn.Module` class of `source`."""
    space = vars(zoo_module(source))
    name = space["__name__"]
    found = [v for v in space.values() if isinstance(v, type) and v.__module__ == name]
    return [c for c in found if issubclass(c, nn.Module)][-1]


def fill(template: str, body: str, init: str) -> str:
    """A class with this body of `forward`; definitions after an empty line of it become methods."""
    head, _, methods = textwrap.dedent(body).strip("\n").partition("\n\n")
    text = textwrap.indent(head, " " * 8)
    if methods:
        text += "\n\n" + textwrap.indent(methods, " " * 4)
    return template.format(init=textwrap.indent(init, " " * 8), body=text)


def meta_instance(cls: type[nn.Module], dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """An instance for tracing: on meta, in eval mode, its attention a leaf."""
    with torch.device("meta"):
        module = cls().to(dtype).eval()
    config = getattr(module, "config", None)
    if config is not None:
        module.config = copy.copy(config)
        module.config._attn_implementation = TRACE_ATTENTION
    return module


def real_instance(cls: type[nn.Module]) -> nn.Module:
    """An instance with adversarial float32 weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = cls().eval()
    adversarial_(module)
    return module


def shapes_of(module: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of the inputs: the class's `INPUTS`, or one [2, 7, 16]."""
    return getattr(type(module), "INPUTS", [(ROWS, TOKENS, WIDTH)])


def trace_of(cls: type[nn.Module], dtype: torch.dtype = torch.bfloat16) -> ModuleTrace:
    module = meta_instance(cls, dtype)
    args = tuple(torch.empty(s, dtype=dtype, device="meta") for s in shapes_of(module))
    return trace_model(module, args)


def graph_of(source: str) -> OpGraph:
    """The canonical graph of a module written as source."""
    trace = trace_of(zoo_class(source))
    assert trace.end is None, trace.end
    return canonical_graph(trace)


# Rules that no other rule stands in for when one of them is refused: what such tests are about stays plain.
FEW = frozenset(
    {"gated_mlp", "gated_mlp_packed", "o_proj", "qkv_proj", "qkv_proj_packed", "rms_norm",
     "rms_norm_fp32_weight", "rms_norm_weightless", "rms_norm_zero_centered"}
)  # fmt: skip


def few(rules: Iterable[Rule] | None = None) -> tuple[Rule, ...]:
    """Those of the rules, else of the built-in ones, that are in `FEW`."""
    return tuple(r for r in (load_rules() if rules is None else rules) if r.name in FEW)


def family(*names: str) -> tuple[Rule, ...]:
    """The built-in rules of these folders of `patterns/`: a zoo is of one kind of look-alikes."""
    return tuple(r for r in load_rules() if r.path.parent.name in names)


def plan_of(cls: type[nn.Module], rules: Iterable[Rule] | None = None) -> ClassPlan:
    trace = trace_of(cls)
    return plan_class(trace, tuple(rules) if rules is not None else load_rules())


def generated_of(plan: ClassPlan) -> Generated:
    return generate([plan], "a test module")


def proof_of(cls: type[nn.Module], plan: ClassPlan) -> ModuleProof:
    """Compare original and rewritten instance on two random calls."""
    module = real_instance(cls)
    calls = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        args = tuple(torch.randn(s, generator=generator) for s in shapes_of(module))
        calls.append((args, {}))
    rewritten = generated_of(plan).classes[plan]
    return prove_module("", module, plan, rewritten, calls)


def holds_in(
    dtype: torch.dtype, plan: ClassPlan, cls: type[nn.Module], shape: tuple[int, ...]
) -> bool:
    """Is the rewrite, run in `dtype`, no further from the original in float64 than twice what the original is?

    Beside that an error of four of the dtype's own steps is none.
    """
    module = real_instance(cls)
    exact = copy.deepcopy(module).double()
    mine = copy.deepcopy(module).to(dtype)
    install(mine, plan, generated_of(plan).classes[plan])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    with torch.no_grad():
        truth = exact(x.double())
        theirs, ours = (m(x).double() - truth for m in (module.to(dtype), mine))
    size = truth.square().mean().sqrt()
    allowed = 2 * theirs.square().mean().sqrt() + 4 * torch.finfo(dtype).eps * size
    return bool(ours.square().mean().sqrt() <= allowed)


def small_config(model_type: str, **more: Any) -> Any:
    """A small configuration of a transformers model type: two layers, GQA where there is any."""
    from transformers import CONFIG_MAPPING

    common = {"vocab_size": 96, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1}
    if model_type == "gpt2":
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    elif model_type == "opt":
        sizes = {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "word_embed_proj_dim": 64, "max_position_embeddings": 64}  # fmt: skip
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                 "max_position_embeddings": 64}  # fmt: skip
    if model_type == "gemma3_text":
        more = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]} | more
    return CONFIG_MAPPING[model_type](**common | sizes | more)


def check_all_rules(cls: type[nn.Module]) -> None:
    """Whatever all rules together make of a look-alike of one of them must be right."""
    plan = plan_of(cls)
    if plan.sites:
        proof = proof_of(cls, plan)
        assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"
