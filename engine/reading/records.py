"""Which records the attack was right about too often, over trainings that each toss a coin of their own for a record.

A game with fresh coins in every training asks the same question about the same record again and again. Where a claim of
epsilon at delta holds, and whatever else is known, a guess at a fair coin is right with probability at most
p = (e^epsilon + delta) / (1 + e^epsilon); without a claim p = 1/2, which is chance. So the number of right guesses in
T trainings is stochastically at most Binomial(T, p). A training that is replayed counts with its mean over the replays,
in [0, 1] and with a mean of at most p: the smaller one of Hoeffding's bound and Bentkus's bounds its sum.

The guess is made by a rule that looks at no coin: True where the score is above the mean of the replay's scores,
clipped to their 10 % and 90 % quantiles. What is missing (a training that failed, one that was not needed) counts as
wrong.

Of many records some look bad by chance, so the p-values are adjusted by Benjamini and Yekutieli, whose false discovery
rate holds under any dependence: records of one training share its noise, and nothing says that this dependence is
positive, as the rule of Benjamini and Hochberg needs it to be.

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

from dpaudit.engine.reading.result import AuditResult
from dpaudit.errors import DataError, SpecError, UnknownNameError, printable, require, shortened

if TYPE_CHECKING:
    import pandas as pd

DEFAULTS = {"label-canaries": 100, "membership": 1}
"""Games whose trainings toss coins of their own for the same records, and how often each training is replayed."""
_MOST_RECORDS = 100_000_000
_LARGEST = 3e38  # of a score: what single precision holds


@dataclass(frozen=True)
class Records:
    """The records of one audit, those first that the attack was right about most often.

    Attributes:
        audit: Its name.
        trainings: T, how many trainings were planned, each with coins of its own.
        replays: How often each was replayed.
        limit: p, how often at most a guess is right on average where the claim holds.
        against: What the limit comes from, in words.
        rate: The false discovery rate, in (0, 1): of the records found, at most this share on average is not guessed
            more often than the limit.
        record: Row in the target part, shape (m,), sorted by p-value.
        right: In which share of the trainings the guess was right, shape (m,).
        p_value: Of the limit, shape (m,).
        adjusted: The smallest rate at which the record would be found, shape (m,).
        top: How many are shown.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("score", "truth", "replay", "canary")
    """Of a score table, which are needed here."""

    audit: str
    trainings: int
    replays: int
    limit: float
    against: str
    rate: float
    record: NDArray[np.int64]
    right: NDArray[np.float64]
    p_value: NDArray[np.float64]
    adjusted: NDArray[np.float64]
    top: int = 20

    @classmethod
    def of_results(
        cls, results: Sequence[AuditResult], spec: str, *, top: int, rate: float, audit: str | None
    ) -> Records:
        """Those of a report's results, from the scores that its run kept.

        Args:
            results: What was found.
            spec: The spec in YAML.
            top: How many are shown, >= 1.
            rate: The false discovery rate, in (0, 1).
            audit: Which one; left out: the only one whose game fits.
        Raises: UnknownNameError for an audit that is none; SpecError where the game tells no records apart; RunError
            where no scores were kept.
        """
        name, game = cls.chosen(spec, audit)
        result = next((one for one in results if one.name == name), None)
        if result is None:
            raise UnknownNameError(f"the audit must be one of {', '.join(one.name for one in results)}, got {name!r}")
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
        """Those of score tables.

        Args:
            audit: The audit's name.
            game: Its game as the spec says: name, and replays and trainings where they are stated.
            claim: Epsilon and delta under the game's relation; epsilon may be inf.
            tables: With the columns `COLUMNS`, one row a record and replay.
            top: How many are shown, >= 1.
            rate: The false discovery rate, in (0, 1).
        Raises: SpecError for numbers that no game has, or a claim that allows everything; DataError for tables that are
            none of this game; InputError.
        """
        require(isinstance(top, int) and top >= 1, "top must be a whole number >= 1", top=top)
        require(0 < rate < 1, "rate must be in (0, 1)", rate=rate)
        replays, trainings = _number(game, "replays", DEFAULTS[game["name"]]), _number(game, "trainings", 1)
        limit, against = _limit(*claim)
        record, counts = _right(tables, replays, trainings)
        p_value = p_values(counts, replays, trainings, limit)
        order = np.lexsort((record, -counts, p_value))
        adjusted = benjamini_yekutieli(p_value[order])
        share = counts[order] / (replays * trainings)
        return cls(audit, trainings, replays, limit, against, rate, record[order], share, p_value[order], adjusted, top)

    def page(self) -> str:
        """The table as a page that stands alone."""
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        style = "body{font:16px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        style += "td,th{padding:0 1em;text-align:right}"
        head = (
            f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f"<title>Records</title><style>{style}</style>"
        )
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{self._repr_html_()}</body></html>'

    @staticmethod
    def chosen(spec: str, audit: str | None) -> tuple[str, Mapping[str, Any]]:
        """Name and game of the audit that is asked for, of a spec in YAML."""
        from dpaudit.engine.request.plain_yaml import yaml_value

        try:
            games = {str(one.get("name", "audit")): _fields(one["game"]) for one in yaml_value(spec)["audits"]}
            fitting = [name for name, game in games.items() if game.get("name") in DEFAULTS]
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise SpecError("the spec must have `audits`, each a mapping with a `game`") from err
        if audit is not None and audit not in games:
            raise UnknownNameError(
                f"the audit must be one of {shortened(', '.join(games), 400)}, got {shortened(audit)!r}"
            )
        if audit is None and len(fitting) > 1:
            raise SpecError(f"one audit must be named, of {shortened(', '.join(fitting), 400)}")
        name = audit or (fitting[0] if fitting else "")
        if name not in fitting:
            raise SpecError(
                f"records are told apart by {' and '.join(DEFAULTS)}, whose trainings toss coins of their own for the "
                "same records; in other games replays of a record are no independent evidence, or a trial has its own"
            )
        return name, games[name]

    @property
    def found(self) -> int:
        """How many records are guessed more often than the limit, at the false discovery rate."""
        return int((self.adjusted <= self.rate).sum())

    @property
    def fewest(self) -> int:
        """From how many trainings on a single record that is always guessed right would be found."""
        records = self.record.size
        return math.ceil(math.log(self.rate / (records * _harmonic(records))) / math.log(self.limit))

    def to_frame(self) -> pd.DataFrame:
        """One row a record, all of them: record, right, p_value, adjusted, found."""
        import pandas as pd

        columns = {name: getattr(self, name) for name in ("record", "right", "p_value", "adjusted")}
        return pd.DataFrame({**columns, "found": self.adjusted <= self.rate})

    @property
    def lines(self) -> tuple[str, ...]:
        """What the table says and does not say, in sentences."""
        replayed = f", each replayed {self.replays:,} times" if self.replays > 1 else ""
        few = (
            f"with {self.trainings:,} trainings no single record could be found: it takes `trainings: {self.fewest}`"
            if self.trainings < self.fewest
            else ""
        )
        said = (
            f"{self.audit}: {self.record.size:,} records, {self.trainings:,} trainings{replayed}; "
            f"against {self.against}",
            f"{self.found:,} found: guessed more often than that, at a false discovery rate of {self.rate:g} under any "
            "dependence (Benjamini-Yekutieli)",
            few,
            "A record that is not found is no evidence of its privacy: it speaks of this attack only.",
        )
        return tuple(printable(line) for line in said if line)

    @property
    def _shown(self) -> list[tuple[str, ...]]:
        rows = zip(
            *(column[: self.top] for column in (self.record, self.right, self.p_value, self.adjusted)), strict=True
        )
        return [
            (str(record), f"{right:.1%}", f"{p:.2g}", f"{adjusted:.2g}", "found" if adjusted <= self.rate else "")
            for record, right, p, adjusted in rows
        ]

    def __str__(self) -> str:
        head = ("record", "right", "p-value", "adjusted", "")
        table = [
            f"{one:>8}{two:>9}{three:>11}{four:>11}  {five}".rstrip()
            for one, two, three, four, five in (head, *self._shown)
        ]
        return "\n".join([self.lines[0], *table, *self.lines[1:]])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("record", "right", "p-value", "adjusted", ""))
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in self._shown)
        first, *rest = (f"<p>{escape(line)}</p>" for line in self.lines)
        return f"{first}<table><tr>{head}</tr>{rows}</table>{''.join(rest)}"


def _fields(game: Any) -> dict[str, Any]:
    """The fields of a game in a spec, which may be its name alone."""
    return {"name": game} if isinstance(game, str) else dict(game)


def _number(game: Mapping[str, Any], field: str, default: int) -> int:
    value = game.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10_000_000:
        raise SpecError(f"{field} of a game must be a whole number >= 1, got {shortened(value)}")
    return value


def _limit(epsilon: float, delta: float) -> tuple[float, str]:
    """How often a guess at a fair coin is right at most, and what says so."""
    if epsilon == math.inf:
        return 0.5, "chance: right in half, since nothing is claimed"
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise SpecError(f"the claim must have epsilon >= 0 and delta in [0, 1], got {epsilon:g} and {delta:g}")
    limit = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)) * (1 + 1e-12)
    if not 0.5 <= limit < 1:
        raise SpecError(f"the claim must leave something to be refuted, got epsilon {epsilon:g} at delta {delta:g}")
    return limit, f"the claim, epsilon {epsilon:.4g} at delta {delta:g}: right in at most {limit:.1%}"


def _right(tables: Sequence[pa.Table], replays: int, trainings: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The records, and how often the guess about each was right in all replays, each of shape (records,)."""
    records, right = np.zeros(0, np.int64), np.zeros(0, np.int64)
    asked = np.zeros(0, np.int64)
    for table in tables:
        score, truth, replay, canary = _columns(table)
        if replay.min() < 0 or replay.max() >= replays * trainings or canary.min() < 0 or canary.max() >= _MOST_RECORDS:
            raise DataError("the scores must be of the replays that the spec states, and of records from 0 on")
        asked_here = _distinct(replay)
        twice = np.concatenate([_asked_twice(replay, canary), np.intersect1d(asked, asked_here, assume_unique=True)])
        if twice.size:
            raise DataError(f"each record must have one score in a replay, replay {twice.min()} has several")
        asked = np.concatenate([asked, asked_here])
        # Nothing is as large as the largest number of a record, which is one value in the file.
        named = np.concatenate([records, canary])
        hits = np.concatenate([right, (_guesses(score, replay) == truth).astype(np.int64)])
        records = _distinct(named)
        right = np.zeros(records.size, np.int64)
        np.add.at(right, np.searchsorted(records, named), hits)
    if not asked.size:
        raise DataError("there must be scores of one training at least; keep_scores = true keeps them")
    return records, right


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values in ascending order, each once; `np.unique` takes a hundred times as long."""
    ascending = np.sort(values)
    distinct: NDArray[np.int64] = ascending[np.diff(ascending, prepend=-1) != 0]
    return distinct


def _asked_twice(replay: NDArray[np.int64], canary: NDArray[np.int64]) -> NDArray[np.int64]:
    """The replays in which some record has several scores."""
    order = np.lexsort((canary, replay))
    same = (np.diff(replay[order]) == 0) & (np.diff(canary[order]) == 0)
    twice: NDArray[np.int64] = replay[order][1:][same]
    return twice


def _guesses(score: NDArray[np.float64], replay: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The guess of each row, by the scores of its replay; replays of one length are guessed together."""
    order = np.argsort(replay, kind="stable")
    starts = np.flatnonzero(np.diff(replay[order], prepend=-1))
    lengths = np.diff(starts, append=replay.size)
    guesses = np.zeros(replay.size, bool)
    for length in np.unique(lengths):
        rows = order[starts[lengths == length, None] + np.arange(length)]  # shape (replays, length)
        scores = score[rows]
        ranks = np.quantile(np.arange(length), [0.1, 0.9], method="inverted_cdf").astype(np.int64)
        low, high = np.sort(scores, axis=1)[:, ranks].T[..., None]
        guesses[rows] = scores > np.clip(scores, low, high).mean(axis=1, keepdims=True)
    return guesses


def _columns(
    table: pa.Table,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    try:
        columns = [table.column(name).to_numpy() for name in Records.COLUMNS]
        score, truth = columns[0].astype(np.float64), columns[1]
        if truth.dtype != np.bool_ or any(column.dtype.kind not in "iu" for column in columns[2:]):
            raise TypeError
        replay, canary = (column.astype(np.int64) for column in columns[2:])
    except (KeyError, ValueError, TypeError, pa.ArrowException) as err:
        raise DataError(f"a score table must have the columns {', '.join(Records.COLUMNS)}") from err
    if score.size == 0 or np.isnan(score).any():
        raise DataError("a score table must have rows, and numbers as scores")
    return np.clip(score, -_LARGEST, _LARGEST), truth, replay, canary


def p_values(right: NDArray[np.int64], replays: int, trainings: int, limit: float) -> NDArray[np.float64]:
    """How likely so many right answers or more are where each is right with probability `limit` at most.

    Args:
        right: Right answers in all replays of all trainings, shape (m,).
        replays: Of each training; the answers in them share its noise.
        trainings: Independent ones.
        limit: In [0.5, 1).
    Returns: Rounded up, in (0, 1], shape (m,).
    """
    counted: NDArray[np.float64] = stats.binom.sf(right // replays - 1, trainings, limit)
    if replays == 1:
        return np.minimum(counted * (1 + 1e-9), 1.0)
    mean = np.clip(right / (replays * trainings), limit, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        misses = np.where(mean < 1, (1 - mean) * np.log((1 - mean) / (1 - limit)), 0.0)
    hoeffding = np.exp(-trainings * (mean * np.log(mean / limit) + misses))
    return np.minimum(np.minimum(hoeffding, math.e * counted) * (1 + 1e-9), 1.0)


def benjamini_yekutieli(ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    """p-values in ascending order, shape (m,), to the smallest false discovery rate at which each is found."""
    many = ascending.size
    raised = ascending * many * _harmonic(many) / np.arange(1, many + 1)
    return np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)


def _harmonic(many: int) -> float:
    return float((1 / np.arange(1, many + 1)).sum())
