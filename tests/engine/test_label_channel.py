"""Label mechanisms by a learned channel and by repeated releases: planted leaks and honest mechanisms."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit import Audit, AuditSpec, Claim, Report, RunOptions, Verdict, audit
from dpaudit.actors.seed import Seed
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.labels.label_channel import GivenRows, release_known
from dpaudit.engine.games.labels.label_designs import ChannelView, LabelReleases, hide_half, release_labels
from dpaudit.engine.games.labels.learned_channel import LearnedChannel, related_lags
from dpaudit.engine.games.reference import PairedLabels
from dpaudit.engine.planning.state_between_calls import StateBetweenCalls, detect_state
from dpaudit.errors import RunError
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.queries.row_function import CallOutcome
from tests.bank.planted_learners import ConstantSeedResponse, OneDrawPerLabelResponse
from tests.nightly import by_day

Ints = NDArray[np.int64]
REPEATS = by_day({"name": "label-repeats", "search": 200, "trials": 600}, by_night={"name": "label-repeats"})
SURE = by_day(4, by_night=6)
"""Lower limit of the bound of repeated releases for a mechanism with no privacy."""


def played(mechanism: Any, game: Any, folder: Path, *, classes: int = 10, seed: int = 1) -> Report:
    """Return the result of an audit of a claim of 1 on 2,000 rows, in this process."""
    entry = Audit(
        mechanism=mechanism,
        data=GaussianMixture(rows=2_000, classes=classes),
        game=game,
        claim=Claim(1.0),
        split=Partition(1.0, 0.0, 0.0),
    )
    spec = AuditSpec((entry,), seed=seed, run=RunOptions(runner="in-process", figures=False, repeats=0))
    return audit(spec, output=folder, quiet=True)


@pytest.mark.parametrize("classes", [2, 10])
def test_twice_the_claim_is_rejected_with_2000_rows(classes: int, tmp_path: Path) -> None:
    """The right guesses exceed the claim by more than 50 standard deviations."""
    (result,) = played(RandomizedResponse(2.0), "label-channel", tmp_path, classes=classes).results
    assert result.verdict is Verdict.VIOLATION
    assert 1.7 < result.epsilon <= 2.0


def test_honest_response_is_not_rejected(tmp_path: Path) -> None:
    """The seed is fixed; with another seed a rejection has probability <= 0.05."""
    (result,) = played(RandomizedResponse(1.0), "label-channel", tmp_path).results
    assert result.verdict is Verdict.NO_VIOLATION
    assert result.epsilon > 0.8


def test_noise_shared_by_the_rows_of_a_label_is_detected_by_known_rows(tmp_path: Path) -> None:
    (result,) = played(OneDrawPerLabelResponse(1.0), "label-channel", tmp_path).results
    assert result.epsilon > 6


def test_noise_of_a_constant_seed_is_detected_by_both_games(tmp_path: Path) -> None:
    (channel,) = played(ConstantSeedResponse(1.0), "label-channel", tmp_path / "channel").results
    (repeats,) = played(ConstantSeedResponse(1.0), REPEATS, tmp_path / "repeats").results
    assert channel.epsilon > 6
    assert repeats.epsilon > SURE
    assert repeats.metrics == {"same_labels_released_alike": 1.0}


@dataclass(frozen=True)
class HashedSeedResponse(RandomizedResponse):
    """Randomised response with noise seeded by a hash of all labels."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """Return labels whose noise depends on the labels only."""
        seed = int.from_bytes(hashlib.sha256(labels.tobytes()).digest()[:8], "little")
        return super().release(labels, classes=classes, rng=np.random.default_rng(seed))


def test_noise_that_depends_on_the_labels_is_detected_only_by_repeats(tmp_path: Path) -> None:
    """Each single release looks honest."""
    (channel,) = played(HashedSeedResponse(1.0), "label-channel", tmp_path / "channel").results
    (repeats,) = played(HashedSeedResponse(1.0), REPEATS, tmp_path / "repeats").results
    assert channel.verdict is Verdict.NO_VIOLATION
    assert repeats.verdict is Verdict.VIOLATION
    assert repeats.epsilon > SURE


def test_repeats_of_an_honest_response_differ(tmp_path: Path) -> None:
    """The seed is fixed. Of the seeds 1 to 24 only 1 rejects it, as 0.05 allows; 3 of 300 simulated games did."""
    (result,) = played(RandomizedResponse(1.0), REPEATS, tmp_path, seed=2).results
    assert result.verdict is Verdict.NO_VIOLATION
    assert result.metrics == {"same_labels_released_alike": 0.0}


@dataclass
class Remembers:
    """Randomised response whose noise is drawn once, at its first release."""

    noise: Ints | None = None

    def claim(self) -> Claim:
        """Return a claim that holds for a single release."""
        return Claim(1.0)

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """Return randomised response with the stored noise."""
        if self.noise is None:
            self.noise = RandomizedResponse(1.0).release(np.zeros_like(labels), classes=classes, rng=rng)
        return (labels + self.noise) % classes


class Seeded(Remembers):
    """Mechanism with a seed in its code and labels that are not classes. It repeats its output without state."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return RandomizedResponse(1.0).release(labels, classes=classes, rng=np.random.default_rng(0)) + 100


def test_state_of_a_mechanism_is_reset_between_releases(tmp_path: Path) -> None:
    mechanism = Remembers()
    report = played(mechanism, "label-channel", tmp_path)
    assert mechanism.noise is None  # each unit runs a copy
    (result,) = report.results
    assert result.verdict is Verdict.NO_VIOLATION
    assert "released the same labels twice although the seeds differ, so it keeps its noise" in str(report)
    seeded = played(Seeded(), "label-channel", tmp_path / "seeded")
    assert "one object" not in str(seeded)
    honest = played(RandomizedResponse(1.0), "label-channel", tmp_path / "honest")
    assert "one object" not in str(honest)


def simulated(epsilon: float, rng: np.random.Generator) -> Scores:
    """Return a small game on binary randomised response, without the engine."""
    rows, search, fresh, classes = 300, 4, 2, 2
    response = RandomizedResponse(epsilon)
    labels = rng.integers(0, classes, (search + fresh, rows))
    released = np.stack([response.release(row, classes=classes, rng=rng) for row in labels])
    known_labels = np.stack([hide_half(row, rng)[0] for row in labels[search:]])
    form = np.zeros(search + fresh, np.int64)
    view_fresh = LabelReleases(released[search:], known_labels, classes, form[search:])
    planted = labels[search:][view_fresh.canaries]
    bits = rng.random(planted.size) < 0.5
    first, second = np.where(bits, planted, 1 - planted), np.where(bits, 1 - planted, planted)
    learned = LabelReleases(released[:search], labels[:search], classes, form[:search])
    view = ChannelView(learned, view_fresh, first, second)
    return Scores(LearnedChannel().score(view), bits)


GAMES = by_day(12, by_night=24)


def exceeded(epsilon: float, truth: float) -> int:
    """Return the number of small games in which the bound on randomised response exceeds a supposed truth."""
    rng = np.random.default_rng(5)
    estimator = SimultaneousGuessCount()
    bounds = [estimator.bound([estimator.tally(simulated(epsilon, rng))]).lower for _ in range(GAMES)]
    return sum(bound > truth for bound in bounds)


def test_bounds_hold_with_their_stated_probability() -> None:
    """False failure < 1e-4: the limit is the 1 - 1e-4 quantile of Binomial(GAMES, 0.05)."""
    assert exceeded(1.0, 1.0) <= binom.ppf(1 - 1e-4, GAMES, 0.05)


def test_lags_of_related_noise_are_found_without_false_lags() -> None:
    """A false lag needs 5 standard deviations at one of 500 distances, which has probability < 3e-4."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 10, (8, 1_000))
    assert related_lags(noise, 10) == []
    reused = np.tile(rng.integers(0, 10, (8, 100)), 10)
    assert set(related_lags(reused, 10)) <= {100, 200, 300, 400, 500}
    assert len(related_lags(reused, 10)) == 3


def test_levels_of_a_pair_are_those_of_randomised_response() -> None:
    """The levels are compared with the simulated share of canaries whose release is one of the two labels."""
    rng = np.random.default_rng(2)
    levels = PairedLabels(5).levels(1.0)
    planted = rng.integers(0, 5, 200_000)
    other = (planted + rng.integers(1, 5, planted.size)) % 5
    released = RandomizedResponse(1.0).release(planted, classes=5, rng=rng)
    hit_rate = np.mean((released == planted) | (released == other))
    assert levels.share[:2].sum() == pytest.approx(hit_rate, abs=6 * np.sqrt(0.25 / planted.size))
    assert np.mean(released == planted) / np.mean(released == other) == pytest.approx(np.e, rel=0.05)


@dataclass(frozen=True)
class FailsAtRandom(RandomizedResponse):
    """Randomised response that fails at random, or returns its labels as another type."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Any:
        """Return a randomised response, or fail at one in four releases."""
        chance = rng.random()
        if chance < 0.25:
            raise OSError("the disk is busy")
        symbols = super().release(labels, classes=classes, rng=rng)
        return symbols.astype(np.int8) if chance < 0.5 else symbols


def test_releases_that_fail_at_random_cost_their_share_without_false_violations(tmp_path: Path) -> None:
    """The seed is fixed; with another seed a rejection has probability <= 0.05."""
    (result,) = played(FailsAtRandom(1.0), "label-channel", tmp_path).results
    assert result.verdict is Verdict.NO_VIOLATION
    assert 0 < result.epsilon < 1
    (half,) = played(FailsAtRandom(4.0), "label-channel", tmp_path / "loud").results
    assert half.epsilon > 2  # other releases still count


@dataclass(frozen=True)
class TellsByFailing(RandomizedResponse):
    """Randomised response that raises if the label at one place is 0, so a single label decides."""

    place: int = 0

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """May raise."""
        if labels[self.place] == 0:
            raise ValueError("no 0 here")
        return super().release(labels, classes=classes, rng=rng)


def test_failures_are_outcomes_with_a_symbol_and_a_form() -> None:
    """A failure, a type, a wrong length and numbers that are not labels are outcomes."""
    train = Examples(np.zeros((3, 1), np.float32), np.array([0, 1, 2]), 3)

    @dataclass
    class Says:
        output: Any

        def release(self, labels: Ints, **_: Any) -> Any:
            if isinstance(self.output, type):
                raise self.output("no")
            return self.output

    def outcome(output: Any) -> CallOutcome:
        return release_labels(Says(output), train.labels, train.classes, Seed(0))

    assert outcome(np.array([0, 2, 1])).numbers.tolist() == [0, 2, 1]
    assert outcome(np.array([-1, np.nan, 7.0])).numbers.tolist() == [4, 6, 5]
    assert outcome([1, 0.5, np.inf]).numbers.tolist() == [1, 6, 5]
    for failed in (ValueError, np.array([1, 2]), "no labels", None):
        assert outcome(failed).numbers.tolist() == [3, 3, 3], failed
        assert outcome(failed).fault
    forms = [ValueError, KeyError, np.array([1, 2]), np.array([1]), np.zeros(3), np.zeros(3, np.int8), [0, 0, 0]]
    assert len({outcome(output).ending for output in forms}) == len(forms)


def test_release_that_always_fails_is_not_an_outcome() -> None:
    class Fails(RandomizedResponse):
        def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
            raise ValueError("no labels")

    labels = Examples(np.zeros((5, 1), np.float32), np.zeros(5, np.int64), 3)
    with pytest.raises(RunError, match="each of 4 releases failed, the first with ValueError: no labels"):
        release_known(Fails(1.0), GivenRows.of(labels), labels, Compute(), count=4, seed=Seed(0))


@dataclass(frozen=True)
class FewPlacesBare(RandomizedResponse):
    """Randomised response that releases one row in 97 without noise."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """Return labels without noise at rows 96, 193, ..."""
        symbols = super().release(labels, classes=classes, rng=rng)
        symbols[96::97] = labels[96::97]
        return symbols


def test_one_row_in_97_is_found(tmp_path: Path) -> None:
    """A release has seven such canaries, so a miss has probability < 1e-6."""
    (result,) = played(FewPlacesBare(1.0), "label-channel", tmp_path).results
    assert result.epsilon > 2


def test_releases_of_labels_are_compared_by_content() -> None:
    """Honest noise differs between two calls, and so do calls that fail."""
    train = Examples(np.zeros((300, 1), np.float32), np.arange(300) % 10, 10)
    for honest in (RandomizedResponse(1.0), TellsByFailing(1.0)):
        assert detect_state(honest, b"", train, Compute(), seed=Seed(1)) == StateBetweenCalls(0.0)
    assert detect_state(ConstantSeedResponse(1.0), b"", train, Compute(), seed=Seed(1)).share_equal == 1.0
