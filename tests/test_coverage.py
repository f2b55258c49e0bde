"""No type loses what it had: every decoder-only type of transformers, held to `coverage.json`.

Counts are of the transformers version they were made with; on another one they are not compared.
"""

from __future__ import annotations

import json

import pytest
import transformers

from benchmarks.architectures import TYPES
from benchmarks.coverage import KEPT, measure

DATA = json.loads(KEPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("model_type", TYPES)
def test_nothing_is_wrong_and_nothing_is_lost(model_type: str) -> None:
    row = measure(model_type)
    assert not row.wrong
    if transformers.__version__ != DATA["transformers"]:
        return
    kept = DATA["types"][model_type]
    lost = {rule: n for rule, n in kept["fused"].items() if row.fused.get(rule, 0) < n}
    assert not lost, f"fewer sites than before: {lost}, now {row.fused}"
    assert row.traced >= kept["traced"]
    assert row.proved >= kept["proved"]
