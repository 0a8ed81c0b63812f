"""MkDocs hook: add pages from outside `docs`, and rewrite links.

A page is written for the repository, so it links to files there. In the site, these links lead to pages, or become
plain text if the site has no such file. The hook runs in the environment of MkDocs (`make docs`).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

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
"""A link, whose text may contain code; or a piece of code, which contains no link."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand folders in the navigation, which end with a slash, to their pages."""
    config.nav = [_opened(item) for item in config.nav or []]
    return config


def _opened(item: object) -> object:
    if isinstance(item, dict):
        ((title, inner),) = item.items()
        if isinstance(inner, list):
            return {title: [_opened(part) for part in inner]}
        if isinstance(inner, str) and inner.endswith("/"):
            return {
                title: sorted(
                    path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / inner).glob("*.md")
                )
            }
    return item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs`."""
    for source, path in ELSEWHERE.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files into links between pages; pages with wide tables get the full width."""
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
            return words  # the site does not contain this file of the repository
    return f"{image}[{words}]({posixpath.relpath(destination, posixpath.dirname(site) or '.')}{hash_}{anchor})"
