"""Every program of docs/quickstart.md runs unchanged, and its verdict begins as on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.small import few_calls

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"\n## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", TEXT, re.DOTALL)

LONG = ("A generator of synthetic tables", "A predictor's votes", "Federated updates", "A published histogram")
"""The slowest programs, which run at night."""


def test_the_page_has_its_programs() -> None:
    sections = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert len(sections) >= 11
    assert len(PROGRAMS) == TEXT.count("```python")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("code", "output"),
    [pytest.param(*rest, id=name, marks=[pytest.mark.nightly] * (name in LONG)) for name, *rest in PROGRAMS],
)
def test_a_program_prints_its_output(
    code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By day, each function is called fewer times."""
    few_calls(monkeypatch)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    printed, place = " ".join(capsys.readouterr().out.split()), 0
    first, *others = (" ".join(part.split()) for part in output.split("    ...\n"))
    assert printed.startswith(first)
    for part in others:
        place = printed.find(part, place)
        assert place >= 0, part
