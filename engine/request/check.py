"""The spec of a check: every game that fits a mechanism, cheap ones first, scaled to a budget."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from dpaudit.claims import Claim, Relation
from dpaudit.claims.scope import Scope, strict_scopes
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.gaussian_mixture import GaussianMixture
from dpaudit.engine.data.partition import Partition, loaded_rows
from dpaudit.engine.games.protocol import CheckTest, GameTraits
from dpaudit.engine.request.audit_spec import (
    ACCOUNTANT,
    MAX_SEED,
    Audit,
    AuditSpec,
    RunOptions,
    as_data_source,
    require_accountant,
    with_accountant_claim,
)
from dpaudit.engine.request.build import build
from dpaudit.engine.request.error_budget import JointTest
from dpaudit.engine.request.timing import call_cost, training_seconds
from dpaudit.errors import AuditError, SpecError, require
from dpaudit.field_checks import check_fields
from dpaudit.locations import has_location, location
from dpaudit.mechanisms.adapters.own_function import OwnFunction
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels
from dpaudit.mechanisms.protocols import (
    BagMechanism,
    Claiming,
    LabelMechanism,
    StackLearner,
)
from dpaudit.mechanisms.queries.row_function import RowFunction, TableRows
from dpaudit.registry import catalogue, load

Effort = Literal["quick", "standard", "thorough"]
EFFORTS: Mapping[str, float] = {"quick": 1 / 8, "standard": 1.0, "thorough": 4.0}
"""Factor of each effort on the calls and trainings of a test."""
BUDGETS: Mapping[str, str] = {"quick": "2m", "standard": "10m", "thorough": "2h"}
"""Budget of each effort if none is given."""
MAX_HALVINGS = 5
"""Times that the calls of all tests are halved before tests of side findings are left out."""
MIN_TRIALS = 4
"""Trials, search calls or replays of a test that any game can be played with."""
SHRINK_FACTOR = 1 / 2
"""Factor on calls and trainings, as often as needed, if a budget is too short for the effort: so coarse that a clock
that is a little off leads to the same plan."""
PLANNING_MESSAGE = "choosing the tests: a call or a training may be timed"
"""Progress message while a check is planned."""
LEARNING_S = 4e-4
"""Seconds of learning per call, in addition to the call."""
BUDGET_SHARE = 0.8
"""Share of a budget in seconds for the calls or trainings of all tests and of a repeated one."""
MAX_UNIT_NUMBERS, SMALL_RESULT = 1 << 24, 1 << 13
"""Most numbers that all calls of a unit return together, if a call returns more than FEW_NUMBERS."""


@dataclass(frozen=True)
class Budget:
    """What a check may cost."""

    seconds: float | None = None  # after which nothing is begun any more, > 0; None for no limit
    trainings: int | None = None  # of all tests together, >= 0, half of them for playing one again; None for no limit

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.seconds is None or self.seconds > 0, "a budget must be > 0 seconds", seconds=self.seconds)
        require(self.trainings is None or self.trainings >= 0, "trainings must be >= 0", trainings=self.trainings)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a budget: "90s", "10m", "1h", "200 trainings", or a time and trainings separated by a comma."""
        seconds, trainings = None, None
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|trainings?)\s*", part)
            require(match is not None, "a budget must be like 90s, 10m, 1h or 200 trainings", budget=text)
            assert match is not None
            number, unit = float(match[1]), match[2]
            if unit in _SECONDS:
                seconds = number * _SECONDS[unit]
            else:
                require(math.isfinite(number), "a budget must have a number that is finite", budget=text)
                trainings = int(number)
        return cls(seconds, trainings)


_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class CheckRequest:
    """What is to be checked.

    Attributes:
        mechanism: A registered name, `{name: ..., fields}`, one's own class `package.module:Class`, or an object.
        data: As in an audit; left out: small data are made that the mechanism can be run on.
        claim: Overrides what the mechanism states of itself; "accountant": as in an audit.
        split: Which share of the data plays which part; left out: as much to the target as the games leave.
        budget: What it may cost at most: "10m", "90s", "200 trainings", "1h, 500 trainings"; None: that of the effort.
    """

    mechanism: Any = field(metadata={"kind": "mechanism"})
    data: Any = field(default=None, metadata={"kind": "data"})
    claim: Claim | Literal["accountant"] | None = None
    split: Partition | None = None
    budget: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.budget is not None:
            Budget.parse(self.budget)  # a wrong one is refused before anything is timed


@dataclass(frozen=True)
class CheckOptions:
    """What a spec says beside `check`.

    Attributes:
        name: For reports and the default run folder; "" takes the mechanism's.
        seed: Everything random follows from it.
        confidence: Of the verdict VIOLATION, in (0, 1), whatever a first pass of all tests was; its own bounds hold
            together with 0.95.
        until_decided: Whether tests that are left undecided are played once more, with four times the trials; the
            error of the verdict is shared with that.
        run: Where the work runs; None: in this process where nothing is trained, else on Ray.
        effort: "quick", "standard" or "thorough": how many calls and trainings each test has. The same effort gives the
            same scores on any machine, unless the budget is too short for it.
        strict: Scopes whose side findings are part of the verdict: "floating-point", "beyond-schema" or "all".
    """

    name: str = ""
    seed: int = 0
    confidence: float = 0.999
    until_decided: bool = False
    run: RunOptions | None = None
    strict: tuple[str, ...] = ()
    effort: Effort = "standard"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "strict", tuple(scope.value for scope in strict_scopes(self.strict)))
        require(0 <= self.seed < MAX_SEED, "seed must be in 0 .. 10^18 - 1", seed=self.seed)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)


@dataclass(frozen=True)
class PlannedTest:
    """A test of a game."""

    game: str  # the game's registered name
    test: CheckTest  # how it takes part

    @property
    def name(self) -> str:
        """Name of the audit."""
        return f"{self.game}, {self.test.variant}" if self.test.variant else self.game

    def scaled(self, factor: float) -> PlannedTest:
        """Return the choice with `factor` times the calls or trainings, never fewer than it needs."""
        test = self.test
        if not test.scales or factor == 1:
            return self
        trainings = max(min(test.min_trainings, test.trainings), int(test.trainings * factor))
        stack = test.game.get("stack", getattr(load("game", self.game), "stack", None))
        smaller = {"stack": max(2, int(stack * factor))} if isinstance(stack, int) and factor < 1 else {}
        return replace(self, test=replace(test, trainings=trainings, game={**test.game, **smaller}))

    def with_result_size(self, numbers: int) -> PlannedTest:
        """Return the choice with fewer calls in a unit if a call returns so many `numbers`: a unit holds all together.

        By powers of two: outputs that are a little longer give the same plan.
        """
        if numbers <= SMALL_RESULT:
            return self
        stack = max(2, MAX_UNIT_NUMBERS >> (numbers - 1).bit_length())
        return replace(self, test=replace(self.test, game={**self.test.game, "stack": stack}))

    @property
    def repeat_price(self) -> float:
        """Calls or trainings of a confirmatory run, in trainings on the data given."""
        test = self.test
        shares = test.scales or {"": 1.0}
        return test.price * sum(
            share * test.growth_on_repeat.get(name, 1.0) for name, share in shares.items() if name != test.search_field
        )

    @property
    def rank(self) -> tuple[bool, int]:
        """Tests of the claim come before those of side findings, cheap ones before dear ones."""
        return self.test.scope is not Scope.CLAIM, self.test.price


def check_spec(request: CheckRequest, options: CheckOptions = CheckOptions()) -> AuditSpec:
    """Return the audits of a check; `together` holds the reason for each, and the games that were left out.

    Raises: SpecError if no game fits the mechanism and its claim.
    """
    mechanism = _as_game_mechanism(build("mechanism", request.mechanism, location="check.mechanism"))
    if request.claim is None and not isinstance(mechanism, Claiming):
        raise SpecError("check.mechanism must state its claim: give it a method `claim() -> Claim`, or give `claim`")
    if request.claim == ACCOUNTANT:  # its epsilon does not decide which games fit
        require_accountant(mechanism, "check")
        claim: Any = Claim(math.inf, relation=Relation.ADD_REMOVE)
    else:
        claim = request.claim or mechanism.claim()
    if not isinstance(claim, Claim):
        raise SpecError(f"check.mechanism.claim() must give a dpaudit.Claim, got {claim!r}")
    planned_tests, other_claims, other_mechanisms = matching_tests(mechanism, claim)
    planned_tests = [choice.scaled(EFFORTS[options.effort]) for choice in planned_tests]
    usual_trainings = {choice.name: choice.test.trainings for choice in planned_tests}
    data = default_data(mechanism, claim) if request.data is None else as_data_source(request.data)
    budget = Budget.parse(BUDGETS[options.effort] if request.budget is None else request.budget)
    too_long: list[str] = []
    if isinstance(mechanism, RowFunction) and planned_tests:
        table = cast(TableRows, loaded_rows(build("data", data, location="check.data"), options.seed))
        if table.schema.allows_everything:
            planned_tests = [choice for choice in planned_tests if choice.test.scope is not Scope.BEYOND_SCHEMA]
        seconds, numbers = call_cost(mechanism, table, claim.relation)
        planned_tests, other_claims = [choice.with_result_size(numbers) for choice in planned_tests], []
        planned_tests, too_long = within_seconds(planned_tests, seconds + LEARNING_S, budget.seconds)
        # In this process, since no cluster then has to start; another Python runs once for each core.
        cores = os.cpu_count() or 1 if getattr(mechanism, "python", "") else 1
        options = replace(options, run=options.run or RunOptions(runner="in-process", cpus_per_worker=cores))
    elif (
        budget.seconds is not None
        and request.budget is not None
        and any(each.test.trainings > 1 for each in planned_tests)
    ):
        rows = loaded_rows(build("data", data, location="check.data"), options.seed)
        target = (request.split or MOSTLY_TARGET).divide(rows, np.random.default_rng(0)).target
        planned_tests, too_long = within_seconds(planned_tests, training_seconds(mechanism, target), budget.seconds)
    affordable, too_expensive = within_trainings(planned_tests, budget.trainings)
    too_expensive += too_long
    if not affordable:
        raise SpecError(
            f"no game fits {type(mechanism).__name__} with a claim about {claim.relation} neighbours: "
            f"{'; '.join(too_expensive or other_claims or other_mechanisms)}"
        )
    audits = with_accountant_claim(
        tuple(_audit(test, mechanism, data, request) for test in affordable), options.seed, "check"
    )
    trains = any(test.trainings for test in affordable)
    unit = "call" if isinstance(mechanism, RowFunction) else "training"
    side_scopes = {test.planned.name: test.planned.test.scope for test in affordable}
    side_scopes = {
        name: scope for name, scope in side_scopes.items() if scope is not Scope.CLAIM and scope not in options.strict
    }
    reasons = [
        f"{test.planned.name}: finds {test.planned.test.finds}{_cost_note(test.trainings, unit)}" for test in affordable
    ]
    repeat_factors = {test.planned.name: test.repeat_factors for test in affordable if test.repeat_factors}
    fewer = [
        f"{test.planned.name} {test.trainings:,} of {usual_trainings[test.planned.name]:,}"
        for test in affordable
        if test.trainings < usual_trainings[test.planned.name]
    ]
    cut = f"the budget allows fewer {unit}s than usual: {'; '.join(fewer)}" if fewer else ""
    return AuditSpec(
        audits,
        name=options.name or f"check {_mechanism_name(mechanism)}",
        seed=options.seed,
        confidence=1 - (1 - options.confidence) / 2 if options.until_decided else options.confidence,
        run=options.run or RunOptions(runner="auto" if trains else "in-process"),
        together=JointTest(
            budget.seconds, tuple(reasons), (*other_claims, *too_expensive), cut, again=repeat_factors, side=side_scopes
        ),
    )


TARGET_ONLY, MOSTLY_TARGET = (
    Partition(target=1.0, reference=0.0, test=0.0),
    Partition(target=0.7, reference=0.2, test=0.1),
)
"""Default divisions of the data."""


def _as_game_mechanism(mechanism: Any) -> Any:
    """Return the mechanism that games play; for a release about bags, the learner that recalls labels from it."""
    bags_alone = isinstance(mechanism, BagMechanism) and not isinstance(mechanism, LabelMechanism)
    return AggregatedLabels(mechanism) if bags_alone else mechanism


def _fits_test(mechanism: Any, test: CheckTest) -> bool:
    return isinstance(mechanism, test.capability.protocol) and not (
        test.excluded and isinstance(mechanism, test.excluded)
    )


def matching_tests(mechanism: Any, claim: Claim) -> tuple[list[PlannedTest], list[str], list[str]]:
    """Return the tests that fit a mechanism and its claim, cheap ones first; games for other claims; other games."""
    matching, other_claims, other_mechanisms = [], defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in catalogue("game"):
        fits: GameTraits = load("game", name).traits
        supported = [test for test in fits.check_tests if _fits_test(mechanism, test)]
        fitting = [test for test in supported if claim.relation in test.relations]
        matching += [PlannedTest(name, test) for test in fitting]
        if not supported:
            for words in dict.fromkeys(test.capability.words for test in fits.check_tests) or [
                "what is asked for by name"
            ]:
                other_mechanisms[words].append(name)
        elif not fitting:
            relations = dict.fromkeys(str(relation) for test in supported for relation in test.relations)
            other_claims[f"claims about {' or '.join(relations)} neighbours"].append(name)
    for_others, others = (
        [f"{', '.join(names)}: for {why}" for why, names in games.items()] for games in (other_claims, other_mechanisms)
    )
    return sorted(matching, key=lambda choice: choice.rank), for_others, others


def default_data(mechanism: Any, claim: Claim) -> Any:
    """Return small data that a mechanism can run on: ten classes for labels, two for models, digits for images.

    A claim about labels needs only a few trainings, so they may be on more rows than those of a claim about records.
    """
    if isinstance(mechanism, LabelMechanism):
        return GaussianMixture(classes=10, rows=2_000)
    table = GaussianMixture(classes=2, rows=10_000 if claim.relation is Relation.LABEL else 1_000)
    if not isinstance(mechanism, StackLearner):
        return table
    try:
        mechanism.stack_plan((table.dimensions,), classes=table.classes, models=1, compute=Compute())
    except AuditError:  # a network of images
        return Digits()
    return table


@dataclass(frozen=True)
class AffordableTest:
    """A test that fits the budget."""

    planned: PlannedTest  # the test
    trainings: int  # calls or trainings that it may use
    repeat_factors: dict[str, float]  # factors by which fields of its game grow when it is repeated


def within_seconds(
    planned_tests: list[PlannedTest], call_s: float | None, seconds: float | None
) -> tuple[list[PlannedTest], list[str]]:
    """Return the tests that fit a budget, with fewer calls or trainings if they must, and which do not fit.

    Args:
        each: Seconds of one call or training; None if not known.
        seconds: The budget; None for no limit.
    """
    if call_s is None or seconds is None:
        return planned_tests, []

    def seconds_needed(tests: Sequence[PlannedTest]) -> float:
        return call_s * (sum(choice.test.price for choice in tests) + max(choice.repeat_price for choice in tests))

    def is_minimal(tests: Sequence[PlannedTest]) -> bool:
        return all(not choice.test.scales or choice.test.trainings <= choice.test.min_trainings for choice in tests)

    too_long, halvings = [], 0
    while planned_tests and seconds_needed(planned_tests) > BUDGET_SHARE * seconds and not is_minimal(planned_tests):
        last = planned_tests[-1]
        if halvings >= MAX_HALVINGS and last.test.scope is not Scope.CLAIM:  # the claim comes before side findings
            planned_tests = planned_tests[:-1]
            too_long.append(f"{last.name}: the budget of {seconds:g} s is too short for it")
            continue
        planned_tests, halvings = [choice.scaled(SHRINK_FACTOR) for choice in planned_tests], halvings + 1
    while len(planned_tests) > 1 and seconds_needed(planned_tests) > BUDGET_SHARE * seconds:
        *planned_tests, last = planned_tests
        too_long.append(f"{last.name}: the budget of {seconds:g} s is too short for it")
    return planned_tests, too_long


def within_trainings(planned_tests: list[PlannedTest], trainings: int | None) -> tuple[list[AffordableTest], list[str]]:
    """Return as many tests as a number of trainings is enough for, and which not.

    Half of the number is kept for repeating one test.
    """
    available = None if trainings is None else trainings - trainings // 2
    reserve = None if trainings is None else trainings // 2
    affordable, too_expensive = [], list[str]()
    for choice in planned_tests:
        test, wanted = choice.test, choice.test.trainings
        price = test.price if available is None else min(test.price, available)
        allowed = wanted if price == test.price else int(price / test.cost)
        repeats = None if reserve is None else int(reserve / test.cost)
        if repeats is not None and test.scales:  # so that a repeat has as much to learn from, and shares it
            allowed = min(allowed, repeats)
        minimum = test.min_trainings if test.scales else wanted
        if repeats is not None and min(allowed, repeats) < min(minimum, wanted):
            too_expensive.append(
                f"{choice.name}: needs at least {min(minimum, wanted):,} trainings and as many for its confirmatory "
                f"run; the budget leaves {allowed:,} and {repeats:,}"
            )
            continue
        affordable.append(AffordableTest(choice, allowed, _repeat_factors(test, allowed, repeats)))
        available = None if available is None else available - price
    return affordable, too_expensive


def _repeat_factors(test: CheckTest, trainings: int, repeats: int | None) -> dict[str, float]:
    """Return the factors by which a repeat of a test grows, with at most `repeats` trainings."""
    if repeats is None or not test.scales:
        return dict(test.growth_on_repeat)
    most = repeats / trainings / (1 - test.scales.get(test.search_field, 0.0))
    grown = {
        name: min(test.growth_on_repeat.get(name, 1.0), most)
        for name in (*test.scales, *test.growth_on_repeat)
        if name != test.search_field
    }
    return {name: factor for name, factor in grown.items() if factor != 1.0}


def _audit(affordable: AffordableTest, mechanism: Any, data: Any, request: CheckRequest) -> Audit:
    choice, test = affordable.planned, affordable.planned.test
    fewest = min(MIN_TRIALS, test.trainings)
    scaled = {name: max(fewest, int(share * affordable.trainings)) for name, share in test.scales.items()}
    return Audit(
        mechanism=mechanism,
        data=data,
        game={"name": choice.game, **test.game, **scaled},
        attack=test.attack or None,
        estimator=test.estimator or None,
        split=request.split or (TARGET_ONLY if test.capability.protocol is RowFunction else MOSTLY_TARGET),
        claim=request.claim,
        confirm=test.confirm,
        stop=test.stop,
        name=choice.name,
    )


def _cost_note(count: int, of: str) -> str:
    return f" ({count:,} {of}{'s' if count != 1 else ''} at most)" if count else ""


def _mechanism_name(mechanism: Any) -> str:
    if isinstance(mechanism, OwnFunction):
        where = mechanism.function if isinstance(mechanism.function, str) else location(mechanism.function)
        return where.rpartition(":")[2].replace(".<object>", "").removesuffix(".__call__")
    for name in ("predictor", "estimator", "function", "train", "module"):
        code = getattr(mechanism, name, None)
        if code is not None and (isinstance(code, str) or has_location(code)):
            return (code if isinstance(code, str) else location(code)).rpartition(":")[2]
    registered = type(mechanism).__dict__.get("registered_name")
    return str(registered) if registered else type(mechanism).__name__
