"""Crafted data in which one record decides an answer, played against honest predictors and predictors that leak."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, Verdict, audit, from_predictor
from dpaudit.actors.work import Call
from dpaudit.claims import GaussianDP, PrivacyCurve, PureDP, RenyiDP
from dpaudit.claims.curve import TwoSteps
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.predictions.crafted_pairs import crafted_pairs
from dpaudit.engine.games.predictions.crafted_queries import CraftedQueries
from dpaudit.engine.planning.plan import PlannedAudit, make_plan
from dpaudit.engine.request.check import CheckRequest, check_spec
from dpaudit.engine.request.timing import training_seconds
from dpaudit.estimators.two_world.fair_coins import FairCoins
from tests import nightly
from tests.engine.pair_source_kit import played_scores

ADDED = Claim(1.0, relation=Relation.ADD_REMOVE)
REPLACED = Claim(1.0, relation=Relation.REPLACE)
DATA = GaussianMixture(classes=2, rows=300).load(seed=0)
TARGET, TEST = DATA.take(np.arange(200)), DATA.take(np.arange(200, 300))


class Neighbours:
    """Noisy votes of the 15 nearest records."""

    scale = 2.0

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int | None:
        X, y = data
        near = np.argsort(((X - query) ** 2).sum(axis=1), kind="stable")[:15]
        return self.of(np.bincount(y[near], minlength=2), rng)

    def of(self, votes: Any, rng: np.random.Generator) -> int | None:
        return int(np.argmax(votes + rng.laplace(0, self.scale, 2)))


class Bare(Neighbours):
    """DEFECT: no noise."""

    def of(self, votes: Any, rng: np.random.Generator) -> int:
        return int(votes.argmax())


class Screened(Neighbours):
    """DEFECT: answers only where the exact majority is large."""

    def of(self, votes: Any, rng: np.random.Generator) -> int | None:
        return super().of(votes, rng) if votes.max() >= 11 else None


class Raising(Neighbours):
    """DEFECT: raises where no record is near."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int | None:
        if ((data[0] - query) ** 2).sum(axis=1).min() > 0.01:
            raise ValueError("no record is near")
        return super().answer(query, data, rng)


class Spent(Neighbours):
    """DEFECT: no noise after ten answers."""

    answer_count = 0

    def of(self, votes: Any, rng: np.random.Generator) -> int | None:
        self.answer_count += 1
        return super().of(votes, rng) if self.answer_count <= 10 else int(votes.argmax())


class Shared(Neighbours):
    """DEFECT: all answers share the noise of the first."""

    noise: Any = None

    def of(self, votes: Any, rng: np.random.Generator) -> int:
        if self.noise is None:
            self.noise = rng.laplace(0, self.scale, 2)
        return int(np.argmax(votes + self.noise))


class Nearest:
    """Leaks exactly what it claims: the label of the nearest record, by randomised response at epsilon 1."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        X, y = data
        near = int(y[((X - query) ** 2).sum(axis=1).argmin()])
        return near if rng.random() < math.e / (1 + math.e) else 1 - near


class Broken:
    """Always raises."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        raise KeyError("a bug")


def of_curve(curve: PrivacyCurve) -> Claim:
    return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=1e-5)


def bound(
    predictor: Any, claim: Claim, *, search: int = 1_200, trials: int = 1_000, seed: int = 0, answers: int = 1
) -> Any:
    """Return the bound of a game with `trials` fresh runs, at 95 %."""
    game = CraftedQueries(trials, trials, search, answers, claim.relation)
    scores = played_scores(game, from_predictor(predictor, claim), TARGET, test=TEST, seed=seed)
    estimator = FairCoins(guess="signed")
    return estimator.bound([estimator.tally(scores)])


@pytest.mark.parametrize("predictor", [Bare, Screened, Raising, Spent])
@pytest.mark.parametrize("claim", [ADDED, REPLACED], ids=lambda claim: str(claim.relation))
def test_one_record_decides_an_answer(predictor: Any, claim: Claim) -> None:
    """Each defect reveals the record with certainty, for some query of some data set."""
    if predictor is Raising and claim is REPLACED:
        pytest.skip("a label in another's place moves no record")
    assert bound(predictor, claim).lower > 3


def test_noise_that_two_answers_share() -> None:
    """One answer keeps the claim, two do not."""
    assert bound(Shared, Claim(2.0, relation=Relation.ADD_REMOVE), answers=2, trials=2_000).lower > 2


@pytest.mark.parametrize(
    "claim",
    [
        REPLACED,
        pytest.param(Claim.of(GaussianDP(1.25), relation=Relation.REPLACE, delta=1e-6), marks=pytest.mark.nightly),
    ],
)
def test_an_honest_predictor_is_refuted_as_seldom_as_stated(claim: Claim) -> None:
    """The predictor leaks all that its claim allows. More than the permitted refutations have probability 0.0003.

    1.25-GDP covers randomised response at epsilon 1: total variation 0.46 of 0.468.
    """
    games = 20 if nightly.on() else 8
    points = [
        bound(Nearest, claim, search=600, trials=300, seed=seed).violation_point(claim.curve) for seed in range(games)
    ]
    assert sum(point is not None for point in points) <= binom.ppf(1 - 3e-4, games, 0.05)


@pytest.mark.parametrize(
    ("claimed", "both"),
    [
        (Claim(1.0, relation=Relation.ADD_REMOVE), Claim.of(TwoSteps(PureDP(1.0)), relation=Relation.ADD_REMOVE)),
        (Claim(1.0, 1e-5, relation=Relation.ADD_REMOVE), Claim(2.0, 2e-5, relation=Relation.ADD_REMOVE)),
        (of_curve(GaussianDP(1.0)), of_curve(GaussianDP(2**0.5))),
        (of_curve(RenyiDP((2.0, 4.0), (0.5, 1.0))), of_curve(RenyiDP((2.0, 4.0), (1.0, 2.0)))),
        (of_curve(TwoSteps(PureDP(0.5))), of_curve(TwoSteps(TwoSteps(PureDP(0.5))))),
    ],
    ids=lambda claim: str(claim.curve),
)
def test_two_answers_are_held_to_what_composes_of_one(claimed: Claim, both: Claim) -> None:
    compared = CraftedQueries(answers=2).traits.compared(claimed)
    assert (compared.claim, compared.steps) == (both, 2)
    assert "by composition epsilon" in compared.note
    assert CraftedQueries().traits.compared(claimed).claim == claimed


def test_two_answers_about_a_replaced_record() -> None:
    """Composition first, then the two steps of a replacement: 2 sqrt(2) mu."""
    compared = CraftedQueries(answers=2, relation=Relation.REPLACE).traits.compared(of_curve(GaussianDP(1.0)))
    assert compared.claim.curve == GaussianDP(2 * 2**0.5)
    assert compared.steps == 4


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("answers", [1, 2])
def test_both_data_sets_of_a_pair_differ_in_one_record(replaced: bool, answers: int) -> None:
    crafted = list(crafted_pairs(from_predictor(Neighbours, ADDED), TARGET, TEST, answers, replaced=replaced))
    assert len(crafted) > 30
    for pair in crafted:
        more = len(pair.added) - len(pair.without)
        assert more == (0 if replaced else 1)
        size = len(pair.added) - 1
        rows, others = (np.column_stack([part.features, part.labels]) for part in (pair.added, pair.without))
        same = (rows[:size] == others[:size]).all(axis=1)
        place = size if replaced or same.all() else int(same.argmin())  # of the record: the last one, or in the middle
        np.testing.assert_array_equal(np.delete(rows, place, axis=0), others[:size])
        assert len(pair.looked_at) == answers
        low, high = TARGET.features.min(), max(TARGET.features.max(), TEST.features.max())
        assert pair.added.features.max() <= high
        assert pair.added.features.min() >= min(low, TEST.features.min())


class Counted:
    """The labels of the 15 nearest records vote; the audit adds the noise."""

    def votes(self, queries: Any, data: Any, rng: Any) -> Any:
        X, y = data
        near = np.argsort(((X[None] - queries[:, None]) ** 2).sum(axis=2), axis=1, kind="stable")[:, :15]
        return np.stack([np.bincount(row, minlength=2) for row in y[near]])


@pytest.mark.parametrize("noise_is_added", [True, False], ids=["noise added here", "noise of its own"])
def test_votes_are_played_without_the_noise_that_is_added_here(tmp_path: Path, noise_is_added: bool) -> None:
    claim = Claim.of(GaussianDP(0.5), relation=Relation.ADD_REMOVE, delta=1e-6)
    mechanism = (
        from_predictor(Counted, claim, sigma=2 * math.sqrt(2)) if noise_is_added else from_predictor(Neighbours, ADDED)
    )
    entry = Audit(mechanism, GaussianMixture(classes=2, rows=200), game=CraftedQueries(trials=300, search=320))
    spec = AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False))
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert result.sensitivity.maximum is not None
    assert result.sensitivity.noiseless is noise_is_added
    assert result.verdict is Verdict.NO_VIOLATION
    assert ("(measured without noise)" in result.answer.line("sensitivity")) is noise_is_added


class Counting(Neighbours):
    """Records the number of records of each run."""

    sizes: ClassVar[list[int]] = []

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int | None:
        self.sizes.append(len(data[0]))
        return super().answer(query, data, rng)


class Exits(Neighbours):
    """Ends its process where records are few."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int | None:
        if len(data[0]) < 20:
            raise SystemExit(3)
        return super().answer(query, data, rng)


def test_a_predictor_is_timed_on_data_of_the_sizes_it_is_run_on() -> None:
    """Not timed: slow runs on all rows, and runs that raise or exit."""
    Counting.sizes.clear()
    assert training_seconds(from_predictor(Counting, ADDED), TARGET)
    assert np.median(Counting.sizes) < len(TARGET) / 2
    assert training_seconds(from_predictor(Exits, ADDED), TARGET)
    assert training_seconds(from_predictor(Broken, ADDED), TARGET) is None


def test_a_confirmatory_run_has_the_data_sets_of_the_first_pass_and_runs_of_its_own() -> None:
    """With the same runs, a result of chance would confirm itself."""
    first, again = [
        entry
        for entry in make_plan(check_spec(CheckRequest(from_predictor(Neighbours, ADDED)))).audits
        if "one answer" in entry.audit.name
    ]
    assert again.confirmatory

    def units(entry: PlannedAudit, label: str) -> dict[str, str]:
        calls = [unit for unit in entry.units if isinstance(unit.task, Call) and unit.label.startswith(label)]
        return {unit.key: str(unit.task.argument("seed")) for unit in calls}

    assert units(first, "neighbouring inputs") == units(again, "neighbouring inputs")
    fresh = [set(units(entry, "fresh runs").values()) for entry in (first, again)]
    assert all(fresh)
    assert not fresh[0] & fresh[1]
