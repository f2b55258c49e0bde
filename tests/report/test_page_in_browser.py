"""The page of `inspect --html` in a real browser: light and dark, wide and narrow; pictures are kept in build/."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_page import llama

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PICTURES = Path(__file__).parents[2] / "build" / "pictures"
# No sandbox: tests may run as root. The others keep the browser from asking for anything outside.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "llama.html"
    path.write_text(llama()[2], encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda r: None if r.url.startswith("file:") else said.append(r.url))
    opened.goto(file.as_uri())
    yield opened
    assert said == []  # no error, and nothing was asked for
    opened.close()


def click(page: Any, link: str, section: str) -> None:
    """Click a link to a site, and wait until it is lit."""
    page.click(link)
    page.wait_for_selector(f"#{section} article.lit")


def lit(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(f"{selector}.lit").all_inner_texts()
    return found


def test_a_click_on_a_site_lights_its_source_on_both_sides(page: Any) -> None:
    click(page, "#sites a:text-is('gated_mlp')", "LlamaMLP")
    expression = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
    assert lit(page, "mark") == [expression]
    lines = [text.strip() for text in lit(page, ".line")]
    assert any("# autoport: gated_mlp" in line for line in lines)
    assert any("NF.mlp(" in line for line in lines)
    assert "gate_proj.weight" in lit(page, "article")[0]
    click(page, ".tree a:text-is('qkv_proj')", "LlamaAttention")
    assert lit(page, "mark") == [f"self.{x}_proj(hidden_states)" for x in "qkv"]
    assert page.locator("mark.lit").first.is_visible()


def test_the_data_flow_opens_and_its_site_is_lit(page: Any) -> None:
    click(page, "#sites a:text-is('gated_mlp')", "LlamaMLP")
    section = page.locator("section.class#LlamaMLP")
    assert not section.locator("svg").first.is_visible()
    section.locator(".flow summary").click()
    assert section.locator("svg").count() == 2 and section.locator("svg").first.is_visible()
    assert section.locator("svg g.site.lit text").all_text_contents() == ["NF.mlp"]
    section.locator(".flow").screenshot(path=_picture("flow"))


def test_the_filter_keeps_the_rows_with_the_word(page: Any) -> None:
    rows = page.locator("#sites tbody tr:visible")
    everything = rows.count()
    page.fill("#filter", "RMS_norm")
    shown = [text.split("\t")[0] for text in rows.all_inner_texts()]
    assert 0 < len(shown) < everything and all("rms_norm" in text for text in shown)
    page.fill("#filter", "")
    assert rows.count() == everything


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_it_fits_and_can_be_read(browser: Any, file: Path, scheme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{file.as_uri()}#LlamaAttention:s1")
    page.screenshot(path=_picture(f"{scheme}-{width}"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("main p", "main td", "mark.lit", ".line.lit", "a.tag.ok", "dt"):
        assert _contrast(page, selector) >= 4.5, selector  # WCAG 2.1, level AA
    page.close()


def _picture(name: str) -> str:
    PICTURES.mkdir(parents=True, exist_ok=True)
    return str(PICTURES / f"inspect-{name}.png")


def _contrast(page: Any, selector: str) -> float:
    """Contrast of an element's text with what lies behind it, by WCAG 2.1."""
    text, back = page.eval_on_selector(
        selector,
        """e => {
      const text = getComputedStyle(e).color;
      for (; e; e = e.parentElement) {
        const back = getComputedStyle(e).backgroundColor;
        if (back !== "rgba(0, 0, 0, 0)") return [text, back];
      }
    }""",
    )
    low, high = sorted(map(_luminance, (text, back)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(x) / 255 for x in colour.removeprefix("rgb(").rstrip(")").split(",")]
    r, g, b = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
