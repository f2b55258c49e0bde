"""A rule with another call for decode: the host says which phase runs, also in a compiled graph."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from neuron_autoport import kernels as NK
from neuron_autoport.rules.builtin import builtin_folder
from tests.hosts.neuron.checkpoints import MODEL, small, write
from tests.neuron.runner import generate

# The same numbers in both phases; the offset that is not given is zero.
CALLS = """replace:
  prefill: y = NK.rms_norm(x, w, eps=eps)
  decode: y = NK.rms_norm(x, w, eps=eps, offset=0.0)
"""


@pytest.fixture
def two_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose rule for RMS norms has a call for each phase."""
    text = (builtin_folder() / "norm" / "rms_norm.yaml").read_text(encoding="utf-8")
    changed = re.sub(r"^replace: .*\n", CALLS, text, flags=re.MULTILINE)
    assert changed != text
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "rms_norm.yaml").write_text(changed, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[tool.autoport]\nrules = ["rules"]\n')
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_phase_makes_its_call(
    compiled: bool, two_phases: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    original = NK.rms_norm

    @functools.wraps(original)
    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append("offset" in kwargs)
        return original(*args, **kwargs)

    saved = write(tmp_path / "model", small("llama"))
    prompt = saved.prompts(9)[0]
    if not compiled:
        monkeypatch.setattr(NK, "rms_norm", spy)
    made = generate(MODEL, saved.folder, [prompt], 3, compile=compiled, batch=1, buckets=(128,))
    assert made.tokens == [saved.greedy(prompt, 3)]
    if not compiled:
        assert True in seen and False in seen  # decode, and prefill
        assert seen[-1] is True  # the last step of a generation decodes
