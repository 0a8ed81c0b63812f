"""Memory between calls: told apart from seeds, from no randomness, and from what is equal by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Claim, Relation, RunOptions, Verdict, check, from_predictor
from dpaudit.actors.seed import Seed
from dpaudit.engine.data.gaussian_mixture import GaussianMixture
from dpaudit.engine.planning.asked_twice import BY_CHANCE, Memory, as_given, by_chance, look_for_memory
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
from dpaudit.engine.run.checking import decided
from dpaudit.engine.run.driver import audit, report_again
from dpaudit.mechanisms.compute import Compute
from tests import remembering
from tests.nightly import by_day

pytestmark = pytest.mark.usefixtures("few_releases")
HERE = RunOptions(runner="in-process", figures=False, repeats=0)
FEW = GaussianMixture(classes=10, rows=600)


def looked_for(mechanism: Any) -> Memory:
    data = GaussianMixture(classes=10, rows=400).load(seed=0)
    found: Memory = look_for_memory(mechanism, as_given(mechanism), data, Compute(), seed=Seed(0))
    return found


@pytest.mark.parametrize("name", ["Memoised", "KeptNoise", "HalfRemembered"])
def test_memory_is_found(name: str) -> None:
    found = looked_for(getattr(remembering, name)())
    assert found.carried
    assert found.by_chance < BY_CHANCE
    assert "keeps state between calls" in found.words


@pytest.mark.parametrize("name", ["Fresh", "Seeded", "SeedsTheGlobalGenerator", "Bare", "Mostly", "Failing"])
def test_what_is_equal_for_other_reasons_is_no_memory(name: str) -> None:
    """A seed in the code, no randomness and few symbols give the same in a fresh process as well."""
    found = looked_for(getattr(remembering, name)())
    assert not found.carried
    assert (found.alike == 1) == (name in ("Seeded", "SeedsTheGlobalGenerator", "Bare"))
    assert ("a seed in the code" in found.words) == (name in ("Seeded", "SeedsTheGlobalGenerator", "Bare"))


def test_equal_releases_by_chance_are_held_to_be_memory_no_more_often_than_stated() -> None:
    """Whatever the law of a release: of draws from few symbols the p-value is below 1 % in at most 1 %.

    When all is well more than the limit are below with probability 0.0001.
    """
    rng, draws = np.random.default_rng(0), by_day(1_000, by_night=4_000)
    for symbols in (2, 3, 10):
        found = [by_chance(rng.integers(0, symbols, (40, 4))) for _ in range(draws)]
        assert np.count_nonzero(np.array(found) < 0.01) <= binom.ppf(1 - 1e-4, draws, 0.01)


class Unsendable(remembering.Memoised):
    """Cannot be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def test_what_cannot_be_asked_afresh_is_not_convicted() -> None:
    found = looked_for(Unsendable())
    assert found.carried
    assert "no fresh process could be asked" in found.words


def test_a_memoised_release_is_undecided_and_a_seeded_one_a_violation(tmp_path: Path) -> None:
    """Both give the same labels the same release; the report says which it is, and says so again without running."""
    memoised = check(remembering.KeptNoise(), FEW, run=HERE, output=tmp_path / "memoised", quiet=True)
    assert memoised.joint is not None
    assert memoised.joint.verdict is Verdict.UNDECIDED
    assert memoised.joint.answer.rule == "state-between-calls"
    assert "your code keeps state between calls" in memoised.joint.answer.line("reason")
    assert "Let each call draw anew" in memoised.joint.answer.line("next")
    assert not memoised.violations
    again = report_again(tmp_path / "memoised", allow_code=True)
    assert again.joint is not None
    assert again.joint.answer.to_dict() == memoised.joint.answer.to_dict()
    spec = check_spec(CheckRequest(remembering.KeptNoise(), FEW), CheckOptions(until_decided=True))
    assert decided(spec, memoised, tmp_path / "memoised") is memoised  # more trials would not tell
    seeded = check(remembering.Seeded(), FEW, run=HERE, output=tmp_path / "seeded", quiet=True)
    assert seeded.joint is not None
    assert seeded.joint.verdict is Verdict.VIOLATION
    assert "a seed in the code" in seeded.joint.answer.line("reason")


def test_a_run_looks_for_memory_too(own_python: None, tmp_path: Path) -> None:
    """Outside of a check as well."""
    entry = Audit(
        remembering.Memoised(),
        GaussianMixture(classes=2, rows=300),
        game={"name": "label-repeats", "search": 60, "trials": 200},
    )
    result = audit(AuditSpec((entry,), run=HERE), output=tmp_path / "run", quiet=True).results[0]
    assert result.verdict is Verdict.UNDECIDED
    assert "carries nothing from one call to the next" in result.assumes


_ANSWERS: dict[bytes, int] = {}


class Remembering:
    """The nearest record's label by randomised response, kept for the query and the data."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        X, y = data
        key = query.tobytes() + X.tobytes() + y.tobytes()
        if key not in _ANSWERS:
            near = int(y[((X - query) ** 2).sum(axis=1).argmin()])
            _ANSWERS[key] = near if np.random.default_rng().random() < 0.7 else 1 - near
        return _ANSWERS[key]


def test_a_memoised_predictor_is_undecided(tmp_path: Path) -> None:
    """One answer is one symbol: data sets enough are asked about."""
    own = from_predictor(Remembering, Claim(1.0, relation=Relation.REPLACE))
    report = check(own, run=HERE, output=tmp_path / "run", quiet=True, budget="800 trainings")
    assert report.joint is not None
    assert report.joint.verdict is not Verdict.VIOLATION
