"""The kits for those who extend dpaudit: what is well made passes, and each promise that is broken is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, Bound, Claim, Examples, Relation, Validity
from dpaudit.engine.games.one_run.rules import Design
from dpaudit.engine.games.protocol import Candidates, GameTraits
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.scores import ScoreEstimator, Scores
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
class ClaimsAnew(Honest):
    def claim(self) -> Any:
        return Claim(float(np.random.default_rng().random()) + 0.1)


@dataclass
class NotFrozen:
    def claim(self) -> Claim:
        return Claim(1.0)


@dataclass(frozen=True)
class StaysHere(Honest):
    helper: Any = field(default_factory=lambda: lambda: None)


@dataclass(frozen=True)
class Rounds(Honest):
    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale + 1)


@dataclass(frozen=True)
class Writes(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        labels[0] = 1 - labels[0]
        return labels


@dataclass(frozen=True)
class DrawsElsewhere(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return np.random.randint(0, classes, labels.shape)


@dataclass(frozen=True)
class Shorter(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return labels[1:]


@dataclass(frozen=True)
class NewClass(Honest):
    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return labels + classes


@dataclass(frozen=True)
class Shares:
    """A model that answers the same for everybody."""

    answer: tuple[float, ...]

    def probabilities(self, features: Any) -> Any:
        return np.tile(self.answer, (len(features), 1))


@dataclass(frozen=True)
class Learns:
    answer: tuple[float, ...] = (0.5, 0.5)

    def claim(self) -> Claim:
        return Claim(math.inf)

    def fit(self, train: Examples, *, seed: Any, compute: Any, validation: Any = None) -> Any:
        return Shares(self.answer)


@dataclass(frozen=True)
class LearnsNothing(Learns):
    def fit(self, train: Examples, *, seed: Any, compute: Any, validation: Any = None) -> Any:
        return None


def test_an_honest_mechanism_passes() -> None:
    check_mechanism(Honest())
    check_mechanism(Learns())
    check_mechanism(Copier())  # neither a label mechanism nor a learner: what all of them share


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (NoClaim(), r"claim\(\) must give a dpaudit.Claim"),
        (ClaimsAnew(), "the same claim every time"),
        (NotFrozen(), "must be a frozen dataclass"),
        (StaysHere(), "must be picklable"),
        (Rounds(), "must be equal to the instance rebuilt from its description"),
        (Writes(), "must not write into its data"),
        (DrawsElsewhere(), "must give the same for the same seed"),
        (Shorter(), "one whole number for each label"),
        (NewClass(), r"labels in 0 .. 1"),
        (LearnsNothing(), "a model with a method `probabilities"),
        (Learns((0.2, 0.3, 0.5)), r"an array of shape \(200, 2\)"),
        (Learns((0.5, 0.6)), "probabilities that sum to 1"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else "",
)
def test_each_promise_of_a_mechanism_is_held_to(mechanism: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_mechanism(mechanism)


# Attacks

VIEW = Candidates(Losses(np.linspace(0.0, 1.0, 20)), Secrets(20).load())


@dataclass(frozen=True)
class Blind(SmallLoss):
    view: ClassVar[Any] = None


@dataclass(frozen=True)
class Wordless(SmallLoss):
    view: ClassVar[Any] = int


@dataclass(frozen=True)
class Erases(SmallLoss):
    def score(self, view: Any) -> Any:
        view.release.loss[:] = 0
        return -view.release.loss


@dataclass(frozen=True)
class OneNumber(SmallLoss):
    def score(self, view: Any) -> Any:
        return super().score(view).mean()


@dataclass(frozen=True)
class NoNumber(SmallLoss):
    def score(self, view: Any) -> Any:
        return super().score(view) * np.nan


@dataclass(frozen=True)
class Guesses(SmallLoss):
    def score(self, view: Any) -> Any:
        return np.random.default_rng().random(len(view.candidates))


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (Blind(), "must have a class variable `view`"),
        (Wordless(), "must describe its content in a string `shows`"),
        (Erases(), "must not write into its view"),
        (OneNumber(), "one number for each of 20"),
        (NoNumber(), "one number for each of 20"),
        (Guesses(), "must depend only on its view"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else "",
)
def test_each_promise_of_an_attack_is_held_to(attack: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_attack(attack, VIEW, rows=20)


# Games


def played(game: Any) -> Audit:
    return Audit(Grams(), Secrets(300), game=game, attack=SmallLoss())


@dataclass(frozen=True)
class Unassuming(SequenceCanaries):
    traits: ClassVar[GameTraits] = replace(SequenceCanaries.traits, assumes="Nothing")


@dataclass(frozen=True)
class Unseeded(SequenceCanaries):
    def released(self, mechanism: Any, train: Any, canaries: Any, **more: Any) -> Losses:
        return Losses(np.random.default_rng().random(len(canaries)))


@dataclass(frozen=True)
class Unfair(SequenceCanaries):
    def design(self, canaries: Any, rng: np.random.Generator) -> Design:
        return Design(included=rng.random(len(canaries)) < 0.9)


@dataclass(frozen=True)
class NoEvidence(SequenceCanaries):
    def play(self, setting: Any, work: Any) -> Any:
        return replace(super().play(setting, work), evidence=())


@dataclass(frozen=True)
class OneSeed(SequenceCanaries):
    def play(self, setting: Any, work: Any) -> Any:
        return super().play(replace(setting, seed=type(setting.seed)(0)), work)


@dataclass(frozen=True)
class PlannedAnew(SequenceCanaries):
    def play(self, setting: Any, work: Any) -> Any:
        drawn = int(np.random.default_rng().integers(2**40))
        return super().play(replace(setting, seed=setting.seed.child(drawn)), work)


def test_our_own_games_over_any_release_pass() -> None:
    """Under names that a spec can write: their own are those of a package that is not installed here."""
    check_game(Audit(Copier(), People(300), game=Tables(), attack=Nearest()))
    check_game(played(OwnSequences()))
    check_attack(OwnLoss(), VIEW, rows=20)


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
def test_our_own_games_pass(game: dict[str, Any], mechanism: dict[str, Any]) -> None:
    """False failure of the coins' check <= 1e-6 each."""
    model = {"model": "logistic-regression"} if mechanism["name"] == "non-private" else {}
    check_game(Audit({**mechanism, **model}, "iris", game=game))


@dataclass(frozen=True)
class Tables(TableCanaries):
    pass


@dataclass(frozen=True)
class Nearest(NearestRecord):
    pass


@dataclass(frozen=True)
class OwnSequences(SequenceCanaries):
    pass


@dataclass(frozen=True)
class OwnLoss(SmallLoss):
    pass


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (Unassuming(), "must be a sentence"),
        (NoEvidence(), "must plan units that return evidence"),
        (PlannedAnew(), "must plan the same units every time"),
        (OneSeed(), "seeds of the mechanism's runs from the audit's seed"),
        (Unseeded(), "must give the same for the same arguments"),
        (Unfair(), "coins of Unfair must be fair"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else "",
)
def test_each_promise_of_a_game_is_held_to(game: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_game(played(game))


# Estimators


@dataclass(frozen=True)
class Right:
    """How many guesses were right, of how many."""

    right: int
    guesses: int


@dataclass(frozen=True)
class RightGuesses(ScoreEstimator[Right]):
    """Every coin guessed by the sign of its score: exact binomial, at delta 0."""

    tally_type: ClassVar[type[Any]] = Right

    delta: float = 0.0
    confidence: float = 0.9

    def tally(self, scores: Scores) -> Right:
        return Right(int(((scores.score > 0) == scores.truth).sum()), scores.score.size)

    def bound(self, tallies: Sequence[Right], *, failed_replays: int = 0) -> Bound:
        (one,) = tallies
        share = 0.0 if failed_replays else self.least(one)
        epsilon = max(0.0, math.log(share / (1 - share))) if share > 0 else 0.0
        return Bound(epsilon, self.delta, self.confidence, "right-guesses", Validity.FINITE_SAMPLE)

    def least(self, one: Right) -> float:
        return float(clopper_pearson(one.right, one.guesses, confidence=self.confidence, side="lower").lower)

    def series(self, tallies: Sequence[Right], *, failed_replays: int = 0) -> Any:
        return {}


@dataclass(frozen=True)
class Published(RightGuesses):
    """Takes the share that was seen for the true one."""

    def least(self, one: Right) -> float:
        return one.right / one.guesses


@dataclass(frozen=True)
class GivesLost(RightGuesses):
    def bound(self, tallies: Sequence[Right], *, failed_replays: int = 0) -> Bound:
        return replace(super().bound(tallies), lower=super().bound(tallies).lower + failed_replays)


@dataclass(frozen=True)
class FirstRows(RightGuesses):
    def tally(self, scores: Scores) -> Right:
        half = scores.score.size // 2
        return Right(int(((scores.score > 0) == scores.truth)[:half].sum()), half)


@dataclass(frozen=True)
class Sorts(RightGuesses):
    def tally(self, scores: Scores) -> Right:
        scores.score.sort()
        return super().tally(scores)


@dataclass(frozen=True)
class Braver(RightGuesses):
    def least(self, one: Right) -> float:
        return float(clopper_pearson(one.right, one.guesses, confidence=1 - self.confidence, side="lower").lower)


@dataclass(frozen=True)
class Negative(RightGuesses):
    def bound(self, tallies: Sequence[Right], *, failed_replays: int = 0) -> Bound:
        found = super().bound(tallies, failed_replays=failed_replays)
        object.__setattr__(found, "lower", -1.0)
        return found


@dataclass(frozen=True)
class OtherTally(RightGuesses):
    def tally(self, scores: Scores) -> Any:
        return super().tally(scores).right


@dataclass(frozen=True, eq=False)
class Forgets(Right):
    seen: int = field(default=0, init=False)


@dataclass(frozen=True)
class NotStored(RightGuesses):
    tally_type: ClassVar[type[Any]] = Forgets

    def tally(self, scores: Scores) -> Any:
        tally = Forgets(**vars(super().tally(scores)))
        object.__setattr__(tally, "seen", 1)
        return tally

    def least(self, one: Any) -> float:
        return super().least(one) if one.seen else 0.0


def test_an_honest_estimator_passes() -> None:
    """False failure < 1e-6."""
    check_estimator(RightGuesses(), games=400, rows=200)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Honest(), "must be a ScoreEstimator"),
        (Published(), "above the true epsilon in at most"),
        (GivesLost(), "must not rise with failed replays"),
        (FirstRows(), "must not depend on the order of rows"),
        (Sorts(), "must not write into the scores"),
        (Braver(), "larger bound at a larger confidence"),
        (Negative(), "a bound of at least 0"),
        (OtherTally(), "must give a Right"),
        (NotStored(), "a stored tally must give the same bound"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else "",
)
def test_each_promise_of_an_estimator_is_held_to(estimator: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_estimator(estimator, games=400, rows=200)
