"""The page of `diff --html` says all that the JSON says, escaped, and loads nothing."""

from __future__ import annotations

import re

from markupsafe import Markup

from neuron_autoport.compare.build import compare, load_side
from neuron_autoport.compare.page import comparison_page
from neuron_autoport.compare.schema import Comparison
from neuron_autoport.models.source import source_of_config
from neuron_autoport.rules.library import load_rules
from tests.helpers import small_config
from tests.report.test_page import Tags


def made(name: str = "b") -> Comparison:
    sides = (("a", small_config("llama")), (name, small_config("gemma3_text")))
    rules = load_rules()
    one, other = (load_side(source_of_config(config, n), rules) for n, config in sides)
    return compare(one, other)


def test_all_that_differs_is_on_the_page() -> None:
    found = made()
    page = comparison_page(found)
    text = " ".join(Markup(re.sub("<[^>]*>", " ", page)).unescape().split())
    for point in found.points:
        assert f"{point.number} {point.name}" in text
        assert all(" ".join(line.split()) in text for line in point.means)
    shown = {key for point in found.points for key in point.traits}
    assert shown and all(t.a in text and t.b in text for t in found.traits if t.key in shown)
    assert all(f.name in text for f in found.fields)
    assert comparison_page(found) == page


def test_tags_nest_links_lead_somewhere_and_nothing_is_loaded() -> None:
    page = comparison_page(made())
    tags = Tags(page)
    assert tags.open == [] and tags.sources == []
    assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)
    assert not re.search(r"url\(|@import|https?://", page)


def test_a_name_is_no_markup() -> None:
    page = comparison_page(made("<script>x</script>"))
    assert "<script" not in page and "&lt;script&gt;" in page
