"""`autoport diff A B`: golden texts, JSON of the schema, and clear errors for bad input.

To make the files anew, then read the diff: AUTOPORT_UPDATE_GOLDEN=1 pytest tests/cli/test_diff.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from neuron_autoport.compare.schema import Comparison, json_schema
from tests.cli.conftest import Run

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parent.parent.parent / "docs"
PAIRS = [
    ("llama", "qwen2"), ("qwen2", "qwen3"), ("gemma2", "gemma3_text"), ("llama", "gpt_neox"),
]  # fmt: skip
_MINOR = ".".join(transformers.__version__.split(".")[:2])


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_diff_prints_the_golden_text(run: Run, a: str, b: str) -> None:
    ran = run("diff", a, b)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 100
    assert not any(line.endswith(" ") for line in ran.out.splitlines())
    file, text = GOLDEN / f"{a}-{b}.compare.txt", f"# transformers {_MINOR}\n{ran.out}"
    if os.environ.get("AUTOPORT_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
        return
    expected = file.read_text(encoding="utf-8")
    if expected.split("\n")[0] != text.split("\n")[0]:
        pytest.skip(f"golden text is of {expected.split(chr(10))[0][2:]}, installed is {_MINOR}")
    assert text == expected


def test_json_is_of_the_schema_and_says_what_the_text_says(
    run: Run, model_folder: Callable[..., str]
) -> None:
    folder = model_folder(attention_bias=True)
    ran = run("diff", "llama", folder, "--json")
    assert (ran.code, ran.err) == (0, "")
    said = Comparison.model_validate_json(ran.out)
    assert set(json.loads(ran.out)) == set(json_schema()["properties"])
    assert (said.a.name, said.b.name, said.b.kind) == ("llama", folder, "folder")
    traits = {t.key: (t.a, t.b) for t in said.traits if t.differs}
    assert traits["attention.bias"] == ("none", "on q, k, v, output")
    assert traits["layers.count"] == ("32", "3")
    assert {f.name: (f.a, f.b) for f in said.fields}["attention_bias"] == (False, True)
    assert "biases to load and to add" in said.points[0].means[1]


def test_the_documentation_names_every_field() -> None:
    page = (DOCS / "diff.md").read_text(encoding="utf-8")
    schema = json_schema()
    models = [
        schema,
        *(schema["$defs"][n] for n in ("Point", "Trait", "FieldDiff", "Disagreement")),
    ]
    models += [schema["$defs"][n] for n in ("Handler", "StructureRow")]
    for model in models:
        for name in model["properties"]:
            assert f"`{name}`" in page, f"{model['title']}.{name} is not explained"
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    from neuron_autoport.doctor.schema import json_schema as doctor_schema

    schema = doctor_schema()
    for model in (schema, *schema["$defs"].values()):
        for name in model["properties"]:
            assert f"`{name}`" in page, f"{model['title']}.{name} is not explained"
    codes = set(re.findall(r'code="([\w-]+)"', _doctor_source()))
    assert codes and all(f"`{code}`" in page for code in codes)


def _doctor_source() -> str:
    folder = DOCS.parent / "neuron_autoport" / "doctor"
    return "".join(p.read_text(encoding="utf-8") for p in folder.glob("*.py"))


BAD: list[tuple[str, dict[str, Any] | None, str, str]] = [
    ("qwen33", None, "There is no model type or folder of this name.", "qwen3"),
    ("bert", None, "not a causal language model", "autoport inspect"),
    ("no/such/folder/here", None, "There is no such folder.", "autoport inspect FOLDER"),
    ("", {"hidden_size": None}, "cannot be built", "hidden_size"),
    ("", {"model_type": "lama"}, "does not know the model type `lama`", "llama"),
]


@pytest.mark.parametrize(("name", "fields", "what", "hint"), BAD)
@pytest.mark.parametrize("place", ["first", "second"])
def test_bad_input_is_one_clear_error(
    run: Run,
    model_folder: Callable[..., str],
    name: str,
    fields: Any,
    what: str,
    hint: str,
    place: str,
) -> None:
    bad = name if fields is None else model_folder(**fields)
    ran = run("diff", *(("llama", bad) if place == "second" else (bad, "llama")), width=300)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ") and "Traceback" not in ran.err
    assert what in ran.err
    assert hint in ran.err


def test_one_model_is_not_enough(run: Run) -> None:
    assert run("diff", "llama").code == 2
