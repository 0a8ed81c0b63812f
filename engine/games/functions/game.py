"""Game for functions on rows: thousands of calls on two neighbouring tables that a search has chosen.

The search tries many pairs of tables, ordinary and extreme, with each of the function's settings. All pairs get a few
calls, and each further round gives more calls to the most promising ones. All calls on a pair count: the attack's
evidence on them chooses the final pair, and the attack learns from them. Then both tables are fixed. More search calls
train the attack, and fresh calls, each on D or D' by a fair coin, are scored.
Exceptions, timeouts and the form of a returned value are outcomes, like numbers.
Source: Lu et al. (2022), Algorithm 1, with our own search; outcomes after Mironov (2012) and Haney et al. (2022).
"""

from __future__ import annotations

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
from dpaudit.claims import Claim, PrivacyCurve, Relation, Scope
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.games.digits import between_steps
from dpaudit.engine.games.functions.coupled_search import CoupledSearch
from dpaudit.engine.games.functions.neighbouring_tables import (
    TablePair,
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
from dpaudit.engine.games.functions.where_it_leaks import Leak, as_test, where_it_leaks
from dpaudit.engine.games.joint_noise import exact_moves
from dpaudit.engine.games.outcomes import Outcomes, Runs, alike_note
from dpaudit.engine.games.protocol import Capability, CheckTest, Played, Setting
from dpaudit.engine.games.search import Strength, Tried, bounds_in_words, promising, steady_move, strength
from dpaudit.engine.games.two_worlds import PairTraits, Proposing, TwoWorlds
from dpaudit.errors import require, shortened
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.queries.row_function import (
    CallLimits,
    CallOutcome,
    RowFunction,
    TableGenerator,
    TableRows,
    is_unreadable,
)
from dpaudit.registry import register

ROW_FUNCTIONS = Capability(RowFunction, "functions on rows (made by `dpaudit.check(function, schema=...)`)")
TABLE_GENERATORS = Capability(TableGenerator, "generators of synthetic tables")
PAIR_SEARCH_SHARE, AVERAGE_SHARE = 0.8, 0.25
"""Share of the search calls that try pairs of tables, and that show which numbers an average record changes."""
WEIGHING_SHARE = 0.2
"""Share of the search calls that weigh rare forms of the result, under a claim with delta."""
COUPLED_SHARE = 0.15
"""Share of the search calls that look for pairs by calls with one seed."""
FOUND_PAIRS = 12
"""Largest number of pairs that the coupled search proposes."""
WEIGHED_PROPOSALS = 3
"""Number of proposed pairs whose rare forms of the result are weighed under a claim with delta."""
MIN_WEIGHED_CALLS = 1_000
"""Fewest calls that weigh rare forms of the result."""
MIN_COUPLED_CALLS = 200
"""Fewest calls of a coupled search; shorter searches try the offered pairs alone."""
MIN_AVERAGE_CALLS = 120
"""Fewest calls of the test with an average record, which searches no tables."""
CHECK_CALLS = 22_000
"""Largest number of search and fresh calls of the test of a claim in `dpaudit check`."""
SIDE_CHECK_CALLS = 8_000
"""Largest number of search and fresh calls of a test for side findings."""
RECORDED_SEEDS = 40
"""Calls on each table that find the law of the noise."""
LOCATE_CALL_S = 10.0
"""Time limit of a call that serves only to locate a leak, in seconds."""
CALLS_ELSEWHERE = 16
"""Calls of each process of another Python, on D and D' together, between which the table may change."""
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
    # change of each number from D to D' by calls with one seed, once the pair is chosen; empty if it is not known
    move: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def run_calls(
    mechanism: Any,
    tables: Tables,
    truth: NDArray[np.bool_],
    seeds: NDArray[np.int64],
    compute: Compute,
    *,
    limit_s: float | None = None,
    first: int = 0,
) -> Outcome[Outcomes]:
    """Return the outcomes of calls, one for each coin (True = D') and seed; `first` is the number of the first."""
    settings = mechanism.alternatives()[tables.settings]
    limits = CallLimits(limit_s, compute.threads, time_limit, raised_externally)
    results: list[CallOutcome] = [CallOutcome("", np.empty(0))] * len(truth)
    for world, positions in calls_in_order(mechanism, truth, compute.threads):
        table = tables.d_prime if world else tables.d
        returned = mechanism.outcomes(table, seeds[positions].tolist(), settings, limits)
        for position, result in zip(positions.tolist(), returned, strict=True):
            results[position] = result
    number = np.arange(first, first + len(truth))
    name = [f"call {place} (seed {seed})" for place, seed in zip(number.tolist(), seeds.tolist(), strict=True)]
    outcomes = Outcomes.of(results, truth, number=number, name=name)
    unreadable = tuple(dict.fromkeys(ending for ending in outcomes.ending.tolist() if is_unreadable(ending)))
    return Outcome(outcomes, notes=unreadable + alike_note(results), failures=outcomes.failures)


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
        tuple(claimed for claimed in Relation if claimed.of_two_inputs is relation),
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
class RowFunctionGame(TwoWorlds):
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

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent calls: both tables, the settings and the attack were fixed "
        "before the fresh calls were made.",
        views={ROW_FUNCTIONS: SummaryView},
        rows=TableRows,
        tried="on the tables that were tried",
        check_tests=tuple(
            _check_test(relation, scope)
            for scope in (Scope.CLAIM, Scope.AVERAGE_RECORD, Scope.BEYOND_SCHEMA, Scope.FLOATING_POINT)
            for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        ),
    )
    search_share: ClassVar[float] = PAIR_SEARCH_SHARE
    plays_without_noise: ClassVar[bool] = False
    ranks_by_strength: ClassVar[bool] = True

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
        if self.record == "average":
            object.__setattr__(self, "search_share", AVERAGE_SHARE)
        require(self.group is None or self.group >= 1, "group must be >= 1", group=self.group)
        searched = not self.beyond and not self.full_digits and not self.person
        require(
            self.record == "worst" or searched, "beyond, full_digits and person need the worst record", got=self.record
        )
        self.state(differ_in=neighbours_in_words(self.person or "", self.group))

    @property
    def limit_s(self) -> float | None:
        return self.call_limit_s

    @property
    def reads_full_digits(self) -> bool:
        return self.full_digits

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

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[Tables]:
        """Yield all pairs that may be tried, with each of the settings; the most general pairs come first.

        Generators get no table without rows: nothing can be fitted to it, and an error there says nothing about a
        record. The pairs are the same for any `rng`.
        """
        (target,) = rows
        relation = self.traits.relation
        if self.record == "average":
            pair = ordinary_pair(target.schema, target.cells, relation, self.group or 1)
            yield Tables(pair.name, pair.d, pair.d_prime, 0)
            return
        alternatives = mechanism.alternatives()
        for pair in _pairs(target, relation.value, self.group, self.person or "", self.beyond):
            for index, settings in enumerate(alternatives if pair.beyond == self.beyond else ()):
                words = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
                name = f"{pair.name} ({words})" if len(alternatives) > 1 and words else pair.name
                if _is_tried(mechanism, pair):
                    yield Tables(name, pair.d, pair.d_prime, index)

    def run(self, mechanism: Any, pair: Tables, runs: Runs) -> Outcome[Outcomes]:
        count, first = len(runs.truth), int(runs.number[0])
        seed = runs.seed.child("calls", first)
        seeds = np.repeat(call_seeds(seed, count // 2), 2) if runs.paired else call_seeds(seed, count)
        return run_calls(mechanism, pair, runs.truth, seeds, runs.compute, limit_s=runs.limit_s, first=first)

    def proposing(self, mechanism: Any) -> Proposing | None:
        """Return the calls with one seed; none where a walk row by row would change the rows of a person."""
        calls = int(self.search * COUPLED_SHARE)
        searches = self.record == "worst" and not (self.beyond or self.full_digits or self.person)
        if not searches or calls < MIN_COUPLED_CALLS:
            return None
        weighing = int(self.search * WEIGHING_SHARE) if mechanism.claim().delta > 0 else 0
        if weighing < MIN_WEIGHED_CALLS or not _in_process(mechanism):
            return Proposing(FOUND_PAIRS, calls)
        return Proposing(FOUND_PAIRS + 1, calls, weighing, self.trials)

    def propose(
        self, mechanism: Any, rows: tuple[Any, ...], proposing: Proposing, seed: Seed, compute: Compute
    ) -> Iterator[Tables]:
        """Yield the pairs that calls with one seed propose, the most promising first.

        Further calls, which draw from a wider law, weigh rare forms of the result.
        """
        (target,), alternatives = rows, mechanism.alternatives()
        searched = min(len(alternatives), max(1, proposing.runs // MIN_COUPLED_CALLS))
        limits = CallLimits(self.limit_s, compute.threads, time_limit, raised_externally)
        weighing = proposing.weighing // searched
        for index, settings in enumerate(alternatives[:searched]):
            search = CoupledSearch(
                mechanism,
                target.schema,
                target.cells.cast(target.schema.arrow()).combine_chunks(),
                self.traits.relation,
                self.group or 1,
                settings,
                limits,
                proposing.runs // searched,
                seed.child(index).rng(),
            )
            proposed = search.pairs(-(-FOUND_PAIRS // searched))
            if weighing >= MIN_WEIGHED_CALLS:
                weighed = [*search.bare_pairs(), *proposed[:WEIGHED_PROPOSALS]]

                def replays(table: pa.Table, seeds: Sequence[int]) -> Sequence[RecordedCall]:
                    return recorded_calls(mechanism, table, seeds, settings, limits, widen=True)  # noqa: B023

                tables = [(pair.d, pair.d_prime) for pair in weighed]
                claim, trials = mechanism.claim(), proposing.trials
                best, expected = rarest_excess(replays, tables, claim, trials, calls=weighing, rng=search.rng)
                if expected > 0 and _is_tried(mechanism, weighed[best]):
                    yield Tables(weighed[best].name, weighed[best].d, weighed[best].d_prime, index, expected)
            for pair in proposed:
                if _is_tried(mechanism, pair):
                    yield Tables(pair.name, pair.d, pair.d_prime, index)

    def strength(
        self, curve: PrivacyCurve, attack: Any, mechanism: Any, pair: Any, outcomes: Outcomes, compute: Compute
    ) -> Strength:
        return strength(curve, attack, outcomes, expected=pair.expected, full_digits=self.full_digits)

    def ranking(
        self, size: int, tried: Sequence[Tried], strengths: Sequence[Strength], *, by_scores: bool
    ) -> list[int]:
        """Return the pairs that remain; one whose change lies between steps or directions of the noise stays."""
        outcomes = [each.outcomes for each in tried]
        by_noise = zip(strengths, between_steps(outcomes), exact_moves(outcomes), strict=True)
        strengths = [replace(each, expected=max(each.expected, *shares)) for each, *shares in by_noise]
        return promising(size, tried, strengths, by_scores=by_scores)

    def judged(self, chosen: Sequence[Tried], tried: Sequence[Tried], strengths: Sequence[Strength]) -> tuple[str, ...]:
        pair = chosen[0].pair
        if self.record == "average":
            return (f"tables: `{pair.name}`, without a search",)
        source = as_test(TablePair(pair.name, pair.d, pair.d_prime, False)).strip()
        # Join the lines of each list, and the statements with semicolons.
        statements = source.replace("[\n    ", "[").replace(",\n]", "]").replace(",\n    ", ", ").split("\n")
        return (
            f"tables chosen: `{pair.name}`; bounds on their search calls: {bounds_in_words(tried, strengths)}",
            f"to paste into a test: {'; '.join(filter(None, statements))}",
        )

    def prepared(self, mechanism: Any, pair: Tables, outcomes: Outcomes | None, compute: Compute) -> Tables:
        """Return the tables with the change of each number, and the law of the noise where its draws were recorded."""
        move = np.empty(0) if outcomes is None else steady_move(outcomes)
        if not _in_process(mechanism) or self.full_digits or self.record == "average":
            return replace(pair, move=move)
        limits = CallLimits(LOCATE_CALL_S, compute.threads, time_limit, raised_externally)
        settings = mechanism.alternatives()[pair.settings]
        with limited_threads(compute.threads):
            on_d, on_d_prime = (
                recorded_calls(mechanism, table, range(RECORDED_SEEDS), settings, limits, widen=False)
                for table in (pair.d, pair.d_prime)
            )
        return replace(pair, move=move, recorded_law=recorded_law(on_d, on_d_prime))

    def finished(self, played: Played, setting: Setting, work: Work, pairs: Unit) -> Played:
        """Return the plan with a unit that locates the leak, if the tables were searched."""
        if self.record == "average":
            return played
        where = Work().add(
            locate,
            setting.mechanism,
            pairs,
            setting.mechanism.claim(),
            low_bits=self.full_digits,
            seed=setting.search_seed.child("where"),
            label="where it leaks",
            resources=setting.resources.without_gpu,
        )
        return replace(played, where=where)


def _is_tried(mechanism: RowFunction, pair: Any) -> bool:
    """Return True unless the mechanism is a generator and one of the tables has no row."""
    return not isinstance(mechanism, TableGenerator) or min(len(pair.d), len(pair.d_prime)) > 0


@lru_cache(maxsize=4)  # a worker that tries many pairs builds them once
def _pairs(rows: TableRows, relation: str, group: int | None, person: str, beyond: bool) -> tuple[TablePair, ...]:
    """Return the pairs, which are the same in all units."""
    rng = np.random.default_rng(0)
    return tuple(pairs(rows.schema, rows.cells, Relation(relation), rng, group=group, person=person, beyond=beyond))


@unit
def locate(mechanism: Any, pairs: Sequence[Tables], claim: Claim, *, seed: Seed, low_bits: bool = False) -> Leak:
    """Find where the function treats both tables differently.

    In another process only the returned values are compared.
    """
    (tables,) = pairs
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
