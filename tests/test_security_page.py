"""docs/security.md: each line of its table names the tests that hold it, and these are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "security.md"


def untested(page: str) -> Iterator[str]:
    """Lines of the table whose tests are missing, or that name none."""
    rows = [row for row in re.findall(r"^\|(.+)\|$", page, re.M) if row.count("|") == 3]
    for row in rows[2:]:
        who, *_, tests = row.split("|")
        names = re.findall(r"`([^`]+)`", tests)
        path = ROOT / "nothing"
        for name in names:
            file, _, function = name.partition("::")
            path = ROOT / file if file else path
            if not path.exists() or (function and f"def {function}(" not in path.read_text(encoding="utf-8")):
                yield f"{who.strip()}: {name}"
        if not names:
            yield f"{who.strip()}: no test"


def test_each_line_names_tests_that_are_there() -> None:
    assert list(untested(PAGE.read_text(encoding="utf-8"))) == []


def test_a_line_without_its_test_is_seen() -> None:
    table = "| who | trusted with | what protects | test |\n| - | - | - | - |\n"
    table += "| a | b | c | `tests/nowhere.py` |\n| d | e | f | `tests/conftest.py::test_nothing` |\n| g | h | i | |\n"
    assert list(untested(table)) == ["a: tests/nowhere.py", "d: tests/conftest.py::test_nothing", "g: no test"]
    assert len(re.findall(r"^\|.+\|$", PAGE.read_text(encoding="utf-8"), re.M)) > 20
