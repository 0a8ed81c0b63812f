"""Evidence over nights: how often honest series are refuted, what a weak leak needs, and a defect in the bets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Claim
from dpaudit.claims import GaussianDP, Relation
from dpaudit.errors import InputError
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.nights import Won, log_evidence, points_of
from tests.nightly import by_day, nightly_games, too

ERROR, SERIES, NIGHTS, CALLS = 0.05, nightly_games(400), by_day(20, by_night=30), 200
LIMIT = binom.ppf(1 - 1e-6, SERIES, ERROR)
"""Alarms among honest series: more of them come with probability below 1e-6."""
Night = Callable[[int, np.random.Generator], Scores]


def laplace(epsilon: float) -> Night:
    """A count with noise, seen as it is."""

    def night(calls: int, rng: np.random.Generator) -> Scores:
        truth = rng.random(calls) < 0.5
        return Scores(truth + rng.laplace(0, 1 / epsilon, calls), truth)

    return night


def response(epsilon: float, bare: float = 0.0) -> Night:
    """Randomised response, with a share of calls that tell the truth and say so."""

    def night(calls: int, rng: np.random.Generator) -> Scores:
        truth = rng.random(calls) < 0.5
        kept = rng.random(calls) < 1 / (1 + math.exp(-epsilon))
        said = np.where(truth == kept, 1.0, -1.0)
        return Scores(np.where(rng.random(calls) < bare, np.where(truth, 2.0, -2.0), said), truth)

    return night


def gaussian(mu: float) -> Night:
    def night(calls: int, rng: np.random.Generator) -> Scores:
        truth = rng.random(calls) < 0.5
        return Scores(mu * truth + rng.standard_normal(calls), truth)

    return night


def refuted_in(
    night: Night, claim: Claim, rng: np.random.Generator, *, nights: int = NIGHTS, calls: int = CALLS
) -> int:
    """The night in which a series refutes the claim; 0 where none does."""
    points, won = points_of(claim), Won.nothing()
    for number in range(1, nights + 1):
        won += Won.on(night(calls, rng))
        if log_evidence([(won, points)]) >= -math.log(ERROR):
            return number
    return 0


CURVE = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
AT_THE_CLAIM = {
    "laplace": (laplace(1.0), Claim(1.0)),
    "response": (response(0.5), Claim(0.5)),
    "response, delta": (response(1.0, bare=0.05), Claim(1.0, 0.05)),
    "gaussian": (gaussian(1.0), CURVE),
}


@pytest.mark.parametrize("name", ["laplace", "response, delta", "gaussian", *too("response")])
def test_honest_series_are_refuted_no_more_often_than_stated(name: str) -> None:
    """False failure < 1e-6 for each mechanism; all spend exactly what they claim."""
    night, claim = AT_THE_CLAIM[name]
    rng = np.random.default_rng(1)
    assert sum(refuted_in(night, claim, rng) > 0 for _ in range(SERIES)) <= LIMIT


def test_bets_on_the_calls_they_were_chosen_by_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same series with a defect: the set of each night is the best one for the calls that are bet on."""

    def on_the_same(scores: Scores) -> Won:
        ones, zeros = np.sort(scores.score[scores.truth]), np.sort(scores.score[~scores.truth])
        hits = ones.size - np.searchsorted(ones, ones)
        alarms = zeros.size - np.searchsorted(zeros, ones)
        best = int(np.argmax(hits - math.e * alarms))
        none = Won.nothing()
        side = np.array([1, 0])[:, None] + 0 * none.hits
        return Won(side * hits[best], side * alarms[best], min(ones.size, zeros.size))

    monkeypatch.setattr(Won, "on", on_the_same)
    rng = np.random.default_rng(1)
    assert sum(refuted_in(laplace(1.0), Claim(1.0), rng) > 0 for _ in range(SERIES)) > LIMIT


@pytest.mark.parametrize(
    ("night", "claim"),
    [(laplace(1.15), Claim(1.0)), (response(1.1), Claim(1.0)), (response(1.0, bare=0.08), Claim(1.0, 0.05))],
)
def test_a_leak_too_weak_for_a_night_is_found_by_several(night: Night, claim: Claim) -> None:
    rng = np.random.default_rng(2)
    found = [refuted_in(night, claim, rng, nights=60, calls=1_000) for _ in range(20)]
    assert min(found) > 0
    assert 2 <= np.median(found) <= 30


def test_a_constant_that_tells_nothing_and_one_call_leave_the_capital() -> None:
    few = Scores(np.array([1.0, 0.0]), np.array([True, False]))
    assert Won.on(few).pairs == 0
    assert log_evidence([(Won.nothing(), points_of(Claim(1.0)))]) == pytest.approx(0.0)
    one_world = Scores(np.ones(50), np.ones(50, np.bool_))
    assert Won.on(one_world).pairs == 0
    same = Won.on(Scores(np.zeros(400), np.arange(400) % 2 == 0))
    assert log_evidence([(same, points_of(Claim(1.0)))]) < 0


def test_what_is_infinitely_telling_refutes_at_once_and_a_lost_bet_is_no_error() -> None:
    truth = np.arange(400) % 2 == 0
    told = Scores(np.where(truth, np.inf, -np.inf), truth)
    assert log_evidence([(Won.on(told), points_of(Claim(1.0)))]) > 20
    lied = Scores(np.where(truth, -np.inf, np.inf), truth)
    assert -math.inf < log_evidence([(Won.on(lied), points_of(Claim(1.0)))]) < -1


def test_a_claim_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="must promise a finite epsilon"):
        points_of(Claim(math.inf))
