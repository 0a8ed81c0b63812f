"""Answers behind a threshold: Confident-GNMax, and Interactive-GNMax, which compares votes with a student's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpmath import mp, mpf, ncdf, workdps
from mpmath import quad as integral
from numpy.typing import NDArray
from scipy.stats import chi2

from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.actors.seed import Seed
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.predictions.answer_laws import Worlds, answer_laws, log_flips, release_law, simulated
from dpaudit.errors import InputError
from dpaudit.estimators.private_prediction.answers_estimator import AnsweredQuery, Answers
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.predictors.ensemble import CaPC
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn
from dpaudit.mechanisms.predictors.vote_laws import AlikeTeachers, ConfidentArgmax, InteractiveArgmax, KnownVotes
from tests.twins import gnmax_twin

VOTES = np.array([13, 12, 10])
EXPECTED = (9.5, 14.0, 11.5)
CONFIDENT = ConfidentArgmax(4.0, 12.5, 3.0)
UNSURE = InteractiveArgmax(4.0, 2.5, 3.0, expected=EXPECTED)
SURE = replace(UNSURE, student_class=1)
RELEASES = [CONFIDENT, UNSURE, SURE]
NAMES = ["confident", "unsure", "sure"]
SHARES = np.array([0.5, 0.3, 0.2])
MOVED = np.array([[0.1, 0.8, 0.1]])
WORLDS = Worlds(AlikeTeachers(34, SHARES, MOVED), AlikeTeachers(34, SHARES, SHARES[None]))


@workdps(30)
def algorithm_2(release: ConfidentArgmax, votes: NDArray[np.int64]) -> list[float]:
    """Return the law by Papernot et al. (2018), algorithms 1 and 2, in thirty digits."""
    expected_votes = release.expected if isinstance(release, InteractiveArgmax) else (0,) * len(votes)
    largest = max(mpf(int(count)) - mpf(subtracted) for count, subtracted in zip(votes, expected_votes, strict=True))
    passed = ncdf((largest - mpf(release.threshold)) / mpf(release.threshold_sigma))

    def wins(c: int) -> mpf:
        def at(x: mpf) -> mpf:
            z = [(x - int(count)) / mpf(release.sigma) for count in votes]
            others = mp.fprod(ncdf(each) for i, each in enumerate(z) if i != c)
            return mp.npdf(z[c]) / mpf(release.sigma) * others

        return integral(at, [-40, 0, 10, 15, 25, 70])

    law = [passed * wins(c) for c in range(len(votes))] + [mpf(0)]
    silent_class = (
        release.student_class
        if isinstance(release, InteractiveArgmax) and release.student_class is not None
        else len(votes)
    )
    law[silent_class] += 1 - passed
    return [float(p) for p in law]


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_the_law_with_no_answer_is_exact(release: ConfidentArgmax) -> None:
    law = release_law(release, VOTES[None])
    assert law is not None
    np.testing.assert_allclose(law[0], algorithm_2(release, VOTES), atol=1e-9)
    assert (law[0, -1] == 0) == (release is SURE)


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_simulated_answers_have_the_exact_law(release: ConfidentArgmax) -> None:
    """False failure 1e-6 each. An answer of probability 0 in the law would fail by a division by 0."""
    laws = answer_laws(WORLDS, release, Seed(1))
    assert laws is not None
    counts, expected = simulated(WORLDS.one, release, 60_000, np.random.default_rng(2)), 60_000 * laws.one
    if release is SURE:
        assert counts[-1] == 0
        counts, expected = counts[:-1], expected[:-1]
    slack = 1 / (1 + 60_000 / 2000)  # the law stands on 2,000 histograms
    assert slack * ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 3)


def test_zero_expectations_give_confident_gnmax() -> None:
    alike = InteractiveArgmax(4.0, 12.5, 3.0, expected=(0.0, 0.0, 0.0))
    np.testing.assert_array_equal(release_law(alike, VOTES[None]), release_law(CONFIDENT, VOTES[None]))
    assert alike.curve() == CONFIDENT.curve() == UNSURE.curve()


def test_no_moved_vote_exceeds_the_claim_or_the_charge() -> None:
    """Every move of one vote from many histograms: exact <= data-dependent <= claimed, both ways."""
    rng = np.random.default_rng(3)
    tighter = 0
    for _ in range(12):
        votes = rng.multinomial(40, rng.dirichlet([0.4, 0.3, 0.2]))
        expected_votes = tuple((40 * rng.dirichlet([1.0, 1.0, 1.0])).tolist())
        for release in (CONFIDENT, InteractiveArgmax(4.0, 6.0, 3.0, expected=expected_votes, student_class=0)):
            claimed = np.array([release.curve().renyi(order) for order in Answers().orders])
            for loses, gains in itertools.permutations(range(3), 2):
                if votes[loses] == 0:
                    continue
                other = votes + np.eye(3, dtype=np.int64)[gains] - np.eye(3, dtype=np.int64)[loses]
                after, zero = KnownVotes(other), KnownVotes(votes)
                assert abs(release.margins(other[None]) - release.margins(votes[None])) <= 1
                tally = Answers().tally(query_of(Worlds(after, zero), release))
                for direction in ("forward", "backward"):
                    exact, charged = (getattr(tally, f"{kind}_{direction}") for kind in ("exact", "dependent"))
                    assert (exact <= charged + 1e-12).all()
                    assert (charged <= claimed + 1e-12).all()
                    tighter += bool((charged < 0.9 * claimed).any())
    assert tighter > 20


def query_of(worlds: Worlds, release: ConfidentArgmax) -> AnsweredQuery:
    laws = answer_laws(worlds, release, Seed(1))
    assert laws is not None
    (log_p_flip_1, log_p_check_1), (log_p_flip_0, log_p_check_0) = (
        log_flips(law, release, Seed(2)) for law in (worlds.one, worlds.zero)
    )
    counts, chosen = np.array([5, 5, 5, 5]), np.array([True, False, False, False])
    deviations = {"sigma": release.sigma, "threshold_sigma": release.threshold_sigma}
    return AnsweredQuery(
        0, counts, counts, chosen, laws.one, laws.zero,
        log_p_flip_1=log_p_flip_1, log_p_flip_0=log_p_flip_0, log_p_check_1=log_p_check_1, log_p_check_0=log_p_check_0,
        **deviations,
    )  # fmt: skip


@workdps(30)
def test_charge_agrees_with_its_slow_twin() -> None:
    """Theorem 6 for the answer and for the threshold, whose cost is that of sqrt(2) times its noise."""
    votes = np.array([38, 1, 1])
    release = ConfidentArgmax(4.0, 24.0, 3.0)
    tally = Answers(orders=(1.5, 2.0, 3.0)).tally(query_of(Worlds(KnownVotes(votes), KnownVotes(votes)), release))
    for place, order in enumerate((1.5, 2.0, 3.0)):
        rarer = ncdf(-(mpf(38) - 24) / 3)
        charge = gnmax_twin.rdp(votes.tolist(), mpf(4), mpf(order)) + gnmax_twin.rdp_of(
            rarer, mp.sqrt(2) * 3, mpf(order)
        )
        assert tally.dependent_forward[place] == pytest.approx(float(charge), rel=1e-9)
    assert tally.dependent_forward[0] < 0.5 * release.curve().renyi(1.5)


def test_an_audit_with_a_student(tmp_path: Path) -> None:
    """Teachers rarely answer if the student expects their votes: the law has the student's class instead of none."""
    data = GaussianMixture(classes=2, rows=200)
    game = {"name": "private-prediction", "queries": 6, "runs": 1, "moved_runs": 1, "resamples": 0}
    plain = CaPC(teachers=20, sigma=10.0, threshold=12.0, threshold_sigma=4.0, model=LogisticRegression())
    by_confidence = {}
    for sure in (0.5, 1.0):
        student = replace(plain, student=LogisticRegression(), public=GaussianMixture(classes=2, rows=400), sure=sure)
        entry = Audit(student, data, game=game, split=Partition(0.8, 0.0, 0.2))
        spec = AuditSpec((entry,), seed=3, run=RunOptions(runner="in-process", figures=False))
        by_confidence[sure] = audit(spec, output=tmp_path / str(sure)).results[0]
        assert "NO VIOLATION FOUND" in str(by_confidence[sure])
    queries = data.load(seed=1).features[:4]
    releases = student.releases(queries, voters=20, compute=Compute())
    assert all(isinstance(each, InteractiveArgmax) and sum(each.expected) == pytest.approx(20) for each in releases)
    # Reinforcing hides whether there was an answer: it can only tell less.
    assert by_confidence[0.5].finding.exact.larger.max() <= by_confidence[1.0].finding.exact.larger.max() + 1e-12


def test_student_needs_a_threshold_and_public_data() -> None:
    with pytest.raises(InputError, match="a student needs a threshold"):
        CaPC(student=LogisticRegression())
    with pytest.raises(InputError, match="without a threshold"):
        PrivateKnn(threshold=3.0)
    with pytest.raises(InputError, match="student_class must be one of the classes"):
        replace(UNSURE, student_class=3)
