"""Children of audits come from a warm start."""

from __future__ import annotations

import pytest

from tests import warm_children


@pytest.fixture
def own_python() -> None:
    """For tests whose children are Pythons of their own, as users have them."""


@pytest.fixture(autouse=True)
def _forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "own_python" not in request.fixturenames:
        monkeypatch.setattr("dpaudit.actors.children._Child.begun", warm_children.begun)
