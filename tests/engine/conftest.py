"""Fixtures: children of audits start from a warm process, and checks make fewer releases by day."""

from __future__ import annotations

import pytest

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
