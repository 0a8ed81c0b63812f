"""Records that the attack guessed too often, over trainings that each flip a fresh coin for every record.

If a claim of epsilon at delta holds, a guess at a fair coin is correct with probability at most p = (e^epsilon + delta)
/ (1 + e^epsilon), given everything else. Without a claim p = 1/2, which is chance. The number of correct guesses in T
trainings is therefore stochastically at most Binomial(T, p). A replayed training counts with its mean over the replays,
which is in [0, 1] with expectation at most p; the smaller of Hoeffding's and Bentkus's bounds applies to the sum.

The guess does not use the coins: it is True if the score exceeds the mean of the replay's scores, clipped to their 10 %
and 90 % quantiles. Missing trainings (failed or skipped) count as wrong guesses.

Among many records some stand out by chance. The p-values are adjusted by Benjamini and Yekutieli, whose false discovery
rate holds under any dependence. Records of one training share its noise, and that dependence need not be positive, as
the rule of Benjamini and Hochberg requires.

Source: Steinke et al. (2023), arXiv:2305.08846, for a guess given all else; Bentkus (2004), Bates et al. (2021),
arXiv:2101.02703, section 3.1; Benjamini and Yekutieli (2001), theorem 1.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import stats

from dpaudit.engine.answer.result import AuditResult
from dpaudit.errors import DataError, SpecError, UnknownNameError, printable, require, shortened

if TYPE_CHECKING:
    import pandas as pd

DEFAULTS = {"label-canaries": 100, "membership": 1}
"""Games whose trainings each flip fresh coins for the same records, with their default number of replays."""
HEAD = ("record", "right", "margin", "p-value", "adjusted", "")
_MOST_RECORDS = 100_000_000
_LARGEST = 3e38  # largest score, as in single precision


@dataclass(frozen=True)
class Records:
    """The records of one audit, sorted by how often the attack guessed them correctly.

    Attributes:
        audit: Name of the audit.
        trainings: Number of planned trainings T, each with fresh coins.
        replays: Number of replays of each training.
        limit: Largest expected share p of correct guesses if the claim holds.
        against: Origin of the limit, in words.
        rate: False discovery rate, in (0, 1): expected share of selected records whose guesses do not exceed the limit.
        record: Row in the target part, shape (m,), sorted by p-value, then by margin: the most exposed first.
        right: Share of trainings with a correct guess, shape (m,).
        margin: Mean distance of the score from the threshold of the guess, positive on the correct side, shape (m,). It
            orders the records of a single training, of which no p-value tells them apart.
        p_value: p-value of the limit, shape (m,).
        adjusted: Smallest false discovery rate at which the record is selected, shape (m,).
        top: Number of records that are printed.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("score", "truth", "replay", "canary")
    """Columns of a score table that are needed."""

    audit: str
    trainings: int
    replays: int
    limit: float
    against: str
    rate: float
    record: NDArray[np.int64]
    right: NDArray[np.float64]
    margin: NDArray[np.float64]
    p_value: NDArray[np.float64]
    adjusted: NDArray[np.float64]
    top: int = 20

    @classmethod
    def of_results(
        cls, results: Sequence[AuditResult], spec: str, *, top: int, rate: float, audit: str | None
    ) -> Records:
        """Return the records of an audit from the scores in its run folder.

        Args:
            results: Results of the run.
            spec: Spec of the run in YAML.
            top: Number of records that are printed, >= 1.
            rate: False discovery rate, in (0, 1).
            audit: Name of the audit; None for the only one with a suitable game.
        Raises: UnknownNameError for an unknown audit; SpecError if its game does not identify records; RunError if no
            scores were stored.
        """
        name, game = cls.selected_audit(spec, audit)
        result = next((result for result in results if result.name == name), None)
        if result is None:
            raise UnknownNameError(
                f"the audit must be one of {', '.join(result.name for result in results)}, got {name!r}"
            )
        claim = result.compared.claim
        table = pa.Table.from_pandas(result.scores(), preserve_index=False)
        return cls.of(name, game, (claim.epsilon, claim.delta), [table], top=top, rate=rate)

    @classmethod
    def of(
        cls,
        audit: str,
        game: Mapping[str, Any],
        claim: tuple[float, float],
        tables: Sequence[pa.Table],
        *,
        top: int = 20,
        rate: float = 0.05,
    ) -> Records:
        """Return the records of score tables.

        Args:
            audit: Name of the audit.
            game: Fields of its game in the spec: name, and optionally replays and trainings.
            claim: Epsilon and delta under the game's relation; epsilon may be inf.
            tables: Tables with the columns `COLUMNS`, one row for each record and replay.
            top: Number of records that are printed, >= 1.
            rate: False discovery rate, in (0, 1).
        Raises: SpecError for invalid numbers of replays or trainings, or a claim that allows everything; DataError for
            tables that do not fit the game; InputError for invalid `top` or `rate`.
        """
        require(isinstance(top, int) and top >= 1, "top must be a whole number >= 1", top=top)
        require(0 < rate < 1, "rate must be in (0, 1)", rate=rate)
        replays, trainings = _number(game, "replays", DEFAULTS[game["name"]]), _number(game, "trainings", 1)
        limit, against = _limit(*claim)
        record, counts, margin = _correct_guesses(tables, replays, trainings)
        p_value = p_values(counts, replays, trainings, limit)
        order = np.lexsort((record, -margin, -counts, p_value))
        adjusted = benjamini_yekutieli(p_value[order])
        share, margin = (values[order] / (replays * trainings) for values in (counts, margin))
        columns = record[order], share, margin, p_value[order], adjusted
        return cls(audit, trainings, replays, limit, against, rate, *columns, top)

    def page(self) -> str:
        """Return the table as a self-contained HTML page."""
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        style = (
            "body{font:16px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
            "td,th{padding:0 1em;text-align:right}"
        )
        head = (
            f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f"<title>Records</title><style>{style}</style>"
        )
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{self._repr_html_()}</body></html>'

    @staticmethod
    def selected_audit(spec: str, audit: str | None) -> tuple[str, Mapping[str, Any]]:
        """Return name and game of the selected audit of a spec in YAML; arguments as in `of_results`."""
        from dpaudit.engine.request.plain_yaml import parse_yaml_argument

        try:
            entries = parse_yaml_argument(spec)["audits"]
            stated = {str(entry.get("name", "audit")): entry["game"] for entry in entries}  # a name alone is allowed
            games = {name: {"name": game} if isinstance(game, str) else dict(game) for name, game in stated.items()}
            fitting = [name for name, game in games.items() if game.get("name") in DEFAULTS]
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise SpecError("the spec must have `audits`, each a mapping with a `game`") from err
        if audit is not None and audit not in games:
            raise UnknownNameError(
                f"the audit must be one of {shortened(', '.join(games), 400)}, got {shortened(audit)!r}"
            )
        if audit is None and len(fitting) > 1:
            raise SpecError(f"several audits identify records: name one of {shortened(', '.join(fitting), 400)}")
        name = audit or (fitting[0] if fitting else "")
        if name not in fitting:
            raise SpecError(
                f"records need a game that flips fresh coins for the same records: {' or '.join(DEFAULTS)}. In "
                "other games, replays of a record are not independent, or each trial has another record"
            )
        return name, games[name]

    @property
    def selected(self) -> int:
        """Number of records guessed more often than the limit, at the false discovery rate."""
        return int((self.adjusted <= self.rate).sum())

    @property
    def min_trainings(self) -> int:
        """Smallest number of trainings at which a record that is always guessed correctly is selected."""
        records = self.record.size
        return math.ceil(math.log(self.rate / (records * _harmonic(records))) / math.log(self.limit))

    def to_frame(self) -> pd.DataFrame:
        """Return one row for every record: record, right, margin, p_value, adjusted, found."""
        import pandas as pd

        columns = {name: getattr(self, name) for name in ("record", "right", "margin", "p_value", "adjusted")}
        return pd.DataFrame({**columns, "found": self.adjusted <= self.rate})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the settings, and each of the printed records."""
        settings = {name: getattr(self, name) for name in ("audit", "trainings", "replays", "limit", "against", "rate")}
        return {**settings, "selected": self.selected, "records": self.to_frame()[: self.top].to_dict("records")}

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences on the meaning and limits of the table."""
        replayed = f", each replayed {self.replays:,} times" if self.replays > 1 else ""
        trainings = f"{self.trainings:,} training{'s' if self.trainings > 1 else ''}"
        few = (
            f"{trainings} cannot tell a single record from chance: use `trainings: {self.min_trainings}`. Until then "
            "the order shows how confident the attack was in its correct guesses"
            if self.trainings < self.min_trainings
            else ""
        )
        summary = (
            f"{self.audit}: {self.record.size:,} records, {trainings}{replayed}; against {self.against}",
            f"{self.selected:,} found: guessed more often than that, at a false discovery rate of {self.rate:g} under "
            "any dependence (Benjamini-Yekutieli)",
            few,
            "A record that is not found may still leak: the table measures this attack only.",
        )
        return tuple(printable(line) for line in summary if line)

    @property
    def _table_rows(self) -> list[tuple[str, ...]]:
        rows = zip(
            *(column[: self.top] for column in (self.record, self.right, self.margin, self.p_value, self.adjusted)),
            strict=True,
        )
        return [
            (
                str(record),
                f"{right:.1%}",
                f"{margin:.3g}",
                f"{p:.2g}",
                f"{adjusted:.2g}",
                "found" if adjusted <= self.rate else "",
            )
            for record, right, margin, p, adjusted in rows
        ]

    def __str__(self) -> str:
        table = [
            f"{record:>8}{right:>9}{margin:>11}{p:>11}{adjusted:>11}  {note}".rstrip()
            for record, right, margin, p, adjusted, note in (HEAD, *self._table_rows)
        ]
        return "\n".join([self.lines[0], *table, *self.lines[1:]])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in HEAD)
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in self._table_rows)
        first, *rest = (f"<p>{escape(line)}</p>" for line in self.lines)
        return f"{first}<table><tr>{head}</tr>{rows}</table>{''.join(rest)}"


def _number(game: Mapping[str, Any], field: str, default: int) -> int:
    value = game.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10_000_000:
        raise SpecError(f"{field} of a game must be a whole number >= 1, got {shortened(value)}")
    return value


def _limit(epsilon: float, delta: float) -> tuple[float, str]:
    """Return the largest probability of a correct guess at a fair coin, and its origin in words."""
    if epsilon == math.inf:
        return 0.5, "chance (half of the guesses are correct), since nothing is claimed"
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise SpecError(f"the claim must have epsilon >= 0 and delta in [0, 1], got {epsilon:g} and {delta:g}")
    limit = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)) * (1 + 1e-12)
    if not 0.5 <= limit < 1:
        raise SpecError(
            f"the claim must exclude something, got epsilon {epsilon:g} at delta {delta:g}. State a smaller delta"
        )
    return limit, f"the claim, epsilon {epsilon:.4g} at delta {delta:g}: at most {limit:.1%} of the guesses are correct"


def _correct_guesses(
    tables: Sequence[pa.Table], replays: int, trainings: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the records, the number of correct guesses about each in all replays, and the sum of their margins.

    Each has the shape (records,).
    """
    records, right, margin = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    guessed_ids = np.zeros(0, np.int64)
    for table in tables:
        score, truth, replay, canary = _columns(table)
        if replay.min() < 0 or replay.max() >= replays * trainings or canary.min() < 0 or canary.max() >= _MOST_RECORDS:
            raise DataError("scores must have replay numbers within those of the spec, and record numbers from 0")
        replay_ids, order = _distinct(replay), np.lexsort((canary, replay))
        twice = (np.diff(replay[order]) == 0) & (np.diff(canary[order]) == 0)
        read_before = np.intersect1d(guessed_ids, replay_ids, assume_unique=True)
        repeated = np.concatenate([replay[order][1:][twice], read_before])
        if repeated.size:
            raise DataError(f"a record must have one score in a replay, but replay {repeated.min()} has several")
        guessed_ids = np.concatenate([guessed_ids, replay_ids])
        # Arrays are sized by the number of records, never by the largest record number, which a file may set at will.
        ids = np.concatenate([records, canary])
        excess = score - _thresholds(score, replay)
        hits = np.concatenate([right, ((excess > 0) == truth).astype(np.int64)])
        margins = np.concatenate([margin, np.where(truth, excess, -excess)])
        records = _distinct(ids)
        right, margin = np.zeros(records.size, np.int64), np.zeros(records.size)
        place = np.searchsorted(records, ids)
        np.add.at(right, place, hits)
        np.add.at(margin, place, margins)
    if not guessed_ids.size:
        raise DataError("no scores were stored. Run the audit with keep_scores = true")
    return records, right, margin


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct values in ascending order; a hundred times faster than `np.unique`."""
    ascending = np.sort(values)
    distinct: NDArray[np.int64] = ascending[np.diff(ascending, prepend=-1) != 0]
    return distinct


def _thresholds(score: NDArray[np.float64], replay: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the score above which a row is guessed to be used, from the scores of its replay, without the truth.

    Replays of equal length are handled together.
    """
    order = np.argsort(replay, kind="stable")
    starts = np.flatnonzero(np.diff(replay[order], prepend=-1))
    lengths = np.diff(starts, append=replay.size)
    thresholds = np.zeros(replay.size)
    for length in np.unique(lengths):
        rows = order[starts[lengths == length, None] + np.arange(length)]  # shape (replays, length)
        scores = score[rows]
        ranks = np.quantile(np.arange(length), [0.1, 0.9], method="inverted_cdf").astype(np.int64)
        low, high = np.sort(scores, axis=1)[:, ranks].T[..., None]
        thresholds[rows] = np.clip(scores, low, high).mean(axis=1, keepdims=True)
    return thresholds


def _columns(table: pa.Table) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    try:
        columns = [table.column(name).to_numpy() for name in Records.COLUMNS]
        score, truth = columns[0].astype(np.float64), columns[1]
        if truth.dtype != np.bool_ or any(column.dtype.kind not in "iu" for column in columns[2:]):
            raise TypeError
        replay, canary = (column.astype(np.int64) for column in columns[2:])
    except (KeyError, ValueError, TypeError, pa.ArrowException) as err:
        raise DataError(f"a score table must have the columns {', '.join(Records.COLUMNS)}") from err
    if score.size == 0 or np.isnan(score).any():
        raise DataError("a score table must have rows, and its scores must be numbers")
    return np.clip(score, -_LARGEST, _LARGEST), truth, replay, canary


def p_values(right: NDArray[np.int64], replays: int, trainings: int, limit: float) -> NDArray[np.float64]:
    """Return p-values of the hypothesis that each guess is correct with probability at most `limit`.

    Args:
        right: Number of correct guesses in all replays of all trainings, shape (m,).
        replays: Replays of each training; they share its noise.
        trainings: Number of independent trainings.
        limit: Probability in [0.5, 1).
    Returns: p-values, rounded up, in (0, 1], shape (m,).
    """
    p_value: NDArray[np.float64] = stats.binom.sf(right // replays - 1, trainings, limit)
    if replays == 1:
        return np.minimum(p_value * (1 + 1e-9), 1.0)
    mean = np.clip(right / (replays * trainings), limit, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        misses = np.where(mean < 1, (1 - mean) * np.log((1 - mean) / (1 - limit)), 0.0)
    hoeffding = np.exp(-trainings * (mean * np.log(mean / limit) + misses))
    return np.minimum(np.minimum(hoeffding, math.e * p_value) * (1 + 1e-9), 1.0)


def benjamini_yekutieli(ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest false discovery rate at which each p-value is selected; `ascending` has shape (m,)."""
    count = ascending.size
    raised = ascending * count * _harmonic(count) / np.arange(1, count + 1)
    return np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)


def _harmonic(count: int) -> float:
    return float((1 / np.arange(1, count + 1)).sum())
