"""`autoport explain`: a page for every code, rule, function and word; each code's example gives that code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neuron_autoport.errors import AutoportError
from neuron_autoport.explain.codes import CODE_HELP, MARK, CodeHelp
from neuron_autoport.explain.pages import UnknownWord, all_words, find_pages
from neuron_autoport.explain.render import DOCUMENTS, document
from neuron_autoport.explain.words import CAPTURES, FIELDS, PATTERN, WORDS
from neuron_autoport.models.inputs import Input
from neuron_autoport.prove.modules import prove_module
from neuron_autoport.report.limits import broken_limits
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.rewrite.reasons import CODES
from neuron_autoport.rules.examples import Kind
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.load_examples import _KEYS
from neuron_autoport.rules.load_fields import FIELDS as RULE_FIELDS
from neuron_autoport.rules.pattern import OPERATIONS
from neuron_autoport.rules.rule import KINDS, SHARDS
from neuron_autoport.single import for_real, random_calls, trace_alone
from tests.cli.conftest import Run
from tests.helpers import zoo_module

DOCS = Path(__file__).parents[2] / "docs"
HEAD = '"""An example of a page."""\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n'
INPUTS = (Input((2, 5, 16)),)


def plan_of_example(known: CodeHelp, folder: Path) -> tuple[ClassPlan, type]:
    """The plan of a page's example with its rule, or with the built-in ones."""
    space = vars(zoo_module(known.source, HEAD))
    (cls,) = [v for v in space.values() if getattr(v, "__module__", "") == space["__name__"]]
    arguments = INPUTS * (2 if "x, y" in known.source else 1)
    _, trace = trace_alone(cls, arguments)
    rules = load_rules()
    if known.rule:
        path = folder / "page.yaml"
        path.write_text(known.rule, encoding="utf-8")
        rules = (load_rule(path),)
    return plan_class(trace, rules), cls


def marked_line(source: str) -> int | None:
    """Line of the mark, counted in the file the example is written to."""
    if MARK not in source:
        return None
    return (HEAD + source[: source.index(MARK)]).count("\n") + 1


def test_every_code_has_an_example_and_a_next_step() -> None:
    assert set(CODE_HELP) == set(CODES)
    for code, known in CODE_HELP.items():
        assert known.about and known.next, code
        assert bool(known.source) != bool(known.words), code


@pytest.mark.parametrize("code", [c for c, known in CODE_HELP.items() if known.source])
def test_the_example_gives_the_code(code: str, tmp_path: Path) -> None:
    known = CODE_HELP[code]
    plan, cls = plan_of_example(known, tmp_path)
    if code == "AP701":
        module = for_real(cls)
        rewritten = generate([plan], "a page").classes[plan]
        assert not prove_module("", module, plan, rewritten, random_calls(INPUTS)).passed
    elif code == "AP401":
        (site,) = plan.sites
        assert broken_limits(site, 1, "trn2") and site.span.line == marked_line(known.source)
    elif code in ("AP101", "AP102"):
        assert plan.trace.end is not None and plan.trace.end.code == code
        assert str(plan.trace.end.where).endswith(f":{marked_line(known.source)}")
    else:
        found = [r for r in plan.refusals if r.code == code]
        assert found, plan.refusals
        mark = marked_line(known.source)
        if mark is not None:
            assert mark in {r.span.line for r in found if r.span is not None}


def test_a_page_of_a_code(run: Run) -> None:
    ran = run("explain", "ap201")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"AP201: {CODES['AP201']}\n")
    for part in (*CODE_HELP["AP201"].next, "Example", "    class MLP(nn.Module):", "What to do"):
        assert part in ran.out


def test_a_page_of_a_rule(run: Run) -> None:
    rule = next(r for r in load_rules() if r.name == "gated_mlp")
    ran = run("explain", "gated_mlp")
    assert ran.code == 0 and ran.out.startswith(f"gated_mlp: {rule.summary}\n")
    said = " ".join(ran.out.split())
    assert "(built in)" in said and "calls NF.mlp" in said
    assert "match: y = down(act(gate(x)) * up(x))" in said
    assert all(f"- {e.because}" in ran.out for e in rule.rejects)


def test_a_page_of_a_function(run: Run) -> None:
    said = run("explain", "nf.o_proj").out
    assert "active: Tensor," in said and "weight: [N*D, H], tensor or hosted weight." in said


def test_pages_of_all_words_of_the_language() -> None:
    fields = set(RULE_FIELDS) | {k for keys in _KEYS.values() for k in keys} | set(_KEYS)
    assert set(FIELDS) == fields
    assert set(CAPTURES) == {*KINDS, *SHARDS} - {"plan"} and "plan" in WORDS
    assert set(PATTERN) <= OPERATIONS
    kinds = {k.value for k in Kind} - {"good"}
    rules = load_rules()
    listed = {word for words in all_words(rules).values() for word, _ in words}
    roles = {r.role for r in rules}
    for word in {*CODES, *fields, *KINDS, *SHARDS, *OPERATIONS, *kinds, *roles, *listed}:
        pages = find_pages(word, rules)
        assert all(p.parts for p in pages), word
        assert all(p.parts[0].text or p.parts[0].items or p.parts[0].code for p in pages), word


def test_the_list(run: Run) -> None:
    lines = run("explain").out.splitlines()
    for code, meaning in CODES.items():
        assert f"  {code}  {meaning}" in lines
    for word in ("gated_mlp", "NF.mlp", "site", "given", "sources"):
        assert any(line.split()[:1] == [word] for line in lines)


@pytest.mark.parametrize(
    ("word", "near"),
    [("AP21", "AP210"), ("gatedmlp", "gated_mlp"), ("sites", "site"), ("NF.mpl", "NF.mlp")],
)
def test_an_unknown_word(run: Run, word: str, near: str) -> None:
    ran = run("explain", word)
    assert (ran.code, ran.out) == (2, "")
    assert f"there is no page on `{word}`; did you mean" in ran.err and f"`{near}`" in ran.err


def test_a_word_like_nothing(run: Run) -> None:
    ran = run("explain", "zzzzqqqq")
    assert ran.code == 2 and "did you mean" not in ran.err and "autoport explain" in ran.err


def test_a_rule_of_the_users(run: Run, tmp_path: Path) -> None:
    text = "rule: silu_times\nsummary: silu(x) * y\nmatch: z = silu(x) * y\nreplace: z = x * y\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    ran = run("explain", "silu_times", "--rules", str(tmp_path))
    assert ran.code == 0 and "(--rules)" in " ".join(ran.out.split())
    with pytest.raises(UnknownWord):
        find_pages("silu_times", load_rules())


def test_every_code_that_is_printed_has_a_page(run: Run) -> None:
    """Codes of the report of models with refusals, limits and ends."""
    seen = set()
    for model in ("gpt2", "opt", "mamba"):
        seen |= set(re.findall(r"\bAP\d{3}\b", run("inspect", model).out))
        report = json.loads(run("inspect", model, "--json").out)
        for cls in report["classes"]:
            seen |= {r["code"] for r in cls["refusals"]} | (
                {cls["end"]["code"]} if cls["end"] else set()
            )
    assert seen and seen <= set(CODE_HELP)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_of_the_documentation_is_the_same(name: str) -> None:
    path = DOCS / f"{name}.md"
    assert path.read_text(encoding="utf-8") == document(name), "run: make pages"
    assert issubclass(UnknownWord, AutoportError)
