"""Game of membership in the table of a generator: shadow fits teach the attack, and fresh fits are scored.

Each fit has its own other rows, drawn from a pool of real rows, and a target record that a fair coin adds to them or
leaves out. A bound on these fits bounds the (epsilon, delta) of the generator: given the other rows, both tables are
neighbours, and the other rows have one law in both worlds, because the coin is independent of them. Mixing over them
therefore keeps (epsilon, delta), for an attack that knows the other rows and for one that does not.
Source: Stadler et al. (2022), "Synthetic Data - Anonymisation Groundhog Day", section 4, and Houssiau et al. (2022),
"TAPAS", average over the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.games.functions.game import ROW_FUNCTIONS
from dpaudit.engine.games.outcomes import Outcomes, Runs
from dpaudit.engine.games.protocol import Capability, CheckTest, Played, Setting
from dpaudit.engine.games.two_worlds import PairTraits, TwoWorlds
from dpaudit.errors import SpecError, require, shortened
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome, TableGenerator, TableRows
from dpaudit.registry import register
from dpaudit.synthetic_tables.games.record_view import Closeness, Pool, RecordView
from dpaudit.synthetic_tables.games.utility import add_utility

TABLE_GENERATORS = Capability(TableGenerator, "generators of synthetic tables (with methods `claim` and `generate`)")
USUAL_ROWS = 1_000
"""Largest number of rows of a table unless the game states another one."""
SHOWN_CELLS = 6
"""Largest number of cells of a record that a report shows."""


@dataclass(frozen=True)
class TargetRecord:
    """The record that all fits have in common, and the size of their tables."""

    place: int  # among the rows of the pool; -1 if each fit has another record
    rows: int  # number of rows of a table with the record, >= 1


@dataclass(frozen=True, eq=False)
class DrawnTable:
    """The table of a fit."""

    table: pa.Table
    others: pa.Table  # its rows without the target record and without the row that replaces it
    record: int  # place of the target record in the pool


def draw_table(pool: Pool, target: TargetRecord, has_record: bool, seed: Seed, *, replaces: bool) -> DrawnTable:
    """Return the table of a fit. All but the record is the same for both values of `has_record`.

    The record has a random place among the rows. If another row replaces it, that row has the same place.
    """
    rng = seed.rng()
    record = target.place if target.place >= 0 else int(rng.integers(len(pool)))
    places = rng.choice(len(pool) - 1, target.rows, replace=False)
    places += places >= record  # every place but that of the record
    others, substitute, position = places[:-1], places[-1:], int(rng.integers(target.rows))
    if has_record:
        substitute = np.array([record])
    elif not replaces:
        substitute = substitute[:0]
    table = np.concatenate([others[:position], substitute, others[position:]])
    return DrawnTable(pool.take(table), pool.take(others), record)


class _Fits:
    """Fits a mechanism to drawn tables and reads what the releases show of the target record."""

    def __init__(
        self,
        mechanism: Any,
        pool: Pool,
        target: TargetRecord,
        limits: CallLimits,
        *,
        knows_others: bool,
    ) -> None:
        self._mechanism, self._pool, self._rows, self._knows_others = mechanism, pool, target.rows, knows_others
        self._settings, self._limits = mechanism.alternatives()[0], limits
        self._view = pool.around(target.place) if target.place >= 0 else None
        self._bare = getattr(mechanism, "without_noise", lambda: None)() if knows_others else None

    def outcome(self, fit_table: DrawnTable, seed: int) -> CallOutcome:
        """Return what one fit shows of the target record."""
        view = self._view or self._pool.around(fit_table.record)
        others = view.closeness(fit_table.others) if self._knows_others else None
        if isinstance(self._mechanism, TableGenerator):
            return self._generated(view, others, fit_table, seed)
        result: CallOutcome
        (result,) = self._mechanism.outcomes(fit_table.table, [seed], self._settings, self._limits)
        numbers = result.numbers[: len(result.numbers) - result.low_bits]
        # The attack learns how the numbers depend on the other rows, and on the record if it varies.
        extra = [] if others is None else [others.counts[: len(view.names)]]
        extra += [] if self._view is not None else [self._pool.record_numbers(fit_table.record)]
        return replace(result, numbers=np.concatenate([numbers, *extra]) if len(numbers) else numbers, low_bits=0)

    def _generated(self, view: RecordView, others: Closeness | None, fit_table: DrawnTable, seed: int) -> CallOutcome:
        """Return what a generated table shows of the record, and the generator's noisy measurements."""
        try:
            release = self._mechanism.generate(fit_table.table, self._rows, seed, self._settings, self._limits)
            rows = max(1, len(release.table))
            closeness = view.closeness(release.table)
            measurements = np.asarray(release.measurements, np.float64)
        except BaseException as err:  # a generator may raise anything, and how it fails may depend on the record
            if raised_externally(err):
                raise
            cause = type(err.__cause__ or err).__name__
            return CallOutcome(cause, np.empty(0), fault=f"{cause}: {shortened(err)}")
        ending = f"a table and {len(measurements)} measurements"
        if not np.isfinite(measurements).all():
            ending += ", not all finite"
            measurements = np.nan_to_num(measurements)
        counts, nearest = closeness.counts * (self._rows / rows), [closeness.nearest]
        if others is not None:
            counts = counts - others.counts
            nearest.append(closeness.nearest - others.nearest)
            measurements = self._compared(measurements, others, fit_table)
        return CallOutcome(ending, np.concatenate([counts, *nearest, [rows], measurements]))

    def _compared(
        self, measurements: NDArray[np.float64], others: Closeness, fit_table: DrawnTable
    ) -> NDArray[np.float64]:
        """Return measurements compared with those without noise; with what is known if there are none without noise.

        Where the record changes the measurements without noise, four numbers tell: the noise in the direction of the
        change if the record is not in the table, the log-likelihood ratio of Laplace noise of scale 1, the size of the
        noise, and how often it is 0.
        """
        if not len(measurements):
            return measurements
        without, within = self._without_noise(fit_table)
        if not len(without) == len(within) == len(measurements):
            return np.concatenate([measurements, others.counts])
        changed = without != within
        noise, change = (measurements - without)[changed], (within - without)[changed]
        ratio = np.abs(noise).sum() - np.abs(noise - change).sum()
        return np.array([noise @ change, ratio, np.abs(noise).sum(), np.count_nonzero(noise == 0)])

    def _without_noise(self, fit_table: DrawnTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return measurements without noise of the other rows, alone and with the record; empty if there are none."""
        if self._bare is None:
            return np.empty(0), np.empty(0)
        with_record = pa.concat_tables(
            [fit_table.others, self._pool.take(np.array([fit_table.record]))]
        ).combine_chunks()
        without, within = (
            np.asarray(self._bare.generate(rows, 1, 0, self._settings, self._limits).measurements, np.float64)
            for rows in (fit_table.others, with_record)
        )
        return without, within


def _rows_in_table(game: TableMembershipGame, pool: int) -> int:
    return game.rows or max(2, min(pool // 2, USUAL_ROWS))


def rows_of_fit(game: TableMembershipGame, pool: int) -> tuple[int, int]:
    """Return the number of rows of a table twice."""
    return _rows_in_table(game, pool), _rows_in_table(game, pool)


def _check_test(relation: Relation, target: Literal["outlier", "average"]) -> CheckTest:
    words = "the record that is farthest from the others" if target == "outlier" else "a random record"
    return CheckTest(
        TABLE_GENERATORS,
        (relation,),
        f"what a table shows of {words} among random rows of your data",
        trainings=2_000,
        scales={"trials": 0.5, "search": 0.5},
        min_trainings=400,
        variant=target,
        growth_on_repeat={"trials": 2.5},
        search_field="search",
        game={"target": target},
        real_rows=True,
    )


@register("game", "table-membership", source="Stadler et al. (2022); Houssiau et al. (2022), TAPAS")
@dataclass(frozen=True)
class TableMembershipGame(TwoWorlds):
    """Game in which the attacker tells whether a record was in the table to which a generator was fitted.

    It audits generators of synthetic tables, and any other function on rows. The target part of the data is the pool of
    real rows. Each fit draws its other rows from it. The attack learns from shadow fits whose coins it knows.

    Attributes:
        trials: Number of fresh fits, each with the record or without it by a fair coin, in 2 .. 10,000,000.
        stack: Number of fits of one unit, >= 1, which take seconds.
        search: Number of shadow fits from which the attack learns, in 4 .. 10,000,000.
        target: "outlier" for the record that is farthest from its nearest rows, the same in all fits; "average" for
            another random record in each fit.
        row: Place of the record among the rows of the target part, >= 0, instead of `target`; `split.order: given`
            keeps the order of the file.
        rows: Number of rows of a table, the record among them, >= 2. None for half of the pool, at most 1,000.
        relation: Relation of the two tables, "add-remove" (with the record or without it) or "replace" (with the record
            or another random row); None for that of the claim.
        knows_others: True if the attack knows all other rows, as the attacker of differential privacy does; False if
            it knows the pool only.
        fit_limit_s: Time limit of a fit in seconds, > 0; a fit that exceeds it has failed. None for no limit except
            that of the unit.
    """

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent fits: other rows are drawn without regard to the coins, and "
        "the choice of the record and the attack were fixed before the fresh fits.",
        views={ROW_FUNCTIONS: SummaryView},
        rows=TableRows,
        tried="among random rows of these data",
        run_on=rows_of_fit,
        asks_membership=True,
        check_tests=tuple(
            _check_test(relation, target)
            for target in ("outlier", "average")
            for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        ),
    )
    plays_without_noise: ClassVar[bool] = False

    trials: int = 1_000
    stack: int = 50
    search: int = 1_000
    target: Literal["outlier", "average"] = "outlier"
    row: int | None = None
    rows: int | None = None
    relation: Relation | None = None
    knows_others: bool = True
    fit_limit_s: float | None = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.row is None or self.row >= 0, "row must be >= 0", row=self.row)
        require(self.rows is None or self.rows >= 2, "rows must be >= 2", rows=self.rows)

    @property
    def limit_s(self) -> float | None:
        return self.fit_limit_s

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[TargetRecord]:
        """Yield the target record. Fits that are scored have other rows, so the choice costs no significance."""
        (pool,) = rows
        place = self.row
        if place is None:
            place = -1 if self.target == "average" else Pool(pool).outlier()
        yield TargetRecord(place, _rows_in_table(self, len(pool)))

    def notes(
        self, mechanism: Any, rows: tuple[Any, ...], chosen: Sequence[Any], offered: int, tried: Outcomes | None
    ) -> tuple[str, ...]:
        (pool,), (target,) = rows, chosen
        cautions = []
        if (alternatives := len(mechanism.alternatives())) > 1:
            cautions.append(f"only the first of {alternatives} combinations of settings is audited")
        if pool.inferred:
            cautions.append(
                "assumption: the schema was inferred from the rows. A public schema is part of the claim; a generator "
                "that takes its schema from its rows is not private"
            )
        if target.place < 0:
            return ("target record: another random row of the data in each fit", *cautions)
        cells = list(pool.cells.slice(target.place, 1).to_pylist()[0].items())
        words = ", ".join(f"{name}={shortened(cell)}" for name, cell in cells[:SHOWN_CELLS])
        words += f" and {len(cells) - SHOWN_CELLS} more columns" if len(cells) > SHOWN_CELLS else ""
        why = "" if self.row is not None else ", which is the farthest from its nearest rows,"
        return (f"target record: row {target.place:,} of the target part{why} with {words}", *cautions)

    def run(self, mechanism: Any, pair: TargetRecord, runs: Runs) -> Outcomes:
        """Fit each run to a table of its own."""
        pool, replaces = Pool(runs.rows[0]), self.traits.relation is Relation.REPLACE
        limits = CallLimits(runs.limit_s, runs.compute.threads, time_limit, raised_externally)
        fits = _Fits(mechanism, pool, pair, limits, knows_others=self.knows_others)
        results = [
            fits.outcome(draw_table(pool, pair, world, seed.child("table"), replaces=replaces), number)
            for world, seed, number in zip(runs.truth.tolist(), runs.seeds(), runs.seed_numbers(), strict=True)
        ]
        return runs.gave(results, dtype=np.float32)

    def finished(self, played: Played, setting: Setting, work: Work, pairs: Unit) -> Played:
        """Return the plan, with the utility of tables of all rows.

        Raises: SpecError if the target part is too small for tables and record.
        """
        pool = len(setting.parts.target)
        rows = _rows_in_table(self, pool)
        if pool <= rows or (self.row or 0) >= pool:
            raise SpecError(
                f"the target part must have more rows than a table ({rows}) and than `row` ({self.row}), got {pool}. "
                "Give more rows, or lower `rows` or `row`"
            )
        return replace(played, trainings=(*add_utility(setting, work), *played.trainings))
