"""The page of `inspect --html`: what it shows is what the source and the report say."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser

import networkx as nx
import pytest
from markupsafe import Markup
from transformers.models.llama import modeling_llama

from neuron_autoport.models.source import source_of_config
from neuron_autoport.port import Port, port_model
from neuron_autoport.report.build import build_report
from neuron_autoport.report.page.build import inspect_page
from neuron_autoport.report.page.code import class_code
from neuron_autoport.report.page.draw import draw
from neuron_autoport.report.page.flow import FlowNode, flow
from neuron_autoport.report.schema import Report, Target
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rules.library import load_rules
from tests.helpers import plan_of, small_config, zoo_class

VOID = {"meta", "input", "br", "link", "img"}


@cache
def llama() -> tuple[Report, Port, str]:
    source = source_of_config(small_config("llama"), "tiny")
    port = port_model(source, load_rules())
    report = build_report(source, port, Target(name="trn2", tp=1))
    return report, port, inspect_page(report, port)


def plan_named(name: str) -> ClassPlan:
    return next(p for p in llama()[1].plans if p.trace.module_class.__name__ == name)


class Tags(HTMLParser):
    """Checks that tags nest, and gathers attributes and texts of marks."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        self.sources += [values[k] for k in ("src", "srcset", "data") if k in values]
        if tag == "link":
            self.sources.append(values.get("href", ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_tags_nest_links_lead_somewhere_and_nothing_is_loaded() -> None:
    tags = Tags(llama()[2])
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)
    assert tags.sources == []
    assert not re.search(r"url\(|@import|https?://", llama()[2])


def test_the_same_report_gives_the_same_bytes() -> None:
    report, port, page = llama()
    assert inspect_page(report, port) == page


def marked(lines: tuple[Markup, ...], key: str) -> list[str]:
    found = []
    for line in lines:
        for classes, text in re.findall(r'<mark class="([^"]*)">(.*?)</mark>', line):
            if {key, "whole"} <= set(classes.split()):
                found.append(Markup(text).unescape())
    return found


def test_the_original_is_the_file_and_the_site_is_marked() -> None:
    code = class_code(plan_named("LlamaMLP"))
    assert code is not None
    shown = "\n".join(re.sub("<[^>]*>", "", line.html) for line in code.old)
    forward = modeling_llama.LlamaMLP.forward
    assert Markup(shown).unescape() == textwrap.dedent(inspect.getsource(forward)).rstrip("\n")
    assert code.old[0].number == inspect.getsourcelines(forward)[1]
    (site,) = plan_named("LlamaMLP").sites
    assert site.rule.name == "gated_mlp"
    expression = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
    assert marked(tuple(line.html for line in code.old), "s0") == [expression]


def test_the_rewritten_form_is_the_plan_and_its_statement_is_found() -> None:
    plan = plan_named("LlamaAttention")
    code = class_code(plan)
    assert code is not None
    new = plan.new_source()
    assert new is not None
    shown = "\n".join(Markup(line.html).unescape() for line in code.new)
    assert shown == textwrap.dedent(new).rstrip("\n")
    for number, site in enumerate(plan.sites):
        lines = [
            Markup(x.html).unescape() for x in code.new if f"s{number}" in x.keys.split()
        ]  # fmt: skip
        assert lines[0].strip() == f"# autoport: {site.rule.name}"
        call = {"qkv_proj": "NF.qkv_proj(", "o_proj": "NF.o_proj(", "rope_pair": "NK.rope("}
        assert call[site.rule.name] in "\n".join(lines)
        assert all(x.changed for x in code.new if f"s{number}" in x.keys.split())


def test_every_site_shows_its_rule_and_its_limits() -> None:
    report, _, page = llama()
    text = Markup(re.sub("<[^>]*>", "", page)).unescape()
    for cls in report.classes:
        for site in cls.sites:
            rule = next(r for r in load_rules() if r.name == site.rule)
            assert rule.text.partition("\nexamples:")[0].strip() in text
            assert all(f"{x.text}: {x.figures}" in text for x in site.limits)
            assert str(site.place) in text


def test_text_of_the_source_is_no_markup() -> None:
    cls = zoo_class('''
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, x):
        """</pre><script>alert("é&1")</script>"""
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
''')
    code = class_code(plan_of(cls))
    assert code is not None
    both = "".join(line.html for line in (*code.old, *code.new))
    assert "<script" not in both and "</pre" not in both
    assert both.count("&lt;script&gt;") == (2 if code.new else 1)


def edges(graph: nx.DiGraph | None) -> set[tuple[str, str]]:
    assert graph is not None
    return {(a.label, b.label) for a, b in graph.edges}


def test_data_flow_before_and_after() -> None:
    plan = plan_named("LlamaMLP")
    assert edges(flow(plan, fused=False)) == {
        ("x", "gate_proj"), ("x", "up_proj"), ("gate_proj", "silu"), ("silu", "mul"),
        ("up_proj", "mul"), ("mul", "down_proj"), ("down_proj", "output"),
    }  # fmt: skip
    assert edges(flow(plan, fused=True)) == {("x", "NF.mlp"), ("NF.mlp", "output")}


def test_the_layer_after_is_smaller_and_keeps_what_is_left() -> None:
    plan = plan_named("LlamaDecoderLayer")
    before, after = flow(plan, fused=False), flow(plan, fused=True)
    assert ("NK.add_rms_norm", "mlp") in edges(after)
    assert ("mlp", "add") in edges(after) and ("NK.add_rms_norm", "add") in edges(after)
    assert ("input_layernorm", "self_attn") in edges(after)
    assert before is not None and after is not None and len(after) == len(before) - 1


def rectangles(svg: str) -> Iterator[tuple[float, float, float, float, str]]:
    shape = (
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="(\d+)"[^>]*/>.*?>([^<]*)</text>'
    )
    for x, y, w, h, text in re.findall(shape, svg):
        yield float(x), float(y), float(w), float(h), text


@pytest.mark.parametrize("name", ["LlamaMLP", "LlamaAttention", "LlamaDecoderLayer"])
@pytest.mark.parametrize("fused", [False, True])
def test_boxes_do_not_overlap_and_data_flows_down(name: str, fused: bool) -> None:
    graph = flow(plan_named(name), fused)
    assert graph is not None
    boxes = list(rectangles(draw(graph, name)))
    assert sorted(b[4] for b in boxes) == sorted(n.label for n in graph)
    for i, (x, y, w, h, _) in enumerate(boxes):
        for x2, y2, w2, h2, _ in boxes[i + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y
    top = {b[4]: b[1] for b in boxes}
    if len(top) == len(boxes):
        assert all(top[a] < top[b] for a, b in edges(graph))


def test_a_long_edge_gets_a_bend_in_every_row() -> None:
    a, b, c = (FlowNode(x, "op") for x in "abc")
    graph = nx.DiGraph([(a, b), (b, c), (a, c)])
    assert draw(graph, "t").count("<path") == 4  # a-b, b-c, and a-c in two pieces
