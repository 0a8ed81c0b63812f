"""Every program of docs/quickstart.md runs as it stands, and its verdict begins as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.small import few_calls

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"\n## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", TEXT, re.DOTALL)

LONG = ("A synthetic table", "A predictor's votes", "Federated updates", "A published histogram")
"""The programs that take longest run by night."""


def test_each_kind_of_thing_has_a_section() -> None:
    sections = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert len(sections) >= 11
    assert len(PROGRAMS) == TEXT.count("```python")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("code", "output"),
    [pytest.param(*rest, id=name, marks=[pytest.mark.nightly] * (name in LONG)) for name, *rest in PROGRAMS],
)
def test_a_program_says_what_stands_under_it(
    code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By day with fewer calls of each function."""
    few_calls(monkeypatch)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    printed, place = " ".join(capsys.readouterr().out.split()), 0
    first, *others = (" ".join(part.split()) for part in output.split("    ...\n"))
    assert printed.startswith(first)
    for part in others:
        place = printed.find(part, place)
        assert place >= 0, part
