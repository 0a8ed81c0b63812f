"""State between calls is told from fixed seeds, from missing randomness and from releases equal by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Claim, Relation, RunOptions, Verdict, check, from_predictor
from dpaudit.actors.seed import Seed
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.planning.state_between_calls import (
    SIGNIFICANCE,
    StateBetweenCalls,
    detect_state,
    p_value_without_state,
    pickled_mechanism,
)
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
from dpaudit.engine.run.checking import rerun_undecided
from dpaudit.engine.run.driver import audit, report_again
from dpaudit.mechanisms.compute import Compute
from tests import remembering
from tests.nightly import by_day

pytestmark = pytest.mark.usefixtures("few_releases")
IN_PROCESS = RunOptions(runner="in-process", figures=False, repeats=0)
FEW = GaussianMixture(classes=10, rows=600)


def state_of(mechanism: Any) -> StateBetweenCalls:
    data = GaussianMixture(classes=10, rows=400).load(seed=0)
    state: StateBetweenCalls = detect_state(mechanism, pickled_mechanism(mechanism), data, Compute(), seed=Seed(0))
    return state


@pytest.mark.parametrize("name", ["Memoised", "KeptNoise", "HalfRemembered"])
def test_state_is_detected(name: str) -> None:
    state = state_of(getattr(remembering, name)())
    assert state.possible
    assert state.p_value < SIGNIFICANCE
    assert "keeps state between calls" in state.words


@pytest.mark.parametrize("name", ["Fresh", "Seeded", "SeedsTheGlobalGenerator", "Bare", "Mostly", "Failing"])
def test_releases_equal_for_other_reasons_are_not_state(name: str) -> None:
    """A fixed seed, missing randomness and few symbols give equal releases in a fresh process too."""
    state = state_of(getattr(remembering, name)())
    assert not state.possible
    assert (state.share_equal == 1) == (name in ("Seeded", "SeedsTheGlobalGenerator", "Bare"))
    assert ("a fixed seed" in state.words) == (name in ("Seeded", "SeedsTheGlobalGenerator", "Bare"))


def test_releases_equal_by_chance_are_reported_as_state_no_more_often_than_stated() -> None:
    """For draws from few symbols, at most 1 % of p-values are below 1 %; false failure < 1e-4."""
    rng, draws = np.random.default_rng(0), by_day(1_000, by_night=4_000)
    for symbols in (2, 3, 10):
        p_values = [p_value_without_state(rng.integers(0, symbols, (40, 4))) for _ in range(draws)]
        assert np.count_nonzero(np.array(p_values) < 0.01) <= binom.ppf(1 - 1e-4, draws, 0.01)


class Unsendable(remembering.Memoised):
    """A mechanism that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def test_a_mechanism_that_cannot_be_pickled_is_not_convicted() -> None:
    state = state_of(Unsendable())
    assert state.possible
    assert "the call in a fresh process failed" in state.words


def test_a_memoised_release_is_undecided_and_a_seeded_one_a_violation(tmp_path: Path) -> None:
    """Both return the same release for the same labels; the report, also when rebuilt, says why."""
    memoised = check(remembering.KeptNoise(), FEW, run=IN_PROCESS, output=tmp_path / "memoised", quiet=True)
    assert memoised.joint is not None
    assert memoised.joint.verdict is Verdict.UNDECIDED
    assert memoised.joint.answer.rule == "state-between-calls"
    assert "your code keeps state between calls" in memoised.joint.answer.line("reason")
    assert "Draw new noise in each call" in memoised.joint.answer.line("next")
    assert not memoised.violations
    again = report_again(tmp_path / "memoised", allow_code=True)
    assert again.joint is not None
    assert again.joint.answer.to_dict() == memoised.joint.answer.to_dict()
    spec = check_spec(CheckRequest(remembering.KeptNoise(), FEW), CheckOptions(until_decided=True))
    assert rerun_undecided(spec, memoised, tmp_path / "memoised") is memoised  # more trials would not decide
    seeded = check(remembering.Seeded(), FEW, run=IN_PROCESS, output=tmp_path / "seeded", quiet=True)
    assert seeded.joint is not None
    assert seeded.joint.verdict is Verdict.VIOLATION
    assert "a fixed seed" in seeded.joint.answer.line("reason")


def test_a_run_checks_for_state(own_python: None, tmp_path: Path) -> None:
    """Not only `check` does."""
    entry = Audit(
        remembering.Memoised(),
        GaussianMixture(classes=2, rows=300),
        game={"name": "label-repeats", "search": 60, "trials": 200},
    )
    result = audit(AuditSpec((entry,), run=IN_PROCESS), output=tmp_path / "run", quiet=True).results[0]
    assert result.verdict is Verdict.UNDECIDED
    assert "keeps no state between calls" in result.assumes


_ANSWERS: dict[bytes, int] = {}


class Remembering:
    """Releases the nearest label by randomised response, cached by query and data."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        X, y = data
        key = query.tobytes() + X.tobytes() + y.tobytes()
        if key not in _ANSWERS:
            near = int(y[((X - query) ** 2).sum(axis=1).argmin()])
            _ANSWERS[key] = near if np.random.default_rng().random() < 0.7 else 1 - near
        return _ANSWERS[key]


def test_a_memoised_predictor_is_undecided(tmp_path: Path) -> None:
    """One answer is one symbol, so many data sets are needed."""
    predictor = from_predictor(Remembering, Claim(1.0, relation=Relation.REPLACE))
    report = check(predictor, run=IN_PROCESS, output=tmp_path / "run", quiet=True, budget="800 trainings")
    assert report.joint is not None
    assert report.joint.verdict is not Verdict.VIOLATION
