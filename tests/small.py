"""Smaller sizes for tests that play a documented program: by day they reach the same verdict sooner."""

from __future__ import annotations

import pytest

from tests import nightly

SECONDS_A_CALL = 0.02
"""Pretended: a check then plans some 700 calls of a function a test, in place of 20,000."""


def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checks of functions on rows plan few calls, on any machine as many; by night nothing changes."""
    if not nightly.on():
        monkeypatch.setattr("dpaudit.engine.spec.check.cost_of_a_call", lambda *_: (SECONDS_A_CALL, 1))
