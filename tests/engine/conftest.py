"""Fixtures: children of audits start from a warm process, checks make fewer releases by day, `dpaudit estimate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpaudit.engine.cli.main import main
from tests import small, warm_children


@pytest.fixture
def own_python() -> None:
    """Start the children of audits as new Python processes, as for users."""


@pytest.fixture(autouse=True)
def _forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "own_python" not in request.fixturenames:
        monkeypatch.setattr("dpaudit.actors.children._Child.start", warm_children.start_child)


@pytest.fixture
def few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """By day, make checks release only a few times on crafted data."""
    small.few_releases(monkeypatch)


@pytest.fixture
def estimate(tmp_path: Path) -> Callable[..., Result]:
    """Return `dpaudit estimate` of a table that is given as text."""

    def run(text: str, *options: object) -> Result:
        path = tmp_path / "table.csv"
        path.write_text(text)
        words = ["estimate", str(path), *(str(option) for option in options)]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return run
