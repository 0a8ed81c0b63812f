"""Children of audits come from a warm start; documented sizes that tests may make smaller by day."""

from __future__ import annotations

import pytest

from tests import small, warm_children


@pytest.fixture
def own_python() -> None:
    """For tests whose children are Pythons of their own, as users have them."""


@pytest.fixture(autouse=True)
def _forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "own_python" not in request.fixturenames:
        monkeypatch.setattr("dpaudit.actors.children._Child.start", warm_children.begun)


@pytest.fixture
def few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """By day, checks make few releases of crafted data."""
    small.few_releases(monkeypatch)
