"""`make docs`: the site builds strictly, so every link leads somewhere; generated pages are current."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        self.ids |= {values[k] for k in ("id", "name") if k in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])


def test_every_page_is_in_the_site_and_its_links_lead_somewhere(site: Path) -> None:
    pages = {p.name: _Page(p.read_text(encoding="utf-8")) for p in site.glob("*.html")}
    assert {p.stem for p in (ROOT / "docs").glob("*.md")} <= {Path(name).stem for name in pages}
    del pages["404.html"]  # for a server: its links are from the root
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link) or link in ("#", ".", ""):
                continue
            target, _, anchor = link.partition("#")
            found = pages.get(target.removeprefix("./") or name)
            assert found is not None, f"{name}: {link}"
            assert not anchor or anchor in found.ids, f"{name}: {link}"


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)", text):
        assert (ROOT / target).exists(), target


def test_the_page_of_supported_models_is_the_coverage_run() -> None:
    from benchmarks.models_page import page

    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == page()
