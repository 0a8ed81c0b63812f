"""Checks of `dpaudit.testing`: correct parts pass, and each broken rule is reported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, Bound, Claim, Examples, Relation
from dpaudit.engine.games.coins import Design
from dpaudit.engine.games.protocol import Candidates, GameTraits
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.testing import check_attack, check_estimator, check_game, check_mechanism
from tests.engine.any_release.audited import Copier, Grams, People, Secrets
from tests.engine.any_release.sequence_losses import Losses, SequenceCanaries, SmallLoss
from tests.engine.any_release.table_canaries import NearestRecord, TableCanaries

# Mechanisms


@dataclass(frozen=True)
class Honest:
    """Labels by randomised response of epsilon 1."""

    scale: float = 1.0

    def claim(self) -> Any:
        return Claim(1.0, relation=Relation.LABEL)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return RandomizedResponse(1.0).release(labels, classes=classes, rng=rng)


@dataclass(frozen=True)
class NoClaim(Honest):
    def claim(self) -> Any:
        return 1.0


@dataclass(frozen=True)
class RandomClaim(Honest):
    def claim(self) -> Any:
        return Claim(float(np.random.default_rng().random()) + 0.1)


@dataclass
class NotFrozen:
    def claim(self) -> Claim:
        return Claim(1.0)


@dataclass(frozen=True)
class NotPicklable(Honest):
    helper: Any = field(default_factory=lambda: lambda: None)


@dataclass(frozen=True)
class NotRebuilt(Honest):
    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale + 1)


@dataclass(frozen=True)
class WritesLabels(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        labels[0] = 1 - labels[0]
        return labels


@dataclass(frozen=True)
class GlobalRandomness(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return np.random.randint(0, classes, labels.shape)


@dataclass(frozen=True)
class FewerLabels(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return labels[1:]


@dataclass(frozen=True)
class NewClass(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return labels + classes


@dataclass(frozen=True)
class ConstantModel:
    """A model with one answer for all rows."""

    answer: tuple[float, ...]

    def probabilities(self, features: Any) -> Any:
        return np.tile(self.answer, (len(features), 1))


@dataclass(frozen=True)
class Learns:
    answer: tuple[float, ...] = (0.5, 0.5)

    def claim(self) -> Claim:
        return Claim(math.inf)

    def fit(self, train: Examples, *, seed: Any, compute: Any, validation: Any = None) -> Any:
        return ConstantModel(self.answer)


@dataclass(frozen=True)
class NoModel(Learns):
    def fit(self, train: Examples, *, seed: Any, compute: Any, validation: Any = None) -> Any:
        return None


# Attacks

VIEW = Candidates(Losses(np.linspace(0.0, 1.0, 20)), Secrets(20).load())


@dataclass(frozen=True)
class NoView(SmallLoss):
    view: ClassVar[Any] = None


@dataclass(frozen=True)
class NoDescription(SmallLoss):
    view: ClassVar[Any] = int


@dataclass(frozen=True)
class WritesView(SmallLoss):
    def score(self, view: Any) -> Any:
        view.release.loss[:] = 0
        return -view.release.loss


@dataclass(frozen=True)
class OneScore(SmallLoss):
    def score(self, view: Any) -> Any:
        return super().score(view).mean()


@dataclass(frozen=True)
class NanScores(SmallLoss):
    def score(self, view: Any) -> Any:
        return super().score(view) * np.nan


@dataclass(frozen=True)
class RandomScores(SmallLoss):
    def score(self, view: Any) -> Any:
        return np.random.default_rng().random(len(view.candidates))


# Games


@dataclass(frozen=True)
class NoSentence(SequenceCanaries):
    traits: ClassVar[GameTraits] = replace(SequenceCanaries.traits, assumes="Nothing")


@dataclass(frozen=True)
class RandomRelease(SequenceCanaries):
    def released(self, mechanism: Any, train: Any, canaries: Any, **settings: Any) -> Losses:
        return Losses(np.random.default_rng().random(len(canaries)))


@dataclass(frozen=True)
class UnfairCoins(SequenceCanaries):
    def design(self, canaries: Any, rng: np.random.Generator) -> Design:
        return Design(included=rng.random(len(canaries)) < 0.9)


@dataclass(frozen=True)
class NoEvidence(SequenceCanaries):
    def play(self, setting: Any, work: Any) -> Any:
        return replace(super().play(setting, work), evidence=())


@dataclass(frozen=True)
class FixedSeed(SequenceCanaries):
    def play(self, setting: Any, work: Any) -> Any:
        return super().play(replace(setting, seed=type(setting.seed)(0)), work)


@dataclass(frozen=True)
class RandomPlan(SequenceCanaries):
    def play(self, setting: Any, work: Any) -> Any:
        random_child = int(np.random.default_rng().integers(2**40))
        return super().play(replace(setting, seed=setting.seed.child(random_child)), work)


@pytest.mark.parametrize(
    ("game", "mechanism"),
    [
        ({"name": "label-inference", "replays": 3}, {"name": "randomized-response", "epsilon": 1.0}),
        ({"name": "label-canaries", "replays": 3}, {"name": "randomized-response", "epsilon": 1.0}),
        ({"name": "label-repeats", "search": 50, "trials": 100}, {"name": "randomized-response", "epsilon": 1.0}),
        ({"name": "membership"}, {"name": "gaussian-naive-bayes", "epsilon": 1.0}),
        ({"name": "observational-membership", "replays": 3, "canaries": 20}, {"name": "non-private"}),
        ({"name": "neighbours", "trials": 200, "search": 200}, {"name": "gaussian-naive-bayes", "epsilon": 1.0}),
    ],
    ids=lambda part: part["name"],
)
def test_registered_games_pass(game: dict[str, Any], mechanism: dict[str, Any]) -> None:
    """False failure of the coins' check <= 1e-6 each."""
    model = {"model": "logistic-regression"} if mechanism["name"] == "non-private" else {}
    check_game(Audit({**mechanism, **model}, "iris", game=game))


@dataclass(frozen=True)
class LocalTables(TableCanaries):
    pass


@dataclass(frozen=True)
class LocalNearest(NearestRecord):
    pass


@dataclass(frozen=True)
class LocalSequences(SequenceCanaries):
    pass


@dataclass(frozen=True)
class LocalLoss(SmallLoss):
    pass


# Estimators


@dataclass(frozen=True)
class Right:
    """Number of right guesses, and of all guesses."""

    right: int
    guesses: int
    replay: int


@dataclass(frozen=True)
class RightGuesses(Estimator[Scores, Right]):
    """Guesses every coin by the sign of its score: exact binomial, at delta 0."""

    tally_type: ClassVar[type[Any]] = Right

    delta: float = 0.0
    confidence: float = 0.9

    def tally(self, scores: Scores) -> Right:
        return Right(int(((scores.score > 0) == scores.truth).sum()), scores.score.size, scores.replay)

    def lower(self, tally: Right, error: float) -> NDArray[np.float64]:
        share = self.share(tally, error)
        return np.array([max(0.0, math.log(share / (1 - share))) if share > 0 else 0.0])

    def share(self, tally: Right, error: float) -> float:
        return float(clopper_pearson(tally.right, tally.guesses, confidence=1 - error, side="lower").lower)


@dataclass(frozen=True)
class PointEstimate(RightGuesses):
    """Uses the observed share of right guesses without a confidence limit."""

    def share(self, tally: Right, error: float) -> float:
        return tally.right / tally.guesses


@dataclass(frozen=True)
class RaisedByFailures(RightGuesses):
    def bound(self, tallies: Sequence[Right], *, failed_replays: int = 0) -> Bound:
        return replace(super().bound(tallies), lower=super().bound(tallies).lower + failed_replays)


@dataclass(frozen=True)
class FirstRowsOnly(RightGuesses):
    def tally(self, scores: Scores) -> Right:
        half = scores.score.size // 2
        return Right(int(((scores.score > 0) == scores.truth)[:half].sum()), half, scores.replay)


@dataclass(frozen=True)
class SortsScores(RightGuesses):
    def tally(self, scores: Scores) -> Right:
        scores.score.sort()
        return super().tally(scores)


@dataclass(frozen=True)
class InvertedConfidence(RightGuesses):
    def share(self, tally: Right, error: float) -> float:
        return super().share(tally, 1 - error)


@dataclass(frozen=True)
class Negative(RightGuesses):
    def bound(self, tallies: Sequence[Right], *, failed_replays: int = 0) -> Bound:
        bound = super().bound(tallies, failed_replays=failed_replays)
        object.__setattr__(bound, "lower", -1.0)
        return bound


@dataclass(frozen=True)
class OtherTally(RightGuesses):
    def tally(self, scores: Scores) -> Any:
        return super().tally(scores).right


@dataclass(frozen=True, eq=False)
class PartlyStored(Right):
    extra: int = field(default=0, init=False)


@dataclass(frozen=True)
class NotStored(RightGuesses):
    tally_type: ClassVar[type[Any]] = PartlyStored

    def tally(self, scores: Scores) -> Any:
        tally = PartlyStored(**vars(super().tally(scores)))
        object.__setattr__(tally, "extra", 1)
        return tally

    def share(self, tally: Any, error: float) -> float:
        return super().share(tally, error) if tally.extra else 0.0


def check_view(attack: Any) -> None:
    check_attack(attack, VIEW, rows=20)


def check_played(game: Any) -> None:
    check_game(Audit(Grams(), Secrets(300), game=game, attack=SmallLoss()))


def check_simulated(estimator: Any) -> None:
    check_estimator(estimator, games=400, rows=200)


def test_correct_parts_pass() -> None:
    """False failure of the estimator's check < 1e-6. Games have names here that a spec can write."""
    check_mechanism(Honest())
    check_mechanism(Learns())
    check_mechanism(Copier())  # neither a label mechanism nor a learner
    check_game(Audit(Copier(), People(300), game=LocalTables(), attack=LocalNearest()))
    check_played(LocalSequences())
    check_view(LocalLoss())
    check_simulated(RightGuesses())


@pytest.mark.parametrize(
    ("check", "part", "message"),
    [
        (check_mechanism, NoClaim(), r"claim\(\) must give a dpaudit.Claim"),
        (check_mechanism, RandomClaim(), "the same claim every time"),
        (check_mechanism, NotFrozen(), "must be a frozen dataclass"),
        (check_mechanism, NotPicklable(), "must be picklable"),
        (check_mechanism, NotRebuilt(), "must be equal to the instance rebuilt from its description"),
        (check_mechanism, WritesLabels(), "must not write into its data"),
        (check_mechanism, GlobalRandomness(), "must give the same for the same seed"),
        (check_mechanism, FewerLabels(), "one whole number for each label"),
        (check_mechanism, NewClass(), r"labels in 0 .. 1"),
        (check_mechanism, NoModel(), "a model with a method `probabilities"),
        (check_mechanism, Learns((0.2, 0.3, 0.5)), r"an array of shape \(200, 2\)"),
        (check_mechanism, Learns((0.5, 0.6)), "probabilities that sum to 1"),
        (check_view, NoView(), "must have a class variable `view`"),
        (check_view, NoDescription(), "must describe its content in a string `shows`"),
        (check_view, WritesView(), "must not write into its view"),
        (check_view, OneScore(), "one number for each of 20"),
        (check_view, NanScores(), "one number for each of 20"),
        (check_view, RandomScores(), "must depend only on its view"),
        (check_played, NoSentence(), "must be a sentence"),
        (check_played, NoEvidence(), "must plan units that return evidence"),
        (check_played, RandomPlan(), "must plan the same units every time"),
        (check_played, FixedSeed(), "seeds of the mechanism's runs from the audit's seed"),
        (check_played, RandomRelease(), "must give the same for the same arguments"),
        (check_played, UnfairCoins(), "coins of UnfairCoins must be fair"),
        (check_simulated, Honest(), "must be an Estimator of Scores"),
        (check_simulated, PointEstimate(), "above the true epsilon in at most"),
        (check_simulated, RaisedByFailures(), "must not rise with failed replays"),
        (check_simulated, FirstRowsOnly(), "must not depend on the order of rows"),
        (check_simulated, SortsScores(), "must not write into the scores"),
        (check_simulated, InvertedConfidence(), "larger bound at a larger confidence"),
        (check_simulated, Negative(), "a bound of at least 0"),
        (check_simulated, OtherTally(), "must give a Right"),
        (check_simulated, NotStored(), "a stored tally must give the same bound"),
    ],
    ids=lambda case: type(case).__name__ if dataclasses.is_dataclass(case) else "",
)
def test_each_broken_rule_is_reported(check: Callable[[Any], None], part: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(part)
