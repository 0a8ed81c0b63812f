"""Bounds from a table of scores or counts, for `dpaudit.estimate` and the command line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard, cast, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, gammaln, logit, logsumexp, ndtr, ndtri

from dpaudit.claims import Claim, ConvertedClaim, Relation, claim_under, parse_claim
from dpaudit.engine.answer.record import Record, Sensitivity, Test, Verb
from dpaudit.engine.answer.verdict import Answered
from dpaudit.engine.data.cells import comparable, read_as_line
from dpaudit.engine.data.columns import SAMPLE_COLUMNS
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.request.build import build
from dpaudit.errors import DataError, InputError, SpecError, printable_lines, require
from dpaudit.estimators.bound import NEVER_REJECT, Bound, format_upper
from dpaudit.estimators.counts import (
    CONFUSION,
    GUESSES,
    K_CUT,
    RANKS,
    RATIO,
    SPANS,
    TEXTS,
    TWO_CUT,
    CountEstimator,
    Reading,
    has_columns,
    matches,
)
from dpaudit.estimators.family_bound import FamilyBound, NamedFamily
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.measures import Measure, measures, pairs_above
from dpaudit.estimators.one_run.guess_band import MAX_DELTA, SimultaneousGuessCount
from dpaudit.estimators.one_run.right_guesses import Guessing, OneRunTally
from dpaudit.estimators.scores import Scores
from dpaudit.field_checks import check_fields, checked_argument, require_yaml_values
from dpaudit.registry import catalogue, load

if TYPE_CHECKING:
    import pandas as pd

GroupScore = Literal["max", "mean", "logsumexp"]
"""Rule that combines the scores of a canary's rows."""

ASSUMES = "assumes that "
"""Beginning of a note that states an assumption."""
INDEPENDENT = (
    "assumes that each row comes from a separate training; many canaries of one training need the method "
    "simultaneous-guess-count"
)
FAIR_COINS = "assumes that a separate fair coin decided each canary's membership"
OTHER_COINS = "for coins of another probability, name the method rare-canaries and its `rate`"
ROWS_APART = (
    "the intervals below assume independent rows. Canaries of one training are not independent, so these intervals are "
    "not guaranteed"
)
REVERSED = "members score lower than non-members: larger must mean more likely a member (negate losses)"
EQUAL_SCORES = "all scores are equal, so that they tell nothing about any row: check the attack"
FEW_ROWS = "the maximum detectable epsilon of this number of rows is {}: give more rows"
NO_VERDICT = "a bound that is {} rejects no claim: choose another method for a verdict"
IN_BLOCKS = (
    "members form blocks in the table and its scores are not sorted, so the order of its rows is not that of fair "
    "coins: read as two samples. If a fair coin did decide for each canary, name the method: simultaneous-guess-count"
)
SHUFFLED = "bets are placed in a shuffled order of the rows; use `ordered` if the rows are in trial order"
NEIGHBOURS = "assumes that {} one canary is one neighbouring step of the claim"
NEIGHBOURING_STEP = {
    Relation.ADD_REMOVE: "adding or removing",
    Relation.REPLACE: "replacing",
    Relation.LABEL: "changing the label of",
}
"""Difference between member and non-member, by the relation of the claim."""
BY_PROXY = (
    "if a proxy drew labels: trust this only if rows that were never trained on show about 0, because an inaccurate "
    "proxy looks like a leak"
)
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
IN_THIS_ORDER = "guesses in the order of the column guess_order; measures are those of the scores"
NOT_IN_THIS_ORDER = (
    f"guesses in the order of the scores: guess_order needs fair coins, and rows times delta <= {MAX_DELTA}"
)
OWN_TRUTH = "truth"
"""Member column of the score tables that a run stores; the scores in them are centred at 0."""
DEFAULT_GUESS, EVEN_GUESS, STATED_GUESS = "any-tail", "both-tails", "signed"
"""Guess rule for fair coins, for unevenly many members, and for a stated order of guesses.

The second one guesses equal numbers of members and of non-members, so that unequal shares do not help worthless scores.
All other rules can guess one side alone.
"""
COPIES = (
    "{:.0%} of rows repeat the score of another row in the same world. Copies are not independent trials: remove "
    "duplicates."
)
MAX_COPIES = 0.02
"""Largest share of repeated scores that is attributed to chance, if scores are not rounded."""
MAX_SENSITIVITY_ROWS = 100_000
"""Largest number of rows for which sensitivity and p-value are computed, in a second or two."""
SUMMARISED = 4
"""Largest number of measures that a short answer prints."""
NO_CLAIM = Claim(math.inf, relation=Relation.ADD_REMOVE)
"""Claim that stands in if none is given."""
SORTED_BY_CHANCE, UNEVEN_BY_CHANCE = 1e-6, 1e-4
"""Probabilities below which sorted trials and uneven coins are refused."""
BIASED_BY_CHANCE = 0.01
"""Probability of a number of members below which no side is guessed alone, if nothing states that coins were fair.

It may be named as the rule of guesses for `COINS`, which allows for the number of members.
"""
ORDERED_BY_CHANCE = 1e-4
"""Probability of a rank correlation below which the order of the rows depends on the scores."""
CONFIDENCES = 1e-6, 1 - 1e-9
"""Range of confidences within which every estimator is numerically accurate."""
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

    method: str | None = None  # a registered estimator; None: see `natural_method`
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


@dataclass(frozen=True)
class Estimate(Answered, Bound):
    """A bound on epsilon from given scores or counts; `print` shows it with all notes and measures.

    Attributes:
        measures: Measures of the same scores that other tools print; none for counts.
        claim: Claim that the bound is compared with.
        assumed_method: The default method if it holds for independent trials alone, which the caller did not state; ""
            if the method was named, or also holds for canaries of one training.
        maximum: Bound of the same method for as many rows in perfect order; None if nothing was left to detect.
        blind: Reason why the scores could not have rejected the claim; "" if they could.
        detectable: Factor in [1, 8] by which the noise must be smaller for as many rows to reject the claim with 90 %
            power; None if the scores do not determine it.
        p_value: Upper limit of the p-value of the claim; None if it was not computed.
        under_family: Bound from the same scores under a family of curves; None if no family was named. It is
            `conditional-on-family` and no part of the verdict.
        helps: Advice on raising the sensitivity; "" for none.
        without_noise: Observation that steps of the training had no noise; "" if there is none.
        convicting: Bound at the higher confidence that a violation needs; None if that of the bound is enough.
        name: Name of the scores in the printed answer.
        details: Notes that `text` prints only if it is verbose.
    """

    measures: tuple[Measure, ...] = ()
    claim: Claim | None = None
    assumed_method: str = ""
    maximum: Bound | None = None
    blind: str = ""
    detectable: float | None = None
    p_value: float | None = None
    under_family: FamilyBound | None = None
    helps: str = ""
    without_noise: str = ""
    convicting: Bound | None = None
    name: str = "estimate"
    details: tuple[str, ...] = (ROWS_APART,)
    verb: ClassVar[Verb] = Verb.ESTIMATE

    @classmethod
    def of_bound(cls, bound: Bound, claim: Claim | None, **details: Any) -> Estimate:
        """Return an estimate from a bound, the claim and further fields."""
        neighbours = () if claim is None else (NEIGHBOURS.format(NEIGHBOURING_STEP[claim.relation]),)
        about = (*neighbours, BY_PROXY) if claim is not None and claim.relation is Relation.LABEL else neighbours
        carried = {part.name: getattr(bound, part.name) for part in fields(Bound) if part.init}
        return cls(**carried | {"notes": (*bound.notes, *about), "claim": claim} | details)

    @property
    def record(self) -> Record:
        """Record of the bound as a test of the claim."""
        return Record(self.name, (self.as_test(self.name),), verb=self.verb)

    def as_test(self, name: str) -> Test:
        """Return the bound as a test of the claim with this name."""
        claim = NO_CLAIM if self.claim is None else self.claim
        sensitivity = Sensitivity(factor=self.detectable, maximum=self.maximum, blind=self.blind, helps=self.helps)
        test = Test(
            name=name,
            claimed=claim,
            compared=ConvertedClaim(claim),
            finding=self,
            p_value=self.p_value,
            sensitivity=sensitivity,
            assumed_method=self.assumed_method,
            without_noise=self.without_noise,
        )
        return test if self.claim is None or self.convicting is None else test.at_confidence_of(self.convicting)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each number, the bound first: name, value, lower, upper, confidence, method."""
        import pandas as pd

        bound = Measure(
            "epsilon",
            self.lower,
            self.lower,
            math.inf if self.upper is None else self.upper,
            self.confidence,
            self.method,
        )
        family = self.under_family
        assumed = [] if family is None else [Measure.of_family(family, self.confidence)]
        return pd.DataFrame([asdict(measure) for measure in (bound, *assumed, *self.measures)])

    def _repr_html_(self) -> str:
        from dpaudit.engine.answer.card import card  # draws with the palette of figures

        return card(self.answer, self)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it; without a claim, the bound, its notes and all measures.

        Args:
            verbose: True to add the method, the p-value, and the intervals of the measures to a verdict.
        """
        family = "" if self.under_family is None else f"{Validity.CONDITIONAL_ON_FAMILY}: {self.under_family}"
        if self.claim is None:
            lines = [super().__str__(), *(f"  {line}" for line in (*self.notes, family, *self.measures) if str(line))]
            return "\n".join(printable_lines(line) for line in lines)
        hidden = () if verbose else self.details
        notes = [("assumes", "; ".join(note.removeprefix(ASSUMES) for note in self.notes if note.startswith(ASSUMES)))]
        notes += [("note", note) for note in self.notes if not note.startswith(ASSUMES) and note not in hidden]
        values = ", ".join(f"{measure.name} {measure.value:.3f}" for measure in self.measures[:SUMMARISED])
        measured = [("measure", str(measure)) for measure in self.measures] if verbose else [("measures", values)]
        method = [("bound", super().__str__())] if verbose else []
        return self.answer.text([*notes, *method, ("family", family), *measured], verbose=verbose)


def estimate(
    scores: object = None,
    members: object = None,
    *,
    in_scores: object = None,
    out_scores: object = None,
    delta: float | None = None,
    confidence: float = 0.95,
    method: str | None = None,
    selection: str | None = None,
    claim: Claim | float | tuple[float, float] | str | None = None,
    groups: object = None,
    group_score: GroupScore = "max",
    replays: object = None,
    ordered: bool = False,
    family: str | None = None,
    **options: object,
) -> Estimate:
    """Return a lower bound on epsilon from the scores of any attack, or from counts.

        dpaudit.estimate(scores, members)
        dpaudit.estimate(in_scores=..., out_scores=...)
        dpaudit.estimate({"tp": [65], "fp": [25], "tn": [75], "fn": [35]}, delta=0.05)

    Args:
        scores: One attack score for each row, larger = more likely a member: an array, list, pandas Series or Arrow
            array of shape (n,). Or a table (mapping, DataFrame, Arrow table) with the columns `score` and `member`,
            or with one row of counts.
        members: The truth of each row, 0 or 1, shape (n,); None with a table.
        in_scores: Scores of members, any length, instead of `scores` and `members`.
        out_scores: Scores of non-members.
        delta: Delta of the bound, in [0, 1). Default: that of the claim, else 0.
        confidence: Smallest probability with which the bound is below the true epsilon, in (0, 1).
        method: A registered estimator (`dpaudit list estimators`). Left out: by the columns for counts; for scores
            "simultaneous-guess-count" if fair coins may have chosen the members, for one or for many canaries in a
            training; "two-samples" for two samples, which must be independent trials.
        selection: Choice of the threshold or guess fraction: "grid", "split:0.5", "fixed:0.01", ...
        claim: Claim to compare with: a `Claim`; epsilon at `delta`; (epsilon, delta); or "mu=1", "rho=0.5".
        groups: A value for each row; rows with an equal value describe one canary.
        group_score: Rule that combines the scores of a canary's rows: "max", "mean" or "logsumexp".
        replays: Number of the replay of each row, an integer >= 0; replays are combined.
        ordered: True if rows are in trial order, for the method "betting".
        family: Also give the bound under a family of curves: "gaussian", "laplace" or "dp-sgd:RATE,STEPS" (sampling
            rate and steps). It is larger if the family is right, for one training also only if canaries leak
            independently, and wrong otherwise. It needs delta > 0 but for "laplace", and never decides the verdict.
        options: Further fields of the estimator: `guess="member-only"`.
    Returns: The bound with AUC, true-positive rates and accuracy; `print` shows all of them.
    Raises: DataError for unsuitable scores or counts, SpecError for an unsuitable method or option, InputError for an
        argument out of range.
    """
    delta = checked_argument("delta", delta, float | None)
    promise = checked_argument("claim", claim, Claim | float | tuple[float, float] | str | None)
    promise = None if promise is None else parse_claim(promise, Relation.ADD_REMOVE, delta=delta or 0.0)
    table = _python_table(scores, members, in_scores, out_scores, groups, replays)
    question = Question(
        method,
        delta,
        confidence,
        selection,
        options,
        promise,
        group_column=None if groups is None else "group",
        group_score=group_score,
        ordered=ordered,
        family=checked_argument("family", family, str | None),
    )
    readings = estimates(table, question)
    if len(readings) != 1 or not isinstance(readings[0], Estimate):
        raise InputError(
            f"`estimate` must lead to one bound on epsilon, got {len(readings)} readings of {table.name}; give one row "
            "of counts that bound epsilon, or read the file with `dpaudit estimate`"
        )
    return readings[0]


def _python_table(
    scores: object, members: object, in_scores: object, out_scores: object, groups: object, replays: object
) -> SourceTable:
    two_samples = in_scores is not None or out_scores is not None
    one_table = scores is not None or members is not None
    if two_samples == one_table or (two_samples and (in_scores is None or out_scores is None)):
        raise InputError("give `scores` and `members`, both `in_scores` and `out_scores`, or a table")
    if two_samples:
        return SourceTable.of_two_samples(in_scores, out_scores, group=groups, replay=replays)
    if members is None:
        if groups is not None or replays is not None:
            raise InputError("`groups` and `replays` need arrays; put the replays of a table in a column `replay`")
        return SourceTable.of(scores)
    return SourceTable.of_arrays(score=scores, member=members, group=groups, replay=replays)


def estimates(table: SourceTable, question: Question) -> Sequence[Reading]:
    """Return one `Estimate` for scores, combined over replays; for counts the estimator's readings."""
    question, planted_notes = _of_planted_records(table, question)
    is_run_table = _is_run_table(table, question)
    question = replace(question, member_column=OWN_TRUTH) if is_run_table else question
    method = natural_method(table, question)
    named = question.method not in (None, TWO_SAMPLES)  # a default method for fair coins has even ones
    coin_is_stated = is_run_table or PLANTING_RATE in table.names
    least = UNEVEN_BY_CHANCE if coin_is_stated else BIASED_BY_CHANCE
    is_biased = (named or method == COINS) and _is_uneven(table, question, least)
    usual: dict[str, object] = {"guess": EVEN_GUESS if is_biased else DEFAULT_GUESS}
    usual |= {} if (rate := planting_rate(table)) is None else {"rate": rate}
    estimator = _estimator(method, question, {} if is_run_table else usual)
    states_order = _states_guess_order(table, question, method)
    follows_order = (
        states_order and table.columns.num_rows * estimator.delta <= MAX_DELTA and not _is_uneven(table, question)
    )
    if follows_order:
        estimator = _estimator(method, question, {**usual, "guess": STATED_GUESS})
    if isinstance(estimator, CountEstimator) and has_columns(estimator.columns, table.names):
        return _from_counts(table, estimator, question)
    missing = [column for column in (question.score_column, question.member_column) if column not in table.names]
    if missing or not _reads_scores(estimator):
        raise DataError(_missing_columns(table, None if question.method is None else estimator, question))
    if getattr(estimator, "sharing", None) is not None and "canary" not in table.names:
        raise DataError(
            f"{table.name} must have the column canary for `sharing`: numbers that, divided by it and rounded down, "
            f"are equal where canaries share a training; got {table.listed}"
        )
    replays, notes = _replays(table, question)
    replays = _in_trial_order(replays, estimator, question)
    guesses = _replays(table, replace(question, score_column=GUESS_ORDER))[0] if follows_order else replays
    _require_fair_coins(guesses, estimator, least)
    if not coin_is_stated and isinstance(estimator, SimultaneousGuessCount):
        odds = [float(logit((scores.truth.sum() + 0.5) / (scores.truth.size + 1))) for scores in guesses]
        estimator = cast(Any, replace(estimator, member_log_odds=max(odds, key=abs)))
    tallies = [estimator.tally(scores) for scores in guesses]
    bound: Bound = estimator.bound(tallies)
    blocks = question.method is None and method == TWO_SAMPLES and _in_blocks(table, question)
    notes += [
        *planted_notes,
        *([IN_THIS_ORDER if follows_order else NOT_IN_THIS_ORDER] if states_order else []),
        *_assumption_notes(replays, estimator, question, blocks=blocks, coin_is_stated=coin_is_stated),
        *_copy_notes(replays),
    ]
    backwards = not bound.lower and _is_reversed(replays[0])
    seed = Scores.content_seed(*((scores.score, scores.truth) for scores in replays))
    measured = measures(replays, confidence=bound.confidence, seed=seed, epsilon=bound.lower, delta=bound.delta)
    convicting = (
        None if question.convicting is None else replace(estimator, confidence=question.convicting).bound(tallies)
    )
    details: dict[str, Any] = {"measures": measured, "convicting": convicting}
    if question.method is None and getattr(estimator, "independent_trials", False):
        details["assumed_method"] = method
    if question.family is not None:
        details["under_family"] = _under_family(question.family, replays, tallies, bound)
    if backwards and question.claim is None:
        notes.append(REVERSED)
    if question.claim is not None and question.claim.epsilon < math.inf:
        details |= _power(guesses, estimator, tallies, bound, question.claim, convicting)
        tells_nothing = all(scores.score.min() == scores.score.max() for scores in replays)
        if bound.lower <= question.claim.epsilon and (tells_nothing or backwards):
            details["blind"] = EQUAL_SCORES if tells_nothing else REVERSED
    return [Estimate.of_bound(replace(bound, notes=(*bound.notes, *notes)), question.claim, **details)]


def _states_guess_order(table: SourceTable, question: Question, method: str) -> bool:
    """Return True if the table has `GUESS_ORDER`, and no other scores, rule of guesses or groups are asked for."""
    is_asked_otherwise = question.score_column != Question.score_column or "guess" in question.options
    return method == COINS and GUESS_ORDER in table.names and question.group_column is None and not is_asked_otherwise


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


def _of_planted_records(table: SourceTable, question: Question) -> tuple[Question, list[str]]:
    """Return the question with a claim about as many records as a canary of the table, and a note if it changed."""
    if question.claim is None or PLANTED_RECORDS not in table.names:
        return question, []
    records = int(table.integers(PLANTED_RECORDS).max())
    converted = claim_under(question.claim, question.claim.relation, records=records)
    return replace(question, claim=converted.claim), [converted.note] if converted.note else []


def _under_family(family: str, replays: Sequence[Scores], tallies: Sequence[Any], bound: Bound) -> FamilyBound:
    """Return the bound under a family: by order statistics for guesses of fair coins, else by bands of two samples."""
    named, limit = NamedFamily.parse(family), None
    if all(isinstance(tally, OneRunTally) for tally in tallies):
        from dpaudit.estimators.one_run import order_statistics  # only needed for a family

        if _uneven(replays):
            raise DataError(
                "a bound under a family must have canaries that fair coins made members, got too uneven members; leave "
                "out `family`, or name the method two-samples if rows are independent trials"
            )
        limit = order_statistics.order_statistics_bound(
            tallies, order_statistics.family_named(named), delta=bound.delta, confidence=bound.confidence
        )
    elif bound.delta > 0:
        from dpaudit.estimators.two_world.family import bound_under_family, family_named

        limit = bound_under_family(bound, family_named(named))
    require(
        limit is not None,
        f"the method {bound.method} must give a bound under the family {family} at this delta",
        do="state a delta > 0, such as 1e-5, and leave out the method",
        delta=bound.delta,
    )
    return cast(FamilyBound, limit)


def _power(
    replays: Sequence[Scores],
    estimator: Any,
    tallies: Sequence[Any],
    bound: Bound,
    claim: Claim,
    convicting: Bound | None,
) -> dict[str, Any]:
    """Return the p-value of a claim and, if the bound does not exceed it, what the scores could have shown.

    With a bound that a violation needs, they show what exceeds the claim at its confidence. They are blind only if
    nothing exceeds the claim at the confidence of the first bound.
    """
    if bound.validity in NEVER_REJECT:
        return {"blind": NO_VERDICT.format(bound.validity)}
    from dpaudit.engine.answer.sensitivity import p_value_of  # slow to import, needs a claim

    is_small = sum(scores.score.size for scores in replays) <= MAX_SENSITIVITY_ROWS
    power = {"p_value": p_value_of(estimator, tallies, bound, claim.curve) if is_small else None}
    if (convicting or bound).lower > claim.epsilon:
        return power
    if convicting is None:
        return power | _sensitivity(replays, estimator, claim)
    sensitivity = _sensitivity(replays, replace(estimator, confidence=convicting.confidence), claim)
    if "blind" in sensitivity:
        sensitivity["blind"] = _blind(_maximum(replays, estimator), claim)
    return power | sensitivity


def _sensitivity(replays: Sequence[Scores], estimator: Any, claim: Claim) -> dict[str, Any]:
    """Return the bound for as many rows in perfect order, and the detectable reduction of the noise."""
    from dpaudit.engine.answer.sensitivity import detectable_factor  # slow to import

    most = _maximum(replays, estimator)
    if blind := _blind(most, claim):
        return {"maximum": most, "blind": blind}
    is_small = sum(scores.score.size for scores in replays) <= MAX_SENSITIVITY_ROWS and not _uneven(replays)
    factor = detectable_factor(estimator, replays, claim.curve, replays=len(replays)) if is_small else None
    return {"maximum": most, "detectable": factor}


def _maximum(replays: Sequence[Scores], estimator: Any) -> Bound:
    """Return the bound for as many rows in perfect order."""
    perfect = [
        replace(scores, score=np.where(scores.truth, 1, -1) * np.linspace(1, 2, len(scores.truth)))
        for scores in replays
    ]
    most: Bound = estimator.bound([estimator.tally(scores) for scores in perfect])
    return most


def _blind(most: Bound, claim: Claim) -> str:
    """Return the reason why no scores of so many rows could reject the claim; "" if some could."""
    return FEW_ROWS.format(format_upper(most.lower)) if most.violation_point(claim.curve) is None else ""


def _is_run_table(table: SourceTable, question: Question) -> bool:
    """Return True for a score table that a run stored, with the default column names."""
    usual = (Question.score_column, Question.member_column)
    columns = (question.score_column, question.member_column)
    return columns == usual and {*usual[:1], OWN_TRUTH, "replay"} <= set(table.names) and usual[1] not in table.names


def _estimator(name: str, question: Question, usual: Mapping[str, object]) -> Any:
    stated = {"delta": question.delta, "confidence": question.confidence, "selection": question.selection}
    stated_fields = {part: value for part, value in stated.items() if value is not None}
    twice = sorted(stated_fields.keys() & question.options.keys())
    if twice:
        raise SpecError(f"{twice[0]} must be given once, got --{twice[0]} and --option {twice[0]}")
    if question.claim is not None:
        usual = {**usual, "delta": question.claim.delta, "relation": question.claim.relation.value}
    words = {"name": name, **stated_fields, **question.options}
    estimator = build("estimator", words, location=f"--method {name}", defaults=usual)
    relation = getattr(estimator, "relation", None)
    if question.claim is not None and relation not in (None, question.claim.relation.value):
        raise SpecError(f"relation must be that of the claim, {question.claim.relation}, got {relation}; leave it out")
    confidence = getattr(estimator, "confidence", 0.95)
    low, high = CONFIDENCES
    require(low <= confidence <= high, f"confidence must be in [{low:g}, 1 - {1 - high:.0e}]", confidence=confidence)
    return estimator


def _from_counts(table: SourceTable, estimator: Any, question: Question) -> Sequence[Reading]:
    if question.selection:
        raise SpecError(
            f"--selection must be left out for counts, which are already selected, got {question.selection!r}"
        )
    if question.family is not None:
        raise SpecError(
            "--family must be left out for counts; name the method one-run-order-statistics with `--option "
            f"family=...`, got {question.family!r}"
        )
    of_scores = {
        "--group-by": (question.group_column, None),
        "--score-column": (question.score_column, Question.score_column),
        "--member-column": (question.member_column, Question.member_column),
    }
    for option, (value, default) in of_scores.items():
        if value != default:
            raise SpecError(
                f"{option} must be left out for counts, which have neither scores nor members, got {value!r}"
            )
    try:
        readings = cast(CountEstimator, estimator).read(_count_columns(table, estimator))
    except InputError as err:
        raise DataError(f"{table.name}: {err}") from err
    if question.claim is not None and not any(isinstance(reading, Bound) for reading in readings):
        raise SpecError(f"a claim must be compared with a bound on epsilon, which {estimator.registered_name} is not")
    return [
        Estimate.of_bound(reading, question.claim, **_of_secrets(reading, question.claim))
        if isinstance(reading, Bound)
        else reading
        for reading in readings
    ]


def _of_secrets(reading: Bound, claim: Claim | None) -> dict[str, Any]:
    """Return the exposure of secrets and the largest bound that so many of them can show; nothing for other counts."""
    from dpaudit.estimators.extraction.exposure import ExposureBound

    if not isinstance(reading, ExposureBound):
        return {}
    details: dict[str, Any] = {"measures": reading.measures}
    if claim is None or reading.maximum is None or reading.violation_point(claim.curve) is not None:
        return details
    details["maximum"] = reading.maximum
    if reading.maximum.violation_point(claim.curve) is None:
        details["blind"] = FEW_ROWS.format(format_upper(reading.maximum.lower))
    return details


def used_columns(names: Sequence[str], question: Question, by: Sequence[str] = ()) -> set[str]:
    """Return the columns of a table with these names that `estimates` reads, and those of its slices."""
    method = question.method or next((method for needed, method in COUNTS.items() if has_columns(needed, names)), "")
    estimator: Any = load("estimator", method) if method in catalogue("estimator") else None
    counts = (*getattr(estimator, "columns", ()), *getattr(estimator, "optional_columns", ()))
    of_scores = {question.score_column, question.member_column, question.group_column, *SAMPLE_COLUMNS, *by}
    used = of_scores | {OWN_TRUTH, "canary", "replay", PLANTING_RATE, PLANTED_RECORDS, GUESS_ORDER}
    used_names = {name for name in names if name in used or any(matches(pattern, name) for pattern in counts)}
    return used_names or set(names[:1])  # one column, so that the message on missing columns names it


def natural_method(table: SourceTable, question: Question) -> str:
    """Return the default method for a table: by the columns for counts, as `COINS` describes for scores."""
    fitting = [method for needed, method in COUNTS.items() if has_columns(needed, table.names)]
    if question.method or fitting:
        return question.method or fitting[0]
    if question.selection:
        return "band" if question.selection.startswith("band") else WITH_SELECTION
    if (rate := planting_rate(table)) is not None:
        return COINS if rate == 0.5 else RARE_COINS
    if question.member_column not in table.names:
        return TWO_SAMPLES
    return TWO_SAMPLES if _is_uneven(table, question) or _in_blocks(table, question) else COINS


def _is_uneven(table: SourceTable, question: Question, least: float = UNEVEN_BY_CHANCE) -> bool:
    """Return True if fair coins make so uneven a number of members, among the canaries of a replay, less often.

    Canaries are counted, not rows: all rows of a canary have one coin.
    """
    if not {question.score_column, question.member_column} <= set(table.names):
        return False
    return bool(_uneven(_replays(table, question)[0], least))


def _uneven(replays: Sequence[Scores], least: float = UNEVEN_BY_CHANCE) -> list[Scores]:
    """Return the replays with so uneven a number of members that fair coins give one with probability < `least`."""

    def by_chance(members: NDArray[np.bool_]) -> float:
        return min(1.0, 2 * float(bdtr(min(members.sum(), (~members).sum()), members.size, 0.5)))

    return [scores for scores in replays if by_chance(scores.truth) * len(replays) < least]


def _in_blocks(table: SourceTable, question: Question) -> bool:
    """Return True if members and others form too few runs for fair coins in rows that are not sorted by their scores.

    False for two arrays, and if rows are grouped. Sorting by scores that leak puts members together.

    Source: Wald and Wolfowitz (1940), the normal approximation.
    """
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
    return by_chance < UNEVEN_BY_CHANCE and not any(_follow_scores(score[members == world]) for world in (True, False))


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


def _reads_scores(estimator: object) -> bool:
    return getattr(estimator, "evidence", None) is Scores


def _count_columns(table: SourceTable, estimator: Any) -> dict[str, NDArray[Any]]:
    """Return the columns that an estimator of counts reads; query names may be words, all others are numbers."""
    wanted = (*estimator.columns, *estimator.optional_columns)
    return {
        name: table.values(name) if name == "query" else table.numbers(name)
        for name in table.names
        if any(matches(pattern, name) for pattern in wanted)
    }


def _missing_columns(table: SourceTable, estimator: Any, question: Question) -> str:
    """Return the message on missing columns, for one estimator or (None) for any."""
    got = f"got {table.listed}"
    counts = list(COUNTS) if estimator is None else [estimator.columns] if isinstance(estimator, CountEstimator) else []
    listed = ", or ".join(",".join(columns) for columns in counts)
    if estimator is not None and not _reads_scores(estimator):
        return f"{table.name} must have the columns {listed} for {estimator.registered_name}, {got}"
    needed = f"{question.score_column},{question.member_column}" + (f" (or counts: {listed})" if listed else "")
    return f"{table.name} must have the columns {needed}, {got}; name yours with --score-column and --member-column"


def _replays(table: SourceTable, question: Question) -> tuple[list[Scores], list[str]]:
    """Return the scores of each replay, one row for each canary, and notes on how rows became canaries."""
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
        score, truth, replay, canary = _one_row_a_group(table, score, truth, replay, group, question.group_score)
        notes.append(f"{rows} rows are {len(score)} canaries: the {question.group_score} of the scores of each")
    if (replay[1:] < replay[:-1]).any():
        order = np.argsort(replay, kind="stable")
        score, truth, replay = score[order], truth[order], replay[order]
        canary = canary[order] if named else canary
    starts = np.flatnonzero(np.append(True, replay[1:] != replay[:-1]))
    parts = [slice(start, end) for start, end in itertools.pairwise([*starts.tolist(), len(replay)])]
    number = np.arange(max(part.stop - part.start for part in parts))  # shared by all replays: there may be 10^8 rows
    return [
        Scores(
            score[part],
            truth[part],
            int(replay[part.start]),
            canary[part] if named else number[: part.stop - part.start],
        )
        for part in parts
    ], notes


def _one_row_a_group(
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


def _require_fair_coins(replays: Sequence[Scores], estimator: object, least: float) -> None:
    """Raise DataError if members are too uneven for one-sided guesses, which then gain without any leak.

    `COINS` allows for numbers of members that fair coins give with probability >= `UNEVEN_BY_CHANCE`.
    """
    least = UNEVEN_BY_CHANCE if isinstance(estimator, SimultaneousGuessCount) else least
    if not _assumes_fair_coins(estimator) or estimator.guess == EVEN_GUESS:
        return
    for scores in _uneven(replays, least)[:1]:
        raise DataError(
            f"guess {estimator.guess!r} must have canaries that fair coins made members, got {scores.truth.sum()} "
            f"members of {scores.truth.size}, which fair coins give with probability < {least:g}; use "
            f"guess={EVEN_GUESS}, or state the coin: method rare-canaries with the option rate"
        )


def _assumes_fair_coins(estimator: object) -> TypeGuard[Guessing]:
    """Return True if it assumes that fair coins chose the members; `two-samples` draws such trials itself."""
    return isinstance(estimator, Guessing) and getattr(estimator, "registered_name", "") != TWO_SAMPLES


def _copy_notes(replays: Sequence[Scores]) -> list[str]:
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


def _in_trial_order(replays: Sequence[Scores], estimator: Any, question: Question) -> list[Scores]:
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


def _assumption_notes(
    replays: Sequence[Scores], estimator: object, question: Question, *, blocks: bool, coin_is_stated: bool
) -> list[str]:
    """Return the assumptions of the bound that a table cannot show."""
    if _assumes_fair_coins(estimator):
        independence = INDEPENDENT if getattr(estimator, "independent_trials", False) else ROWS_APART
        uneven = _uneven(replays)
        if not uneven:
            return [FAIR_COINS if coin_is_stated else f"{FAIR_COINS}; {OTHER_COINS}", independence]
        share = uneven[0].truth.mean()
        return [
            f"{FAIR_COINS}; {share:.1%} are members, which is improbable for fair coins. Equal numbers of guesses of "
            "members and non-members are valid for equally biased coins at delta = 0; nothing is proved for delta > 0",
            independence,
        ]
    notes = [INDEPENDENT] if getattr(estimator, "independent_trials", False) else []
    if blocks:
        notes.append(IN_BLOCKS)
    return [*notes, SHUFFLED] if getattr(estimator, "anytime_valid", False) and not question.ordered else notes


def _is_reversed(scores: Scores) -> bool:
    """Return True if the rank sum of the members is more than five standard errors below chance."""
    members, others = int(scores.truth.sum()), int((~scores.truth).sum())
    above = pairs_above(np.sort(scores.score[scores.truth]), np.sort(scores.score[~scores.truth]))
    middle, deviation = members * others / 2, math.sqrt(members * others * (members + others + 1) / 12)
    return bool(above < middle - 5 * deviation)
