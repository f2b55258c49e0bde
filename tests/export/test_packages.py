"""Exported packages through the plugin's double: the tokens of Hugging Face, and the checkpoint's bytes."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from neuron_autoport.export.apart import checkpoint_tensors
from neuron_autoport.export.runtime import __name__ as RUNTIME
from neuron_autoport.hosts.neuron.errors import NeuronHostError
from neuron_autoport.models.source import load_model_config
from neuron_autoport.port import port_model
from neuron_autoport.rules.sources import load_library
from tests.export.packages import ARCHITECTURES, Exported, make
from tests.hosts.neuron.checkpoints import small
from tests.neuron.double import ContractError
from tests.neuron.runner import generate

Get = Callable[[str], Exported]
PYTHON = ("__init__.py", "config.py", "factory.py", "model.py")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tokens_equal_hugging_face(name: str, exported: Get) -> None:
    """Windows are four tokens wide; the prompts and what follows are longer, and cross blocks of 32."""
    package = exported(name)
    prompts = package.saved.prompts(5, 40)
    made = generate(
        package.cls, package.saved.folder, prompts, 4, compile=False, on_device_sampling=False
    )
    wanted = [package.saved.logits(p, 4) for p in prompts]
    assert made.tokens == [[int(row.argmax()) for row in rows] for rows in wanted]
    for got, want in zip(made.logits, wanted, strict=True):
        assert got is not None
        assert (got - want).abs().max() <= 1e-4 * want.abs().max()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cohere2", {}),  # layers that rotate and layers that do not, in one class
        ("gpt_oss", {}),  # sinks, interleaved experts with biases
        ("gpt2", {"n_positions": 256}),  # Conv1D, and torch's own LayerNorm rewritten
        ("apertus", {}),  # an activation with numbers of the checkpoint
    ],
)
def test_other_forms(name: str, changes: dict[str, int], tmp_path: Path) -> None:
    package = make(tmp_path, name, **changes)
    prompts = package.saved.prompts(5, 40)
    made = generate(package.cls, package.saved.folder, prompts, 3, compile=False)
    assert made.tokens == [package.saved.greedy(p, 3) for p in prompts]


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_two_ranks(name: str, exported: Get) -> None:
    package = exported(name)
    prompts = package.saved.prompts(6, 41)
    made = generate(package.cls, package.saved.folder, prompts, 4, tp=2, batch=2, compile=False)
    assert made.tokens == [package.saved.greedy(p, 4) for p in prompts]
    layers = package.saved.config.num_hidden_layers
    if name == "qwen3":  # the decode kernel's call, with the norms over the heads inside
        assert len(made.log.of("attention_decode")) >= layers


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_oss"])
def test_the_rotation_in_the_call_of_the_projections(name: str, tmp_path: Path) -> None:
    """Sizes that its kernel takes: norms over the heads, soft-capped scores, sinks and biases."""
    more = {"query_pre_attn_scalar": 24} if name == "gemma2" else {}
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    package = make(tmp_path, name, **sizes, **more)
    prompts = package.saved.prompts(6, 41)
    made = generate(package.cls, package.saved.folder, prompts, 3, compile=False)
    assert made.tokens == [package.saved.greedy(p, 3) for p in prompts]
    assert all("cos_cache" in call.shapes for call in made.log.of("qkv_proj"))


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_ranks_that_do_not_divide(name: str, exported: Get) -> None:
    """Four heads on three ranks: each has the whole attention, as on the host, and a part of the rest."""
    package = exported(name)
    prompts = package.saved.prompts(6, 41)
    made = generate(package.cls, package.saved.folder, prompts, 3, tp=3, batch=2, compile=False)
    assert made.tokens == [package.saved.greedy(p, 3) for p in prompts]


def test_experts_that_no_rank_can_have_a_part_of(exported: Get) -> None:
    """Their inner size does not divide: each rank has them whole. By expert that is refused."""
    package = exported("mixtral")
    experts = package.saved.config.num_local_experts
    assert package.saved.config.intermediate_size % 5 and experts % 5
    prompts = package.saved.prompts(6)
    made = generate(package.cls, package.saved.folder, prompts, 3, tp=5, compile=False)
    assert made.tokens == [package.saved.greedy(p, 3) for p in prompts]
    with pytest.raises(ContractError, match="do not divide by 5 ranks"):
        generate(
            package.cls, package.saved.folder, prompts, 1, tp=5, compile=False,
            expert_parallel=True, ep_degree=5,
        )  # fmt: skip


def test_experts_on_two_ranks(exported: Get) -> None:
    package = exported("mixtral")
    prompts = package.saved.prompts(9)
    made = generate(
        package.cls, package.saved.folder, prompts, 3, tp=2, compile=False, expert_parallel=True,
        ep_degree=2,
    )  # fmt: skip
    assert made.tokens == [package.saved.greedy(p, 3) for p in prompts]


def test_compiled_without_a_break(exported: Get) -> None:
    package = exported("gemma3_text")
    prompts = package.saved.prompts(9)
    made = generate(package.cls, package.saved.folder, prompts, 2, compile=True)
    assert made.tokens == [package.saved.greedy(p, 2) for p in prompts]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_back_byte_for_byte(name: str, dtype: torch.dtype, exported: Get) -> None:
    package = exported(name)
    config = load_model_config(str(package.saved.folder)).config
    config.dtype = dtype
    model = package.cls.from_configs(config)
    assert all(p.is_meta for p in model.parameters())
    model.load_weights(str(package.saved.folder), "cpu")
    got = checkpoint_tensors(model)
    wanted = {k: v.to(dtype) for k, v in package.saved.model.state_dict().items()}
    assert set(got) == set(wanted)
    for key, tensor in wanted.items():
        assert torch.equal(got[key].view(torch.uint8), tensor.contiguous().view(torch.uint8)), key


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_source_stands_alone(name: str, exported: Get) -> None:
    """Nothing but torch, transformers' configuration class, NF and the runtime."""
    package = exported(name)
    config = type(package.saved.config).__name__
    allowed = {("neuron_autoport", "nf"), ("transformers", config)}
    for file in PYTHON:
        for node in ast.walk(ast.parse(package.text(file))):
            if isinstance(node, ast.Import):
                roots = {a.name.partition(".")[0] for a in node.names}
                assert roots <= {"torch", *sys.stdlib_module_names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                module = node.module or ""
                if module.partition(".")[0] in {"torch", *sys.stdlib_module_names}:
                    continue
                names = {(module, a.name) for a in node.names}
                assert module == RUNTIME or names <= allowed, (file, names)


def test_the_runtime_holds_no_engine() -> None:
    """In a process of its own: what tests import would hide what the runtime does."""
    code = f"import {RUNTIME}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    parts = ("trace", "rules", "rewrite", "prove", "pipeline", "port", "models")
    assert not {m for m in loaded if m.startswith(tuple(f"neuron_autoport.{p}" for p in parts))}
    assert "libcst" not in loaded


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ruff_has_nothing_to_say(name: str, exported: Get) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    assert ruff is not None
    command = [ruff, "check", "--isolated", "--no-cache", str(exported(name).folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_site_is_marked_with_its_rule(name: str, exported: Get) -> None:
    package = exported(name)
    config = load_model_config(str(package.saved.folder))
    base = config.architecture.removesuffix("ForCausalLM")
    classes = {
        node.name: ast.get_source_segment(package.text(), node) or ""
        for node in ast.parse(package.text()).body
        if isinstance(node, ast.ClassDef)
    }
    seen = 0
    for plan in port_model(config, load_library()).plans:
        cls = plan.trace.module_class.__name__
        if not plan.sites or cls == f"{base}ForCausalLM":
            continue
        for rule in {site.rule.name for site in plan.sites}:
            sites = sum(site.rule.name == rule for site in plan.sites)
            weights = any(site.weights for site in plan.sites if site.rule.name == rule)
            marks = re.findall(rf"# autoport: {rule}$", classes[cls], re.MULTILINE)
            assert len(marks) == sites * (2 if weights else 1), (cls, rule)  # once where declared
            seen += sites
    assert seen


def test_comments_of_upstream_survive(exported: Get) -> None:
    text = exported("gemma3_text").text()
    assert "# Llama does x.to(float16) * w whilst Gemma3 is (x * w).to(float16)" in text
    assert "# embed positions" in text


def test_nothing_of_training_or_caches_is_left(exported: Get) -> None:
    for name in ARCHITECTURES:
        text = exported(name).text()
        for word in (
            "past_key_values",
            "attention_mask=causal",
            "training",
            "use_cache",
            "post_init",
        ):
            assert word not in text, (name, word)


def test_an_edited_package_computes_what_it_says(exported: Get, tmp_path: Path) -> None:
    """By hand: twice the MLP's result in place of its sum with the residual."""
    package = exported("llama")
    folder = tmp_path / "edited"
    shutil.copytree(package.folder, folder)
    model = folder / "model.py"
    text = model.read_text(encoding="utf-8")
    line = "hidden_states = residual + hidden_states"
    changed = text.replace(line, "hidden_states = 2 * hidden_states")
    assert changed != text
    model.write_text(changed, encoding="utf-8")
    edited = Exported(package.saved, folder)
    prompt = package.saved.prompts(9)[0]
    options = {"compile": False, "on_device_sampling": False}
    before = generate(package.cls, package.saved.folder, [prompt], 1, **options)
    after = generate(edited.cls, package.saved.folder, [prompt], 1, **options)
    wanted = doubled_mlp_logits(package, prompt)
    assert before.logits[0] is not None and after.logits[0] is not None
    assert (after.logits[0][0] - wanted).abs().max() <= 1e-4 * wanted.abs().max()
    assert (before.logits[0][0] - wanted).abs().max() > 1e-2 * wanted.abs().max()


def doubled_mlp_logits(package: Exported, prompt: list[int]) -> torch.Tensor:
    """Logits of Hugging Face's model whose layers give twice their MLP, without the residual."""
    layers = package.saved.model.model.layers
    handles = [layer.mlp.register_forward_hook(lambda m, a, y: 2 * y) for layer in layers]
    handles += [
        layer.post_attention_layernorm.register_forward_pre_hook(
            lambda m, args, layer=layer: setattr(layer, "kept_residual", args[0])
        )
        for layer in layers
    ]
    handles += [
        layer.register_forward_hook(lambda layer, a, y: y - layer.kept_residual) for layer in layers
    ]
    try:
        with torch.no_grad():
            found: torch.Tensor = package.saved.model(torch.tensor([prompt])).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()
    return found


def test_another_configuration_is_refused(exported: Get) -> None:
    config = small("llama", rms_norm_eps=0.5)
    with pytest.raises(NeuronHostError, match=r"rms_norm_eps is 0\.5"):
        exported("llama").cls.from_configs(config)


def test_the_same_input_gives_the_same_bytes(exported: Get, tmp_path: Path) -> None:
    first = exported("olmo2")
    second = make(tmp_path, "olmo2")
    names = sorted(p.name for p in first.folder.iterdir() if p.is_file())
    assert names == sorted(["README.md", "pyproject.toml", *PYTHON])
    for name in names:  # the folder of the checkpoint is named in the advice on serving
        given = [p.text(name).replace(str(p.saved.folder), "MODEL") for p in (first, second)]
        assert given[0] == given[1], name


def test_the_header_says_where_it_comes_from(exported: Get) -> None:
    import transformers

    head = exported("llama").text().splitlines()[:5]
    assert "LlamaForCausalLM, exported by neuron-autoport" in head[0]
    assert f"transformers {transformers.__version__}" in head[0]
    assert head[2].startswith("Rules: ") and "gated_mlp" in head[2]
    assert re.search(r"sha256 [0-9a-f]{32}", head[3])
