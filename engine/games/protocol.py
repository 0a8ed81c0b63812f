"""Interfaces of games (registered as "game") and attacks: requirements of a game, its plan and the attacker's view.

Source: arXiv:2511.14084, Algorithm 1 (after Swanberg et al., 2025).
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
from dpaudit.claims import Claim, ConvertedClaim, Relation, Scope, claim_under
from dpaudit.engine.data.partition import Parts
from dpaudit.engine.games.reference import Reference
from dpaudit.errors import SpecError, require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.scores import Scores
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.mechanisms.protocols import BagMechanism, LabelMechanism, Learner

ObservedT = TypeVar("ObservedT", contravariant=True)
ReleaseT = TypeVar("ReleaseT")
CandidateT = TypeVar("CandidateT", bound=Rows)


class View(Protocol):
    """Everything that the attacker of a game sees; it does not contain the secret bit."""

    shows: ClassVar[str]
    """Description for messages: "the game shows ..."."""


class LossView:
    """Base of views that tell the loss of the audited model on the label of each canary or challenge."""

    shows: ClassVar[str] = "the loss of a model on labelled points"

    @property
    def log_probability(self) -> NDArray[np.float64]:
        """Log-probability of each label, in nats, shape (n,); games with many canaries subtract the median."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Candidates(Generic[ReleaseT, CandidateT]):
    """A release of the mechanism, and candidate rows that may have been among its data."""

    release: ReleaseT  # of a type that the game defines: a table, losses, answers
    candidates: CandidateT  # m rows whose membership is secret
    shows: ClassVar[str] = "a release of the mechanism, and candidates for its data"


class Attack(Protocol[ObservedT]):
    """The attacker: maps its view to scores."""

    view: ClassVar[type[View]]
    """Required class of the view; games with another view are refused."""

    def score(self, view: ObservedT) -> NDArray[np.float64]:
        """Return one score for each canary or trial; larger means world 1 (training label, member) is more likely."""
        ...


@runtime_checkable
class InformedAttack(Protocol):
    """An attack that knows the mechanism, as the attacker of Algorithm 1 does."""

    def for_mechanism(self, mechanism: Any, classes: int) -> Attack[Any]:
        """Return the attack for this mechanism.

        Raises: SpecError if the mechanism does not state the facts that the attack needs.
        """
        ...


@dataclass(frozen=True)
class StopRule:
    """Early stopping of an audit at the first condition that is met. All trials are planned; only those needed run.

    Attributes:
        refuted: Stop when the bound exceeds the claim.
        epsilon: Stop when the bound reaches this value, in nats, > 0; None for no limit.
        most_trials: Stop after this many trials, >= 2; the unit that reaches it counts in full. None for no limit.
        hopeless: Stop for futility: after half of the trials, if a rejection by the last one is unlikely. It does not
            apply to confirmatory runs and does not raise the false positive rate. `docs/data/futility.csv` lists the
            loss of power.
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
            do="omit `stop` to run all trials",
        )

    def reached(self, lower: float, trials: int, claimed: float) -> str:
        """Return the reason to stop, in words; "" to continue."""
        if self.refuted and lower > claimed and not math.isinf(claimed):
            return "the claim is rejected"
        if self.epsilon is not None and lower >= self.epsilon:
            return f"the bound reached {format_lower(self.epsilon)}"
        if self.most_trials is not None and trials >= self.most_trials:
            return f"the budget of {self.most_trials:,} trials is spent"
        return ""


class Reading(Enum):
    """Order and grouping in which an estimator reads the evidence of a game."""

    PER_REPLAY = "per replay"
    """Each replay gives a separate bound; a missing replay counts as a bound of 0."""
    TOGETHER = "together"
    """All scores give one bound, and none may be missing."""
    IN_ORDER = "in order"
    """Trials are read in the order of the plan while later ones still run. Their scores must come in several tables,
    none of which needs a later trial."""


@dataclass(frozen=True)
class Capability:
    """An interface of mechanisms that a game can audit."""

    protocol: type  # a runtime-checkable protocol
    words: str  # description in the plural, for messages
    rows: type[Any] | None = None  # class of the data of these mechanisms; None: that of the game
    condition: Callable[[Any], bool] | None = None  # what a mechanism with this interface must satisfy too

    def includes(self, mechanism: Any) -> bool:
        """True if a game can audit the mechanism through this interface."""
        return isinstance(mechanism, self.protocol) and (self.condition is None or self.condition(mechanism))


LABEL_MECHANISMS = Capability(LabelMechanism, "label mechanisms (with methods `claim` and `release`)")
BAG_MECHANISMS = Capability(
    BagMechanism, "mechanisms that release numbers about bags of labels (randomized-response, llp, llp-laplace, ...)"
)
LEARNERS = Capability(Learner, "learners (with methods `claim` and `fit`)")


BLIND = "blind: "
"""Prefix of a note of a training that states why the audit could not have rejected the claim."""
NO_STATE = "The code keeps no state between calls; this is checked before a claim is rejected."


@dataclass(frozen=True)
class CheckTest:
    """A test that a game offers to `dpaudit check`, for mechanisms with a capability and claims with given relations.

    Attributes:
        capability: Mechanisms that it audits.
        relations: Neighbouring relations of the claims that it tests.
        finds: Description of the leaks that it finds, in half a sentence.
        excluded: Mechanisms that it does not audit although they have the capability.
        trainings: Largest number of trainings; tests with fewer run first. 0 if it trains nothing.
        cost: Cost of one of these trainings, relative to a training on the given data; in (0, 1].
        scales: Fields of the game that set the number of trainings, each with its share of them. A budget lowers them.
        min_trainings: Fewest trainings that a budget must leave for the test to run.
        slow_trainings: Fewest trainings that remain if a training is slow and no budget is set: they are halved until
            they fit the default budget. 0 never reduces them without a budget.
        variant: One or two words that distinguish it from other tests of the same game; "" for the only one.
        game: Fields of the game that differ from their defaults, as in a spec.
        attack: Attack as in a spec; "" for the game's default.
        estimator: Estimator as in a spec; "" for the game's default.
        stop: Early stopping rule; None to run all trials.
        confirm: True if a finding on a proxy is confirmed with planted labels.
        growth_on_repeat: Factors on numeric fields of the game in the confirmatory run, which has other seeds and a
            higher confidence.
        search_field: Field among `scales` that counts search trials, which use `Setting.search_seed`. A confirmatory
            run reuses those of the first pass and spends all its trainings on fresh trials. "" if it searches again.
        scope: Subject of the test: the claim or a side finding.
        real_rows: True if it needs rows of the user; it is left out if rows are generated from a schema.
    """

    capability: Capability
    relations: tuple[Relation, ...]
    finds: str
    excluded: type | None = None
    trainings: int = 0
    cost: float = 1.0
    scales: Mapping[str, float] = field(default_factory=dict)
    min_trainings: int = 2
    slow_trainings: int = 0
    variant: str = ""
    game: Mapping[str, Any] = field(default_factory=dict)
    attack: str = ""
    estimator: str | Mapping[str, Any] = ""
    stop: StopRule | None = None
    confirm: bool = False
    growth_on_repeat: Mapping[str, float] = field(default_factory=dict)
    search_field: str = ""
    scope: Scope = Scope.CLAIM
    real_rows: bool = False

    @property
    def price(self) -> int:
        """Cost of all trainings, in trainings on the given data, rounded up."""
        return math.ceil(self.trainings * self.cost)


@dataclass(frozen=True)
class GameTraits:
    """Facts about a game: relation, assumptions, mechanisms, defaults. A spec that contradicts them is refused.

    Attributes:
        relation: Neighbouring relation of its two worlds.
        assumes: Assumptions of the bound about data and mechanism, as a sentence.
        views: Class of the attacker's view for each capability of mechanisms, in order of preference.
        attack: Registered name of the default attack.
        estimator: Registered name of the default estimator.
        curve_estimator: Default estimator for a claim about a whole curve; "" for `estimator`.
        evidence: Class of the evidence that estimators read.
        rows: Class of the data; user classes have the interface of `Rows`.
        uses_proxy: True if the attacker has a reference model, made by the `proxy` of the spec.
        independent_trials: True if scores come from independent trials with one training each.
        repeats_calls: True if the mechanism is called repeatedly and each call must behave like the first.
        helps: Advice on raising the sensitivity of the game.
        tried: Inputs to which its sensitivity is limited, such as "on the tables that were tried"; "" for no limit.
        sharing: Function of the mechanism: largest number of canaries that share a training, if there are several
            trainings without common randomness. None if all canaries share one training.
        run_on: Function of the game and the number of target rows: approximate and smallest number of rows in one run
            of the mechanism. None if the game makes or selects its data.
        asks_membership: True if the attack tells who was trained on; the report then also shows ROC, AUC and TPR.
        zeroes_out: True if one record's contribution is zero in one world of an add/remove game, at the same number of
            records and the same divisor, so that the game tests claims about `zero-out` neighbours too.
        records: Number of records in which the two worlds differ: 1, 2, 4 or 8. Claims are converted by group privacy.
        differ_in: Difference of two neighbours that the claim is about, in words; "" for one record or label.
        check_tests: Tests for `dpaudit check`; a game without any runs only on request.
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
    repeats_calls: bool = False
    helps: str = ""
    tried: str = ""
    sharing: Callable[[Any], int] | None = None
    run_on: Callable[[Any, int], tuple[int, int]] | None = None
    asks_membership: bool = False
    zeroes_out: bool = False
    records: int = 1
    differ_in: str = ""
    check_tests: tuple[CheckTest, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.views) > 0, "a game must state at least one view")

    @property
    def assumed(self) -> str:
        """All assumptions, in sentences."""
        return f"{self.assumes} {NO_STATE}" if self.repeats_calls else self.assumes

    def compared(self, claim: Claim, *, audit: str = "") -> ConvertedClaim:
        """Return the claim converted to the two worlds of the game."""
        converted = claim_under(claim, self.relation, records=self.records, audit=audit, zeroes_out=self.zeroes_out)
        return replace(converted, differ_in=self.differ_in)

    def capability_of(self, mechanism: Any) -> Capability | None:
        """Return the capability through which the game audits the mechanism; None if it cannot."""
        return next((face for face in self.views if face.includes(mechanism)), None)

    def rows_for(self, mechanism: Any) -> type[Any]:
        """Return the class of the data that the game needs with this mechanism."""
        capability = self.capability_of(mechanism)
        return self.rows if capability is None or capability.rows is None else capability.rows

    def estimator_against(self, claim: Claim) -> str:
        """Return the name of the default estimator; it depends on the claim only, never on scores."""
        return self.estimator if claim.is_point else self.curve_estimator or self.estimator

    def reading(self, *, stops_early: bool) -> Reading:
        """Return how the evidence is read."""
        if stops_early:
            return Reading.IN_ORDER
        return Reading.TOGETHER if self.independent_trials else Reading.PER_REPLAY


def every_row(game: Any, rows: int) -> tuple[int, int]:
    """Return the number of target rows twice: a run of the mechanism uses all of them."""
    return rows, rows


NOISELESS_TRIALS = 500
"""Largest number of trials or canaries without noise, and of those that an attack trains on."""
MAX_UNITS = 100_000
"""Largest number of units in a plan, which takes about a minute."""


def require_units(count: int) -> None:
    """Raise SpecError if a plan would have too many units; games call this before they add units."""
    if count > MAX_UNITS:
        raise SpecError(
            f"a plan must have at most {MAX_UNITS:,} units, this one needs at least {shortened(f'{count:,}')}. Ask for "
            "fewer replays, trainings or trials"
        )


@dataclass(frozen=True)
class Setting:
    """Everything from which a game is planned.

    Attributes:
        mechanism: The audited mechanism.
        proxy: Source of the attacker's reference model.
        attack: The attack.
        data: Description of the data set, without rows.
        parts: Rows of each part of the data (target, reference, ...), with their shared names.
        split_at_random: True if the audit assigned rows to parts at random, not by their order.
        seed: Seed of the audit.
        resources: Resources of a unit that runs the mechanism.
        rows_per_unit: Largest number of score rows of one unit, which bounds its time and memory.
        reading: How the scores are read.
        after: Keys of units that must finish before the mechanism runs.
        first_seed: For a confirmatory run, the seed of the first pass. None for `seed`.
        measures_ceiling: True if a game with one training also trains without privacy, so that its maximum detectable
            epsilon is what its attack shows of such a model. Configurations of a sweep share that training.
        reference_resources: Resources of a unit that trains the attacker's reference model.
        metrics: The user's metrics of utility, by name.
    """

    mechanism: Any
    proxy: Any
    attack: Any
    data: Any
    parts: Parts
    split_at_random: bool
    seed: Seed
    resources: Resources
    rows_per_unit: int
    reading: Reading
    after: tuple[str, ...] = ()
    first_seed: Seed | None = None
    measures_ceiling: bool = False
    reference_resources: Resources = Resources()
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)

    @property
    def search_seed(self) -> Seed:
        """Seed of search trials; a confirmatory run reuses that of the first pass and pays for fresh trials only."""
        return self.first_seed or self.seed

    def part_argument(self, part: str) -> Any:
        """Return the placeholder for a part of the data in the arguments of units; None if the part is empty."""
        name = self.parts.name(part)
        return Shared(name) if name else None

    def required_part(self, part: str) -> Any:
        """Return the placeholder for a part of the data; SpecError if the part is empty."""
        placeholder = self.part_argument(part)
        if placeholder is None:
            raise SpecError(f"the {part} part of the data is empty. Give `split.{part}` a share above 0")
        return placeholder

    @property
    def unit_options(self) -> dict[str, Any]:
        """Keyword arguments `resources` and `after` of a unit that runs the mechanism."""
        return {"resources": self.resources, "after": self.after}

    @property
    def reference_options(self) -> dict[str, Any]:
        """Keyword arguments `resources` and `after` of a unit that trains the attacker's reference model."""
        trains, resources = getattr(self.proxy, "trains", True), self.reference_resources
        return {"resources": resources if trains else resources.without_gpu, "after": self.after}

    @property
    def noiseless(self) -> Setting | None:
        """This setting with a mechanism without noise; None if the mechanism has no method `without_noise`."""
        bare = getattr(self.mechanism, "without_noise", lambda: None)()
        return None if bare is None else replace(self, mechanism=bare, seed=self.seed.child("noiseless"))

    @property
    def informed_attack(self) -> Any:
        """The attack, specialised for the mechanism if it is an `InformedAttack`."""
        if isinstance(self.attack, InformedAttack):
            return self.attack.for_mechanism(self.mechanism, getattr(self.parts.target, "classes", 0))
        return self.attack


@dataclass(frozen=True, eq=False)
class PlantedNoise:
    """Log-odds of trainings at several epsilons, by the stated law; each row stands for equally many trainings."""

    epsilon: NDArray[np.float64]  # epsilon of the mechanism, > 0, shape (rows,)
    log_odds: NDArray[np.float64]  # log-odds of world D', in nats, shape (rows,)


@dataclass(frozen=True)
class Played:
    """The plan of a game, with facts that reading its evidence needs.

    Attributes:
        evidence: Units that yield the evidence, in reading order.
        trainings: Units that run the mechanism.
        control: Units that run the game on held-out rows, one for each distinguisher.
        ceiling: Units that run the game against a mechanism without privacy, if that needs a run.
        noise: Unit that checks the form of the mechanism's noise, if it is observed.
        noiseless: True if `ceiling` runs the mechanism itself without its noise.
        planted: Unit that computes the log-odds at other epsilons, if they are known exactly.
        choices: Units whose notes describe choices made on search data.
        where: Unit that locates the leak in the code. It runs after a violation and affects no verdict.
        shadows: Units that train shadow models, which yield no evidence.
        claim: Claim about a trial, if it differs from the claim about the whole.
        whole: Function that states what a finding about a part, such as a step, and its claim mean for the whole; None
            if the finding is about the whole.
        reference: Reference for planning the sensitivity; None if there is none.
        replays: Number of pieces of evidence if nothing fails.
        observational: True if the training data are unchanged (Definition 4), found by comparing them.
        conditional: True if the bound relies on a proxy.
        controlled_on: Description of the rows of the control.
    """

    evidence: tuple[Unit, ...]
    trainings: tuple[Unit, ...] = ()
    control: tuple[Unit, ...] = ()
    ceiling: tuple[Unit, ...] = ()
    noise: Unit | None = None
    noiseless: bool = False
    planted: Unit | None = None
    choices: tuple[Unit, ...] = ()
    where: Unit | None = None
    shadows: tuple[Unit, ...] = ()
    claim: Claim | None = None
    whole: Callable[[Finding, Claim], tuple[str, ...]] | None = None
    reference: Reference | None = None
    replays: int = 1
    observational: bool = False
    conditional: bool = False
    controlled_on: str = ""


class Game(Protocol):
    """An experiment (registered as "game")."""

    traits: ClassVar[GameTraits]
    """Facts about the game."""

    def play(self, setting: Setting, work: Work) -> Played:
        """Add all units with their seeds to `work`, and return the plan; no unit runs."""
        ...
