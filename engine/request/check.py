"""Build the spec of a check: all tests that fit a mechanism, cheapest first, scaled to a budget."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from dpaudit.actors.unit import ResourceRequest
from dpaudit.claims import Claim, Relation, Scope, strict_scopes
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition, loaded_rows
from dpaudit.engine.data.table_rows import SchemaRows
from dpaudit.engine.games.protocol import CheckTest, GameTraits
from dpaudit.engine.request.audit_spec import (
    ACCOUNTANT,
    GAME_WITHOUT_CLAIM,
    MAX_SEED,
    Audit,
    AuditSpec,
    RunOptions,
    as_data_source,
    require_accountant,
    stated_claim,
    with_accountant_claim,
)
from dpaudit.engine.request.build import build
from dpaudit.engine.request.error_budget import JointTest
from dpaudit.engine.request.strongest_games import strongest_game
from dpaudit.engine.request.timing import Budget, call_cost, training_seconds
from dpaudit.errors import AuditError, SpecError, require
from dpaudit.field_checks import check_fields
from dpaudit.locations import has_location, location, require_packages
from dpaudit.mechanisms.adapters.user_code import lacks_claim
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels
from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor
from dpaudit.mechanisms.predictors.transport import HttpService
from dpaudit.mechanisms.protocols import (
    BagMechanism,
    Claiming,
    LabelMechanism,
    StackLearner,
    WithDefaultData,
)
from dpaudit.mechanisms.queries.row_function import RowFunction, TableGenerator, TableRows
from dpaudit.registry import catalogue, load

Effort = Literal["quick", "standard", "thorough"]
EFFORTS: Mapping[str, float] = {"quick": 1 / 8, "standard": 1.0, "thorough": 4.0}
"""Factor on the calls and trainings of a test, by effort."""
BUDGETS: Mapping[str, str] = {"quick": "2m", "standard": "10m", "thorough": "2h"}
"""Default budget, by effort."""
MAX_HALVINGS = 5
"""Number of times that all tests are halved before tests of side findings are dropped."""
MIN_TRIALS = 4
"""Trials, search calls or replays that every game can run with."""
SHRINK_FACTOR = 1 / 2
"""Factor on calls and trainings, applied until the tests fit the budget. It is coarse, so that small timing differences
lead to the same plan."""
PLANNING_MESSAGE = "choosing the tests, which may time a call or a training"
"""Progress message while a check is planned."""
LEARNING_S = 4e-4
"""Seconds that the attack needs to learn from one call, in addition to the call."""
BUDGET_SHARE = 0.8
"""Share of the budget in seconds for the calls or trainings of all tests and one confirmatory run."""
FEWEST_SLOW_CALLS = 100
"""Fewest calls of a test that is the only one in its budget."""
SLOW_CALL_S, SLOW_CALL_FACTOR = 1.0, 8
"""Seconds of a slow call, and how much longer than the timed one a call may take before it fails."""
MAX_UNIT_NUMBERS, SMALL_RESULT = 1 << 24, 1 << 13
"""Maximum numbers that the calls of one unit return together, if one call returns more than SMALL_RESULT numbers."""


@dataclass(frozen=True)
class CheckRequest:
    """Mechanism and claim to check.

    Attributes:
        mechanism: A registered name, `{name: ..., fields}`, your class `package.module:Class`, or an object.
        data: Data set, as in an audit. Default: small generated data that the mechanism can run on.
        claim: Claim to test instead of the mechanism's. "accountant" as in an audit.
        split: Shares of the data for the target, the reference and the test. Default: a large target.
        budget: Maximum cost: "10m", "90s", "200 trainings", "1h, 500 trainings". Default: the budget of the effort.
        person: Column that names the person of each row, for a function on rows with a claim about persons; see
            `RowFunctionGame`.
        group: Most rows of a person, or number of rows in which two tables of a function on rows differ.
        resources: Resources of each unit that runs the mechanism, as in an audit.
    """

    mechanism: Any = field(metadata={"kind": "mechanism"})
    data: Any = field(default=None, metadata={"kind": "data"})
    claim: Claim | Literal["accountant"] | None = None
    split: Partition | None = None
    budget: str | None = None
    person: str | None = None
    group: int | None = None
    resources: ResourceRequest | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.budget is not None:
            Budget.parse(self.budget)  # refuse an invalid budget before anything is timed


@dataclass(frozen=True)
class CheckOptions:
    """Settings of a check other than its mechanism and claim.

    Attributes:
        name: Name in reports and of the default run folder. "" takes the mechanism's name.
        seed: Seed of all randomness.
        confidence: Confidence of the verdict VIOLATION, in (0, 1). It holds for any outcome of the first pass, whose
            bounds hold together with confidence 0.95.
        until_decided: Repeat undecided tests once with four times the trials. Both runs share the error of the verdict.
        run: Place and resources of the run. Default: this process if nothing is trained, else Ray.
        effort: "quick", "standard" or "thorough", which sets the calls and trainings of each test. The same effort
            gives the same scores on any machine, unless the budget is too short for it.
        strict: Scopes whose side findings count for the verdict: "floating-point", "beyond-schema" or "all".
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
    """One test of a check, with its calls or trainings."""

    game: str  # registered name
    test: CheckTest

    @property
    def name(self) -> str:
        """Name of the audit."""
        return f"{self.game}, {self.test.variant}" if self.test.variant else self.game

    def scaled(self, factor: float) -> PlannedTest:
        """Return the test with `factor` times the calls or trainings, but at least its minimum."""
        test = self.test
        if not test.scales or factor == 1:
            return self
        trainings = max(min(test.min_trainings, test.trainings), int(test.trainings * factor))
        stack = test.game.get("stack", getattr(load("game", self.game), "stack", None))
        smaller = {"stack": max(2, int(stack * factor))} if isinstance(stack, int) and factor < 1 else {}
        return replace(self, test=replace(test, trainings=trainings, game={**test.game, **smaller}))

    def with_result_size(self, numbers: int) -> PlannedTest:
        """Return the test with fewer calls per unit if each call returns many `numbers`: a unit holds all results.

        The count is a power of two, so that slightly longer results give the same plan.
        """
        if numbers <= SMALL_RESULT:
            return self
        stack = max(2, MAX_UNIT_NUMBERS >> (numbers - 1).bit_length())
        return self.with_game(stack=stack)

    def with_slow_calls(self) -> PlannedTest:
        """Return the test of slow calls, which may run with few: they reject code that hides next to nothing."""
        fewest = min(self.test.min_trainings, FEWEST_SLOW_CALLS)
        return replace(self, test=replace(self.test, min_trainings=fewest))

    def with_call_limit(self, call_s: float) -> PlannedTest:
        """Return the test with a longer time limit of its calls if one takes seconds, such as the fit of a generator.

        The limit is a power of two, so that small timing differences lead to the same plan.
        """
        if call_s < SLOW_CALL_S:
            return self
        limit = 2.0 ** math.ceil(math.log2(SLOW_CALL_FACTOR * call_s))
        return self.with_game(call_limit_s=limit)

    def with_game(self, **fields: Any) -> PlannedTest:
        """Return the test with other fields of its game."""
        return replace(self, test=replace(self.test, game={**self.test.game, **fields}))

    def for_slow_trainings(self, training_s: float | None, seconds: float) -> PlannedTest:
        """Return the test with half the trainings, repeatedly, while slow ones exceed a budget of `seconds`."""
        planned, fewest = self, 2 * self.test.slow_trainings
        while (
            training_s is not None
            and 0 < fewest <= planned.test.trainings
            and training_s * (planned.test.price + planned.repeat_price) > BUDGET_SHARE * seconds
        ):
            planned = planned.scaled(SHRINK_FACTOR)
        return planned

    @property
    def repeat_price(self) -> float:
        """Cost of a confirmatory run, in calls or trainings on the data."""
        test = self.test
        shares = test.scales or {"": 1.0}
        return test.price * sum(
            share * test.growth_on_repeat.get(name, 1.0) for name, share in shares.items() if name != test.search_field
        )

    def rank(self, strongest: str = "") -> tuple[bool, bool, int]:
        """Return the sort key: tests of the claim before those of side findings, the strongest game, then by price.

        Tests with at most one training come before the strongest game.
        """
        is_late = self.test.price > 1 and self.game != strongest
        return self.test.scope is not Scope.CLAIM, bool(strongest) and is_late, self.test.price


def check_spec(request: CheckRequest, options: CheckOptions = CheckOptions()) -> AuditSpec:
    """Return the spec of a check; `together` holds the reason for each audit and the games left out.

    Raises: SpecError if no game fits the mechanism and its claim.
    """
    mechanism = build("mechanism", request.mechanism, location="check.mechanism")
    if isinstance(mechanism, BagMechanism) and not isinstance(mechanism, LabelMechanism):
        mechanism = AggregatedLabels(mechanism)  # it only releases bags: games run a learner of its labels
    require_packages(mechanism)
    require_no_estimator(mechanism)
    if request.claim is None and lacks_claim(mechanism):
        return measurement_spec(request, mechanism, options)
    if request.claim == ACCOUNTANT:  # its epsilon does not decide which games fit
        require_accountant(mechanism, "check")
        claim = UNCLAIMED
    else:
        claim = stated_claim(mechanism, cast("Claim | None", request.claim), "check")
    planned_tests, other_claims, other_mechanisms = matching_tests(mechanism, claim)
    verdict_scopes = (Scope.CLAIM, *options.strict)
    planned_tests.sort(key=lambda planned: planned.test.scope not in verdict_scopes)
    planned_tests = [planned.scaled(EFFORTS[options.effort]) for planned in planned_tests]
    usual_trainings = {planned.name: planned.test.trainings for planned in planned_tests}
    data = default_data(mechanism, claim) if request.data is None else as_data_source(request.data)
    budget = Budget.parse(BUDGETS[options.effort] if request.budget is None else request.budget)
    fields_of_game = {"person": request.person, "group": request.group}
    neighbours = {name: value for name, value in fields_of_game.items() if value is not None}
    if neighbours and not isinstance(mechanism, RowFunction):
        raise SpecError(
            f"person and group must be used with a function on rows, got {type(mechanism).__name__}; remove them, or "
            "give the function and its schema"
        )
    too_long: list[str] = []
    if isinstance(mechanism, RowFunction) and planned_tests:
        source = build("data", data, location="check.data")
        table = cast(TableRows, loaded_rows(source, options.seed))
        if table.schema.allows_everything:
            planned_tests = [planned for planned in planned_tests if planned.test.scope is not Scope.BEYOND_SCHEMA]
        if "person" in neighbours:  # the rows of the data belong to one person each
            planned_tests = [planned for planned in planned_tests if planned.test.scope is not Scope.AVERAGE_RECORD]
        if isinstance(source, SchemaRows):
            planned_tests = [planned for planned in planned_tests if not planned.test.real_rows]
        planned_tests = [planned.with_game(**neighbours) for planned in planned_tests]
        seconds, numbers = call_cost(
            mechanism, table, claim.relation.of_two_inputs, request.person or "", request.group, budget.seconds
        )
        planned_tests, other_claims = [planned.with_result_size(numbers) for planned in planned_tests], []
        planned_tests, too_long = within_seconds(planned_tests, seconds + LEARNING_S, budget.seconds)
        allowed = math.inf if budget.seconds is None else budget.seconds
        if len(planned_tests) == 1 and seconds * planned_tests[0].test.min_trainings > allowed:
            planned_tests, _ = within_seconds([planned_tests[0].with_slow_calls()], seconds, budget.seconds)
        planned_tests = [planned.with_call_limit(seconds) for planned in planned_tests]
        # This process, so that no cluster has to start. Another Python runs once for each core.
        cores = os.cpu_count() or 1 if getattr(mechanism, "python", "") else 1
        options = replace(options, run=options.run or RunOptions("in-process", resources=ResourceRequest(cores)))
    elif budget.seconds and any(
        plan.test.trainings > 1 and (_is_timed(mechanism, request) or plan.test.slow_trainings)
        for plan in planned_tests
    ):
        rows = loaded_rows(build("data", data, location="check.data"), options.seed)
        target = (request.split or MOSTLY_TARGET).divide(rows, np.random.default_rng(0)).target
        seconds_each = training_seconds(mechanism, target)
        if not _is_timed(mechanism, request):
            planned_tests = [planned.for_slow_trainings(seconds_each, budget.seconds) for planned in planned_tests]
        else:
            planned_tests, too_long = within_seconds(planned_tests, seconds_each, budget.seconds)
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
    side_scopes = {
        test.planned.name: test.planned.test.scope
        for test in affordable
        if test.planned.test.scope not in verdict_scopes
    }
    reasons = []
    for test in affordable:
        plural = "s" if test.trainings != 1 else ""
        cost = f" ({test.trainings:,} {unit}{plural} at most)" if test.trainings else ""
        reasons.append(f"{test.planned.name}: finds {test.planned.test.finds}{cost}")
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


def require_no_estimator(mechanism: object) -> None:
    """Raise SpecError for an estimator of scikit-learn."""
    if hasattr(mechanism, "get_params") and not isinstance(mechanism, Claiming):
        name = type(mechanism).__name__
        raise SpecError(
            f"check.mechanism must be a mechanism, got the scikit-learn estimator {name}. Wrap it: "
            f"`dpaudit.from_sklearn({name}(...), claim)`, without a claim to measure how much it reveals"
        )


def measurement_spec(request: CheckRequest, mechanism: Any, options: CheckOptions) -> AuditSpec:
    """Return the spec that measures how much a classifier without a claim reveals about who was trained on.

    The game is `membership`. Nothing is rejected and nothing confirmed, so the bound has the confidence of a spec. A
    budget that is too short for shadow models leaves an attack by the loss of the audited model alone.
    """
    data = default_data(mechanism, UNCLAIMED) if request.data is None else as_data_source(request.data)
    shadows = SHADOW_MODELS[options.effort]
    budget = Budget.parse(BUDGETS[options.effort] if request.budget is None else request.budget)
    most = math.inf if budget.trainings is None else budget.trainings
    if request.budget is not None and budget.seconds:
        rows = loaded_rows(build("data", data, location="check.data"), options.seed)
        target = (request.split or MOSTLY_TARGET).divide(rows, np.random.default_rng(0)).target
        seconds = training_seconds(mechanism, target)
        most = min(most, math.inf if seconds is None else BUDGET_SHARE * budget.seconds / seconds)
    while shadows + 1 > most and shadows > 2:
        shadows //= 2
    game: dict[str, Any] = {"name": GAME_WITHOUT_CLAIM}
    return AuditSpec(
        (
            Audit(
                mechanism=mechanism,
                data=data,
                game=game | ({"shadows": shadows} if shadows + 1 <= most else {}),
                attack=None if shadows + 1 <= most else "loss",
                split=request.split or MOSTLY_TARGET,
                name=GAME_WITHOUT_CLAIM,
                resources=request.resources,
            ),
        ),
        name=options.name or f"check {_mechanism_name(mechanism)}",
        seed=options.seed,
        run=options.run or RunOptions(runner="auto"),
    )


UNCLAIMED = Claim(math.inf, relation=Relation.ADD_REMOVE)
"""Stands for the claim of a model without one."""
SHADOW_MODELS: Mapping[str, int] = {"quick": 2, "standard": 4, "thorough": 16}
"""Shadow models from which the attack on a model without a claim learns, by effort."""
TARGET_ONLY = Partition(target=1.0, reference=0.0, test=0.0)
"""Default split for functions of rows."""
MOSTLY_TARGET = Partition(target=0.7, reference=0.2, test=0.1)
"""Default split for mechanisms that train."""


def _is_timed(mechanism: Any, request: CheckRequest) -> bool:
    """True if a training is timed: with a budget of the user, and for predictors, whose small data make that cheap."""
    is_predictor = isinstance(mechanism, AnsweringPredictor) and not isinstance(mechanism, HttpService)
    return request.budget is not None or is_predictor


def matching_tests(mechanism: Any, claim: Claim) -> tuple[list[PlannedTest], list[str], list[str]]:
    """Return the tests that fit a mechanism and its claim in their order, and the games that do not fit, with reasons.

    The strongest game for a learner runs first, but after tests with a single training. The others follow by price.
    The second list holds games for other claims, the third games for other mechanisms.
    """
    matching, other_claims, other_mechanisms = [], defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in catalogue("game"):
        fits: GameTraits = load("game", name).traits
        supported = [
            test
            for test in fits.check_tests
            if test.capability.includes(mechanism) and not (test.excluded and isinstance(mechanism, test.excluded))
        ]
        fitting = [test for test in supported if claim.relation in test.relations]
        matching += [PlannedTest(name, test) for test in fitting]
        if not supported:
            for words in dict.fromkeys(test.capability.words for test in fits.check_tests) or ["audits that name them"]:
                other_mechanisms[words].append(name)
        elif not fitting:
            relations = dict.fromkeys(str(relation) for test in supported for relation in test.relations)
            other_claims[f"claims about {' or '.join(relations)} neighbours"].append(name)
    unfit = [
        [f"{', '.join(names)}: for {why}" for why, names in games.items()] for games in (other_claims, other_mechanisms)
    ]
    strongest = strongest_game(mechanism, claim.relation)
    return sorted(matching, key=lambda planned: planned.rank(strongest)), unfit[0], unfit[1]


def default_data(mechanism: Any, claim: Claim) -> Any:
    """Return small data for a mechanism: its own, else ten classes for labels, two for models, digits for networks
    of images.

    Tests of a label claim need few trainings, so their data have more rows than data for a claim about records.
    """
    if isinstance(mechanism, WithDefaultData):
        return build("data", mechanism.default_data())
    if isinstance(mechanism, LabelMechanism):
        return GaussianMixture(classes=10, rows=2_000)
    table = GaussianMixture(classes=2, rows=10_000 if claim.relation is Relation.LABEL else 1_000)
    if not isinstance(mechanism, StackLearner):
        return table
    try:
        mechanism.stack_plan((table.dimensions,), classes=table.classes, models=1, rows=1, compute=Compute())
    except AuditError:  # a network of images
        return Digits()
    return table


@dataclass(frozen=True)
class AffordableTest:
    """A test that fits the budget."""

    planned: PlannedTest
    trainings: int  # calls or trainings that it may use
    repeat_factors: dict[str, float]  # factors on fields of its game in a confirmatory run


def within_seconds(
    planned_tests: list[PlannedTest], call_s: float | None, seconds: float | None
) -> tuple[list[PlannedTest], list[str]]:
    """Return the tests that fit a budget, with fewer calls or trainings if needed, and reasons for the others.

    The largest test is halved until all tests fit, so none has more than its share of the budget while another one has
    fewer calls than usual. If the largest test is at its minimum, it is left out, and the others share the budget.

    Args:
        call_s: Seconds of one call or training; None if unknown.
        seconds: The budget; None for no limit.
    """
    if call_s is None or seconds is None:
        return planned_tests, []
    calls, too_long = BUDGET_SHARE * seconds / call_s, list[str]()
    while True:
        sharing, excessive = _sharing(planned_tests, calls)
        if excessive is None or len(planned_tests) == 1:
            return sharing, too_long
        too_long.append(f"{planned_tests[excessive].name}: the budget of {seconds:g} s is too short for it")
        planned_tests = planned_tests[:excessive] + planned_tests[excessive + 1 :]


def _sharing(planned_tests: Sequence[PlannedTest], calls: float) -> tuple[list[PlannedTest], int | None]:
    """Return the tests, the largest ones halved until all fit into `calls`, and the index of a test to leave out."""
    tests = list(planned_tests)
    side_findings = [index for index, planned in enumerate(tests) if planned.test.scope is not Scope.CLAIM]
    while sum(planned.test.price for planned in tests) + max(planned.repeat_price for planned in tests) > calls:
        largest = max(range(len(tests)), key=lambda index: (tests[index].test.price, index))
        smaller, before = tests[largest].scaled(SHRINK_FACTOR), planned_tests[largest].test.trainings
        is_much_smaller = smaller.test.trainings < before * SHRINK_FACTOR**MAX_HALVINGS
        if side_findings and is_much_smaller:  # the claim comes before side findings
            return tests, side_findings[-1]
        if smaller.test.trainings == tests[largest].test.trainings:
            return tests, side_findings[-1] if side_findings else largest
        tests[largest] = smaller
    return tests, None


def within_trainings(planned_tests: list[PlannedTest], trainings: int | None) -> tuple[list[AffordableTest], list[str]]:
    """Return the tests that fit into a number of trainings, and reasons for the others.

    Half of the trainings are reserved for one confirmatory run. The tests share the others evenly; what a test does not
    need goes to larger ones. A test whose minimum exceeds its share is left out, and the others share again.
    """
    if trainings is None:
        return [
            AffordableTest(planned, planned.test.trainings, dict(planned.test.growth_on_repeat))
            for planned in planned_tests
        ], []
    available, reserve, too_expensive = trainings - trainings // 2, trainings // 2, list[str]()
    while True:
        shares = even_shares([planned.test.price for planned in planned_tests], available)
        affordable, excessive = [], list[tuple[float, int, int, str]]()
        for index, (planned, share) in enumerate(zip(planned_tests, shares, strict=True)):
            test, repeats = planned.test, int(reserve / planned.test.cost)
            allowed = test.trainings if share == test.price else int(share / test.cost)
            if test.scales:  # a confirmatory run must learn from as many
                allowed = min(allowed, repeats)
            minimum = min(test.min_trainings, test.trainings) if test.scales else test.trainings
            if min(allowed, repeats) < minimum:
                needs = f"needs at least {minimum:,} trainings and as many for its confirmatory run"
                reason = f"{planned.name}: {needs}; the budget leaves {allowed:,} and {repeats:,}"
                excessive.append((minimum * test.cost, test.price, index, reason))
            affordable.append(AffordableTest(planned, allowed, _repeat_factors(test, allowed, repeats)))
        if not excessive:
            return affordable, too_expensive
        _, _, index, reason = max(excessive)
        too_expensive.append(reason)
        planned_tests = planned_tests[:index] + planned_tests[index + 1 :]


def even_shares(wanted: Sequence[int], available: int) -> list[int]:
    """Return the share of each in a whole number: equal, but at most what is wanted; the rest goes to the others."""
    shares = [0] * len(wanted)
    for waiting, index in zip(range(len(wanted), 0, -1), np.argsort(wanted, kind="stable").tolist(), strict=True):
        shares[index] = min(wanted[index], math.ceil(available / waiting))
        available -= shares[index]
    return shares


def _repeat_factors(test: CheckTest, trainings: int, repeats: int) -> dict[str, float]:
    """Return the factors on fields of a test for a confirmatory run with at most `repeats` trainings."""
    if not test.scales or not trainings:
        return dict(test.growth_on_repeat)
    max_factor = repeats / trainings / (1 - test.scales.get(test.search_field, 0.0))
    factors = {
        name: min(test.growth_on_repeat.get(name, 1.0), max_factor)
        for name in (*test.scales, *test.growth_on_repeat)
        if name != test.search_field
    }
    return {name: factor for name, factor in factors.items() if factor != 1.0}


def _audit(affordable: AffordableTest, mechanism: Any, data: Any, request: CheckRequest) -> Audit:
    planned, test = affordable.planned, affordable.planned.test
    min_count = min(MIN_TRIALS, test.trainings) if test.min_trainings > 1 else 1
    scaled = {name: max(min_count, int(share * affordable.trainings)) for name, share in test.scales.items()}
    return Audit(
        mechanism=mechanism,
        data=data,
        game={"name": planned.game, **test.game, **scaled},
        attack=test.attack or None,
        estimator=test.estimator or None,
        split=request.split
        or (TARGET_ONLY if test.capability.protocol in (RowFunction, TableGenerator) else MOSTLY_TARGET),
        claim=request.claim,
        confirm=test.confirm,
        stop=test.stop,
        name=planned.name,
        resources=request.resources,
    )


def _mechanism_name(mechanism: Any) -> str:
    for name in ("predictor", "estimator", "function", "generator", "train", "module"):
        code = getattr(mechanism, name, None)
        if code is not None and (isinstance(code, str) or has_location(code)):
            where = code if isinstance(code, str) else location(code)
            return where.rpartition(":")[2].replace(".<object>", "").removesuffix(".__call__")
    registered = type(mechanism).__dict__.get("registered_name")
    return str(registered) if registered else type(mechanism).__name__
