"""From a mechanism alone to a spec: every game that states it fits, the cheap ones first, on data given or made.

Of a function on rows: from what a caller says in one line to a request, sized by how long a call takes.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.claims import Claim, Relation
from dpaudit.claims.parsing import parse_claim
from dpaudit.claims.scope import Scope, strict_scopes
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.gaussian_mixture import GaussianMixture
from dpaudit.engine.data.partition import Partition, loaded_rows
from dpaudit.engine.data.schema_rows import SchemaRows
from dpaudit.engine.games.functions.neighbouring_tables import pairs
from dpaudit.engine.games.neighbours.summaries import MIN_FAILED_BATCH
from dpaudit.engine.games.protocol import CheckTest, GameTraits
from dpaudit.engine.request.audit_spec import (
    ACCOUNTANT,
    MAX_SEED,
    Audit,
    AuditSpec,
    RunOptions,
    given_data,
    held_to_accountant,
    require_accountant,
)
from dpaudit.engine.request.build import build
from dpaudit.engine.request.error_budget import JointTest
from dpaudit.errors import AuditError, SpecError, require
from dpaudit.given import argument, check_fields
from dpaudit.locations import has_location, location
from dpaudit.mechanisms.adapters.own_function import Form, OwnFunction
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.language_models.transport import HttpService
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels
from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor, VotingPredictor
from dpaudit.mechanisms.protocols import (
    BagMechanism,
    Claiming,
    LabelMechanism,
    Learner,
    StackLearner,
    SummarisedLearner,
)
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction, TableRows
from dpaudit.registry import catalogue, load

Effort = Literal["quick", "standard", "thorough"]
EFFORTS: Mapping[str, float] = {"quick": 1 / 8, "standard": 1.0, "thorough": 4.0}
"""Factor of each effort on the calls and trainings of a test."""
BUDGETS: Mapping[str, str] = {"quick": "2m", "standard": "10m", "thorough": "2h"}
"""Budget of each effort if none is given."""
MOST_HALVED = 5
"""Times that the calls of all tests are halved before tests of side findings are left out."""
FEWEST = 4
"""Trials, search calls or replays of a test that any game can be played with."""
STEP_DOWN = 1 / 2
"""Factor on calls and trainings, as often as needed, if a budget is too short for the effort: so coarse that a clock
that is a little off leads to the same plan."""
CHOOSING = "choosing the tests: a call or a training may be timed"
"""What is said while a check is planned."""
SCORED_S = 4e-4
"""Seconds beside each call that learning from it takes."""
FOR_RUNS = 0.8
"""Share of a budget in seconds for the calls or trainings of all tests and of a repeated one."""
SIDE_BY_SIDE = 16
"""Trainings that are timed together where one is quick."""
ROWS_TIMED = 2_000
"""Rows that data for a predictor are made from, where it is timed."""
LOADED_S = 60.0
"""How long a call may take that is timed, or loads a library first."""
TIMED_S = 2.0
"""After which calls have been timed well enough."""
NUMBERS_OF_UNIT, FEW_NUMBERS = 1 << 24, 1 << 13
"""Numbers that the calls of a unit give together, at most, where one gives more than a few."""


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
        """A budget in words: "90s", "10m", "1h", "200 trainings", or a time and trainings, split by a comma."""
        seconds, trainings = None, None
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|trainings?)\s*", part)
            require(found is not None, "a budget must be like 90s, 10m, 1h or 200 trainings", budget=text)
            assert found is not None
            if found[2] in _SECONDS:
                seconds = float(found[1]) * _SECONDS[found[2]]
            else:
                number = float(found[1])
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
class Choice:
    """A test of a game."""

    game: str  # the game's registered name
    test: CheckTest  # how it takes part

    @property
    def name(self) -> str:
        """Of the audit."""
        return f"{self.game}, {self.test.variant}" if self.test.variant else self.game

    def scaled(self, factor: float) -> Choice:
        """Return the choice with `factor` times the calls or trainings, never fewer than it needs."""
        test = self.test
        if not test.scales or factor == 1:
            return self
        trainings = max(min(test.min_trainings, test.trainings), int(test.trainings * factor))
        stack = test.game.get("stack", getattr(load("game", self.game), "stack", None))
        smaller = {"stack": max(2, int(stack * factor))} if isinstance(stack, int) and factor < 1 else {}
        return replace(self, test=replace(test, trainings=trainings, game={**test.game, **smaller}))

    def with_wide_results(self, numbers: int) -> Choice:
        """Return the choice with fewer calls in a unit if a call returns so many `numbers`: a unit holds all together.

        By powers of two: outputs that are a little longer give the same plan.
        """
        if numbers <= FEW_NUMBERS:
            return self
        stack = max(2, NUMBERS_OF_UNIT >> (numbers - 1).bit_length())
        return replace(self, test=replace(self.test, game={**self.test.game, "stack": stack}))

    @property
    def price_of_repeat(self) -> float:
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
    """The audits that a check is made of; `together` says why each is among them, and which games others would have.

    Raises: SpecError when no game fits the mechanism and its claim.
    """
    mechanism = _played(build("mechanism", request.mechanism, location="check.mechanism"))
    if request.claim is None and not isinstance(mechanism, Claiming):
        raise SpecError("check.mechanism must state its claim: give it a method `claim() -> Claim`, or give `claim`")
    if request.claim == ACCOUNTANT:  # what that is going to say of a training decides no game
        require_accountant(mechanism, "check")
        claim: Any = Claim(math.inf, relation=Relation.ADD_REMOVE)
    else:
        claim = request.claim or mechanism.claim()
    if not isinstance(claim, Claim):
        raise SpecError(f"check.mechanism.claim() must give a dpaudit.Claim, got {claim!r}")
    chosen, near, far = choices(mechanism, claim)
    chosen = [one.scaled(EFFORTS[options.effort]) for one in chosen]
    usual = {one.name: one.test.trainings for one in chosen}
    data = made_data(mechanism, claim) if request.data is None else given_data(request.data)
    budget = Budget.parse(BUDGETS[options.effort] if request.budget is None else request.budget)
    too_long: list[str] = []
    if isinstance(mechanism, RowFunction) and chosen:
        table = cast(TableRows, loaded_rows(build("data", data, location="check.data"), options.seed))
        if table.schema.allows_everything:
            chosen = [one for one in chosen if one.test.scope is not Scope.BEYOND_SCHEMA]
        each, numbers = cost_of_a_call(mechanism, table, claim.relation)
        chosen, near = [one.with_wide_results(numbers) for one in chosen], []
        chosen, too_long = within_seconds(chosen, each + SCORED_S, budget.seconds)
        options = replace(options, run=options.run or where_to_run(mechanism))
    elif budget.seconds is not None and request.budget is not None and any(one.test.trainings > 1 for one in chosen):
        rows = loaded_rows(build("data", data, location="check.data"), options.seed)
        target = (request.split or MOST).divide(rows, _rng()).target
        chosen, too_long = within_seconds(chosen, seconds_a_training(mechanism, target), budget.seconds)
    affordable, dear = affordable_looks(chosen, budget.trainings)
    dear += too_long
    if not affordable:
        raise SpecError(
            f"no game fits {type(mechanism).__name__} with a claim about {claim.relation} neighbours: "
            f"{'; '.join(dear or near or far)}"
        )
    audits = tuple(_audit(one, mechanism, data, request) for one in affordable)
    audits = held_to_accountant(audits, options.seed, "check")
    trains = any(one.trainings for one in affordable)
    unit = "call" if isinstance(mechanism, RowFunction) else "training"
    side = {one.choice.name: one.choice.test.scope for one in affordable}
    side = {name: scope for name, scope in side.items() if scope is not Scope.CLAIM and scope not in options.strict}
    words = [f"{one.choice.name}: finds {one.choice.test.finds}{_cost(one.trainings, unit)}" for one in affordable]
    again = {one.choice.name: one.again for one in affordable if one.again}
    cut = _cut(affordable, usual, unit)
    return AuditSpec(
        audits,
        name=options.name or f"check {_called(mechanism)}",
        seed=options.seed,
        confidence=1 - (1 - options.confidence) / 2 if options.until_decided else options.confidence,
        run=options.run or RunOptions(runner="auto" if trains else "in-process"),
        together=JointTest(budget.seconds, tuple(words), (*near, *dear), cut, again=again, side=side),
    )


def _cut(affordable: list[Affordable], usual: Mapping[str, int], unit: str) -> str:
    """A sentence on those that are played with less than usual; "" where none is."""
    fewer = [(one.choice.name, one.trainings, usual[one.choice.name]) for one in affordable]
    said = [f"{name} {given:,} of {most:,}" for name, given, most in fewer if given < most]
    return f"the budget allows fewer {unit}s than usual: {'; '.join(said)}" if said else ""


ALL, MOST = Partition(target=1.0, reference=0.0, test=0.0), Partition(target=0.7, reference=0.2, test=0.1)
"""How data are divided, if nothing else is said."""


def _played(mechanism: Any) -> Any:
    """The mechanism; a release about bags by the learner that keeps all that it says of each label."""
    bags_alone = isinstance(mechanism, BagMechanism) and not isinstance(mechanism, LabelMechanism)
    return AggregatedLabels(mechanism) if bags_alone else mechanism


def _has_face(mechanism: Any, test: CheckTest) -> bool:
    return isinstance(mechanism, test.capability.protocol) and not (
        test.excluded and isinstance(mechanism, test.excluded)
    )


def choices(mechanism: Any, claim: Claim) -> tuple[list[Choice], list[str], list[str]]:
    """The tests that fit a mechanism and its claim, the cheap ones first; games for other claims; all other games."""
    chosen, near, far = [], defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in catalogue("game"):
        fits: GameTraits = load("game", name).traits
        played = [test for test in fits.check_tests if _has_face(mechanism, test)]
        fitting = [test for test in played if claim.relation in test.relations]
        chosen += [Choice(name, test) for test in fitting]
        if not played:
            for words in dict.fromkeys(test.capability.words for test in fits.check_tests) or [
                "what is asked for by name"
            ]:
                far[words].append(name)
        elif not fitting:
            relations = dict.fromkeys(str(relation) for test in played for relation in test.relations)
            near[f"claims about {' or '.join(relations)} neighbours"].append(name)
    other, others = ([f"{', '.join(games)}: for {why}" for why, games in found.items()] for found in (near, far))
    return sorted(chosen, key=lambda choice: choice.rank), other, others


def made_data(mechanism: Any, claim: Claim) -> Any:
    """Small data a mechanism can be run on: ten classes for labels, two for models, digits for networks of images.

    A claim about labels asks for a few trainings, which may be on more rows than those of a claim about records.
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
class Affordable:
    """A test that a budget is enough for."""

    choice: Choice  # the test
    trainings: int  # what it may be played with
    again: dict[str, float]  # by how much fields of its game grow when it is repeated


def within_seconds(chosen: list[Choice], each: float | None, seconds: float | None) -> tuple[list[Choice], list[str]]:
    """Return the tests that fit a budget, with fewer calls or trainings if they must, and which do not fit.

    Args:
        each: Seconds of one call or training; None if not known.
        seconds: The budget; None for no limit.
    """
    if each is None or seconds is None:
        return chosen, []

    def needed(some: Sequence[Choice]) -> float:
        return each * (sum(one.test.price for one in some) + max(one.price_of_repeat for one in some))

    def is_least(some: Sequence[Choice]) -> bool:
        return all(not one.test.scales or one.test.trainings <= one.test.min_trainings for one in some)

    too_long, halved = [], 0
    while chosen and needed(chosen) > FOR_RUNS * seconds and not is_least(chosen):
        last = chosen[-1]
        if halved >= MOST_HALVED and last.test.scope is not Scope.CLAIM:  # the claim comes before side findings
            chosen = chosen[:-1]
            too_long.append(f"{last.name}: the budget of {seconds:g} s is too short for it")
            continue
        chosen, halved = [one.scaled(STEP_DOWN) for one in chosen], halved + 1
    while len(chosen) > 1 and needed(chosen) > FOR_RUNS * seconds:
        *chosen, last = chosen
        too_long.append(f"{last.name}: the budget of {seconds:g} s is too short for it")
    return chosen, too_long


def affordable_looks(chosen: list[Choice], trainings: int | None) -> tuple[list[Affordable], list[str]]:
    """Return as many tests as a number of trainings is enough for, and which not.

    Half of the number is kept for repeating one test.
    """
    left = None if trainings is None else trainings - trainings // 2
    kept = None if trainings is None else trainings // 2
    affordable, dear = [], list[str]()
    for choice in chosen:
        test, wanted = choice.test, choice.test.trainings
        price = test.price if left is None else min(test.price, left)
        given = wanted if price == test.price else int(price / test.cost)
        held = None if kept is None else int(kept / test.cost)
        if held is not None and test.scales:  # so that a repeat has as much to learn from, and shares it
            given = min(given, held)
        least = test.min_trainings if test.scales else wanted
        if held is not None and min(given, held) < min(least, wanted):
            dear.append(
                f"{choice.name}: asks for {min(least, wanted):,} trainings at least and as many to play it again, the "
                f"budget leaves {given:,} and {held:,}"
            )
            continue
        affordable.append(Affordable(choice, given, _again(test, given, held)))
        left = None if left is None else left - price
    return affordable, dear


def _again(test: CheckTest, given: int, kept: int | None) -> dict[str, float]:
    """By how much what is repeated grows, with no more trainings than are kept for it."""
    if kept is None or not test.scales:
        return dict(test.growth_on_repeat)
    most = kept / given / (1 - test.scales.get(test.search_field, 0.0))
    grown = {
        name: min(test.growth_on_repeat.get(name, 1.0), most)
        for name in (*test.scales, *test.growth_on_repeat)
        if name != test.search_field
    }
    return {name: factor for name, factor in grown.items() if factor != 1.0}


def _audit(one: Affordable, mechanism: Any, data: Any, request: CheckRequest) -> Audit:
    test = one.choice.test
    fewest = min(FEWEST, test.trainings)
    scaled = {name: max(fewest, int(share * one.trainings)) for name, share in test.scales.items()}
    return Audit(
        mechanism=mechanism,
        data=data,
        game={"name": one.choice.game, **test.game, **scaled},
        attack=test.attack or None,
        estimator=test.estimator or None,
        split=request.split or (ALL if one.choice.test.capability.protocol is RowFunction else MOST),
        claim=request.claim,
        confirm=test.confirm,
        stop=test.stop,
        name=one.choice.name,
    )


def _cost(count: int, of: str) -> str:
    return f" ({count:,} {of}{'s' if count != 1 else ''} at most)" if count else ""


def _called(mechanism: Any) -> str:
    if isinstance(mechanism, OwnFunction):
        where = mechanism.function if isinstance(mechanism.function, str) else location(mechanism.function)
        return where.rpartition(":")[2].replace(".<object>", "").removesuffix(".__call__")
    own = [getattr(mechanism, name, None) for name in ("predictor", "estimator", "function", "train", "module")]
    for each in own:
        if each is not None and (isinstance(each, str) or has_location(each)):
            return (each if isinstance(each, str) else location(each)).rpartition(":")[2]
    registered = type(mechanism).__dict__.get("registered_name")
    return str(registered) if registered else type(mechanism).__name__


def function_on_rows(
    function: Any,
    schema: Mapping[str, Any],
    *,
    claim: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    form: Form = "frame",
    settings: Mapping[str, Any] | None = None,
    python: str = "",
    folder: str = "",
    memory_mb: int | None = None,
    time: bool = False,
) -> tuple[OwnFunction, SchemaRows]:
    """The mechanism and its data.

    Args:
        function: `f(rows, rng, **settings)`, or where it is: "module:function".
        schema: Of the rows: `{"age": (0, 100), "sex": ["f", "m"]}`.
        claim: As `parse_claim` takes it; left out: what the code states itself, by an attribute `claim`, a setting
            `epsilon` (and `delta`), or the default of a parameter of that name.
        relation: Which tables are neighbours.
        form, settings, python, folder, memory_mb, time: As in `OwnFunction`.
    Raises: SpecError when nothing states a claim; InputError for what does not fit.
    """
    rows = SchemaRows(dict(argument("schema", schema, Mapping[str, Any])))
    given = {} if settings is None else dict(argument("settings", settings, Mapping[str, Any]))
    neighbours: Relation = argument("relation", relation, Relation)
    made = OwnFunction(
        function, form=form, settings=given, python=python, folder=folder, memory_mb=memory_mb, time=time
    )
    if claim is None:
        claim = stated_claim(made.function if isinstance(function, str) else function, made.settings)
    return replace(made, claimed=parse_claim(claim, neighbours)), rows


def stated_claim(function: Any, settings: Mapping[str, Any]) -> object:
    """What the code says of itself: epsilon, (epsilon, delta), or the claim that is an attribute of it.

    Raises: SpecError where it says nothing.
    """
    own = getattr(function, "claim", None)
    if own is not None:
        return own() if callable(own) and not isinstance(own, Claim) else own
    known = {name: each[0] if isinstance(each, list) and len(each) == 1 else each for name, each in settings.items()}
    if callable(function):
        parameters = _parameters(function)
        known = {each.name: each.default for each in parameters if each.default is not each.empty} | known
    if "epsilon" not in known:
        raise SpecError(
            "a function must be checked against a claim: give `claim=1.0`, `claim=(1.0, 1e-5)`, `claim='rho=0.5'` or "
            "`claim='mu=1'`; or let the function have a parameter `epsilon` with a default"
        )
    return known["epsilon"] if known.get("delta") is None else (known["epsilon"], known["delta"])


def _parameters(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    """The parameters of a function; none where Python does not know them, as of some that are compiled."""
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return ()


def cost_of_a_call(mechanism: RowFunction, rows: TableRows, relation: Relation) -> tuple[float, int]:
    """Seconds by the clock, once everything is loaded, and how many numbers are kept of what it gives.

    On the slowest of the tables: what leaks is often what takes long.

    Raises: SpecError for a function that fails on all tables in one way.
    """
    settings, limits = mechanism.alternatives()[0], CallLimits(LOADED_S, 1, time_limit, raised_externally)
    tried = pairs(rows.schema, rows.cells, relation, np.random.default_rng(0), beyond=False)
    tables = [rows.cells, *(table for pair in tried for table in (pair.d, pair.d_prime))]

    gave: list[tuple[str, str, bytes]] = []
    numbers = [1]

    def timed(table: pa.Table, calls: int) -> float:
        begun = time.monotonic()
        first = mechanism.outcomes(table, range(calls), settings, limits)[0]
        gave.append((first.fault, first.ending, first.numbers.tobytes()))
        numbers.append(first.numbers.size)
        return (time.monotonic() - begun) / calls

    mechanism.outcomes(rows.cells, [0], settings, limits)
    each: list[tuple[float, int]] = []
    while len(each) < len(tables) and sum(seconds for seconds, _ in each) < TIMED_S:
        each.append((timed(tables[len(each)], 1), len(each)))
    if len(gave) >= MIN_FAILED_BATCH and gave[0][0] and len(set(gave)) == 1:
        raise SpecError(
            f"a function must run on rows of its schema ({', '.join(rows.cells.column_names)}); on each of "
            f"{len(gave)} tables it failed alike: {gave[0][0]}"
        )
    seconds, slowest = max(each)
    return timed(tables[slowest], max(1, min(100, int(TIMED_S / 2 / max(seconds, 1e-4))))), max(numbers)


def where_to_run(mechanism: RowFunction) -> RunOptions:
    """In this process, where nobody waits for a cluster to start; another Python runs once for each core."""
    cores = os.cpu_count() or 1 if getattr(mechanism, "python", "") else 1
    return RunOptions(runner="in-process", cpus_per_worker=cores)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def seconds_a_training(mechanism: Any, target: Any) -> float | None:
    """By the clock, once everything is loaded, of several side by side where one is quick; None where none ends.

    Args:
        mechanism: A learner, or a predictor that trains.
        target: The rows that it is trained on.
    """

    def timed(run: Callable[[int], object], count: int) -> float:
        begun = time.monotonic()
        run(count)
        return (time.monotonic() - begun) / count

    try:
        run = _training_of(mechanism, target.writable() if hasattr(target, "writable") else target)
        if run is None:
            return None
        timed(run, 1)
        alone = timed(run, 1)
        return alone if alone > TIMED_S / SIDE_BY_SIDE else timed(run, SIDE_BY_SIDE)
    except Exception:  # somebody's code may raise anything; what fails here fails when it is played, and is told there
        return None


def _training_of(mechanism: Any, target: Any) -> Callable[[int], object] | None:
    """What trains so many times, by the face that games play; None where that is not known."""
    seed, compute = np.random.SeedSequence(0), Compute()
    few = target.features[:8]
    if isinstance(mechanism, Learner | StackLearner):
        from dpaudit.engine.games.trials import TrainingRun, train_runs

        every = np.arange(len(target))
        return lambda count: train_runs(
            mechanism, target, [TrainingRun(every, Seed(0).child(number)) for number in range(count)], compute=compute
        )
    if isinstance(mechanism, SummarisedLearner):
        return lambda count: [mechanism.summarise(target, few, seed=seed, compute=compute) for _ in range(count)]
    if isinstance(mechanism, VotingPredictor):
        return lambda count: [mechanism.votes(target, few, seed=seed, compute=compute) for _ in range(count)]
    if isinstance(mechanism, AnsweringPredictor):
        if isinstance(mechanism, HttpService):  # is asked about all of the target
            return lambda count: [mechanism.answers(target, few, seed=seed, compute=compute) for _ in range(count)]
        return _runs_of_predictor(mechanism, target, compute)
    return None


def _runs_of_predictor(mechanism: AnsweringPredictor, target: Any, compute: Compute) -> Callable[[int], object]:
    """Runs on small data as they are made for a predictor, the middling ones first; those that raise do not count."""
    from dpaudit.engine.games.predictions.crafted_queries import pairs as made_for

    rows = target.take(np.arange(min(len(target), ROWS_TIMED)))
    made = [pair for answers in (1, 2) for pair in made_for(mechanism, rows, rows, answers, replaced=False)]
    made.sort(key=lambda pair: len(pair.added) * len(pair.asked))
    middle = np.argsort(np.abs(np.linspace(-1, 1, SIDE_BY_SIDE)), kind="stable")
    spread = [made[place] for place in np.linspace(0, len(made) - 1, SIDE_BY_SIDE).astype(int)[middle]]

    def run(count: int) -> None:
        ended = 0
        for pair in spread:
            try:
                mechanism.answers(pair.added, pair.asked.features, seed=np.random.SeedSequence(0), compute=compute)
            except BaseException as err:  # somebody's code may raise anything where records are few
                if raised_externally(err):
                    raise
                continue
            ended += 1
            if ended == count:
                return
        require(ended > 0, "a predictor must answer on some data", runs=len(spread))

    return run
