"""What a game (registered as "game") is: what it goes together with, what an attack sees and offers, what it is planned
from, and what it hands the planner. Source: arXiv:2511.14084, Algorithm 1 (after Swanberg et al., 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Shared, Work
from dpaudit.claims import Claim, ConvertedClaim, Relation, claim_under
from dpaudit.claims.scope import Scope
from dpaudit.engine.data.partition import Parts
from dpaudit.engine.games.reference import Reference
from dpaudit.errors import SpecError, require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.scores import Scores
from dpaudit.given import check_fields
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.mechanisms.protocols import LabelMechanism, Learner

Seen = TypeVar("Seen", contravariant=True)
Released = TypeVar("Released")
Candidate = TypeVar("Candidate", bound=Rows)


class View(Protocol):
    """What the adversary of some game sees; nothing in it tells the truth that is at stake."""

    shows: ClassVar[str]
    """The same in words, for messages: "the game shows ..."."""


@dataclass(frozen=True, eq=False)
class Candidates(Generic[Released, Candidate]):
    """What a mechanism gave out, and rows of which it is asked whether they were among its data."""

    release: Released  # what was given out, of the game's own type: a table, losses, answers
    candidates: Candidate  # the rows that are asked about, m of them
    shows: ClassVar[str] = "what a mechanism gave out, and candidates for its data"


class Attack(Protocol[Seen]):
    """The adversary: from what it sees to scores."""

    view: ClassVar[type[View]]
    """The class of what it sees; a game that shows something else is refused."""

    def score(self, view: Seen) -> NDArray[np.float64]:
        """One score for each canary or trial; larger = more likely world 1 (the training label, or a member)."""
        ...


@runtime_checkable
class InformedAttack(Protocol):
    """An attack that knows which mechanism it attacks, as the adversary of Algorithm 1 does."""

    def for_mechanism(self, mechanism: Any, classes: int) -> Attack[Any]:
        """The attack on this mechanism.

        Raises: SpecError when the mechanism does not tell what the attack must know.
        """
        ...


@dataclass(frozen=True)
class StopRule:
    """What ends an audit early; the first that is met does. Its trials are planned in full, and run as far as needed.

    Attributes:
        refuted: Stop when the bound exceeds the claim.
        epsilon: Stop when the bound reaches this, in nats, > 0; None = no bound is enough.
        most_trials: Stop after so many trials, >= 2 (the unit that reaches it is still counted whole); None = all.
        hopeless: Stop, from half of the trials on, when what they have shown makes a refutation by the last one
            unlikely. Not in a confirmatory run. That makes a false alarm no likelier; what it costs in power is in
            `docs/data/futility.csv`.
    """

    refuted: bool = True
    epsilon: float | None = None
    most_trials: int | None = None
    hopeless: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.epsilon is None or self.epsilon > 0, "epsilon of a stop rule must be > 0", epsilon=self.epsilon)
        require(
            self.most_trials is None or self.most_trials >= 2,
            "most_trials of a stop rule must be >= 2",
            most_trials=self.most_trials,
        )
        require(
            self.refuted or self.epsilon is not None or self.most_trials is not None,
            "a stop rule must name at least one of refuted, epsilon and most_trials",
            do="leave `stop` out to run all trials",
        )

    def reached(self, lower: float, trials: int, claimed: float) -> str:
        """Why to stop, as words; "" to go on."""
        if self.refuted and lower > claimed and not math.isinf(claimed):
            return "the claim is refuted"
        if self.epsilon is not None and lower >= self.epsilon:
            return f"the bound has reached {format_lower(self.epsilon)}"
        if self.most_trials is not None and trials >= self.most_trials:
            return f"the budget of {self.most_trials:,} trials is used up"
        return ""


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
    """A side of mechanisms that a game plays with."""

    protocol: type  # what such a mechanism offers, a runtime-checkable protocol
    words: str  # the same for people, in the plural


LABEL_MECHANISMS = Capability(LabelMechanism, "label mechanisms (with methods `claim` and `release`)")
LEARNERS = Capability(Learner, "learners (with methods `claim` and `fit`)")


NOTHING_CARRIED = "The code carries nothing from one call to the next: where a claim is refuted, that is looked at."


@dataclass(frozen=True)
class CheckTest:
    """How a game takes part in `dpaudit check`: it is picked for every mechanism and claim that is stated here."""

    face: Capability  # mechanisms it is for
    relations: tuple[Relation, ...]  # of the claims it is for
    finds: str  # what it finds, in half a sentence, for people
    unless: type | None = None  # mechanisms it is not for, though they have that face
    trainings: int = 0  # trainings it asks for at most; those that cost the least come first. 0 where none is trained.
    cost: float = 1.0  # what one of them costs, in trainings on the data given; in (0, 1]
    # fields of the game that say how many trainings there are, each with its share of them, which a budget lowers; none
    # where nothing does
    scales: Mapping[str, float] = field(default_factory=dict)
    least: int = 2  # trainings that a budget must leave for it to be played at all, where it lowers them
    variant: str = ""  # what tells it from other tests of the same game, in a word or two; "" for the only one
    # fields of the game, where they are not the usual ones, as a spec has them
    game: Mapping[str, Any] = field(default_factory=dict)
    attack: str = ""  # as in a spec; "" for the game's usual one
    estimator: str | Mapping[str, Any] = ""  # as in a spec; "" for the game's usual one
    stop: StopRule | None = None  # when it has seen enough; None runs all of it
    confirm: bool = False  # whether what it finds on a proxy is confirmed with planted labels
    # by how much fields of the game that are numbers grow when the test has refuted the claim and is played again, with
    # other seeds and at a stricter confidence: more where that is cheap
    again: Mapping[str, float] = field(default_factory=dict)
    # which of `scales` counts what the game chooses by and learns from with its `search_seed`: a repeat has that of the
    # first pass, and all trainings that are kept for it are fresh ones; "" where a repeat learns anew
    learns: str = ""
    scope: Scope = Scope.CLAIM  # what it is about: the claim, or a side finding

    @property
    def price(self) -> int:
        """All of them, in trainings on the data given, rounded up."""
        return math.ceil(self.trainings * self.cost)


@dataclass(frozen=True)
class Fits:
    """What a game goes together with; the spec refuses what does not fit."""

    relation: Relation  # which neighbouring data sets its two worlds are
    assumes: str  # what must hold beside the arithmetic for the bound to hold, as a sentence
    # the faces of a mechanism it plays, first the one that is taken when there are several, and the class of what the
    # attack gets to see of each
    views: Mapping[Capability, type[View]]
    attack: str  # its usual attack, a registered name
    estimator: str  # its usual estimator, a registered name
    curve_estimator: str = ""  # the usual one against a claim that is a whole curve; "" for the same
    evidence: type[Any] = Scores  # what it leaves for the estimator
    rows: type[Any] = Examples  # the class of the data it plays with; one's own has what `Rows` has
    uses_proxy: bool = False  # whether the adversary has a reference of its own, which the spec's `proxy` makes
    independent_trials: bool = False  # whether scores come from independent trials, one training each
    repeats_calls: bool = False  # whether the mechanism is called again and again, each call taken for the first one
    helps: str = ""  # what lets the game show more, for those whose audit could not have refuted their claim
    # how many canaries share one training at most, of a mechanism, where there are several trainings that share no
    # randomness; None where all share one
    sharing: Callable[[Any], int] | None = None
    # on how many of so many rows of the target part one run of a mechanism is, of a game: about, and at least; None
    # where it makes or picks data of its own
    run_on: Callable[[Any, int], tuple[int, int]] | None = None
    # in how many records its two worlds differ: 1, 2, 4 or 8; group privacy says what a claim says of them
    records: int = 1
    # how it takes part in a check; a game without tests is played by those who ask for it
    check_tests: tuple[CheckTest, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.views) > 0, "a game must play with some mechanism")

    @property
    def assumed(self) -> str:
        """All that is assumed."""
        return f"{self.assumes} {NOTHING_CARRIED}" if self.repeats_calls else self.assumes

    def compared(self, claim: Claim, *, audit: str = "") -> ConvertedClaim:
        """What a claim says of the two worlds of the game."""
        return claim_under(claim, self.relation, records=self.records, audit=audit)

    def face_of(self, mechanism: Any) -> Capability | None:
        """The side the mechanism is played from; None when the game does not play it."""
        return next((face for face in self.views if isinstance(mechanism, face.protocol)), None)

    def estimator_against(self, claim: Claim) -> str:
        """The usual estimator's name; the claim alone decides, so no score can have been seen."""
        return self.estimator if claim.is_point else self.curve_estimator or self.estimator

    def reading(self, *, stops_early: bool) -> Reading:
        if stops_early:
            return Reading.IN_ORDER
        return Reading.TOGETHER if self.independent_trials else Reading.PER_REPLAY


def every_row(game: Any, rows: int) -> tuple[int, int]:
    """All of the target part."""
    return rows, rows


NOISELESS_TRIALS = 500
"""Trials, or labels at stake, that are played without noise, at most; and as many that an attack learns from."""
MAX_UNITS = 100_000
"""Of a plan: about a minute of planning."""


def require_units(count: int) -> None:
    """Refuses a plan of more units than can be planned in reasonable time; games ask before they make them."""
    if count > MAX_UNITS:
        raise SpecError(
            f"a plan must have at most {MAX_UNITS:,} units, this one has {shortened(f'{count:,}')} or more; ask for "
            "fewer replays, trainings or trials"
        )


@dataclass(frozen=True)
class Setting:
    """What a game is planned from."""

    mechanism: Any  # what is audited
    proxy: Any  # where the adversary's reference comes from
    attack: Any  # the adversary
    data: Any  # the data set's description (not its rows)
    parts: Parts  # which rows are the training set, the reference set and so on, with the shared names of each
    divided_at_random: bool  # whether rows play their part by the draw of the audit, not by their place in the data
    seed: Seed  # the audit's seed
    resources: Resources  # what one unit occupies
    rows_per_unit: int  # score rows one unit should make at most: seconds of work, and memory where scores are kept
    reading: Reading  # how the scores will be read
    after: tuple[str, ...] = ()  # keys of units that must be finished before the mechanism is run
    # what a game may choose by, and learn from, instead of `seed`: a confirmatory run, whose own seed is another one,
    # has that of the first pass, and so pays for fresh trials alone. None: `seed`
    first_seed: Seed | None = None

    @property
    def search_seed(self) -> Seed:
        return self.first_seed or self.seed

    def given(self, part: str) -> Any:
        """What stands for a part of the data in the arguments of units; None when the part has no rows."""
        name = self.parts.name(part)
        return Shared(name) if name else None

    def required(self, part: str) -> Any:
        """The same for a part that must have rows."""
        given = self.given(part)
        if given is None:
            raise SpecError(f"the {part} part of the data is empty; give `split.{part}` a share above 0")
        return given

    @property
    def running(self) -> dict[str, Any]:
        """Keywords of a unit that runs the mechanism: what it occupies, and what must be finished before."""
        return {"resources": self.resources, "after": self.after}

    @property
    def noiseless(self) -> Setting | None:
        """With the noise of the mechanism taken away; None where it does not say how (a method `without_noise`)."""
        bare = getattr(self.mechanism, "without_noise", lambda: None)()
        return None if bare is None else replace(self, mechanism=bare, seed=self.seed.child("noiseless"))

    @property
    def informed_attack(self) -> Any:
        """The attack, told which mechanism it attacks if it asks for it."""
        if isinstance(self.attack, InformedAttack):
            return self.attack.for_mechanism(self.mechanism, getattr(self.parts.target, "classes", 0))
        return self.attack


@dataclass(frozen=True, eq=False)
class PlantedNoise:
    """What trainings tell at several epsilons, by the law that is stated; each row stands for as many of them."""

    epsilon: NDArray[np.float64]  # of the mechanism, > 0, shape (rows,)
    log_odds: NDArray[np.float64]  # of D', in nats, shape (rows,)


@dataclass(frozen=True)
class Played:
    """What a game planned, and what reading it needs to know."""

    evidence: tuple[Unit, ...]  # units that give the evidence, in the order in which it is read
    trainings: tuple[Unit, ...] = ()  # units that ran the mechanism
    # units that play the game where the mechanism remembers nothing, one a distinguisher
    control: tuple[Unit, ...] = ()
    ceiling: tuple[Unit, ...] = ()  # units that play the game against a mechanism without privacy, where that is played
    noise: Unit | None = None  # the unit that looks at the form of its noise, where noise is seen
    noiseless: bool = False  # whether that one is the mechanism itself with its noise taken away
    planted: Unit | None = (
        None  # the unit that tells what releases reveal at other epsilons, where that is known exactly
    )
    choices: tuple[Unit, ...] = ()  # units whose notes say what was chosen on search data
    where: Unit | None = None  # the unit that says where it leaks, run after a violation; no part of a verdict
    shadows: tuple[Unit, ...] = ()  # units that trained shadow models: no evidence comes from these trainings
    # what the mechanism promises of a trial, where that is not what it promises of the whole
    claim: Claim | None = None
    # what a finding about a part, such as a step, and the claim about it mean for the whole, in lines for a reader;
    # None where a finding is about the whole
    whole: Callable[[Finding, Claim], tuple[str, ...]] | None = None
    reference: Reference | None = None  # what the game's power is planned with; None where it cannot be told
    replays: int = 1  # how many pieces of evidence there are if nothing fails
    # whether the training data are left as they are (Definition 4), found by comparing them
    observational: bool = False
    # whether the scores take a proxy for the truth: a bound from them holds only as far as it does
    conditional: bool = False
    controlled_on: str = ""  # what the control is played on, in words


class Game(Protocol):
    """An experiment (registered as "game")."""

    fits: ClassVar[Fits]
    """What it goes together with."""

    def play(self, setting: Setting, work: Work) -> Played:
        """Adds every unit, each with its seed; nothing runs."""
        ...
