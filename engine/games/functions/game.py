"""A function on rows, called thousands of times on two neighbouring tables that a search has found.

The search tries many pairs of tables, ordinary and hostile, and the function's own settings: a few calls each, more on
those that are left, the last four by what the attack makes of them. Then both tables are fixed: search calls teach the
attack, fresh ones, each on D or D' by its own fair coin, are what it is judged by. How a call ends, what it raises and
the form of what it gives are outcomes as numbers are.
Source: Lu et al. (2022), Algorithm 1, with the search of ours; outcomes after Mironov (2012) and Haney et al. (2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, Relation
from dpaudit.claims.scope import Scope
from dpaudit.engine.games.functions.neighbouring_tables import TablePair, as_test, pairs
from dpaudit.engine.games.functions.replay import Replay, replay, replay_of
from dpaudit.engine.games.functions.where_it_leaks import Leak, where_it_leaks
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.summaries import MAX_NUMBER, MIN_FAILED_BATCH, Samples
from dpaudit.engine.games.neighbours.world_scores import (
    SummaryGame,
    evidence_and_excess,
    in_scope,
    number_excess,
    separation,
)
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting
from dpaudit.errors import SpecError, require
from dpaudit.estimators.bound import format_lower
from dpaudit.mechanisms.adapters.own_function import OwnFunction
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.queries.outcome import CallOutcome, is_unreadable
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction, TableRows
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register

ROW_FUNCTIONS = Capability(RowFunction, "functions on rows (made by `dpaudit.check(function, schema=...)`)")
SHARE = 0.6
"""Of the search, what is spent on trying pairs of tables."""
KEPT = (8, 4)
"""Pairs that are left after the first and the second round."""
BEYOND = 2.5
"""Deviations by which the scores of a pair exceed the claim, from which on it is taken before those that show more."""
MIN_TRIED = 4
"""Calls on each pair of a round at least, half of them on D and the other half with the same seeds on D'."""
CALLS_OF_TEST = 20_000
"""Of a check: search and fresh calls together, where they are cheap."""
CALLS_FOR_DIGITS = 10_000
"""Of a check: search and fresh calls that look for a leak by low digits."""
ALIKE = 0.25
"""Logarithms of distances that are about the same."""
LOCATED_S = 10.0
"""How long a call may take where it is only asked where a function leaks."""
LISTED = 12
"""Pairs that a report tells of."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Two neighbouring tables, and the settings that the function is called with on either."""

    name: str  # of the pair, and of the settings where there are several
    d: pa.Table
    d_prime: pa.Table
    settings: int  # place among the function's alternatives


@unit
def call_on_tables(
    mechanism: Any,
    tables: Tables,
    limit_s: float | None,
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[Samples]:
    """Calls `first` to `last` - 1, each on D or D' by its own coin.

    Raises: TrainingError when the function does not run at all.
    """
    own = seed.child(first)
    truth = own.rng().random(last - first) < 0.5
    outcome = called(mechanism, tables, truth, seeds_of(own.child("calls"), last - first), first, limit_s, compute)
    samples, failures = outcome.value, outcome.failures
    alike = len(np.unique(samples.ending)) == 1 and not np.ptp(samples.numbers.reshape(len(truth), -1), axis=0).any()
    if len(failures) == len(truth) >= MIN_FAILED_BATCH and alike and len(np.unique(truth)) == 2:
        raise TrainingError(f"all {len(truth)} calls failed in one way; the first: {failures[0]}")
    return outcome


def called(
    mechanism: Any,
    tables: Tables,
    truth: NDArray[np.bool_],
    seeds: NDArray[np.int64],
    first: int,
    limit_s: float | None,
    compute: Compute,
) -> Outcome[Samples]:
    """What calls gave, one for each coin and seed."""
    settings = mechanism.alternatives()[tables.settings]
    limits = CallLimits(limit_s, compute.threads, time_limit, raised_externally)
    left: list[CallOutcome] = [CallOutcome("", np.empty(0))] * len(truth)
    numbers = [np.empty(0, np.float32)] * len(truth)
    with limited_threads(compute.threads):
        for world, table in ((False, tables.d), (True, tables.d_prime)):
            places = np.flatnonzero(truth == world)
            given = mechanism.outcomes(table, seeds[places].tolist(), settings, limits)
            for place, outcome in zip(places.tolist(), given, strict=True):
                left[place] = replace(outcome, numbers=np.empty(0))
                numbers[place] = np.clip(outcome.numbers, -MAX_NUMBER, MAX_NUMBER).astype(np.float32)
            del given
    names = [f"call {first + place} (seed {seed})" for place, seed in enumerate(seeds.tolist())]
    failures = tuple(f"{name}: {one.fault}" for name, one in zip(names, left, strict=True) if one.fault)
    samples = Samples(
        number=np.arange(first, first + len(truth)),
        truth=truth,
        ending=np.array([one.ending for one in left], np.str_),
        width=np.array([len(one) for one in numbers], np.int64),
        numbers=np.concatenate([np.empty(0, np.float32), *numbers]),
        name=np.array(names, np.str_),
        low_bits=np.array([one.low_bits for one in left], np.int64),
    )
    unreadable = tuple(dict.fromkeys(one.ending for one in left if is_unreadable(one.ending)))
    return Outcome(samples, notes=unreadable, failures=failures)


def seeds_of(seed: Seed, count: int) -> NDArray[np.int64]:
    """A whole number below 2^31 for each call."""
    return seed.rng().integers(0, 2**31, count)


_FINDS = {
    Scope.CLAIM: "what a call returns for rows of the schema: too little noise, exact values, failures",
    Scope.BEYOND_SCHEMA: "what a call returns for rows that the schema does not allow: out of range, NaN, missing "
    "values, new categories",
    Scope.FLOATING_POINT: "what the low digits of returned numbers tell, far below the noise",
}


def _check_test(relation: Relation, scope: Scope) -> CheckTest:
    return CheckTest(
        ROW_FUNCTIONS,
        (relation,),
        _FINDS[scope],
        trainings=CALLS_FOR_DIGITS if scope is Scope.FLOATING_POINT else CALLS_OF_TEST,
        scales={"trials": 0.4, "search": 0.6},
        min_trainings=360,
        variant="" if scope is Scope.CLAIM else scope.value,
        growth_on_repeat={"trials": 2.5},
        search_field="search",
        game={"beyond": scope is Scope.BEYOND_SCHEMA, "full_digits": scope is Scope.FLOATING_POINT},
        scope=scope,
    )


@register("game", "row-function", source="Ours, after Lu et al. (2022), Algorithm 1")
@dataclass(frozen=True)
class RowFunctionGame(SummaryGame):
    """Two neighbouring tables, found by search: on which of them was a function called, whose output is shown?

    Plays any function on rows: of one's own, of a library, in this Python or another one. A call that raises, hangs or
    ends its process is an outcome as any other.

    Attributes:
        trials: Fresh calls, each on D or D' by its own coin, in 2 .. 10,000,000.
        stack: Calls of one unit, >= 1: seconds of work.
        search: Calls to find the tables by and to learn from, in 4 .. 10,000,000.
        relation: How D and D' differ, "add-remove" or "replace"; None: as the claim says.
        group: In how many rows they differ, >= 1, where a claim is about all rows of a person.
        beyond: True if D or D' has rows that the schema does not allow; else all rows keep to it.
        full_digits: True if numbers are read at full digits, low bits too; else each is first rounded to a millionth
            of its spread, so that floating-point noise is judged as the noise it stands for.
        call_limit_s: Seconds, > 0, after which a call is ended and has failed; None: only the unit's limit holds.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent calls: both tables, the settings and the attack were fixed "
        "before the fresh calls were made.",
        views={ROW_FUNCTIONS: SummaryView},
        attack="output-set",
        estimator="fair-coins",
        rows=TableRows,
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=tuple(
            _check_test(relation, scope)
            for scope in (Scope.CLAIM, Scope.BEYOND_SCHEMA, Scope.FLOATING_POINT)
            for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        ),
    )
    samples: ClassVar[Any] = staticmethod(call_on_tables)
    learns_once: ClassVar[bool] = True

    trials: int = 8_000
    stack: int = 2_000
    search: int = 12_000
    relation: Relation | None = None
    group: int = 1
    beyond: bool = False
    full_digits: bool = False
    call_limit_s: float | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.group >= 1, "group must be >= 1", group=self.group)
        require(self.relation is not Relation.LABEL, "relation must be add-remove or replace", relation=self.relation)
        object.__setattr__(self, "traits", replace(type(self).traits, relation=self.relation or Relation.ADD_REMOVE))

    @property
    def limit_s(self) -> float | None:
        return self.call_limit_s

    @property
    def reads_full_digits(self) -> bool:
        return self.full_digits

    def for_claim(self, claim: Claim) -> RowFunctionGame:
        """With tables that differ as the claim says, where that is left open."""
        if self.relation is not None or claim.relation is Relation.LABEL:
            return self
        return replace(self, relation=claim.relation)

    def play(self, setting: Setting, work: Work) -> Played:
        chosen, left = self._tables(setting, work)
        fresh, scores = self.fresh_and_scores(setting, work, chosen, left)
        where = Work().add(
            locate,
            setting.mechanism,
            chosen,
            setting.mechanism.claim(),
            low_bits=self.full_digits,
            seed=setting.search_seed.child("where"),
            label="where it leaks",
            resources=setting.resources.without_gpu,
        )
        return Played(scores, trainings=fresh, choices=(chosen,), where=where, reference=self.reference())

    def _tables(self, setting: Setting, work: Work) -> tuple[Unit, int]:
        """The unit that chooses the tables, and how many search calls it leaves."""
        asked = Asked(self.traits.relation.value, self.group, self.beyond, self.full_digits)
        rows = setting.parts.target
        number = len(offered(setting.mechanism, rows, asked))
        calls = int(self.search * SHARE)
        number = min(number, max(1, calls // ((len(KEPT) + 1) * MIN_TRIED)))
        rounds = [number, *(kept for kept in KEPT if kept < number)]
        each = [2 * (calls // len(rounds) // tried // 2) for tried in rounds]
        if each[0] < MIN_TRIED:
            raise SpecError(f"search must be at least {MIN_TRIED / SHARE:.0f} calls, got {self.search}")
        seed, target = setting.search_seed, setting.required_part("target")
        tried: tuple[Unit, ...] = work.split(
            try_tables,
            number,
            max(1, min(number // 4, self.stack // each[0])),
            setting.mechanism,
            target,
            asked,
            self.limit_s,
            calls=each[0],
            seed=seed.child("tables"),
            label="pairs of tables tried",
            **setting.unit_options,
        )
        for turn, (kept, count) in enumerate(zip(rounds[1:], each[1:], strict=True), 1):
            best = work.add(
                shortlist_tables,
                kept,
                tried,
                label=f"best {kept} of {rounds[turn - 1]} pairs of tables",
                resources=setting.resources.without_gpu,
            )
            tried = tuple(
                work.add(
                    try_again,
                    setting.mechanism,
                    target,
                    asked,
                    self.limit_s,
                    best,
                    place=place,
                    calls=count,
                    seed=seed.child("tables", turn),
                    label=f"pair of tables {place + 1} of {kept}",
                    **setting.unit_options,
                )
                for place in range(kept)
            )
        chosen = work.add(
            take_best_tables,
            setting.attack,
            setting.mechanism,
            target,
            asked,
            number,
            tried,
            label=f"best of {number} pairs of tables",
            resources=setting.resources.without_gpu,
        )
        return chosen, self.search - sum(kept * count for kept, count in zip(rounds, each, strict=True))


@dataclass(frozen=True)
class Asked:
    """Which pairs of tables are looked for."""

    relation: str
    group: int
    beyond: bool
    full_digits: bool = False  # whether pairs are sought that low digits tell apart


@dataclass(frozen=True, eq=False)
class TriedTables:
    """Calls on two tables that may be taken, each two of them with one seed: on D, then on D'."""

    place: int  # among all that are offered
    name: str
    apart: float  # how far apart calls of one seed are
    told: float  # how well one number, or how a call ends, tells D from D', in [0, 1]
    beyond: float  # by how many deviations the tail of a number exceeds the claim
    samples: Samples


@dataclass(frozen=True)
class Shortlist:
    """Places of the pairs that go on to more calls."""

    places: NDArray[np.int64]


def offered(mechanism: RowFunction, rows: TableRows, asked: Asked) -> list[Tables]:
    """All that may be tried, the most general first: every pair with each of the settings."""
    alternatives = mechanism.alternatives()
    return [
        Tables(_named(pair, settings, len(alternatives)), pair.d, pair.d_prime, number)
        for pair in _pairs(rows, asked.relation, asked.group, asked.beyond)
        if pair.beyond == asked.beyond
        for number, settings in enumerate(alternatives)
    ]


@lru_cache(maxsize=4)
def _pairs(rows: TableRows, relation: str, group: int, beyond: bool) -> tuple[TablePair, ...]:
    """Return the same pairs in whatever unit; a worker that tries many of them makes them once."""
    rng = np.random.default_rng(0)
    return tuple(pairs(rows.schema, rows.cells, Relation(relation), rng, group=group, beyond=beyond))


def _named(pair: TablePair, settings: Mapping[str, Any], alternatives: int) -> str:
    words = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
    return f"{pair.name} ({words})" if alternatives > 1 and words else pair.name


@unit
def try_tables(
    mechanism: Any,
    rows: TableRows,
    asked: Asked,
    limit_s: float | None,
    compute: Compute,
    *,
    calls: int,
    first: int,
    last: int,
    seed: Seed,
) -> Iterator[TriedTables]:
    """So many calls on each of the pairs `first` to `last` - 1."""
    every = offered(mechanism, rows, asked)
    for place in range(first, last):
        yield _tried(mechanism, every[place], place, calls, limit_s, seed.child(place), compute, asked)


@unit
def try_again(
    mechanism: Any,
    rows: TableRows,
    asked: Asked,
    limit_s: float | None,
    best: Shortlist,
    compute: Compute,
    *,
    place: int,
    calls: int,
    seed: Seed,
) -> TriedTables:
    """More calls on one of the pairs that are left."""
    at = int(best.places[min(place, len(best.places) - 1)])
    tables = offered(mechanism, rows, asked)[at]
    return _tried(mechanism, tables, at, calls, limit_s, seed.child(at), compute, asked)


def _tried(
    mechanism: Any,
    tables: Tables,
    place: int,
    calls: int,
    limit_s: float | None,
    seed: Seed,
    compute: Compute,
    asked: Asked,
) -> TriedTables:
    truth = np.arange(calls) % 2 == 1
    seeds = np.repeat(seeds_of(seed, calls // 2), 2)
    samples = in_scope(
        called(mechanism, tables, truth, seeds, 0, limit_s, compute).value, full_digits=asked.full_digits
    )
    beyond = number_excess(mechanism.claim().curve, samples)
    return TriedTables(place, tables.name, *separation(samples), beyond, samples)


@unit
def shortlist_tables(kept: int, tried: tuple[Sequence[TriedTables], ...]) -> Shortlist:
    """The pairs whose calls of one seed are farthest apart, those that one number tells best, or whose tail does.

    Of those that are about as far apart the more general ones, which are offered first.
    """
    every = _every(tried)
    by_distance = sorted(every, key=lambda one: (-round(math.log1p(one.apart) / ALIKE), one.place))
    by_number = sorted(every, key=lambda one: (-one.told, -one.apart, one.place))
    by_tail = sorted(every, key=lambda one: (-one.beyond, one.place))
    ranked = (*by_number[: kept // 3], *by_tail[: kept // 3], *by_distance)
    return Shortlist(np.array(list(dict.fromkeys(one.place for one in ranked))[:kept], np.int64))


@unit
def take_best_tables(
    attack: Any,
    mechanism: Any,
    rows: TableRows,
    asked: Asked,
    number: int,
    tried: tuple[Sequence[TriedTables], ...],
    compute: Compute,
) -> Outcome[Tables]:
    """The pair whose scores exceed the claim by most, where they do; else that which shows most, by bound or guesses.

    Search and fresh calls come afterwards, with other seeds, so the verdict pays nothing for the choice.
    """
    every = _every(tried)
    curve = mechanism.claim().curve

    def shows(one: TriedTables) -> tuple[float, float, float]:
        shown, beyond = evidence_and_excess(curve, attack, one.samples, full_digits=asked.full_digits)
        return (beyond if beyond > BEYOND else 0.0, *shown)

    with limited_threads(compute.threads):
        shown = {one.place: shows(one) for one in every}
    best = max(every, key=lambda one: (*shown[one.place], one.apart, -one.place))
    tables = offered(mechanism, rows, asked)[best.place]
    words = "; ".join(
        f"{one.name} {format_lower(shown[one.place][1])} ({shown[one.place][2]:.0%} right)" for one in every[:LISTED]
    )
    settings = mechanism.alternatives()[tables.settings]
    given = f", settings {settings!r}" if settings else ""
    return Outcome(
        tables,
        notes=(
            f"tables chosen: of {number} pairs `{tables.name}` was taken{given}; bounds on their own calls: {words}",
            f"to paste into a test: {_in_one_line(as_test(TablePair(tables.name, tables.d, tables.d_prime, False)))}",
        ),
    )


def _in_one_line(source: str) -> str:
    """The same source; its line breaks stand inside of lists, or between statements."""
    within = source.strip().replace("[\n    ", "[").replace(",\n]", "]").replace(",\n    ", ", ")
    return "; ".join(filter(None, within.split("\n")))


@unit
def locate(mechanism: Any, tables: Tables, claim: Claim, *, seed: Seed, low_bits: bool = False) -> Leak:
    """Find where the function treats both tables differently; of a function elsewhere by what comes back alone."""
    settings, number = mechanism.alternatives()[tables.settings], int(seed.rng().integers(2**31))
    here = isinstance(mechanism, OwnFunction) and not mechanism.python

    def replays(rows: pa.Table, seeds: Sequence[int], limit_s: float) -> list[Replay]:
        limit_s = min(limit_s, LOCATED_S)
        if here:
            return [replay(mechanism.function, rows, each, limit_s, mechanism.form, settings) for each in seeds]
        limits = CallLimits(limit_s, 1, time_limit, raised_externally)
        return [replay_of(outcome) for outcome in mechanism.outcomes(rows, seeds, settings, limits)]

    batch = 1 if here else 8
    return where_it_leaks(replays, tables.d, tables.d_prime, claim, batch=batch, seed=number, low_bits=low_bits)


def _every(tried: tuple[Any, ...]) -> list[TriedTables]:
    """All that units gave, each a pair or several."""
    return [one for part in tried for one in (part if isinstance(part, Sequence) else (part,))]
