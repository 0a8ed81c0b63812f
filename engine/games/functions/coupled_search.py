"""Search for neighbouring tables by calls that share a seed.

Two calls with one seed draw the same noise. Their difference is what the rows move, so a single call on each table
shows how far a row moves every number, in units of the noise. The search looks for rows that move numbers far (a row in
two brackets). It also looks for tables at which one row changes the form of the result: a threshold, a tie, the end of
a sparse vector. For these it walks from one table to a distant one, by copies of a row or by random rows, and halves
the way until one row is left. Everything found here is a proposal. The verdict rests on fresh calls with other seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.joint_noise import MAX_MOVE, MORE_RUNS, JointNoise
from dpaudit.engine.games.search import pattern_distance
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction
from dpaudit.mechanisms.queries.schema import Category, Number, Schema

Row = Mapping[str, Any]
Vector = NDArray[np.float64]
Mask = tuple[str, bytes]
"""Ending of a call, and which of its numbers a row moves."""

SPREAD_SEEDS, MAX_SPREAD_SEEDS = 16, 48
"""Calls on a base table that measure the noise: a few more than the result has numbers, within these limits."""
WALK_LENGTH = 100
"""Rows that a walk adds."""
DRAWN_WALKS = 6
"""Largest number of walks of different random rows from each start."""
GRID = 9
"""Values of a column between its ends, both included, at which rows are tried first."""
MAX_HALVINGS = 40
"""Halvings between two values of a column."""
RANDOM_ROWS = 24
"""Ordinary rows that are tried."""
MAX_CONTEXTS = 6
"""Rows whose other cells surround a value that is tried."""
MAX_MIXED = 8
"""Rows with some columns high and the others low that are added at the end of a walk."""
MAX_KINDS = 10
"""Rows of which walks are made."""
OTHER_FORM = 5.0
"""Move that another form of the result counts as, in spreads."""
COMPARED_SEEDS = 8
"""Seeds with which a proposed pair is compared."""
MAX_COMPARED = 64
"""Largest number of proposed pairs that are compared; pairs with one table in common share its calls."""
ROWS_BY_PLACE = 5
"""Ordinary rows that are also tried at other places than the last, where the order of rows matters."""
MANY_ROWS = 10
"""Size of a large table with rows at other places, as a multiple of the ordinary rows."""
SAME_NUMBER = 1e-9
"""Difference of two results of the same rows in another order that rounding explains, as a share of their size."""
PER_BASE = 2
"""Largest number of chosen pairs that share a base table, before pairs of other bases had their turn."""


@dataclass(frozen=True, eq=False)
class ProposedPair:
    """Two neighbouring tables that the search proposes."""

    name: str
    base: str  # name of the table to which the row was added
    d: pa.Table
    d_prime: pa.Table


@dataclass(frozen=True, eq=False)
class Result:
    """Result of a call, without low bits."""

    ending: str
    numbers: Vector

    def equals(self, other: Result) -> bool:
        return self.ending == other.ending and np.array_equal(self.numbers, other.numbers)

    def is_close(self, other: Result) -> bool:
        """True if the results are equal but for rounding."""
        size = SAME_NUMBER * np.abs(self.numbers).max(initial=0.0)
        return self.ending == other.ending and np.allclose(self.numbers, other.numbers, 0, size)


class _OutOfCalls(Exception):
    """Raised when all calls of the search are made."""


@dataclass(eq=False)
class CoupledSearch:
    """A search with a limited number of calls.

    Attributes:
        mechanism: The audited function.
        settings: Settings with which it is called.
        limits: Limits of a call.
        calls: Number of calls that are left.
    """

    mechanism: RowFunction
    schema: Schema
    ordinary: pa.Table
    relation: Relation
    group: int
    settings: Mapping[str, Any]
    limits: CallLimits
    calls: int
    rng: np.random.Generator
    _proposed: list[ProposedPair] = field(default_factory=list)
    _noises: dict[str, JointNoise] = field(default_factory=dict)  # of the numbers, by the ending of the calls

    def pairs(self, count: int) -> list[ProposedPair]:
        """Return at most `count` pairs, the best first; if calls with one seed differ, rows at other places."""
        compared_calls = self.calls // 2
        total, self.calls = self.calls, self.calls - compared_calls
        try:
            seed, usual = self._seed(), self.ordinary.slice(0, len(self.ordinary) - (0 if self._adds else self.group))
            if not self._result(usual, seed).equals(self._result(usual, seed)):
                return self._rows_at_places(usual)[:count]
            rows = self._moving_rows("ordinary rows", usual)
            kinds = self._kinds(rows)
            self._moving_rows("no rows" if self._adds else "equal rows", self._copies(kinds[0], self._rest), kinds)
            self._rows_by_place(usual, kinds, seed)
            length = WALK_LENGTH if self._adds else self._rest
            for turn in range(2):
                for kind, others in itertools.product(kinds, self._starts(kinds)):
                    copies = f"rows of {self._cells(kind)}", self._copies(kind, length)
                    self._walk(copies, others, kinds, self._seed() if turn else 0)
            for turn, others in itertools.product(range(DRAWN_WALKS), self._starts(kinds)):
                random_rows = f"rows of draw {turn + 1}", self.schema.draw(length, self.rng)
                self._walk(random_rows, others, (), self._seed())
        except _OutOfCalls:
            pass
        self.calls = min(total, self.calls + compared_calls)
        return self._best(count)

    def bare_pairs(self) -> list[ProposedPair]:
        """Return pairs in which a row comes to none, or to many equal ones that it does not resemble."""
        low, high, *_ = self._kinds(())
        pairs = []
        for base, rows in (("no rows", 0), ("equal rows", max(self._rest, len(self.ordinary) // 2))):
            others = self._copies(low, rows if self._adds else self._rest)
            d = others if self._adds else self._with(others, low)
            pairs.append(ProposedPair(f"{base}, {self._words(high)}", base, d, self._with(others, high)))
        return pairs if self._adds else pairs[1:]

    def _result(self, table: pa.Table, seed: int) -> Result:
        if self.calls <= 0:
            raise _OutOfCalls
        self.calls -= 1
        (outcome,) = self.mechanism.outcomes(table, [seed], self.settings, self.limits)
        return Result(outcome.ending, outcome.numbers[: len(outcome.numbers) - outcome.low_bits])

    @property
    def _adds(self) -> bool:
        return self.relation is Relation.ADD_REMOVE

    @property
    def _rest(self) -> int:
        """Number of rows of a table without ordinary rows: none, or under `replace` all but those that differ."""
        return 0 if self._adds else len(self.ordinary) - self.group

    def _seed(self) -> int:
        return int(self.rng.integers(2**31))

    def _copies(self, row: Row, count: int) -> pa.Table:
        return self.schema.table([row]).take(pa.array(np.zeros(count, np.int64)))

    def _with(self, base: pa.Table, row: Row, place: int | None = None) -> pa.Table:
        """Return the table with `group` further rows before the one at `place`, or at the end."""
        place = len(base) if place is None else place
        parts = [base.slice(0, place), self._copies(row, self.group), base.slice(place)]
        return pa.concat_tables(parts, promote_options="permissive")

    # Rows that move much

    def _moving_rows(self, name: str, base: pa.Table, kinds: Sequence[Row] = (), place: int | None = None) -> list[Row]:
        """Propose the rows that move the numbers of a table most; return rows of different effect, the best first."""
        noise, plain = self._noise(base), self._seed()
        without = self._result(base, plain)
        effects: dict[Mask, tuple[float, Row, Result]] = {}

        def mask(row: Row) -> Mask:
            result = self._result(self._with(base, row, place), plain)
            size, moved = _effect(without, result, noise)
            which = (result.ending, np.flatnonzero(moved).tobytes())
            if which not in effects or size > effects[which][0]:
                effects[which] = (size, row, result)
            return which

        try:
            for row in kinds or self._tried_rows(mask):
                mask(row)
        except _OutOfCalls:
            if not effects:
                raise
        best = sorted(effects.values(), key=lambda effect: -effect[0])
        if self._adds:
            for _, row, _ in best[: 2 * PER_BASE]:
                self._add(f"{name}, {self._words(row)}", name, base, self._with(base, row, place))
        else:
            pairs = itertools.combinations(best[:12], 2)
            far = sorted(pairs, key=lambda two: -_effect(two[0][2], two[1][2], noise)[0])
            for (_, old, _), (_, new, _) in far[: 2 * PER_BASE]:
                words = f"{name}, {self._words(new)} for {self._cells(old)}"
                self._add(words, name, self._with(base, old, place), self._with(base, new, place))
        return [row for _, row, _ in best]

    def _noise(self, base: pa.Table) -> JointNoise:
        """Return the noise of the most common form of the result."""
        results = [self._result(base, self._seed())]
        if results[0].ending in self._noises:
            return self._noises[results[0].ending]
        seeds = min(max(SPREAD_SEEDS, len(results[0].numbers) + MORE_RUNS), MAX_SPREAD_SEEDS)
        results += [self._result(base, self._seed()) for _ in range(seeds - 1)]
        endings = [result.ending for result in results]
        usual = max(endings, key=endings.count)
        numbers = np.array([result.numbers for result in results if result.ending == usual])
        return self._noises.setdefault(usual, JointNoise.of(numbers))

    def _rows_at_places(self, usual: pa.Table) -> list[ProposedPair]:
        """Return pairs in which a row stands first or amid the others, without any calls."""
        low, high, *_ = self._kinds(())
        alike, middle = self._copies(low, len(usual)), len(usual) // 2
        for name, base, row, place in (
            ("ordinary rows, first", usual, low, 0),
            ("ordinary rows, first", usual, high, 0),
            ("equal rows, amid", alike, high, middle),
        ):
            d = base if self._adds else self._with(base, low if row == high else high, place)
            self._add(f"{name}, {self._words(row)}", name, d, self._with(base, row, place))
        return self._proposed

    def _order_matters(self, table: pa.Table, in_turn: pa.Table, seed: int) -> bool:
        """True if a call with the same seed gives another result for the rows of a table in another order.

        Code that draws noise row by row seems to depend on the order too, which costs proposals only.
        """
        backwards, shuffled = np.arange(len(table))[::-1], self.rng.permutation(len(table))
        in_halves = np.argsort(np.arange(len(in_turn)) % 2, kind="stable")
        return any(
            not self._result(rows, seed).is_close(self._result(rows.take(pa.array(order)), seed))
            for rows, order in ((table, backwards), (table, shuffled), (in_turn, in_halves))
        )

    def _rows_by_place(self, usual: pa.Table, kinds: Sequence[Row], seed: int) -> None:
        """Propose rows that move the result far from the first or a middle place, if the order of rows matters."""
        low, high, *_ = kinds
        in_turn = self.schema.table([(low, high)[place % 2] for place in range(len(usual))])
        many = pa.concat_tables([in_turn] * MANY_ROWS)
        if not self._order_matters(usual, many, seed):
            return
        rows = [*kinds[:3], *self.ordinary.slice(0, ROWS_BY_PLACE).to_pylist()]
        bases = {
            "ordinary rows": usual,
            "low rows": self._copies(low, len(usual)),
            "high rows": self._copies(high, len(usual)),
            "rows in turn": in_turn,
            "many rows in turn": many,
        }
        for (name, base), (where, place) in itertools.product(bases.items(), (("first", 0), ("amid", len(usual) // 2))):
            self._moving_rows(f"{name}, {where}", base, rows, place)

    def _tried_rows(self, mask: Callable[[Row], Mask]) -> Iterator[Row]:
        """Yield rows to try; values of a column are halved towards where their effect changes."""
        yield from self.schema.draw(RANDOM_ROWS, self.rng).to_pylist()
        contexts = self._contexts()
        yield from contexts
        numbers = {name: column for name, column in self.schema.columns.items() if isinstance(column, Number)}
        for context in contexts:
            for name, column in numbers.items():
                grid = sorted({column.cell(_share(column, place / (GRID - 1))) for place in range(GRID)})
                masks = [mask({**context, name: value}) for value in grid]
                for (low, high), (first, last) in zip(itertools.pairwise(grid), itertools.pairwise(masks), strict=True):
                    for _ in range(MAX_HALVINGS if first != last else 0):
                        if (middle := _between(column, low, high)) is None:
                            break
                        low, high = (middle, high) if mask({**context, name: middle}) == first else (low, middle)

    def _contexts(self) -> list[Row]:
        """Return ordinary rows, with each word of each column at least once."""
        ordinary = self.ordinary.slice(0, 8).to_pylist()
        words = [
            ordinary[place % len(ordinary)] | {name: word}
            for name, column in self.schema.columns.items()
            if isinstance(column, Category)
            for place, word in enumerate(column.values[:MAX_CONTEXTS])
        ]
        return (words or ordinary[:1])[:MAX_CONTEXTS]

    # Walks

    def _kinds(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows of which walks are made: corners, the middle, each word, and rows that move much."""
        columns = self.schema.columns
        low, middle, high = (
            {
                name: column.cell(_share(column, share))
                if isinstance(column, Number)
                else column.values[round(share * (len(column.values) - 1))]
                for name, column in columns.items()
            }
            for share in (0.0, 0.5, 1.0)
        )
        words = [
            low | {name: word}
            for name, column in columns.items()
            if isinstance(column, Category)
            for word in column.values[:MAX_CONTEXTS]
        ]
        distinct: list[Row] = []
        for row in [low, high, middle, *words, *rows[:3]]:
            if row not in distinct:
                distinct.append(row)
        return distinct[:MAX_KINDS]

    def _starts(self, kinds: Sequence[Row]) -> list[tuple[str, pa.Table]]:
        """Return the tables from which walks start, with their names."""
        if self._adds:
            return [("", self.ordinary.slice(0, 0)), ("ordinary rows and ", self.ordinary)]
        rest = len(self.ordinary) - self.group
        return [(f"of {rest} rows ({self._cells(kind)}) ", self._copies(kind, rest)) for kind in kinds[:2]]

    def _walk(self, rows: tuple[str, pa.Table], start: tuple[str, pa.Table], kinds: Sequence[Row], seed: int) -> None:
        """Add rows to a table one by one, or replace its rows; propose the step at which the result changes most.

        At that step, rows of the `kinds` are proposed too.
        """
        (words, added), (name, others) = rows, start

        def table(steps: int) -> pa.Table:
            rest = others if self._adds else others.slice(steps)
            return pa.concat_tables([added.slice(0, steps), rest], promote_options="permissive")

        first, last = 0, len(added)
        results = self._result(table(first), seed), self._result(table(last), seed)
        if results[0].equals(results[1]):
            return
        while last - first > 1:
            place = (first + last) // 2
            result = self._result(table(place), seed)
            before, after = _uneven(
                _change(results[0], result, place - first), _change(result, results[1], last - place)
            )
            if before > after or (before == after and self.rng.random() < 0.5):
                last, results = place, (results[0], result)
            else:
                first, results = place, (result, results[1])
        base = f"{name}{first} {words}"
        if any(pair.base == base for pair in self._proposed):
            return
        if not self._adds:
            self._add(f"{base}, one more", base, table(first), table(last))
            return
        at = table(first)
        (last_row,) = added.slice(first, 1).to_pylist()
        further = [*self._mixed_rows(kinds), *kinds] if kinds else []
        for row in [last_row, *(each for each in further if each != last_row)]:
            self._add(f"{base}, {self._words(row)}", base, at, self._with(at, row))

    def _mixed_rows(self, kinds: Sequence[Row]) -> list[Row]:
        """Return rows with some columns high and the others low: every other one, a half of them, and single ones.

        Of answers that share a noise, a row moves a part only.
        """
        low, high, *_ = kinds
        names = list(self.schema.columns)
        half, single = len(names) // 2, [[name] for name in names]
        chosen = [names[::2], names[1::2], names[:half], names[half:], *single] if len(names) > 2 else single
        rows = ({**low, **{name: high[name] for name in columns}} for columns in chosen if len(names) > 1)
        return list(itertools.islice((row for row in rows if row not in kinds), MAX_MIXED))

    def _words(self, row: Row) -> str:
        rows = "a row" if self.group == 1 else f"{self.group} rows"
        return f"{rows} of {self._cells(row)}"

    def _cells(self, row: Row) -> str:
        cells = ", ".join(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row.values())
        return cells if len(cells) <= 60 else f"{cells[:57]}..."

    def _add(self, name: str, base: str, d: pa.Table, d_prime: pa.Table) -> None:
        types = pa.unify_schemas([d.schema, d_prime.schema], promote_options="permissive")
        self._proposed.append(ProposedPair(name, base, d.cast(types), d_prime.cast(types)))

    # Comparison

    def _best(self, count: int) -> list[ProposedPair]:
        """Compare proposed pairs by several seeds each and return the best ones, of different bases first."""
        turns: dict[str, int] = {}
        ranked = []
        for pair in self._proposed:
            turns[pair.base] = turns.get(pair.base, 0) + 1
            ranked.append((turns[pair.base], pair))
        ranked.sort(key=lambda ranking: ranking[0])
        strengths: list[tuple[bool, float, ProposedPair]] = []
        compared = set[tuple[object, ...]]()
        seeds, on_base = [self._seed() for _ in range(COMPARED_SEEDS)], dict[str, list[Result]]()
        for _, pair in ranked[:MAX_COMPARED]:
            try:
                if pair.base not in on_base or not self._adds:  # under `replace`, pairs of one base differ in D too
                    on_base[pair.base] = [self._result(pair.d, seed) for seed in seeds]
                on_d_prime = [self._result(pair.d_prime, seed) for seed in seeds]
            except _OutOfCalls:
                break
            # Rows with the same results, such as those that differ in a column that is not read, come last.
            content = (
                pair.base,
                *((result.ending, result.numbers.tobytes()) for result in (*on_base[pair.base], *on_d_prime)),
            )
            strength = self._strength(list(zip(on_base[pair.base], on_d_prime, strict=True)))
            strengths.append((content in compared, -strength, pair))
            compared.add(content)
        strengths.sort(key=lambda ranking: ranking[:2])
        chosen: list[ProposedPair] = []
        for most in (PER_BASE, len(strengths)):
            for _, _, pair in strengths:
                if pair not in chosen and sum(other.base == pair.base for other in chosen) < most:
                    chosen.append(pair)
        return chosen[:count]

    def _strength(self, results: Sequence[tuple[Result, Result]]) -> float:
        """Return the mean move between results on D and on D' with the same seeds, in units of the noise.

        It is inf if every result has another form.
        """
        alike = [two for two in results if two[0].ending == two[1].ending]
        if not alike:
            return np.inf  # the form of the result tells the tables apart in every call
        if len(alike) == len(results) and len({result.ending for two in alike for result in two}) == 1:
            by_pattern = pattern_distance(*(np.array([two[side].numbers for two in alike]) for side in (0, 1)))
            if by_pattern is not None:
                return by_pattern
        spreads = np.concatenate([np.empty(0), *(noise.spread for noise in self._noises.values())])
        # The spread of a few calls may be too small: half of the median spread on base tables is its smallest value.
        usual = float(np.median(spreads[spreads > 0])) if (spreads > 0).any() else 0.0
        moves = [OTHER_FORM] * (len(results) - len(alike))
        for first, second in alike:
            noise = self._noises.get(first.ending)
            if noise is None or not noise.spread.any():
                sides = [
                    JointNoise.of(np.array([two[side].numbers for two in alike if two[0].ending == first.ending]))
                    for side in (0, 1)
                ]
                few = (sides[0].spread + sides[1].spread) / 2
                noise = replace(sides[0], spread=np.where(few > 0, np.maximum(few, usual / 2), 0.0))
            moves.append(_effect(first, second, noise)[0])
        return float(np.mean(moves))


def _effect(first: Result, second: Result, noise: JointNoise) -> tuple[float, Vector]:
    """Return how far two results with one seed are apart, and how far each number is, both in units of the noise.

    Another form of the result is a single move of `OTHER_FORM`. So are all moves of numbers without spread together.
    """
    if first.ending != second.ending or len(first.numbers) != len(noise.spread):
        size = OTHER_FORM if first.ending != second.ending else 0.0
        return size, np.array([size])
    move = second.numbers - first.numbers
    move[np.abs(move) <= 1e-12 * np.maximum(np.abs(first.numbers), np.abs(second.numbers))] = 0.0
    spread = noise.spread
    in_spreads = np.minimum(np.divide(np.abs(move), spread, out=np.zeros_like(move), where=spread > 0), MAX_MOVE)
    fixed = (spread == 0) & (move != 0)
    in_spreads[fixed] = OTHER_FORM / max(1, int(np.count_nonzero(fixed)))
    joint = noise.length_of_move(np.where(fixed, 0.0, move)) if noise.shows_directions else 0.0
    return max(float(in_spreads.sum()), joint), in_spreads


def _change(first: Result, second: Result, steps: int) -> Vector | None:
    """Return the change of each number for each step of a walk; None if the form of the result changes."""
    alike = first.ending == second.ending and len(first.numbers) == len(second.numbers)
    return np.abs(second.numbers - first.numbers) / steps if alike else None


def _uneven(before: Vector | None, after: Vector | None) -> tuple[float, float]:
    """Return the largest share that each half of a walk has in the change of a number; 2 for another form."""
    if before is None or after is None:
        return (2.0 if before is None else 0.0), (2.0 if after is None else 0.0)
    both = before + after
    share = np.divide(before, both, out=np.full_like(both, 0.5), where=both > 0)
    return float(share.max(initial=0.0)), float((1 - share).max(initial=0.0))


def _share(column: Number, share: float) -> float:
    """Return the value at a share of the range of a column."""
    value = column.low * (1 - share) + column.high * share
    return min(max(float(round(value)) if column.whole else value, column.low), column.high)


def _between(column: Number, low: float, high: float) -> float | None:
    """Return a value between two others, None if they are adjacent or nearly so."""
    middle: float
    if column.whole:
        middle = (int(low) + int(high)) // 2
        return None if middle in (low, high) else middle
    middle = low / 2 + high / 2
    close = high - low <= 1e-9 * max(abs(low), abs(high), (column.high - column.low) * 1e-3)
    return None if close or middle in (low, high) else middle
