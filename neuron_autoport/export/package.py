"""The files of an exported package, as texts: the same model, rules and versions give the same bytes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
import transformers
from jinja2 import Environment, StrictUndefined

from neuron_autoport import __version__
from neuron_autoport.export import facts_text
from neuron_autoport.export.model_file import config_name, model_text
from neuron_autoport.export.subject import Subject
from neuron_autoport.hosts.neuron.assembly import Assembly
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.rewrite.imports import comes_with_model
from neuron_autoport.rules.library import rules_digest

_TEMPLATES = {
    "__init__.py": "init.py.jinja",
    "config.py": "config.py.jinja",
    "factory.py": "factory.py.jinja",
    "pyproject.toml": "pyproject.toml.jinja",
    "README.md": "README.md.jinja",
}
_ROWS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_MORE_ROWS = ("intermediate_size", "vocab_size", "max_position_embeddings", "rope_parameters")
_MOE_ROWS = ("num_experts", "num_local_experts", "num_experts_per_tok", "tie_word_embeddings")


@dataclass(frozen=True)
class Package:
    """An exported package. files: text by name. architecture: the name it registers."""

    architecture: str
    files: dict[str, str]


def package(subject: Subject, name: str) -> Package:
    """All files of the package of a model.

    Args:
        name: of the package, a Python identifier.

    Raises:
        ExportError: the model's source needs what a package cannot have; names the class.
    """
    header = header_text(subject)
    model, _ = model_text(subject, header)
    architecture = architecture_name(subject)
    given: dict[str, Any] = {
        "header": header,
        "package": name,
        "architecture": architecture,
        "upstream": type(subject.recorded.model).__name__,
        "backbone": type(subject.recorded.base).__name__,
        "config": config_name(subject.recorded.base.config),
        "own_config": (own := _own_config(subject)),
        "trust": " --trust-remote-code" if own else "",
        "served": subject.source.name if subject.source.kind != "model_type" else "MODEL",
        "prefix": subject.prefix,
        "embedding": facts_text.embedding_path(subject),
        "head": facts_text.head_line(subject),
        "layers": facts_text.layer_lines(subject),
        "tied": _literal(facts_text.tied(subject)),
        "conversions": _literal(facts_text.conversions(subject)),
        "float32": _literal(facts_text.float32(subject)),
        "written_for": facts_text.written_for(subject),
        "architecture_rows": _architecture_rows(subject),
        "fused": _fused(subject),
        "choices": _choices(subject),
        "kept": _kept(subject),
    }
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    folder = files("neuron_autoport.export") / "templates"
    made = {"model.py": model}
    for file, template in _TEMPLATES.items():
        text = (folder / template).read_text(encoding="utf-8")
        made[file] = environment.from_string(text).render(given)
    return Package(architecture, made)


def _own_config(subject: Subject) -> str:
    """Name of the configuration's class if it is of code that comes with the model; else empty."""
    cls = type(subject.recorded.base.config)
    return cls.__name__ if comes_with_model(cls) else ""


def architecture_name(subject: Subject) -> str:
    """`LlamaForCausalLM` as `NeuronLlamaForCausalLM`: a name of our own, of a generating model."""
    name = type(subject.recorded.model).__name__
    stem = re.sub(r"(ForCausalLM|LMHeadModel)$", "", name)
    return f"Neuron{stem}ForCausalLM"


def header_text(subject: Subject) -> str:
    """Where the package comes from: model, versions, rules, and a hash of all that went in."""
    plans = subject.ported.port.plans
    used = sorted({site.rule.name for plan in plans for site in plan.sites})
    digest = hashlib.sha256()
    model = type(subject.recorded.model).__name__
    for part in (
        __version__,
        transformers.__version__,
        torch.__version__,
        rules_digest(subject.rules),
        facts_text.written_for(subject),
        subject.ported.generated.text,
    ):
        digest.update(part.encode() + b"\0")
    rules = _wrapped(f"Rules: {', '.join(used) or 'none'}.")
    return (
        f"{model}, exported by neuron-autoport {__version__} from transformers {transformers.__version__}.\n\n"
        f"{rules}\nInput (configuration, rules, versions): sha256 {digest.hexdigest()[:32]}."
    )


def _wrapped(text: str) -> str:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) > 98:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "\n".join(lines)


def _literal(value: tuple[Any, ...]) -> str:
    return facts_text.literal(value, 4) if value else ""


def _architecture_rows(subject: Subject) -> list[tuple[str, str]]:
    config = subject.recorded.base.config
    names = (*_ROWS, *_MORE_ROWS, *_MOE_ROWS)
    rows = [(n, f"`{getattr(config, n)}`") for n in names if getattr(config, n, None) is not None]
    windows = {f.window for f in subject.layers if f.window is not None}
    if windows:
        rows.append(("windows", f"`{sorted(windows)}`"))
    return rows


def _fused(subject: Subject) -> list[tuple[str, str, str]]:
    """(class, rule, the fused calls it makes)."""
    rows = []
    for plan in subject.ported.port.plans:
        for site in plan.sites:
            text = plan.new_source() or ""
            marked = re.findall(rf"# autoport: {site.rule.name}\n((?:.*\n?){{1,12}})", text)
            calls = re.findall(r"N[FK]\.[a-z]\w+", marked[0]) if marked else []
            rows.append((plan.trace.module_class.__name__, site.rule.name, _code(calls)))
    return sorted(dict.fromkeys(rows))


def _code(names: list[str]) -> str:
    return f"`{names[0]}`" if names else ""


def _choices(subject: Subject) -> list[tuple[str, ...]]:
    dtype = torch.bfloat16
    made = Assembly(subject.ported, Ranks(), dtype, subject.without)
    plan = made.make(NeuronTransformersForCausalLM, None).host_plan
    rows = [(c.phase, c.class_name, f"`{c.call}`", c.runs) for c in plan.choices]
    return sorted(dict.fromkeys(rows))


def _kept(subject: Subject) -> list[tuple[str, ...]]:
    rows = [
        (plan.trace.module_class.__name__, r.rule, f"{r.code}: {r.message}".replace("|", "\\|"))
        for plan in subject.ported.port.plans
        for r in plan.refusals
    ]
    failed = [(*pair.split(":", 1), "its rewrite failed the proof") for pair in subject.dropped]
    return sorted(dict.fromkeys([*rows, *failed]))
