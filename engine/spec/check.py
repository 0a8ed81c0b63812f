"""From a mechanism alone to a spec: every game that states it fits, the cheap ones first, on data given or made."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from dpaudit.claims import Claim, Relation
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.gaussian_mixture import GaussianMixture
from dpaudit.engine.data.partition import Partition, loaded_rows
from dpaudit.engine.games.protocol import CheckTest, Fits
from dpaudit.engine.spec.audit_spec import ACCOUNTANT, Audit, AuditSpec, RunOptions, require_accountant
from dpaudit.engine.spec.build import build
from dpaudit.engine.spec.error_budget import JointTest
from dpaudit.errors import AuditError, SpecError, require
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.own_function import OwnFunction
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels
from dpaudit.mechanisms.protocols import BagMechanism, Claiming, LabelMechanism, StackLearner
from dpaudit.mechanisms.queries.row_function import RowFunction, TableRows
from dpaudit.registry import catalogue, load

BUDGET = "10m"
"""Of a check for which none is given."""


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
                trainings = int(float(found[1]))
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
        budget: What it may cost: "10m", "90s", "200 trainings", "1h, 500 trainings".
    """

    mechanism: Any = field(metadata={"kind": "mechanism"})
    data: Any = field(default=None, metadata={"kind": "data"})
    claim: Claim | Literal["accountant"] | None = None
    split: Partition | None = None
    budget: str = BUDGET

    def __post_init__(self) -> None:
        check_fields(self)


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
    """

    name: str = ""
    seed: int = 0
    confidence: float = 0.999
    until_decided: bool = False
    run: RunOptions | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Choice:
    """A test of a game."""

    game: str  # the game's registered name
    test: CheckTest  # how it takes part

    @property
    def name(self) -> str:
        """Of the audit."""
        return f"{self.game}, {self.test.variant}" if self.test.variant else self.game


def check_spec(request: CheckRequest, options: CheckOptions = CheckOptions()) -> AuditSpec:
    """The audits that a check is made of; `together` says why each is among them, and why others are not.

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
    chosen, left_out = choices(mechanism, claim)
    data = request.data if request.data is not None else made_data(mechanism, claim)
    if isinstance(mechanism, RowFunction) and chosen:
        from dpaudit.engine.spec.function_check import sized, where_to_run  # calls are timed

        rows = loaded_rows(build("data", data, location="check.data"), options.seed)
        tests = sized([one.test for one in chosen], mechanism, cast(TableRows, rows), claim.relation)
        options = replace(options, run=options.run or where_to_run(mechanism))
        chosen, left_out = [replace(one, test=test) for one, test in zip(chosen, tests, strict=True)], []
    budget = Budget.parse(request.budget)
    affordable, dear = affordable_looks(chosen, budget.trainings)
    if not affordable:
        raise SpecError(
            f"no game fits {type(mechanism).__name__} with a claim about {claim.relation} neighbours: "
            f"{'; '.join((*left_out, *dear))}"
        )
    audits = tuple(_audit(one, mechanism, data, request) for one in affordable)
    trains = any(one.trainings for one in affordable)
    called = isinstance(mechanism, RowFunction)
    words = [
        f"{one.choice.name}: finds {one.choice.test.finds}{_cost(one.trainings, 'call' if called else 'training')}"
        for one in affordable
    ]
    again = {one.choice.name: one.again for one in affordable if one.again}
    return AuditSpec(
        audits,
        name=options.name or f"check {_called(mechanism)}",
        seed=options.seed,
        confidence=1 - (1 - options.confidence) / 2 if options.until_decided else options.confidence,
        run=options.run or RunOptions(runner="ray" if trains else "in-process"),
        together=JointTest(budget.seconds, tuple(words), (*left_out, *dear), again=again),
    )


ALL, MOST = Partition(target=1.0, reference=0.0, test=0.0), Partition(target=0.7, reference=0.2, test=0.1)
"""How data are divided, if nothing else is said."""
MORE = 4
"""By how much the trials of a test grow that is still undecided."""


def once_more(spec: AuditSpec, undecided: Collection[str]) -> AuditSpec:
    """The tests of a check that were left undecided, with more trials and another seed."""
    assert spec.together is not None
    again = {name: factors for name, factors in spec.together.again.items() if name in undecided}
    together = replace(spec.together, budget_s=None, chosen=(), left_out=(), again=again)
    audits = tuple(_with_more_trials(audit) for audit in spec.audits if audit.name in undecided)
    return replace(spec, audits=audits, together=together, name=f"{spec.name}, more trials", seed=spec.seed + 1)


def _with_more_trials(audit: Audit) -> Audit:
    names = {name for test in audit.game.fits.check_tests for name in (*test.scales, *test.again)}
    numbers = {name: MORE * getattr(audit.game, name) for name in names if isinstance(getattr(audit.game, name), int)}
    return replace(audit, game=replace(audit.game, **numbers))


def _played(mechanism: Any) -> Any:
    """The mechanism; a release about bags by the learner that keeps all that it says of each label."""
    bags_alone = isinstance(mechanism, BagMechanism) and not isinstance(mechanism, LabelMechanism)
    return AggregatedLabels(mechanism) if bags_alone else mechanism


def _has_face(mechanism: Any, test: CheckTest) -> bool:
    return isinstance(mechanism, test.face.protocol) and not (test.unless and isinstance(mechanism, test.unless))


def choices(mechanism: Any, claim: Claim) -> tuple[list[Choice], list[str]]:
    """The tests that state they fit a mechanism and its claim, the cheap ones first; and why games have none."""
    chosen, left_out = [], []
    for name in catalogue("game"):
        fits: Fits = load("game", name).fits
        played = [test for test in fits.check_tests if _has_face(mechanism, test)]
        fitting = [test for test in played if claim.relation in test.relations]
        chosen += [Choice(name, test) for test in fitting]
        if not fits.check_tests:
            left_out.append(f"{name}: run on request only")
        elif not played:
            faces = dict.fromkeys(test.face.words for test in fits.check_tests)
            left_out.append(f"{name}: audits {' and '.join(faces)}")
        elif not fitting:
            relations = dict.fromkeys(str(relation) for test in played for relation in test.relations)
            left_out.append(f"{name}: is for claims about {' or '.join(relations)} neighbours, not {claim.relation}")
    return sorted(chosen, key=lambda choice: choice.test.price), left_out


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


def affordable_looks(chosen: list[Choice], trainings: int | None) -> tuple[list[Affordable], list[str]]:
    """As many looks as a number of trainings is enough for, half of it kept for playing one again; and which not."""
    left = None if trainings is None else trainings - trainings // 2
    kept = None if trainings is None else trainings // 2
    affordable, dear = [], []
    for choice in chosen:
        test, wanted = choice.test, choice.test.trainings
        price = test.price if left is None else min(test.price, left)
        given = wanted if price == test.price else int(price / test.cost)
        held = None if kept is None else int(kept / test.cost)
        least = test.least if test.scales else wanted
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
        return dict(test.again)
    most = kept / given
    grown = {name: min(test.again.get(name, 1.0), most) for name in (*test.scales, *test.again)}
    return {name: factor for name, factor in grown.items() if factor != 1.0}


def _audit(one: Affordable, mechanism: Any, data: Any, request: CheckRequest) -> Audit:
    test = one.choice.test
    scaled = {name: int(share * one.trainings) for name, share in test.scales.items()}
    return Audit(
        mechanism=mechanism,
        data=data,
        game={"name": one.choice.game, **test.game, **scaled},
        attack=test.attack or None,
        estimator=test.estimator or None,
        split=request.split or (ALL if one.choice.test.face.protocol is RowFunction else MOST),
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
    registered = type(mechanism).__dict__.get("registered_name")
    return str(registered) if registered else type(mechanism).__name__
