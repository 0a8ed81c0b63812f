"""The site of the docs: built without a warning, its links lead somewhere, nothing of a page or a name is lost."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterable, Iterator, Set
from functools import partial
from pathlib import Path

import click
import pytest
import yaml
from markdown_it import MarkdownIt

import dpaudit
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.names import spec_schema
from dpaudit.registry import PACKAGES, catalogue, plural
from tests.engine.test_page_in_a_browser import BROWSER, Markup
from tests.nightly import by_night_unless_changed
from tests.test_pages import PAGES

ROOT = Path(__file__).parent.parent
MAKES_THE_SITE = ("mkdocs.yml", "tools/site_hook.py", "requirements/docs.txt", "docs/site.css", "docs/reference/*")
MOVED = {"README.md": "index", "CONTRIBUTING.md": "developers/contributing", "CHANGELOG.md": "changelog"}
of_the_built_site = by_night_unless_changed(*MAKES_THE_SITE, "tests/test_site.py")
"""Mark of a test of the built site, which takes 20 s. Links, headings and tables of the pages are read by
`test_pages`."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, as `make docs` builds it."""
    mkdocs = os.environ.get("DPAUDIT_MKDOCS")
    if not mkdocs or not Path(mkdocs).exists():
        pytest.skip("no MkDocs; `make docs` installs one and DPAUDIT_MKDOCS names it")
    folder = tmp_path_factory.mktemp("site")
    command = [mkdocs, "build", "--strict", "--site-dir", str(folder)]
    surroundings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    process = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "WARNING" not in process.stderr, process.stderr
    return folder


def place_of(page: Path, site: Path) -> Path:
    """Return the path in the site of a page of the repository."""
    name = page.relative_to(ROOT).as_posix()
    path = MOVED.get(name, name.removeprefix("docs/").removesuffix(".md"))
    return site / "index.html" if path == "index" else site / path / "index.html"


@of_the_built_site
def test_all_of_a_page_is_shown(site: Path) -> None:
    """The site has the headings, lists, tables and blocks that GitHub shows; MkDocs reads another kind of Markdown."""
    reader = MarkdownIt().enable("table")
    for page in PAGES:
        html = place_of(page, site).read_text(encoding="utf-8")
        assert elements(article(html)) == elements(reader.render(page.read_text(encoding="utf-8"))), page


def article(html: str) -> str:
    article = re.search(r"<article.*?</article>", html, re.DOTALL)
    assert article
    return re.sub(r'<a class="headerlink".*?</a>|<form.*?</form>', "", article[0], flags=re.DOTALL)


def elements(html: str) -> dict[str, int]:
    tags = ("h1", "h2", "h3", "ul", "ol", "li", "table", "tr", "pre", "code", "strong", "em", "a", "img")
    return {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in tags}


def broken(site: Path) -> Iterator[tuple[str, str]]:
    """Return links and images of a site without a target file or without a target anchor."""
    pages = {path: Markup(path.read_text(encoding="utf-8")).elements for path in site.rglob("index.html")}
    marks = {
        path: {attributes.get("id") or attributes.get("name") for _, attributes in elements}
        for path, elements in pages.items()
    }
    for path, elements in pages.items():
        for _, attributes in elements:
            link = attributes.get("href") or attributes.get("src") or ""
            if re.match(r"[a-z]+:", link):
                continue
            name, _, mark = link.partition("#")
            destination = (path.parent / name).resolve() if name else path
            destination = destination / "index.html" if destination.is_dir() else destination
            if not destination.exists() or (mark and destination in marks and mark not in marks[destination]):
                yield path.relative_to(site).as_posix(), link


@of_the_built_site
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    assert list(broken(site.resolve())) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<h1 id="a">A</h1><img src="gone.png">')
    (tmp_path / "index.html").write_text('<a href="there/#a"><a href="there/#b"><a href="gone/"><a href="https://x.y">')
    assert sorted(broken(tmp_path.resolve())) == [
        ("index.html", "gone/"),
        ("index.html", "there/#b"),
        ("there/index.html", "gone.png"),
    ]


@of_the_built_site
def test_the_reference_has_every_name(site: Path) -> None:
    def ids(page: str) -> set[str | None]:
        html = (site / "reference" / page / "index.html").read_text(encoding="utf-8")
        return {attributes.get("id") for _, attributes in Markup(html).elements}

    for kind in PACKAGES:
        assert {name.replace(" ", "-") for name in catalogue(kind)} <= ids(f"names/{plural(kind)}"), kind
    assert {f"dpaudit{name}".lower() for name in dpaudit.__all__ if name[0] != "_"} <= ids("python")
    assert {f"dpaudit-{name}" for name in main.list_commands(click.Context(main))} <= ids("commands")
    fields = (site / "reference" / "spec" / "index.html").read_text(encoding="utf-8")
    assert [name for name in spec_schema()["properties"] if f"<code>{name}</code>" not in fields] == []


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Handler that serves the files of a folder without logging requests."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def too_wide(site: Path, pages: list[str]) -> dict[str, int]:
    """Return the number of unreachable parts of each page on a phone of 390 pixels, in a real browser."""
    assert BROWSER is not None
    frames = "".join(f'<iframe src="{page}" style="width: 390px; height: 800px; border: 0"></iframe>' for page in pages)
    script = """<script>
        const scrolls = part => /auto|scroll/.test(part.ownerDocument.defaultView.getComputedStyle(part).overflowX);
        const within = part => part.tagName === "ARTICLE" ? false : scrolls(part) || within(part.parentElement);
        const wide = part => part.getBoundingClientRect().right > 390 && !within(part.parentElement);
        onload = () => {
            const parts = frame => [...frame.contentDocument.querySelectorAll("article *")].filter(wide).length;
            const found = [...document.querySelectorAll("iframe")].map(one => [one.getAttribute("src"), parts(one)]);
            document.body.textContent = JSON.stringify(Object.fromEntries(found.filter(([page, count]) => count)));
        }
    </script>"""
    (site / "frames.html").write_text(f"<!doctype html><body>{frames}{script}</body>", encoding="utf-8")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        command = [BROWSER, *options, f"--user-data-dir={site.parent / 'profile'}"]
        command += ["--dump-dom", f"http://127.0.0.1:{server.server_port}/frames.html"]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        server.shutdown()
    counts: dict[str, int] = json.loads(re.sub(r"<[^>]*>", "", output))
    return counts


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason="no browser on the path")
def test_no_page_is_wider_than_a_phone(site: Path) -> None:
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("index.html"))]
    planted = (
        (site / "index.html").read_text(encoding="utf-8").replace("<table", '<div style="width: 600px"></div><table')
    )
    (site / "wide.html").write_text(planted, encoding="utf-8")
    assert len(pages) > 35
    assert too_wide(site, [*pages, "wide.html"]).keys() == {"wide.html"}


def not_in_the_navigation(navigation: object) -> Set[str]:
    """Pages that the navigation does not name, and names of it that are no page; a folder stands for its pages."""
    leaves = {leaf for leaf in _leaves(navigation) if not leaf.endswith("/")}
    folders = tuple(leaf for leaf in _leaves(navigation) if leaf.endswith("/"))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages = written | {f"{path}.md" for path in MOVED.values()}
    return leaves ^ {page for page in pages if not page.startswith(folders)}


def _leaves(navigation: object) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        inner = navigation.values() if isinstance(navigation, dict) else navigation
        for part in inner if isinstance(inner, Iterable) else ():
            yield from _leaves(part)


def test_the_navigation_names_every_page_and_the_reference_every_name() -> None:
    """Without MkDocs: the built site is looked at where what makes it has changed, and by night."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    navigation = yaml.safe_load(f"nav:{nav}")["nav"]
    code = "import json; from tools import reference; print(json.dumps(reference.pages()))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    generated: dict[str, str] = json.loads(process.stdout)  # as `make pages` writes them, in a process of its own
    assert not_in_the_navigation(navigation) == set()
    assert not_in_the_navigation([*navigation[1:], "lost.md"]) == {"index.md", "lost.md"}
    differing = [name for name, text in generated.items() if (ROOT / "docs" / name).read_text(encoding="utf-8") != text]
    assert differing == [], "these pages are made from the code: run `make pages`"
    for kind in PACKAGES:
        headings = set(re.findall(r"^## `(.+)`$", generated[f"reference/names/{plural(kind)}.md"], re.MULTILINE))
        assert headings == set(catalogue(kind)), kind
    python, commands = generated["reference/python.md"], generated["reference/commands.md"]
    assert [name for name in dpaudit.__all__ if name[0] != "_" and f"## `dpaudit.{name}`\n" not in python] == []
    listed = main.list_commands(click.Context(main))
    assert [name for name in listed if f"## `dpaudit {name}`" not in commands] == []
    fields = generated["reference/spec.md"]
    assert [name for name in spec_schema()["properties"] if f"`{name}`" not in fields] == []


def test_all_that_the_site_needs_is_pinned() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "requirements/docs.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert {re.split(r"[\[>]", needed)[0] for needed in extra["docs"]} <= set(pinned)
