"""Game for functions on rows: thousands of calls on two neighbouring tables that a search has chosen.

The search tries many pairs of tables, ordinary and extreme, with each of the function's settings. All pairs get a few
calls, and each further round gives more calls to the most promising ones. All calls on a pair count: the attack's
evidence on them chooses the final pair, and the attack learns from them. Then both tables are fixed. More search calls
train the attack, and fresh calls, each on D or D' by a fair coin, are scored.
Exceptions, timeouts and the form of a returned value are outcomes, like numbers.
Source: Lu et al. (2022), Algorithm 1, with our own search; outcomes after Mironov (2012) and Haney et al. (2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, PrivacyCurve, Relation
from dpaudit.claims.scope import Scope
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.games.functions.alike_calls import alike_note
from dpaudit.engine.games.functions.coupled_search import CoupledSearch, ProposedPair, pattern_distance
from dpaudit.engine.games.functions.neighbouring_tables import (
    TablePair,
    as_test,
    ordinary_pair,
    pairs,
    require_person,
)
from dpaudit.engine.games.functions.recorded_law import (
    RecordedCall,
    RecordedLaw,
    rarest_excess,
    recorded_calls,
    recorded_law,
)
from dpaudit.engine.games.functions.replay import Replay, replay, replay_of
from dpaudit.engine.games.functions.where_it_leaks import Leak, where_it_leaks
from dpaudit.engine.games.neighbours.residues import between_steps
from dpaudit.engine.games.neighbours.world_scores import ManyCandidates, SummaryGame, in_scope
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting
from dpaudit.engine.games.search import (
    MIN_RUNS_PER_PAIR,
    PAIRS_PER_ROUND,
    evidence_and_excess,
    number_excess,
    runs_in_rounds,
    separation,
    steady_move,
)
from dpaudit.errors import SpecError, require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.mechanisms.adapters.own_function import OwnFunction
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.queries.outcome import CallOutcome, is_unreadable
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction, TableRows
from dpaudit.mechanisms.queries.table_generator import TableGenerator
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register

ROW_FUNCTIONS = Capability(RowFunction, "functions on rows (made by `dpaudit.check(function, schema=...)`)")
TABLE_GENERATORS = Capability(TableGenerator, "generators of synthetic tables")
PAIR_SEARCH_SHARE = 0.8
"""Share of the search calls that try pairs of tables; the others, and those on the chosen pair, train the attack."""
MIN_EVIDENCE_CALLS = 200
"""Fewest calls on a pair from which an attack's evidence helps to choose pairs for the next round."""
CLEAR_EXPECTED = 1.5
"""Expected excess of rare forms of the result, which are few, from which the pair precedes all other criteria."""
WEIGHING_SHARE = 0.2
"""Share of the search calls that weigh rare forms of the result, under a claim with delta."""
COUPLED_SHARE = 0.15
"""Share of the search calls that look for pairs by calls with one seed."""
FOUND_PAIRS = 8
"""Largest number of pairs that the coupled search proposes."""
WEIGHED_PROPOSALS = 3
"""Number of proposed pairs whose rare forms of the result are weighed under a claim with delta."""
MIN_WEIGHED_CALLS = 1_000
"""Fewest calls that weigh rare forms of the result."""
MIN_COUPLED_CALLS = 200
"""Fewest calls of a coupled search; shorter searches try the offered pairs alone."""
CLEAR_EXCESS = 1.5
"""Excess of a pair's scores over the claim, in standard deviations, from which it precedes all other criteria."""
MIN_AVERAGE_CALLS = 120
"""Fewest calls of the test with an average record, which searches no tables."""
CHECK_CALLS = 22_000
"""Largest number of search and fresh calls of the test of a claim in `dpaudit check`."""
SIDE_CHECK_CALLS = 8_000
"""Largest number of search and fresh calls of a test for side findings."""
BOUND_STEP = 0.25
"""Step to which bounds on search calls are rounded for comparison; few calls tell no smaller differences."""
LOG_DISTANCE_STEP = 0.25
"""Step to which logarithms of distances are rounded for comparison."""
RECORDED_SEEDS = 40
"""Calls on each table that find the law of the noise."""
LOCATE_CALL_S = 10.0
"""Time limit of a call that serves only to locate a leak, in seconds."""
CALLS_ELSEWHERE = 16
"""Calls of each process of another Python, on D and D' together, between which the table may change."""
LISTED_PAIRS = 12
"""Largest number of pairs that a report lists."""


USUAL_PERSON = "person"
"""Column that names the person of the rows of a group unless another one is given."""


def neighbours_in_words(person: str, group: int | None) -> str:
    """Return the difference of two neighbouring tables in words; "" for one row."""
    if person:
        most = "" if group is None else f", at most {group} row{'s' if group > 1 else ''}"
        return f"all rows of one person (column {shortened(person)}){most}"
    return f"any {group} rows" if group is not None and group > 1 else ""


@dataclass(frozen=True, eq=False)
class Tables:
    """Two neighbouring tables, and the settings with which the function is called on both."""

    name: str  # name of the pair, with the settings if there are several
    d: pa.Table
    d_prime: pa.Table
    settings: int  # index among the function's alternatives
    # expected excess of rare forms of the result over the claim, in standard deviations; 0 if not known
    expected: float = 0.0
    # law of the noise, if the draws of calls were recorded and explain the numbers
    recorded_law: RecordedLaw | None = None
    place: int = -1  # index among all pairs that were tried, once the pair is chosen
    # change of each number from D to D' by calls with one seed, once the pair is chosen; empty if it is not known
    move: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


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
) -> Outcome[Outcomes]:
    """Make calls `first` to `last` - 1, each on D or D' by a fair coin.

    Raises: TrainingError if all calls fail in the same way.
    """
    unit_seed = seed.child(first)
    truth = unit_seed.rng().random(last - first) < 0.5
    seeds = call_seeds(unit_seed.child("calls"), last - first)
    outcome = run_calls(mechanism, tables, truth, seeds, first, limit_s, compute)
    outcome.value.require_some_success()
    return outcome


def run_calls(
    mechanism: Any,
    tables: Tables,
    truth: NDArray[np.bool_],
    seeds: NDArray[np.int64],
    first: int,
    limit_s: float | None,
    compute: Compute,
) -> Outcome[Outcomes]:
    """Return the outcomes of calls, one for each coin (True = D') and seed; `first` is the number of the first."""
    settings = mechanism.alternatives()[tables.settings]
    limits = CallLimits(limit_s, compute.threads, time_limit, raised_externally)
    results: list[CallOutcome] = [CallOutcome("", np.empty(0))] * len(truth)
    with limited_threads(compute.threads):
        for world, positions in calls_in_order(mechanism, truth, compute.threads):
            table = tables.d_prime if world else tables.d
            returned = mechanism.outcomes(table, seeds[positions].tolist(), settings, limits)
            for position, result in zip(positions.tolist(), returned, strict=True):
                results[position] = result
    samples = Outcomes.of(
        results,
        truth,
        number=np.arange(first, first + len(truth)),
        name=[f"call {first + position} (seed {seed})" for position, seed in enumerate(seeds.tolist())],
    )
    unreadable = tuple(dict.fromkeys(ending for ending in samples.ending.tolist() if is_unreadable(ending)))
    return Outcome(samples, notes=unreadable + alike_note(results), failures=samples.failures)


def calls_in_order(
    mechanism: Any, truth: NDArray[np.bool_], processes: int
) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """Yield (coin, positions of calls) in the order of the calls: that of the coins.

    Code whose results drift, or that counts its calls, then treats D and D' alike. Another Python makes a few calls on
    one table at a time, for all of its processes, and then as many on the other one. A mechanism with
    `keeps_no_state` makes all calls on a table together.
    """
    span = len(truth) if getattr(mechanism, "keeps_no_state", False) else 1
    if getattr(mechanism, "python", ""):
        span = CALLS_ELSEWHERE * processes
    changes = np.flatnonzero(np.diff(truth)) + 1
    starts = [0, *(changes.tolist() if span == 1 else range(span, len(truth), span))]
    for positions in np.split(np.arange(len(truth)), starts[1:]):
        for world in dict.fromkeys(truth[positions].tolist()):
            yield world, positions[truth[positions] == world]


def paired_coins(count: int) -> NDArray[np.bool_]:
    """Return coins in pairs of one seed: D then D', and D' then D for the next seed."""
    coins: NDArray[np.bool_] = (np.arange(count) + 1) // 2 % 2 == 1
    return coins


def call_seeds(seed: Seed, count: int) -> NDArray[np.int64]:
    """Draw an integer below 2^31 for each call."""
    return seed.rng().integers(0, 2**31, count)


_FINDS = {
    Scope.AVERAGE_RECORD: "what a synthetic table gives away about an ordinary row, in place of the worst one",
    Scope.CLAIM: "what a call returns for rows of the schema: too little noise, exact values, failures",
    Scope.BEYOND_SCHEMA: "what a call returns for rows that the schema does not allow: out of range, NaN, missing "
    "values, new categories",
    Scope.FLOATING_POINT: "what the low digits of returned numbers tell, far below the noise",
}


def _check_test(relation: Relation, scope: Scope) -> CheckTest:
    average = scope is Scope.AVERAGE_RECORD
    return CheckTest(
        TABLE_GENERATORS if average else ROW_FUNCTIONS,
        (relation,),
        _FINDS[scope],
        trainings=CHECK_CALLS if scope is Scope.CLAIM else SIDE_CHECK_CALLS,
        # rare events of a claim with delta need many fresh calls
        scales={"trials": 0.6, "search": 0.4} if scope is Scope.CLAIM or average else {"trials": 0.4, "search": 0.6},
        min_trainings=MIN_AVERAGE_CALLS if average else 360,
        variant="" if scope is Scope.CLAIM else scope.value,
        growth_on_repeat={"trials": 2.5},
        search_field="search",
        game={"record": "average"}
        if average
        else {"beyond": scope is Scope.BEYOND_SCHEMA, "full_digits": scope is Scope.FLOATING_POINT},
        scope=scope,
    )


@register("game", "row-function", source="Ours, after Lu et al. (2022), Algorithm 1")
@dataclass(frozen=True)
class RowFunctionGame(SummaryGame):
    """Game in which the attacker tells on which of two neighbouring tables a function was called.

    It audits any function on rows: a user's or a library's, in this Python or another one. A call that raises, hangs or
    ends its process is an outcome like any other.

    Attributes:
        trials: Number of fresh calls, each on D or D' by a fair coin, in 2 .. 10,000,000.
        stack: Number of calls of one unit, >= 1, which take seconds.
        search: Number of calls that choose the tables and train the attack, in 4 .. 10,000,000.
        relation: Relation of D and D', "add-remove" or "replace"; None for that of the claim.
        group: Number of rows in which they differ, >= 1, for claims about several rows; with `person`, the most rows of
            a person in a table. None for one row, or for any number of rows of a person.
        person: Column that names the person of each row, for claims about persons: D and D' differ in all rows of one.
            Under "replace", as many rows replace them, of the same person or of another one. "" if rows belong to no
            persons. None for the column `person` if the schema has one and `group` is larger than 1.
        record: "worst" to search the tables, or "average" for the data's rows without and with the last one. With
            `replace`, the last row replaces the one before.
        beyond: True if D or D' has rows that the schema does not allow; otherwise all rows fit it.
        full_digits: True to read numbers at full precision, with their low bits. Otherwise each is first rounded to a
            millionth of its spread, which removes leaks through floating-point arithmetic.
        call_limit_s: Time limit of a call in seconds, > 0; a call that exceeds it has failed. None for no limit except
            that of the unit.
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
        tried="on the tables that were tried",
        check_tests=tuple(
            _check_test(relation, scope)
            for scope in (Scope.CLAIM, Scope.AVERAGE_RECORD, Scope.BEYOND_SCHEMA, Scope.FLOATING_POINT)
            for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        ),
    )
    samples: ClassVar[Any] = staticmethod(call_on_tables)
    learns_once: ClassVar[bool] = True

    trials: int = 8_000
    stack: int = 2_000
    search: int = 12_000
    relation: Relation | None = None
    group: int | None = None
    person: str | None = None
    record: Literal["worst", "average"] = "worst"
    beyond: bool = False
    full_digits: bool = False
    call_limit_s: float | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.group is None or self.group >= 1, "group must be >= 1", group=self.group)
        searched = not self.beyond and not self.full_digits and not self.person
        require(
            self.record == "worst" or searched, "beyond, full_digits and person need the worst record", got=self.record
        )
        require(self.relation is not Relation.LABEL, "relation must be add-remove or replace", relation=self.relation)
        relation, differ_in = self.relation or Relation.ADD_REMOVE, neighbours_in_words(self.person or "", self.group)
        object.__setattr__(self, "traits", replace(type(self).traits, relation=relation, differ_in=differ_in))

    @property
    def limit_s(self) -> float | None:
        return self.call_limit_s

    @property
    def reads_full_digits(self) -> bool:
        return self.full_digits

    def for_claim(self, claim: Claim) -> RowFunctionGame:
        """Return the game with the claim's relation, if it has none yet."""
        if self.relation is not None or claim.relation is Relation.LABEL:
            return self
        return replace(self, relation=claim.relation)

    def for_data(self, data: object) -> RowFunctionGame:
        """Return the game with the person's column of the schema of its data, if it has no other one.

        Raises: InputError if the schema does not have the column of the person.
        """
        columns = getattr(data, "schema", None)
        if not isinstance(columns, Mapping):
            return self
        require_person(self.person or "", columns)
        is_usual = self.person is None and USUAL_PERSON in columns and (self.group or 1) > 1
        return replace(self, person=USUAL_PERSON) if is_usual else self

    def play(self, setting: Setting, work: Work) -> Played:
        if self.record == "average":
            chosen, calls_left = self._ordinary_tables(setting, work)
            fresh, scores = self.fresh_and_scores(setting, work, chosen, calls_left)
            return Played(scores, trainings=fresh, choices=(chosen,), reference=self.reference())
        chosen, earlier, calls_left = self._choose_tables(setting, work)
        fresh, scores = self.fresh_and_scores(setting, work, chosen, calls_left, earlier=(earlier,))
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

    def _ordinary_tables(self, setting: Setting, work: Work) -> tuple[Unit, int]:
        """Return the unit that makes the tables for an average record, and the number of search calls left."""
        calls = 2 * min(RECORDED_SEEDS, self.search // 8)
        chosen = work.add(
            ordinary_tables,
            setting.mechanism,
            setting.required_part("target"),
            self.traits.relation.value,
            self.group or 1,
            self.limit_s,
            calls=calls,
            seed=setting.search_seed.child("ordinary"),
            label="tables with an average record",
            **setting.unit_options,
        )
        return chosen, self.search - calls

    def _choose_tables(self, setting: Setting, work: Work) -> tuple[Unit, Unit, int]:
        """Return the unit that chooses the tables, that of their earlier calls, and the number of search calls left."""
        relation, person = self.traits.relation.value, self.person or ""
        request = PairRequest(relation, self.group, self.beyond, self.full_digits, person)
        number = len(offered_tables(setting.mechanism, setting.parts.target, request))
        # A walk row by row would give a person more rows than stated, or take rows away from one.
        coupled = 0 if self.beyond or self.full_digits or person else int(self.search * COUPLED_SHARE)
        coupled = coupled if coupled >= MIN_COUPLED_CALLS else 0
        weighing = int(self.search * WEIGHING_SHARE) if coupled and setting.mechanism.claim().delta > 0 else 0
        weighing = weighing if weighing >= MIN_WEIGHED_CALLS and _in_process(setting.mechanism) else 0
        proposals = FOUND_PAIRS if coupled else 0
        calls = int(self.search * PAIR_SEARCH_SHARE) - coupled - weighing
        number = min(number, max(1, calls // ((len(PAIRS_PER_ROUND) + 1) * MIN_RUNS_PER_PAIR)))
        round_sizes = [number + proposals, *(size for size in PAIRS_PER_ROUND if size < number)]
        calls_per_pair = runs_in_rounds(calls, round_sizes)
        if calls_per_pair[0] < MIN_RUNS_PER_PAIR:
            raise SpecError(
                f"search must be at least {MIN_RUNS_PER_PAIR / PAIR_SEARCH_SHARE:.0f} calls, got {self.search}"
            )
        seed, target = setting.search_seed, setting.required_part("target")
        proposed_pairs: Any = ()
        if coupled:
            arguments = setting.mechanism, target, request, self.limit_s
            proposed_pairs = work.add(
                search_coupled,
                *arguments,
                calls=coupled,
                weighing=weighing,
                trials=self.trials,
                seed=seed.child("coupled"),
                label="pairs by calls with one seed",
                **setting.unit_options,
            )
        tried: tuple[Unit, ...] = work.split(
            try_tables,
            number,
            max(1, min(number // 4, self.stack // calls_per_pair[0])),
            setting.mechanism,
            target,
            request,
            self.limit_s,
            calls=calls_per_pair[0],
            seed=seed.child("tables"),
            label="pairs of tables tried",
            **setting.unit_options,
        )
        if coupled:
            tried += (
                work.add(
                    try_found,
                    *arguments,
                    proposed_pairs,
                    calls=calls_per_pair[0],
                    seed=seed.child("found"),
                    label="found pairs tried",
                    **setting.unit_options,
                ),
            )
        all_tried = tried
        for turn, (size, calls) in enumerate(zip(round_sizes[1:], calls_per_pair[1:], strict=True), 1):
            best = work.add(
                shortlist_tables,
                size,
                setting.attack,
                setting.mechanism,
                request,
                all_tried,
                label=f"best {size} of {round_sizes[turn - 1]} pairs of tables",
                resources=setting.resources.without_gpu,
            )
            tried = tuple(
                work.add(
                    try_again,
                    setting.mechanism,
                    target,
                    request,
                    self.limit_s,
                    best,
                    proposed_pairs,
                    place=place,
                    calls=calls,
                    seed=seed.child("tables", turn),
                    label=f"pair of tables {place + 1} of {size}",
                    **setting.unit_options,
                )
                for place in range(size)
            )
            all_tried += tried
        chosen = work.add(
            take_best_tables,
            setting.attack,
            setting.mechanism,
            target,
            request,
            number,
            proposed_pairs,
            all_tried,
            label=f"best of {number} pairs of tables",
            resources=setting.resources.without_gpu,
        )
        earlier = work.add(
            calls_on_chosen,
            chosen,
            all_tried,
            label="earlier calls on the chosen pair",
            resources=setting.resources.without_gpu,
        )
        remaining = self.search - coupled - weighing
        return (
            chosen,
            earlier,
            remaining - sum(size * calls for size, calls in zip(round_sizes, calls_per_pair, strict=True)),
        )


@dataclass(frozen=True)
class PairRequest:
    """Properties of the pairs of tables that are tried."""

    relation: str
    group: int | None
    beyond: bool
    full_digits: bool = False  # True to look for pairs that low digits distinguish
    person: str = ""


@dataclass(frozen=True, eq=False)
class TriedTables:
    """Calls on two tables, alternately on D and on D', two with each seed."""

    place: int  # index among all offered pairs
    name: str
    distance: float  # distance between calls with the same seed
    accuracy: float  # how well one number, or the ending of a call, tells D from D', in [0, 1]
    beyond: float  # largest excess of a number's tail over the claim, in standard deviations
    samples: Outcomes
    proposed: bool  # True if the coupled search proposed the pair
    # expected excess of rare forms of the result over the claim, in standard deviations; 0 if not known
    expected: float = 0.0


@dataclass(frozen=True)
class Strength:
    """Strength with which calls on a pair distinguish D from D', cross-fitted."""

    excess: float  # standard deviations by which scores exceed the claim
    bound: float  # on epsilon
    accuracy: float  # share of correct guesses


@dataclass(frozen=True)
class Shortlist:
    """Indices of the pairs in the next round."""

    places: NDArray[np.int64]


def offered_tables(mechanism: RowFunction, rows: TableRows, request: PairRequest) -> list[Tables]:
    """Return all pairs that may be tried, with each of the settings; the most general pairs come first.

    Generators get no table without rows: nothing can be fitted to it, and an error there says nothing about a record.
    """
    alternatives = mechanism.alternatives()
    offered = []
    for pair in _pairs(rows, request.relation, request.group, request.person, request.beyond):
        if not _is_tried(mechanism, pair):
            continue
        for index, settings in enumerate(alternatives if pair.beyond == request.beyond else ()):
            words = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            name = f"{pair.name} ({words})" if len(alternatives) > 1 and words else pair.name
            offered.append(Tables(name, pair.d, pair.d_prime, index))
    return offered


@unit
def ordinary_tables(
    mechanism: Any,
    rows: TableRows,
    relation: str,
    group: int,
    limit_s: float | None,
    compute: Compute,
    *,
    calls: int,
    seed: Seed,
) -> Outcome[Tables]:
    """Return the rows without and with the last one; calls with one seed on both show which numbers change."""
    pair = ordinary_pair(rows.schema, rows.cells, Relation(relation), group)
    tables, truth = Tables(pair.name, pair.d, pair.d_prime, 0), paired_coins(calls)
    seeds = np.repeat(call_seeds(seed, calls // 2), 2)
    samples = in_scope(run_calls(mechanism, tables, truth, seeds, 0, limit_s, compute).value, full_digits=False)
    move = steady_move(samples) if calls else np.empty(0)
    return Outcome(replace(tables, move=move), notes=(f"tables: `{pair.name}`, without a search",))


def _is_tried(mechanism: RowFunction, pair: TablePair | ProposedPair) -> bool:
    """Return True unless the mechanism is a generator and one of the tables has no row."""
    return not isinstance(mechanism, TableGenerator) or min(len(pair.d), len(pair.d_prime)) > 0


@unit
def search_coupled(
    mechanism: Any,
    rows: TableRows,
    request: PairRequest,
    limit_s: float | None,
    compute: Compute,
    *,
    calls: int,
    weighing: int,
    trials: int,
    seed: Seed,
) -> Iterator[Tables]:
    """Yield the pairs that calls with one seed propose, the most promising first.

    With `weighing` further calls, which draw from a wider law, rare forms of the result are weighed for as many fresh
    `trials`.
    """
    alternatives = mechanism.alternatives()
    searched = min(len(alternatives), max(1, calls // MIN_COUPLED_CALLS))
    limits = CallLimits(limit_s, compute.threads, time_limit, raised_externally)
    with limited_threads(compute.threads):
        for index, settings in enumerate(alternatives[:searched]):
            search = CoupledSearch(
                mechanism,
                rows.schema,
                rows.cells.cast(rows.schema.arrow()).combine_chunks(),
                Relation(request.relation),
                request.group or 1,
                settings,
                limits,
                calls // searched,
                seed.child(index).rng(),
            )
            proposed = search.pairs(-(-FOUND_PAIRS // searched))
            if weighing // searched >= MIN_WEIGHED_CALLS:
                weighed = [*search.bare_pairs(), *proposed[:WEIGHED_PROPOSALS]]

                def replays(table: pa.Table, seeds: Sequence[int]) -> Sequence[RecordedCall]:
                    return recorded_calls(mechanism, table, seeds, settings, limits, widen=True)  # noqa: B023

                tables = [(pair.d, pair.d_prime) for pair in weighed]
                best, expected = rarest_excess(
                    replays, tables, mechanism.claim(), trials, calls=weighing // searched, rng=search.rng
                )
                if expected > 0 and _is_tried(mechanism, weighed[best]):
                    yield Tables(weighed[best].name, weighed[best].d, weighed[best].d_prime, index, expected)
            for pair in proposed:
                if _is_tried(mechanism, pair):
                    yield Tables(pair.name, pair.d, pair.d_prime, index)


@unit
def try_found(
    mechanism: Any,
    rows: TableRows,
    request: PairRequest,
    limit_s: float | None,
    proposed_pairs: Sequence[Tables],
    compute: Compute,
    *,
    calls: int,
    seed: Seed,
) -> Iterator[TriedTables]:
    """Make `calls` calls on each of the pairs that the coupled search proposed."""
    offered = len(offered_tables(mechanism, rows, request))
    for place, tables in enumerate(proposed_pairs):
        yield _try_pair(
            mechanism, tables, offered + place, calls, limit_s, seed.child(place), compute, request, proposed=True
        )


@lru_cache(maxsize=4)  # a worker that tries many pairs builds them once
def _pairs(rows: TableRows, relation: str, group: int | None, person: str, beyond: bool) -> tuple[TablePair, ...]:
    """Return the pairs, which are the same in all units."""
    rng = np.random.default_rng(0)
    return tuple(pairs(rows.schema, rows.cells, Relation(relation), rng, group=group, person=person, beyond=beyond))


@unit
def try_tables(
    mechanism: Any,
    rows: TableRows,
    request: PairRequest,
    limit_s: float | None,
    compute: Compute,
    *,
    calls: int,
    first: int,
    last: int,
    seed: Seed,
) -> Iterator[TriedTables]:
    """Make `calls` calls on each of the pairs `first` to `last` - 1."""
    offered = offered_tables(mechanism, rows, request)
    for place in range(first, last):
        yield _try_pair(mechanism, offered[place], place, calls, limit_s, seed.child(place), compute, request)


@unit
def try_again(
    mechanism: Any,
    rows: TableRows,
    request: PairRequest,
    limit_s: float | None,
    best: Shortlist,
    proposed_pairs: Sequence[Tables],
    compute: Compute,
    *,
    place: int,
    calls: int,
    seed: Seed,
) -> TriedTables:
    """Make `calls` more calls on the pair at `place` of the shortlist."""
    index = int(best.places[min(place, len(best.places) - 1)])
    offered = offered_tables(mechanism, rows, request)
    tables = [*offered, *proposed_pairs][index]
    proposed = index >= len(offered)
    return _try_pair(mechanism, tables, index, calls, limit_s, seed.child(index), compute, request, proposed=proposed)


def _try_pair(
    mechanism: Any,
    tables: Tables,
    place: int,
    calls: int,
    limit_s: float | None,
    seed: Seed,
    compute: Compute,
    request: PairRequest,
    *,
    proposed: bool = False,
) -> TriedTables:
    truth = paired_coins(calls)
    seeds = np.repeat(call_seeds(seed, calls // 2), 2)
    outcome = run_calls(mechanism, tables, truth, seeds, 0, limit_s, compute)
    samples = in_scope(outcome.value, full_digits=request.full_digits)
    return tried_tables(mechanism.claim().curve, place, tables, samples, proposed=proposed)


def tried_tables(
    curve: PrivacyCurve, place: int, tables: Tables, samples: Outcomes, *, proposed: bool = False
) -> TriedTables:
    """Return calls on two tables with the distance, accuracy and excess that they show."""
    measures = _measures(curve, samples)
    return TriedTables(place, tables.name, *measures, samples, proposed, tables.expected)


def _measures(curve: PrivacyCurve, samples: Outcomes) -> tuple[float, float, float]:
    """Return the distance of calls, how well one number tells, and the excess of a tail; see `TriedTables`."""
    distance, accuracy = separation(samples)
    by_pattern = _pattern_distance(samples)
    return distance if by_pattern is None else by_pattern, accuracy, number_excess(curve, samples)


def pooled(curve: PrivacyCurve, tried: Sequence[TriedTables]) -> list[TriedTables]:
    """Return the pairs of the last round, each with its calls of all rounds together."""
    by_place: dict[int, list[TriedTables]] = {}
    for pair in tried:
        by_place.setdefault(pair.place, []).append(pair)
    last = max(map(len, by_place.values()))
    together = []
    for rounds in by_place.values():
        if len(rounds) < last:
            continue
        samples = Outcomes.joined([pair.samples for pair in rounds])
        samples = replace(samples, number=np.arange(len(samples.truth)))
        first = rounds[0]
        if last > 1:
            distance, accuracy, beyond = _measures(curve, samples)
            first = replace(first, distance=distance, accuracy=accuracy, beyond=beyond)
        together.append(replace(first, samples=samples))
    return together


def _pattern_distance(samples: Outcomes) -> float | None:
    """Return the distance by the pattern of answers; None unless all calls have one form, of two-valued numbers."""
    if len(np.unique(samples.ending)) > 1 or not len(samples.vector):
        return None
    numbers = np.asarray(samples.summaries(), np.float64)
    return pattern_distance(numbers[~samples.truth], numbers[samples.truth])


@unit
def shortlist_tables(
    size: int,
    attack: Any,
    mechanism: Any,
    request: PairRequest,
    tried: tuple[Sequence[TriedTables], ...],
    compute: Compute,
) -> Shortlist:
    """Choose the pairs of the next round, by all calls on each pair so far.

    With many calls, an attack's evidence chooses most of them. With few calls, half of the places go to pairs that the
    coupled search proposed, and the others to pairs that differ in one number, in a tail or in distance. A pair whose
    rare forms of the result were weighed stays, or else one whose change lies between the steps of the noise.
    """
    curve = mechanism.claim().curve
    candidates = pooled(curve, _flattened(tried))
    strengths = {}
    if min(len(pair.samples.truth) for pair in candidates) >= MIN_EVIDENCE_CALLS:
        with limited_threads(compute.threads):
            strengths = {
                pair.place: pair_strength(curve, attack, pair, full_digits=request.full_digits) for pair in candidates
            }
    off_steps = between_steps([pair.samples for pair in candidates])
    candidates = [
        replace(pair, expected=max(pair.expected, share)) for pair, share in zip(candidates, off_steps, strict=True)
    ]
    return Shortlist(np.array(shortlist(size, candidates, strengths), np.int64))


def shortlist(size: int, candidates: Sequence[TriedTables], strengths: Mapping[int, Strength]) -> list[int]:
    """Return the places of the pairs of the next round; `strengths` by place, empty if there are too few calls.

    At about the same distance more general pairs, which are offered first, are preferred.
    """
    by_distance = sorted(
        candidates, key=lambda pair: (-round(math.log1p(pair.distance) / LOG_DISTANCE_STEP), pair.place)
    )
    weighed = sorted((pair for pair in candidates if pair.expected > 0), key=lambda pair: -pair.expected)
    if strengths:
        by_strength = sorted(candidates, key=lambda pair: preference(pair, strengths[pair.place]), reverse=True)
        by_excess = sorted(candidates, key=lambda pair: -strengths[pair.place].excess)
        ranked = (*weighed[:1], *by_strength[:1], *by_excess)
    else:
        by_number = sorted(candidates, key=lambda pair: (-pair.accuracy, -pair.distance, pair.place))
        by_tail = sorted(candidates, key=lambda pair: (-pair.beyond, pair.place))
        proposed = sorted((pair for pair in candidates if pair.proposed), key=lambda pair: (-pair.distance, pair.place))
        few = -(-size // 8)
        ranked = (*weighed[:1], *proposed[: size // 2], *by_number[:few], *by_tail[:few], *by_distance)
    return list(dict.fromkeys(pair.place for pair in ranked))[:size]


@unit
def take_best_tables(
    attack: Any,
    mechanism: Any,
    rows: TableRows,
    request: PairRequest,
    number: int,
    proposed_pairs: Sequence[Tables],
    tried: tuple[Sequence[TriedTables], ...],
    compute: Compute,
) -> Outcome[Tables]:
    """Choose the pair whose scores exceed the claim most clearly, or else that with the best bound and distance.

    All calls of all rounds on a pair count.
    Later search calls and fresh calls have other seeds, so the choice costs no significance.
    """
    curve = mechanism.claim().curve
    candidates = pooled(curve, _flattened(tried))
    tables_by_place = [*offered_tables(mechanism, rows, request), *proposed_pairs]

    with limited_threads(compute.threads):
        strengths = {
            pair.place: pair_strength(curve, attack, pair, full_digits=request.full_digits) for pair in candidates
        }

    best = max(candidates, key=lambda pair: preference(pair, strengths[pair.place]))
    tables = replace(tables_by_place[best.place], place=best.place, move=steady_move(best.samples))
    listed = "; ".join(
        f"{pair.name} {format_lower(strengths[pair.place].bound)} ({strengths[pair.place].accuracy:.0%} right)"
        for pair in candidates[:LISTED_PAIRS]
    )
    settings = mechanism.alternatives()[tables.settings]
    with_settings = f", settings {settings!r}" if settings else ""
    source = as_test(TablePair(tables.name, tables.d, tables.d_prime, False)).strip()
    # Join the lines of each list, and the statements with semicolons.
    statements = source.replace("[\n    ", "[").replace(",\n]", "]").replace(",\n    ", ", ").split("\n")
    if _in_process(mechanism) and not request.full_digits:
        tables = replace(tables, recorded_law=_law_of(mechanism, tables, compute))
    return Outcome(
        tables,
        notes=(
            f"tables chosen: `{tables.name}` out of {number} pairs{with_settings}; bounds on their search calls: "
            f"{listed}",
            f"to paste into a test: {'; '.join(filter(None, statements))}",
        ),
    )


def pair_strength(curve: PrivacyCurve, attack: Any, pair: TriedTables, *, full_digits: bool = False) -> Strength:
    """Return how strongly a pair tells D from D', by attacks that learn from half of its calls.

    They score the other half. Few calls may mislead an attack in its choice among classifiers, so the first of them
    scores the calls too, and the better result counts.
    """
    attacks = (attack, *(attack.candidates()[:1] if isinstance(attack, ManyCandidates) else ()))
    results = [evidence_and_excess(curve, each, pair.samples, full_digits=full_digits) for each in attacks]
    return Strength(max(excess for _, excess in results), *max(evidence for evidence, _ in results))


def preference(pair: TriedTables, strength: Strength) -> tuple[float, ...]:
    """Return the rank of a pair: clear evidence against the claim, then the bound in steps, then the distance."""
    beyond_chance = max(strength.excess - CLEAR_EXCESS, pair.expected - CLEAR_EXPECTED, 0.0)
    return (
        beyond_chance,
        round(strength.bound / BOUND_STEP),
        pair.distance,
        strength.bound,
        strength.accuracy,
        -pair.place,
    )


@unit
def calls_on_chosen(chosen: Tables, tried: tuple[Sequence[TriedTables], ...]) -> Outcomes:
    """Return the calls of all rounds on the chosen pair, from which the attack learns too."""
    return Outcomes.joined([pair.samples for pair in _flattened(tried) if pair.place == chosen.place])


def _law_of(mechanism: Any, tables: Tables, compute: Compute) -> RecordedLaw | None:
    """Return the law of the noise by recorded calls on both tables; None if the draws do not explain the numbers."""
    limits = CallLimits(LOCATE_CALL_S, compute.threads, time_limit, raised_externally)
    settings = mechanism.alternatives()[tables.settings]
    with limited_threads(compute.threads):
        on_d, on_d_prime = (
            recorded_calls(mechanism, table, range(RECORDED_SEEDS), settings, limits, widen=False)
            for table in (tables.d, tables.d_prime)
        )
    return recorded_law(on_d, on_d_prime)


@unit
def locate(mechanism: Any, tables: Tables, claim: Claim, *, seed: Seed, low_bits: bool = False) -> Leak:
    """Find where the function treats both tables differently.

    In another process only the returned values are compared.
    """
    settings, number = mechanism.alternatives()[tables.settings], int(seed.rng().integers(2**31))
    in_process = _in_process(mechanism)

    def replays(rows: pa.Table, seeds: Sequence[int], limit_s: float) -> list[Replay]:
        limit_s = min(limit_s, LOCATE_CALL_S)
        if in_process:
            return [replay(mechanism.function, rows, each, limit_s, mechanism.form, settings) for each in seeds]
        limits = CallLimits(limit_s, 1, time_limit, raised_externally)
        return [replay_of(outcome) for outcome in mechanism.outcomes(rows, seeds, settings, limits)]

    batch = 1 if in_process else 8
    return where_it_leaks(replays, tables.d, tables.d_prime, claim, batch=batch, seed=number, low_bits=low_bits)


def _in_process(mechanism: Any) -> bool:
    """True for a function of this process, whose draws can be recorded."""
    return isinstance(mechanism, OwnFunction) and not mechanism.python


def _flattened(tried: tuple[Any, ...]) -> list[TriedTables]:
    """Return all pairs from the results of units; a result is a pair or a sequence of pairs."""
    return [pair for part in tried for pair in (part if isinstance(part, Sequence) else (part,))]
