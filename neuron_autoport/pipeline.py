"""The whole way to a proved port: plan, prove, plan again without what failed; proofs are kept.

A proof is good for one key: the rewritten source, the originals' source, the configuration, the rules, and the
versions of torch, transformers and this package. Anything else proves anew.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig

from neuron_autoport import __version__
from neuron_autoport.cache import cache_folder
from neuron_autoport.errors import RuleError
from neuron_autoport.kernels import outside
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port, port_model, replan
from neuron_autoport.prove.compare import Comparison
from neuron_autoport.prove.model import Dropped, Proof, Prover
from neuron_autoport.prove.modules import ModuleProof
from neuron_autoport.rewrite.emit import Generated, generate
from neuron_autoport.rules.library import rules_digest
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.sources import load_library

# Instead of a rule's name: all of them, also those that would stand in for a bigger one.
EVERYTHING = "*"


@dataclass(frozen=True, eq=False)
class ProvedPort:
    """A port whose every site is proved, its generated classes, and the proof."""

    port: Port
    generated: Generated
    proof: Proof
    seconds: float
    from_cache: bool


def proved_port(
    source: ModelSource | PretrainedConfig,
    rules: Iterable[Rule] | None = None,
    *,
    use_cache: bool = True,
    without: frozenset[str] = frozenset(),
) -> ProvedPort:
    """Plan a model and prove the plan; what fails its proof is left out and named.

    Args:
        source: the model, or its configuration; not changed.
        rules: the library; None for all that apply here (`rules/sources.py`).
        without: rules not to use, as `Class:rule`, `rule` or EVERYTHING, beside those of
            `AUTOPORT_WITHOUT`.

    Raises:
        ModelError: the model cannot be built from its configuration.
    """
    started = time.perf_counter()
    named = without | switched_off()
    library = tuple(rules) if rules is not None else load_library(trust_code=_trusts(source))
    library = () if EVERYTHING in named else library
    port = port_model(source, library)
    off = expand_without(port, named - {EVERYTHING})
    port = replan(port, library, off) if off else port
    title = f"{type(port.model).__name__} of transformers {transformers.__version__}"
    made = generate(port.plans, title)
    key = _key(source, library, made)
    proof = _read(key) if use_cache else None
    cached = proof is not None
    prover: Prover | None = None
    dropped: list[Dropped] = []
    while True:
        if proof is None:
            prover = prover or Prover(source, library, off)
            proof = prover.prove(port)
            dropped += [d for d in proof.dropped if d not in dropped]
            proof = replace(proof, dropped=tuple(dropped))
        if proof.without <= port.without:
            break
        port = replan(port, library, port.without | proof.without)
        made = generate(port.plans, title)
        proof = proof if cached else None
    if not cached:
        _write(key, proof)
    return ProvedPort(port, made, proof, time.perf_counter() - started, cached)


def switched_off() -> frozenset[str]:
    """Rules that the environment variable `AUTOPORT_WITHOUT` switches off, separated by commas.

    The way for processes that take no `--without` option, such as `vllm serve`.
    """
    listed = os.environ.get("AUTOPORT_WITHOUT", "")
    return frozenset(part.strip() for part in listed.split(",") if part.strip())


def expand_without(port: Port, names: frozenset[str]) -> frozenset[str]:
    """`Class:rule` pairs that `names` mean: a bare rule name is that rule in every class.

    Raises:
        RuleError: a name that no site of the port has.
    """
    pairs = {f"{p.trace.module_class.__name__}:{s.rule.name}" for p in port.plans for s in p.sites}
    found: set[str] = set()
    for name in names:
        meant = {p for p in pairs if name in (p, p.partition(":")[2])}
        if not meant:
            known = ", ".join(sorted(pairs)) or "none"
            what = f"`{name}` is no rule used in this model, so it cannot be switched off"
            raise RuleError(what, None, f"one of: {known}")
        found |= meant
    return frozenset(found)


def _trusts(source: ModelSource | PretrainedConfig) -> bool:
    """May code from outside transformers run, that of rules included?"""
    return isinstance(source, ModelSource) and source.trust_remote_code


def _key(source: ModelSource | PretrainedConfig, rules: tuple[Rule, ...], made: Generated) -> str:
    digest = hashlib.sha256()
    config = source.config if isinstance(source, ModelSource) else source
    parts = [
        __version__,
        torch.__version__,
        transformers.__version__,
        rules_digest(rules),
        outside.digest(),  # kernels of the user's own
        made.text,
    ]
    parts.append(config.to_json_string(use_diff=False))
    parts += sorted(inspect.getsource(p.trace.module_class) for p in made.classes)
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _read(key: str) -> Proof | None:
    path = cache_folder("proofs") / f"{key}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        modules = tuple(
            ModuleProof(**{**m, "fp32": _comparison(m["fp32"]), "bf16": _comparison(m["bf16"])})
            for m in data["modules"]
        )
        dropped = tuple(Dropped(**d) for d in data["dropped"])
        return Proof(modules, _comparison(data["logits"]), dropped, data["how"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or written by another version: prove again


def _comparison(data: dict[str, Any] | None) -> Comparison | None:
    return Comparison(**data) if data is not None else None


def _write(key: str, proof: Proof) -> None:
    path = cache_folder("proofs") / f"{key}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(proof), indent=1), encoding="utf-8")
    part.replace(path)
