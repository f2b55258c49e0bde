"""docs/models.md from the kept coverage counts: `python -m benchmarks.models_page > docs/models.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("coverage.json")
SERVED = Path(__file__).with_name("served.json")

_HEAD = """# Supported models

Every decoder-only text model type of transformers {version}, as the coverage run left it (`make coverage`): traced,
ported and proved on a small model with adversarial weights. The page is made by `python -m benchmarks.models_page`.

**{proved} of {all} types are proved; none is wrong.** A site whose proof fails is left in torch, so it is never served.

*fused*: sites at the type's default size, and the rules they are of. *layers*: share of the FLOPs of its layers
(embedding and head apart) in fused calls, or left to torch because the target has no function for them, as a rule
says (an MLP with ReLU, a linear map by itself); the rest no rule covers: `autoport inspect TYPE` lists both.
*served*: greedy tokens of a small model in vLLM's engine on a CPU, beside Hugging Face (`python -m
benchmarks.served`). On Neuron nothing was run: [On a Trainium machine](trainium.md).

| type | fused | rules | layers | proved | served |
|---|---:|---|---:|---|---|
"""


def page() -> str:
    """The whole page."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    types: dict[str, dict[str, Any]] = kept["types"]
    served = json.loads(SERVED.read_text(encoding="utf-8")) if SERVED.exists() else {}
    proved = sum(bool(t["proved"]) for t in types.values())
    head = _HEAD.format(version=kept["transformers"], proved=proved, all=len(types))
    return head + "\n".join(_rows(types, served)) + "\n"


def _rows(types: dict[str, dict[str, Any]], served: dict[str, Any]) -> Iterator[str]:
    for name, found in sorted(types.items()):
        fused: dict[str, int] = found["fused"]
        cells = [
            f"`{name}`",
            str(sum(fused.values())),
            ", ".join(sorted(fused)),
            f"{100 * found['layer_flops']:.0f} %",
            "yes" if found["proved"] else "in part",
            _served(served.get(name)),
        ]
        yield "| " + " | ".join(cells) + " |"


def _served(found: Any) -> str:
    """`yes`, or the first words of why not; empty if it was not tried."""
    result = str(found.get("result", found) if isinstance(found, dict) else found or "")
    return result.replace("served", "yes", 1).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
