"""What a game goes together with: which mechanisms it plays, what the attack sees of each, what evidence it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dpaudit.claims import Claim, ConvertedClaim, Relation, claim_under
from dpaudit.engine.games.attack import View
from dpaudit.engine.games.stop_rule import StopRule
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import BagMechanism, LabelMechanism, Learner, ObservableLearner, WatchedLearner


class Reading(Enum):
    """How the evidence of a game is read."""

    PER_REPLAY = "per replay"
    """Each replay makes a bound of its own; one that is missing counts as a bound of 0."""
    TOGETHER = "together"
    """All scores make one bound, which no part of them may be missing from."""
    IN_ORDER = "in order"
    """Trials are read in the order of the plan while later ones still run: their scores must come in several tables,
    none of which needs a later trial."""


@dataclass(frozen=True)
class Capability:
    """A side of mechanisms that a game plays with.

    Attributes:
        protocol: What such a mechanism offers, a runtime-checkable protocol.
        words: The same for people, in the plural.
    """

    protocol: type
    words: str


LABEL_MECHANISMS = Capability(LabelMechanism, "label mechanisms (with methods `claim` and `release`)")
BAG_MECHANISMS = Capability(
    BagMechanism, "mechanisms that release numbers about bags of labels (randomized-response, llp, llp-laplace, ...)"
)
LEARNERS = Capability(Learner, "learners (with methods `claim` and `fit`)")
OBSERVABLE_LEARNERS = Capability(ObservableLearner, "learners whose steps may be watched (of the DP-SGD family)")
WATCHED_LEARNERS = Capability(
    WatchedLearner, "learners whose weights and steps may be watched (with methods `claimed_steps` and `watch`)"
)


@dataclass(frozen=True)
class CheckTest:
    """How a game takes part in `dpaudit check`: it is picked for every mechanism and claim that is stated here.

    Attributes:
        face: Mechanisms it is for.
        relations: Of the claims it is for.
        finds: What it finds, in half a sentence, for people.
        trainings: Trainings it asks for at most; those that cost the least come first. 0 where none is trained.
        cost: What one of them costs, in trainings on the data given; in (0, 1].
        scales: Fields of the game that say how many trainings there are, each with its share of them, which a budget
            lowers; none where nothing does.
        least: Trainings that a budget must leave for it to be played at all, where it lowers them.
        variant: What tells it from other tests of the same game, in a word or two; "" for the only one.
        game: Fields of the game, where they are not the usual ones, as a spec has them.
        attack: As in a spec; "" for the game's usual one.
        estimator: As in a spec; "" for the game's usual one.
        stop: When it has seen enough; None runs all of it.
        confirm: Whether what it finds on a proxy is confirmed with planted labels.
        again: By how much fields of the game that are numbers grow when the test has refuted the claim and is played
            again, with other seeds and at a stricter confidence: more where that is cheap.
    """

    face: Capability
    relations: tuple[Relation, ...]
    finds: str
    trainings: int = 0
    cost: float = 1.0
    scales: Mapping[str, float] = field(default_factory=dict)
    least: int = 2
    variant: str = ""
    game: Mapping[str, Any] = field(default_factory=dict)
    attack: str = ""
    estimator: str = ""
    stop: StopRule | None = None
    confirm: bool = False
    again: Mapping[str, float] = field(default_factory=dict)

    @property
    def price(self) -> int:
        """All of them, in trainings on the data given, rounded up."""
        return math.ceil(self.trainings * self.cost)


@dataclass(frozen=True)
class Fits:
    """What a game goes together with; the spec refuses what does not fit.

    Attributes:
        relation: Which neighbouring data sets its two worlds are.
        assumes: What must hold beside the arithmetic for the bound to hold, as a sentence.
        views: The faces of a mechanism it plays, first the one that is taken when there are several, and the class of
            what the attack gets to see of each.
        attack: Its usual attack, a registered name.
        estimator: Its usual estimator, a registered name.
        curve_estimator: The usual one against a claim that is a whole curve; "" for the same.
        evidence: What it leaves for the estimator.
        rows: The class of the data it plays with; one's own has what `Rows` has.
        uses_proxy: Whether the adversary has a reference of its own, which the spec's `proxy` makes.
        helps: What lets the game show more, for those whose audit could not have refuted their claim.
        independent_trials: Whether scores come from independent trials, one training each.
        sharing: How many canaries share one training at most, of a mechanism, where there are several trainings that
            share no randomness; None where all share one.
        records: In how many records its two worlds differ: 1, 2, 4 or 8; group privacy says what a claim says of them.
        tests: How it takes part in a check; a game without tests is played by those who ask for it.
    """

    relation: Relation
    assumes: str
    views: Mapping[Capability, type[View]]
    attack: str
    estimator: str
    curve_estimator: str = ""
    evidence: type[Any] = Scores
    rows: type[Any] = Examples
    uses_proxy: bool = False
    independent_trials: bool = False
    helps: str = ""
    sharing: Callable[[Any], int] | None = None
    records: int = 1
    check_tests: tuple[CheckTest, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.views) > 0, "a game must play with some mechanism")

    def compared(self, claim: Claim, *, audit: str = "") -> ConvertedClaim:
        """What a claim says of the two worlds of the game.

        Raises: SpecError where it says nothing of them.
        """
        return claim_under(claim, self.relation, records=self.records, audit=audit)

    def face_of(self, mechanism: Any) -> Capability | None:
        """The side the mechanism is played from; None when the game does not play it."""
        return next((face for face in self.views if isinstance(mechanism, face.protocol)), None)

    def estimator_against(self, claim: Claim) -> str:
        """The usual estimator's name; the claim alone decides, so no score can have been seen."""
        return self.estimator if claim.is_point else self.curve_estimator or self.estimator

    def reading(self, *, stops_early: bool) -> Reading:
        """How the evidence is read."""
        if stops_early:
            return Reading.IN_ORDER
        return Reading.TOGETHER if self.independent_trials else Reading.PER_REPLAY
