"""Shares of the error: each bound of a plain run has its own, bounds of a sweep or a check share one."""

from __future__ import annotations

import pytest

from dpaudit.claims import Scope
from dpaudit.engine.request.error_budget import ErrorBudget, JointTest
from dpaudit.errors import InputError


def test_bounds_of_a_plain_run_have_the_stated_confidence() -> None:
    budget = ErrorBudget(0.95)
    assert budget.first_pass == 0.95
    assert budget.confirmatory(0.99) == 0.99


def test_the_configurations_of_a_sweep_share_the_error() -> None:
    budget = ErrorBudget(0.95, 12)
    assert budget.first_pass == 1 - (1 - 0.95) / 12
    budget.require_within({"stopped early": budget.first_pass, "stricter": 0.999})
    with pytest.raises(InputError, match=r"loose: .*0\.995833.*12 configurations share the error"):
        budget.require_within({"loose": 0.99})


def test_tests_of_a_check_share_the_error_of_the_first_pass_and_of_the_verdict() -> None:
    budget = ErrorBudget(0.999, 4, screening=0.95)
    assert budget.first_pass == 1 - (1 - 0.95) / 4
    assert budget.confirmatory(budget.first_pass) == 1 - (1 - 0.999) / 4
    budget.require_within({"dear": 0.97, "cheap": 0.98})  # uneven shares fixed beforehand are as good
    with pytest.raises(InputError, match=r"must sum to at most 0\.05"):
        budget.require_within({"dear": 0.96, "cheap": 0.98})


def test_a_spec_may_state_the_scope_of_a_side_finding() -> None:
    together = JointTest(side={"digits": "floating-point"})  # type: ignore[dict-item]
    assert together.scope("digits") is Scope.FLOATING_POINT
    assert together.scope("another") is Scope.CLAIM
    for wrong in ("claim", "digits", 3, ["floating-point"]):
        with pytest.raises(InputError, match=r"side\.digits must be one of floating-point, beyond-schema"):
            JointTest(side={"digits": wrong})  # type: ignore[dict-item]


def test_zero_bounds_are_refused() -> None:
    with pytest.raises(InputError, match="must be >= 1"):
        ErrorBudget(0.95, 0)
