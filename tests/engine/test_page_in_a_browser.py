"""Pages with hostile names, errors and paths: neither a parser nor a real browser finds code to run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpaudit.claims import Claim, Relation
from dpaudit.engine.answer.record import Failure
from dpaudit.engine.report.page import template, write_page
from tests.engine.test_findings import Band, finding_of, report, result, two_worlds

RAN = "document.documentElement.setAttribute('data-ran','yes')"
HOSTILE = (
    f"<script>{RAN}</script>",
    f"<img src=x onerror={RAN}>",
    f"'\"--></style></title></svg></pre><svg onload={RAN}>",
    f"]]><iframe srcdoc='<script>parent.{RAN}</script>'></iframe>",
    f"<details open ontoggle={RAN}>",
    f"{{{{ 7*7 }}}}<a href=javascript:{RAN} autofocus onfocus={RAN}>",
)
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "microsoft-edge")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return each page that dpaudit writes, with hostile text wherever foreign text can appear."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = " ".join(HOSTILE)
    finding = replace(finding_of(Band(), [two_worlds(1.0)]), notes=HOSTILE, method=hostile)
    bad = replace(
        result(finding, Claim(1.0, relation=Relation.ADD_REMOVE), name=HOSTILE[2]),
        mechanism=hostile,
        game=hostile,
        data=hostile,
        assumes=hostile,
        metrics={hostile: 0.5},
        failures=(Failure("0" * 32, hostile, hostile),),
    )
    write_page(
        replace(report(bad, bad), name=hostile, spec=hostile, versions={hostile: hostile}, events={hostile: 1}),
        folder,
        draw=False,
    )
    reproduced = template("reproduced.html.j2", "papers").render(
        title=hostile,
        setting=hostile,
        heads=HOSTILE,
        lines=[{"learner": hostile, "kind": hostile, "entries": HOSTILE}],
        notes=HOSTILE,
        figure=hostile,
    )
    return {"report": (folder / "report.html").read_text(encoding="utf-8"), "reproduced": reproduced}


class Markup(HTMLParser):
    """Collects the elements of a page, each with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))


def test_no_markup_of_a_page_can_run_or_fetch_anything(pages: dict[str, str]) -> None:
    running = {"script", "iframe", "object", "embed", "applet", "form", "base", "link", "audio", "video", "img"}
    for name, page in pages.items():
        elements = Markup(page).elements
        assert {tag for tag, _ in elements} & running == set(), name
        assert [
            attribute for _, attributes in elements for attribute in attributes if attribute.startswith("on")
        ] == [], name
        policies = [
            attributes["content"] for tag, attributes in elements if tag == "meta" and "http-equiv" in attributes
        ]
        assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"], name
        links = [
            value or ""
            for _, attributes in elements
            for key, value in attributes.items()
            if key in ("href", "xlink:href")
        ]
        assert [link for link in links if not link.startswith("#")] == [], name
        assert page.count("&lt;script&gt;") > 3, name
    assert any("onerror" in attributes for _, attributes in Markup(f"<p>{HOSTILE[1]}").elements), (
        "the parser can find it"
    )


@pytest.mark.skipif(BROWSER is None, reason=f"no browser on the path (one of {', '.join(BROWSERS)})")
def test_nothing_of_a_page_runs_in_a_browser(pages: dict[str, str], run_in_browser: Callable[[str], str]) -> None:
    naked = f"<!doctype html><html><body>{HOSTILE[0]}{HOSTILE[1]}</body></html>"
    assert "data-ran" in run_in_browser(naked).partition("<head")[0], "what is hostile runs where nothing stops it"
    for name, page in pages.items():
        head, _, body = run_in_browser(page).partition("<body")
        assert "data-ran" not in head.partition("<head")[0], f"the root element of {name} was marked"
        assert "dpaudit" in head, name
        assert body.count("&lt;script&gt;") > 3, name
    bare = pages["report"].replace("</main>", f"{HOSTILE[0]}{HOSTILE[1]}{HOSTILE[4]}</main>")
    assert "data-ran" not in run_in_browser(bare).partition("<head")[0], "the policy stops what no escaping had stopped"


@pytest.fixture
def run_in_browser(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that loads a page in a browser and returns the elements after its scripts have run."""

    def load(page: str) -> str:
        assert BROWSER is not None
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=2000",
        )
        command = [BROWSER, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert "<html" in completed.stdout
        return completed.stdout

    return load


def pages_of(page: str, folder: Path) -> int:
    """Return the number of pages that a browser prints a page on."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-pdf-header-footer")
    places = (f"--user-data-dir={folder / 'profile'}", f"--print-to-pdf={folder / 'page.pdf'}")
    command = [str(BROWSER), *options, *places, (folder / "page.html").as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return len(re.findall(rb"/Type\s*/Page\b", (folder / "page.pdf").read_bytes()))
