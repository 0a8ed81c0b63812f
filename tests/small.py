"""Smaller sizes for tests that play a documented program: by day they reach the same verdict sooner."""

from __future__ import annotations

import pytest

from tests import nightly

SECONDS_A_CALL = 0.08
"""Simulated seconds of a call: a check then plans 1,250 calls of a function for each test instead of 20,000."""


def calls_cost(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make checks of functions on rows assume this duration of a call, and plan the calls that fit."""
    monkeypatch.setattr("dpaudit.engine.request.check.call_cost", lambda *_: (seconds, 1))


def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checks of functions on rows plan few calls, on any machine as many; by night nothing changes."""
    if not nightly.on():
        calls_cost(monkeypatch, SECONDS_A_CALL)


def few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checks of label mechanisms release crafted data seldom; by night nothing changes."""
    from dpaudit.engine.games.labels.label_crafted import LabelCrafted

    if not nightly.on():
        of_mechanisms = LabelCrafted.traits.check_tests[0].game
        for name, number in (("search", 1_600), ("releases", 400), ("canaries", 40_000)):
            monkeypatch.setitem(of_mechanisms, name, number)  # type: ignore[arg-type]
