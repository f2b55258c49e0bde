"""The page of `autoport diff --html`: the same value as the text, in one file, nothing loaded from elsewhere."""

from __future__ import annotations

from importlib.resources import files

from markupsafe import Markup

from neuron_autoport.compare.schema import Comparison
from neuron_autoport.compare.view import shown_value
from neuron_autoport.report.page.build import asset, page_environment


def comparison_page(found: Comparison) -> str:
    """The page as HTML text; the same comparison gives the same bytes."""
    template = files("neuron_autoport.compare").joinpath("compare.html.j2")
    return page_environment().from_string(template.read_text(encoding="utf-8")).render(
        c=found, style=Markup(asset("inspect.css")), value=shown_value,
        traits={t.key: t for t in found.traits}, fields={f.name: f for f in found.fields},
        rest=[f for f in found.fields if f.point is None],
        signs={"rule": "ok", "refused": "bad", "host": "dim"},
    )  # fmt: skip
