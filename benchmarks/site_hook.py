"""What MkDocs is told beside `mkdocs.yml`: pages that stand elsewhere or are made of the code, and where links go.

A page is written for the repository, so its links are those of files there; in the site they lead to the page, or are
text where the site has no such file. Runs in the environment of MkDocs (`make docs`); what has to import dpaudit is
asked of the Python that `DPAUDIT_PYTHON` names.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "developers/contributing.md",
    "CHANGELOG.md": "changelog.md",
}
CODE_OR_LINK = re.compile(
    r"^```.*?^```|(?P<image>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)|`[^`\n]+`",
    re.DOTALL | re.MULTILINE,
)
"""A link, whose words may hold code; or a piece of code, which may hold no link."""


@cache
def made_of_the_code() -> dict[str, str]:
    """The reference pages, from path to Markdown; once for each start of MkDocs."""
    python = os.environ.get("DPAUDIT_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    process = subprocess.run(
        [python, "-m", "benchmarks.reference"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if process.returncode:
        sys.exit(f"the reference pages could not be made by {python}:\n{process.stderr}")
    pages: dict[str, str] = json.loads(process.stdout)
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder in the navigation, written with a slash at its end, stands for its pages."""
    config.nav = [_opened(item) for item in config.nav or []]
    return config


def _opened(item: object) -> object:
    if isinstance(item, dict):
        ((title, inner),) = item.items()
        if isinstance(inner, list):
            return {title: [_opened(part) for part in inner]}
        if isinstance(inner, str) and inner.endswith("/"):
            pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / inner).glob("*.md")]
            return {title: sorted([*pages, *(path for path in made_of_the_code() if path.startswith(inner))])}
    return item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that stand outside of `docs`, and those made of the code."""
    for source, path in ELSEWHERE.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text(encoding="utf-8")))
    for path, text in made_of_the_code().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files into links between pages of the site; a page of wide tables gets all the width."""
    site = page.file.src_uri
    if re.search(r"^(\|[^|\n]*){8,}\|$", markdown, re.MULTILINE):
        page.meta["hide"] = ["toc"]
    source = next((name for name, path in ELSEWHERE.items() if path == site), f"docs/{site}")
    return CODE_OR_LINK.sub(lambda link: _led(link, source, site), markdown)


def _led(link: re.Match[str], source: str, site: str) -> str:
    image, words, target = link["image"], link["words"], link["target"] or ""
    name, hash_, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return link[0]
    if name.startswith("/"):
        destination = name[1:]
    else:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        destination = ELSEWHERE.get(path, path.removeprefix("docs/"))
        if destination == path and not path.startswith("docs/"):
            return words  # a file of the repository that the site does not hold
    return f"{image}[{words}]({posixpath.relpath(destination, posixpath.dirname(site) or '.')}{hash_}{anchor})"


class Sections(griffe.Extension):
    """Docstrings say `Returns: ...` in one line, which Google's form does not know: each becomes a paragraph."""

    def on_object(self, *, obj: griffe.Object, **rest: object) -> None:
        """Called by griffe for each object it has read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"\n(Returns|Raises|Source): ", r"\n\n**\1:** ", obj.docstring.value)
