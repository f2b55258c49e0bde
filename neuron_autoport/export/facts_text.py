"""The parts of `factory.py` and `config.py` that are data: layers, head, names, configuration."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import torch
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from neuron_autoport.export.subject import ExportError, Subject
from neuron_autoport.hosts.neuron.assembly import read_vocabulary_head
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.weights.names import ModelNames

# Fields of a configuration that change nothing in the model's source.
_OPEN = re.compile(
    r"_.*|auto_map|transformers_version|dtype|torch_dtype|architectures|.*_token_id|use_cache|return_dict|output_.*"
    r"|id2label|label2id|problem_type|is_encoder_decoder|chunk_size_feed_forward|.*_dropout|.*_pdrop"
    r"|initializer_.*|router_aux_loss_coef|name_or_path"
)


def written_for(subject: Subject) -> str:
    """The configuration as a dictionary literal, without what changes nothing."""
    config: Any = subject.recorded.base.config
    given = config.to_dict()
    return literal({k: given[k] for k in sorted(given) if not _OPEN.fullmatch(k)})


def literal(value: Any, indent: int = 0) -> str:
    """A plain value as Python source, strings in double quotes, dictionaries a line per entry."""
    inner = " " * (indent + 4)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        if not value:
            return "{}"
        lines = [
            f"{inner}{json.dumps(str(k))}: {literal(v, indent + 4)},\n" for k, v in value.items()
        ]
        return "{\n" + "".join(lines) + " " * indent + "}"
    if isinstance(value, list | tuple):
        parts = [literal(v, indent) for v in value]
        left, right = ("[", "]") if isinstance(value, list) else ("(", ")")
        end = "," if right == ")" and len(parts) == 1 else ""
        flat = f"{left}{', '.join(parts)}{end}{right}"
        if len(flat) + indent <= 88 and "\n" not in flat:
            return flat
        return left + "\n" + "".join(f"{inner}{p},\n" for p in parts) + " " * indent + right
    return repr(value)


def layer_lines(subject: Subject) -> list[str]:
    """One `Layers(...)` for each kind of attention layer."""
    groups: dict[tuple[str, LayerFacts], list[int]] = {}
    for facts in subject.layers:
        found = re.search(r"\.(\d+)\.", facts.path)
        number = int(found.group(1)) if found else 0
        path = re.sub(r"\.\d+\.", ".{}.", facts.path, count=1)
        groups.setdefault((path, replace(facts, path="", class_name="")), []).append(number)
    return [_layers(path, facts, numbers) for (path, facts), numbers in groups.items()]


def _layers(path: str, facts: LayerFacts, numbers: list[int]) -> str:
    words = [json.dumps(path), _numbers(numbers)]
    words += [f"heads={facts.heads}", f"kv_heads={facts.kv_heads}", f"head_dim={facts.head_dim}"]
    words.append(f"scale={facts.scale!r}")
    if facts.window is not None:
        words.append(f"window={facts.window}")
    if facts.softcap is not None:
        words.append(f"softcap={facts.softcap!r}")
    if facts.sinks:
        words.append("sinks=True")
    return f"Layers({', '.join(words)})"


def _numbers(numbers: list[int]) -> str:
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if step > 0 and numbers == list(range(numbers[0], numbers[-1] + 1, step)):
        if numbers[0] == 0 and step == 1:
            return f"range({numbers[-1] + 1})"
        tail = f", {step}" if step != 1 else ""
        return f"range({numbers[0]}, {numbers[-1] + 1}{tail})"
    return literal(tuple(numbers))


def head_line(subject: Subject) -> str:
    """The `Head(...)` of the model."""
    head = read_vocabulary_head(subject.ported.port, subject.source.name)
    words = [json.dumps(head.module)]
    if f"{head.module}.bias" in subject.recorded.model.state_dict():
        words.append("bias=True")
    if head.scale != 1.0:
        words.append(f"scale={head.scale!r}")
    if head.soft_cap is not None:
        words.append(f"soft_cap={head.soft_cap!r}")
    if head.scale_after_cap != 1.0:
        words.append(f"scale_after_cap={head.scale_after_cap!r}")
    return f"Head({', '.join(words)})"


def embedding_path(subject: Subject) -> str:
    """Where the token embedding is in the base model."""
    embedding = subject.recorded.model.get_input_embeddings()
    found = [n for n, m in subject.recorded.base.named_modules() if m is embedding]
    if not found:
        raise ExportError("the token embedding is not in the base model", subject.source.name)
    return found[0]


def tied(subject: Subject) -> tuple[tuple[str, str], ...]:
    """Names of the checkpoint that are another tensor."""
    return tuple(sorted(ModelNames.of(subject.recorded.model).tied.items()))


def conversions(subject: Subject) -> tuple[str, ...]:
    """Names under which transformers has the renamings of this model's checkpoints.

    Raises:
        ExportError: the model's own are not those.
    """
    model, base = subject.recorded.model, subject.recorded.base
    found: tuple[str, ...] = ()
    for names in ((type(model).__name__, type(base).__name__), (model.config.model_type,)):
        found = tuple(n for n in names if get_checkpoint_conversion_mapping(n))
        if found:
            break
    listed = [m for n in (*found, "legacy") for m in get_checkpoint_conversion_mapping(n) or []]
    wanted = [(m.source_patterns, m.target_patterns) for m in ModelNames.of(model).mapping]
    if [(m.source_patterns, m.target_patterns) for m in listed] != wanted:
        what = "transformers renames this model's checkpoint part by part; a package cannot say how"
        raise ExportError(what, subject.source.name)
    return found


def float32(subject: Subject) -> tuple[str, ...]:
    """Endings of the names of parameters that stay float32 in a bfloat16 model."""
    found = {
        re.sub(r"^.*\.\d+\.", "", name)
        for name, p in subject.recorded.base.named_parameters()
        if p.dtype == torch.float32
    }
    return tuple(sorted(found))
