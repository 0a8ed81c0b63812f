"""Reading of a table of scores for an estimate: method, canaries and replays, their order, and doubts about both."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import bdtr, gammaln, logsumexp, ndtr, ndtri

from dpaudit.actors.values import arrow_array, numpy_array
from dpaudit.claims import Claim
from dpaudit.engine.data.cells import comparable, read_as_line
from dpaudit.engine.data.columns import SAMPLE_COLUMNS
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.errors import DataError, SpecError, require
from dpaudit.estimators.counts import (
    CONFUSION,
    GUESSES,
    K_CUT,
    RANKS,
    RATIO,
    SPANS,
    TEXTS,
    TWO_CUT,
    has_columns,
    matches,
)
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.right_guesses import Guessing
from dpaudit.estimators.scores import Scores, SharedOrders
from dpaudit.field_checks import check_fields, require_yaml_values
from dpaudit.registry import catalogue, load

GroupScore = Literal["max", "mean", "logsumexp"]
"""Rule that combines the scores of a canary's rows."""
INDEPENDENT = (
    "assumes that each row comes from a separate training; many canaries of one training need the method "
    "simultaneous-guess-count, or random-subset if a random split chose its rows"
)
FAIR_COINS = "assumes that a separate fair coin decided each canary's membership"
OTHER_COINS = "for coins of another probability, name the method rare-canaries and its `rate`"
ROWS_APART = (
    "the intervals below assume independent rows. Canaries of one training are not independent, so these intervals are "
    "not guaranteed"
)
IN_BLOCKS = (
    "members form blocks in the table and its scores are not sorted, so the order of its rows is not that of fair "
    "coins: read as two samples. If a fair coin did decide for each canary, name the method: simultaneous-guess-count"
)
SHUFFLED = "bets are placed in a shuffled order of the rows; use `ordered` if the rows are in trial order"
COPIES = (
    "{:.0%} of rows repeat the score of another row in the same world. Copies are not independent trials: remove "
    "duplicates."
)
MAX_COPIES = 0.02
"""Largest share of repeated scores that is attributed to chance, if scores are not rounded."""
COINS, RARE_COINS, TWO_SAMPLES, WITH_SELECTION = (
    "simultaneous-guess-count",
    "rare-canaries",
    "two-samples",
    "clopper-pearson",
)
"""Methods for scores without a named method.

If fair coins may have chosen the members: all numbers of guesses at once, valid for many canaries of one training and
for independent trials. If the number of members or their order does not look like coins: all thresholds at once, and
all guesses of as many trials as coins would draw, valid for independent trials. With a selection: the threshold that it
chooses. A column `planting_rate` other than 1/2: rare coins.
"""
PLANTING_RATE = "planting_rate"
"""Column with the probability of the coin that decided each canary's membership, one for all rows."""
PLANTED_RECORDS = "planted_records"
"""Column with the number of records that each canary adds to the training data: 1, 2, 4, 8, ....

A claim about one record is compared by group privacy at the largest of them.
"""
GUESS_ORDER = "guess_order"
"""Column with an order of guesses: a value > 0 guesses a member, and larger sizes are guessed earlier.

A guess may depend on all scores and on the coins of rows that were guessed earlier, but on no other coin. The method
`COINS` counts these guesses, if no other rule of guesses is named and rows times delta are at most `MAX_DELTA`.
Measures are those of the scores.
"""
FURTHER_ORDERS = re.compile(rf"{GUESS_ORDER}_\d+")
"""Columns with further orders of guesses, which share the error: `guess_order` has half of it, and these the rest.

A canary of value 0 is then not guessed in an order.
"""
RUN_ORDERS = "further"
"""Column of the further orders in the score tables that a run stores, as lists; the scores are then the main order."""
OWN_TRUTH = "truth"
"""Member column of the score tables that a run stores; the scores in them are centred at 0."""
DEFAULT_GUESS, EVEN_GUESS, STATED_GUESS = "any-tail", "both-tails", "signed"
"""Guess rule for fair coins, for unevenly many members, and for a stated order of guesses.

The second one guesses equal numbers of members and of non-members, so that unequal shares do not help worthless scores.
All other rules can guess one side alone.
"""
SORTED_BY_CHANCE, UNEVEN_BY_CHANCE = 1e-6, 1e-4
"""Probabilities below which sorted trials and uneven coins are refused."""
BIASED_BY_CHANCE = 0.01
"""Probability of a number of members below which no side is guessed alone, if nothing states that coins were fair.

It may be named as the rule of guesses for `COINS`, which allows for the number of members.
"""
ORDERED_BY_CHANCE = 1e-4
"""Probability of a rank correlation below which the order of the rows depends on the scores."""
COUNTS = {
    CONFUSION: "clopper-pearson",
    GUESSES: "one-run",
    RATIO: "ratio",
    TWO_CUT: "two-cut",
    K_CUT: "k-cut",
    RANKS: "exposure",
    TEXTS: "discoverable-extraction",
    SPANS: "verbatim-extraction",
}
"""Columns of counts, and their default method; the first match is used."""


@dataclass(frozen=True)
class Question:
    """Options of an estimate from a table."""

    method: str | None = None  # a registered estimator; None: see `CanaryScores.method`
    delta: float | None = None  # in [0, 1); None: the claim's delta, else the estimator's default of 0
    confidence: float | None = None  # in (0, 1); None: the estimator's default of 0.95
    selection: str | None = None  # choice of the threshold or guess fraction; None: the estimator's default
    options: Mapping[str, object] = field(default_factory=dict)  # further fields of the estimator, by name
    claim: Claim | None = None  # claim to compare the bound with; None for no comparison
    score_column: str = "score"  # name of the score column
    member_column: str = "member"  # name of the truth column, with values 0 and 1 or false and true
    group_column: str | None = None  # rows with an equal value describe one canary; None: each row is a canary
    group_score: GroupScore = "max"  # rule that combines the scores of a canary's rows
    ordered: bool = False  # True if rows are in trial order, for "betting"
    convicting: float | None = None  # confidence that a violation needs, in (0, 1); None: that of the bound
    family: str | None = None  # "gaussian", "laplace" or "dp-sgd:RATE,STEPS": also give the bound under it

    def __post_init__(self) -> None:
        check_fields(self)
        require_yaml_values(self.options, "options")
        if self.score_column == self.member_column:
            raise SpecError(f"score and member must be two columns, got {self.score_column!r} for both")
        require(
            self.group_score in get_args(GroupScore),
            f"the score of a group must be one of {', '.join(get_args(GroupScore))}",
            given=self.group_score,
        )
        if self.claim is not None:
            require(
                self.delta is None or self.delta >= self.claim.delta,
                f"delta must be at least the claim's, {self.claim.delta:g}",
                do="a claim with a larger delta implies nothing at a smaller one",
                delta=self.delta,
            )


class CanaryScores:
    """Scores of a table as a question reads them: rows become canaries, and canaries replays."""

    def __init__(self, table: SourceTable, question: Question) -> None:
        self._table, self._question = table, question

    @cached_property
    def replays(self) -> list[Scores]:
        """Scores of each replay, one row for each canary."""
        return self._canaries_and_doubts[0]

    @property
    def notes(self) -> list[str]:
        """Sentences on how numbers were read and rows became canaries."""
        return self._canaries_and_doubts[1]

    @cached_property
    def _canaries_and_doubts(self) -> tuple[list[Scores], list[str]]:
        table, question = self._table, self._question
        score, truth = table.numbers(question.score_column), table.bits(question.member_column)
        (score[truth], score[~truth]), digits = comparable({"members": score[truth], "non-members": score[~truth]})
        notes = read_as_line([f"{question.score_column}: {each}" for each in digits])
        if question.group_column is None and not {"canary", "replay"} & set(table.names):
            return [Scores(score, truth)], notes
        named = question.group_column is not None or "canary" in table.names
        canary = table.integers("canary") if "canary" in table.names else np.empty(0, dtype=np.int64)
        replay = table.integers("replay") if "replay" in table.names else np.zeros(len(score), dtype=np.int64)
        if question.group_column is not None:
            if question.group_column not in table.names:
                raise DataError(f"{table.name} must have the column {question.group_column}, got {table.listed}")
            group = table.identities(question.group_column)
            rows = len(score)
            score, truth, replay, canary = one_row_a_group(table, score, truth, replay, group, question.group_score)
            notes.append(f"{rows} rows are {len(score)} canaries: the {question.group_score} of the scores of each")
        if (replay[1:] < replay[:-1]).any():
            order = np.argsort(replay, kind="stable")
            score, truth, replay = score[order], truth[order], replay[order]
            canary = canary[order] if named else canary
        starts = np.flatnonzero(np.append(True, replay[1:] != replay[:-1]))
        parts = [slice(start, end) for start, end in itertools.pairwise([*starts.tolist(), len(replay)])]
        # Shared by all replays: there may be 10^8 rows.
        number = np.arange(max(part.stop - part.start for part in parts))
        return [
            Scores(
                score[part],
                truth[part],
                int(replay[part.start]),
                canary[part] if named else number[: part.stop - part.start],
            )
            for part in parts
        ], notes

    @property
    def method(self) -> str:
        """Default method: by the columns for counts, as `COINS` describes for scores."""
        table, question = self._table, self._question
        fitting = [method for needed, method in COUNTS.items() if has_columns(needed, table.names)]
        if question.method or fitting:
            return question.method or fitting[0]
        if question.selection:
            return "band" if question.selection.startswith("band") else WITH_SELECTION
        if (rate := planting_rate(table)) is not None:
            return COINS if rate == 0.5 else RARE_COINS
        if question.member_column not in table.names:
            return TWO_SAMPLES
        return TWO_SAMPLES if self.are_uneven() or self.are_in_blocks else COINS

    def are_uneven(self, least: float = UNEVEN_BY_CHANCE) -> bool:
        """Return True if fair coins make so uneven a number of members, among the canaries of a replay, less often.

        Canaries are counted, not rows: all rows of a canary have one coin.
        """
        if not {self._question.score_column, self._question.member_column} <= set(self._table.names):
            return False
        return bool(uneven(self.replays, least))

    @property
    def are_in_blocks(self) -> bool:
        """True if members and others form too few runs for fair coins in rows that are not sorted by their scores.

        False for two arrays, and if rows are grouped. Sorting by scores that leak puts members together.

        Source: Wald and Wolfowitz (1940), the normal approximation.
        """
        table, question = self._table, self._question
        if table.two_samples or question.group_column is not None or {"canary", "replay"} & set(table.names):
            return False
        members = table.bits(question.member_column)
        n, inside = members.size, int(members.sum())
        pairs = 2 * inside * (n - inside)
        if pairs <= n:
            return False
        runs, mean = 1 + int(np.count_nonzero(np.diff(members))), 1 + pairs / n
        by_chance = float(ndtr((runs + 0.5 - mean) / math.sqrt(pairs * (pairs - n) / (n * n * (n - 1)))))
        score = table.numbers(question.score_column)
        return by_chance < UNEVEN_BY_CHANCE and not any(
            _follow_scores(score[members == world]) for world in (True, False)
        )


def with_orders_of_a_run(table: SourceTable) -> SourceTable:
    """Return the score table of a run with a column for each of its orders of guesses; unchanged without them."""
    column = table.columns.column(RUN_ORDERS).combine_chunks() if RUN_ORDERS in table.columns.column_names else None
    if column is None or not pa.types.is_fixed_size_list(column.type):
        return table
    orders = numpy_array(column.flatten()).reshape(len(column), -1).T
    columns = table.columns.append_column(GUESS_ORDER, table.columns.column(Question.score_column))
    for number, order in enumerate(orders, 2):
        columns = columns.append_column(f"{GUESS_ORDER}_{number}", arrow_array(order))
    return replace(table, columns=columns.drop_columns(RUN_ORDERS))


def stated_orders(table: SourceTable, question: Question) -> list[Scores]:
    """Return the orders of guesses that a table states, for each replay."""

    def replays(column: str) -> list[Scores]:
        return CanaryScores(table, replace(question, score_column=column)).replays

    main = replays(GUESS_ORDER)
    further = [replays(name) for name in table.names if FURTHER_ORDERS.fullmatch(name)]
    if not further:
        return main
    return [
        SharedOrders(
            scores.score, scores.truth, scores.replay, scores.canary, np.column_stack([order.score for order in orders])
        )
        for scores, *orders in zip(main, *further, strict=True)
    ]


def planting_rate(table: SourceTable) -> float | None:
    """Return the probability of the coins of a table; None if it does not state one.

    Raises: DataError for several probabilities, or one outside of (0, 1).
    """
    if PLANTING_RATE not in table.names:
        return None
    rates = np.unique(table.numbers(PLANTING_RATE))
    if rates.size != 1 or not 0 < rates[0] < 1:
        raise DataError(
            f"{table.name}: column {PLANTING_RATE} must hold one probability in (0, 1), got "
            f"{', '.join(f'{rate:g}' for rate in rates[:3])}; estimate each rate on its own"
        )
    return float(rates[0])


def uneven(replays: Sequence[Scores], least: float = UNEVEN_BY_CHANCE) -> list[Scores]:
    """Return the replays with so uneven a number of members that fair coins give one with probability < `least`."""

    def by_chance(members: NDArray[np.bool_]) -> float:
        return min(1.0, 2 * float(bdtr(min(members.sum(), (~members).sum()), members.size, 0.5)))

    return [scores for scores in replays if by_chance(scores.truth) * len(replays) < least]


def _follow_scores(score: NDArray[np.float64]) -> bool:
    """Return True if rows of one world stand in an order that depends on their scores, or on how extreme they are.

    By the normal approximation of two rank correlations.
    """
    _, place_of, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place_of] - (score.size + 1) / 2  # ties share their mean rank
    place = np.arange(score.size) - (score.size - 1) / 2
    for values in (rank, np.abs(rank) - np.abs(rank).mean()):
        norm = math.sqrt(float(values @ values) * float(place @ place))
        if norm and abs(float(values @ place)) / norm * math.sqrt(score.size - 1) > -ndtri(ORDERED_BY_CHANCE / 2):
            return True
    return False


def one_row_a_group(
    table: SourceTable,
    score: NDArray[np.float64],
    truth: NDArray[np.bool_],
    replay: NDArray[np.int64],
    group: NDArray[np.int64],
    group_score: GroupScore,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Return score, truth, replay and group of each (replay, group)."""
    order = np.lexsort((group, replay))
    keys = np.stack([replay[order], group[order]])
    starts = np.flatnonzero(np.append(True, (np.diff(keys) != 0).any(axis=0)))
    sizes = np.diff(np.append(starts, len(order)))
    members = np.add.reduceat(truth[order].astype(np.int64), starts)
    mixed = np.flatnonzero((members > 0) & (members < sizes))
    if mixed.size:
        inside = np.sort(order[starts[mixed[0]] : starts[mixed[0]] + sizes[mixed[0]]])
        other = inside[np.flatnonzero(truth[inside] != truth[inside[0]])[0]]
        raise DataError(
            f"{table.name}: rows of one group must all be members or all be non-members, got both in "
            f"{table.row(inside[0])} and {table.row(other)}"
        )
    ranked = score[order]
    match group_score:
        case "max":
            combined = np.maximum.reduceat(ranked, starts)
        case "mean":
            combined = np.add.reduceat(ranked, starts) / sizes
        case "logsumexp":
            combined = np.array([logsumexp(part) for part in np.split(ranked, starts[1:])])
    return combined, members > 0, keys[0, starts], keys[1, starts]


def used_columns(names: Sequence[str], question: Question, by: Sequence[str] = ()) -> set[str]:
    """Return the columns of a table with these names that `estimates` reads, and those of its slices."""
    method = question.method or next((method for needed, method in COUNTS.items() if has_columns(needed, names)), "")
    estimator: Any = load("estimator", method) if method in catalogue("estimator") else None
    counts = (*getattr(estimator, "columns", ()), *getattr(estimator, "optional_columns", ()))
    of_scores = {question.score_column, question.member_column, question.group_column, *SAMPLE_COLUMNS, *by}
    used = of_scores | {OWN_TRUTH, "canary", "replay", PLANTING_RATE, PLANTED_RECORDS, GUESS_ORDER}
    used |= {name for name in names if name == RUN_ORDERS or FURTHER_ORDERS.fullmatch(name)}
    used_names = {name for name in names if name in used or any(matches(pattern, name) for pattern in counts)}
    return used_names or set(names[:1])  # one column, so that the message on missing columns names it


def require_fair_coins(replays: Sequence[Scores], estimator: object, least: float) -> None:
    """Raise DataError if members are too uneven for one-sided guesses, which then gain without any leak.

    `COINS` allows for numbers of members that fair coins give with probability >= `UNEVEN_BY_CHANCE`.
    """
    least = UNEVEN_BY_CHANCE if isinstance(estimator, SimultaneousGuessCount) else least
    if not assumes_fair_coins(estimator) or estimator.guess == EVEN_GUESS:
        return
    for scores in uneven(replays, least)[:1]:
        raise DataError(
            f"guess {estimator.guess!r} must have canaries that fair coins made members, got {scores.truth.sum()} "
            f"members of {scores.truth.size}, which fair coins give with probability < {least:g}; use "
            f"guess={EVEN_GUESS}, or state the coin: method rare-canaries with the option rate"
        )


def assumes_fair_coins(estimator: object) -> TypeGuard[Guessing]:
    """Return True if it assumes that fair coins chose the members; `two-samples` draws such trials itself."""
    return isinstance(estimator, Guessing) and getattr(estimator, "registered_name", "") != TWO_SAMPLES


def copy_notes(replays: Sequence[Scores]) -> list[str]:
    """Return a note if rows are copies: scores take too many values for that many ties to be chance."""
    for scores in replays:
        value = scores.score
        if np.array_equal(np.round(value, 4), value):  # rounded scores have ties by chance
            continue
        worlds = [value[scores.truth], value[~scores.truth]]
        counts = np.concatenate([np.unique(world, return_counts=True)[1] for world in worlds])
        share = counts[(counts > 1) & (counts < 20)].sum() / value.size
        if counts.size >= value.size / 20 and share > MAX_COPIES:
            return [COPIES.format(share)]
    return []


def in_trial_order(replays: Sequence[Scores], estimator: Any, question: Question) -> list[Scores]:
    """Return the rows, for betting in an order that does not depend on their scores."""
    if not getattr(estimator, "anytime_valid", False):
        require(not question.ordered, "`ordered` must be left out for methods other than betting")
        return list(replays)
    if not question.ordered:
        return [_shuffled(scores) for scores in replays]
    for scores in replays:
        trials = estimator.tally(scores)
        for world in (trials.score[trials.truth], trials.score[~trials.truth], trials.score):
            if _probability_of_order(world) * len(replays) < SORTED_BY_CHANCE:
                raise DataError(
                    "rows in the order of their trials must not have sorted scores, got sorted ones; leave out "
                    "`ordered`, and they are shuffled"
                )
    return list(replays)


def _probability_of_order(score: NDArray[np.float64]) -> float:
    """Return the probability that a random order of these values is monotone; 1 if they are not monotone."""
    steps = np.diff(score)
    if (steps > 0).any() and (steps < 0).any():
        return 1.0
    equal = np.unique(score, return_counts=True)[1]
    return float(min(1.0, 2 * math.exp(gammaln(equal + 1).sum() - gammaln(score.size + 1))))


def _shuffled(scores: Scores) -> Scores:
    """Return the trials renumbered in a random order seeded by their content."""
    order = np.random.default_rng(Scores.content_seed((scores.score, scores.truth))).permutation(scores.score.size)
    return Scores(scores.score[order], scores.truth[order], scores.replay)


def assumption_notes(
    replays: Sequence[Scores], estimator: object, question: Question, *, blocks: bool, coin_is_stated: bool
) -> list[str]:
    """Return the assumptions of the bound that a table cannot show."""
    if assumes_fair_coins(estimator):
        independence = INDEPENDENT if getattr(estimator, "independent_trials", False) else ROWS_APART
        uneven_replays = uneven(replays)
        if not uneven_replays:
            return [FAIR_COINS if coin_is_stated else f"{FAIR_COINS}; {OTHER_COINS}", independence]
        share = uneven_replays[0].truth.mean()
        return [
            f"{FAIR_COINS}; {share:.1%} are members, which is improbable for fair coins. Equal numbers of guesses of "
            "members and non-members are valid for equally biased coins at delta = 0; nothing is proved for delta > 0",
            independence,
        ]
    notes = [INDEPENDENT] if getattr(estimator, "independent_trials", False) else []
    if blocks:
        notes.append(IN_BLOCKS)
    return [*notes, SHUFFLED] if getattr(estimator, "anytime_valid", False) and not question.ordered else notes
