"""Bounds from a table of scores or counts, for `dpaudit.estimate` and the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from scipy.special import logit

from dpaudit.claims import Claim, ConvertedClaim, Relation, claim_under, parse_claim
from dpaudit.engine.answer.record import Record, Sensitivity, Test, Verb
from dpaudit.engine.answer.verdict import Answered
from dpaudit.engine.estimate.reading import (
    BIASED_BY_CHANCE,
    COINS,
    COUNTS,
    DEFAULT_GUESS,
    EVEN_GUESS,
    GUESS_ORDER,
    OWN_TRUTH,
    PLANTED_RECORDS,
    PLANTING_RATE,
    ROWS_APART,
    STATED_GUESS,
    TWO_SAMPLES,
    UNEVEN_BY_CHANCE,
    CanaryScores,
    GroupScore,
    Question,
    assumption_notes,
    copy_notes,
    in_trial_order,
    planting_rate,
    require_fair_coins,
    stated_orders,
    uneven,
    with_orders_of_a_run,
)
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.request.build import build
from dpaudit.errors import DataError, InputError, SpecError, printable_lines, require
from dpaudit.estimators.bound import NEVER_REJECT, Bound, format_upper
from dpaudit.estimators.counts import CountEstimator, Reading, has_columns, matches
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.measures import Measure, measures, pairs_above
from dpaudit.estimators.one_run.guess_band import MAX_DELTA, SimultaneousGuessCount
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.scores import Scores
from dpaudit.field_checks import checked_argument

if TYPE_CHECKING:
    import pandas as pd

    from dpaudit.estimators.family_bound import FamilyBound

ASSUMES = "assumes that "
"""Beginning of a note that states an assumption."""
REVERSED = "members score lower than non-members: larger must mean more likely a member (negate losses)"
EQUAL_SCORES = "all scores are equal, so that they tell nothing about any row: check the attack"
FEW_ROWS = "the maximum detectable epsilon of this number of rows is {}: give more rows"
NO_VERDICT = "a bound that is {} rejects no claim: choose another method for a verdict"
NEIGHBOURS = "assumes that {} one canary is one neighbouring step of the claim"
NEIGHBOURING_STEP = {
    Relation.ADD_REMOVE: "adding or removing",
    Relation.REPLACE: "replacing",
    Relation.LABEL: "changing the label of",
    Relation.ZERO_OUT: "setting to zero the contribution of",
}
"""Difference between member and non-member, by the relation of the claim."""
BY_PROXY = (
    "if a proxy drew labels: trust this only if rows that were never trained on show about 0, because an inaccurate "
    "proxy looks like a leak"
)
IN_THIS_ORDER = "guesses in the order of the column guess_order; measures are those of the scores"
NOT_IN_THIS_ORDER = (
    f"guesses in the order of the scores: guess_order needs fair coins, and rows times delta <= {MAX_DELTA}"
)
MAX_SENSITIVITY_ROWS = 100_000
"""Largest number of rows for which sensitivity and p-value are computed, in a second or two."""
SUMMARISED = 4
"""Largest number of measures that a short answer prints."""
NO_CLAIM = Claim(math.inf, relation=Relation.ADD_REMOVE)
"""Claim that stands in if none is given."""
CONFIDENCES = 1e-6, 1 - 1e-9
"""Range of confidences within which every estimator is numerically accurate."""


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
            power, inf if 8 is not enough; None if the scores do not determine it.
        no_difference: True if the scores do not tell members from non-members, so that they determine no factor.
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
    no_difference: bool = False
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
        sensitivity = Sensitivity(
            factor=self.detectable,
            maximum=self.maximum,
            blind=self.blind,
            helps=self.helps,
            no_difference=self.no_difference,
        )
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

        upper = math.inf if self.upper is None else self.upper
        rows = [Measure("epsilon", self.lower, self.lower, upper, self.confidence, self.method)]
        if (family := self.under_family) is not None:
            name, validity = f"epsilon under the family {family.family}", Validity.CONDITIONAL_ON_FAMILY.value
            rows.append(Measure(name, family.epsilon, family.epsilon, math.inf, self.confidence, validity))
        return pd.DataFrame([asdict(measure) for measure in (*rows, *self.measures)])

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it; without a claim, the bound, its notes and all measures.

        Args:
            verbose: True to add the method, the p-value, and the intervals of the measures to a verdict.
        """
        family = "" if self.under_family is None else f"{Validity.CONDITIONAL_ON_FAMILY}: {self.under_family}"
        if self.claim is None:
            lines = [Bound.__str__(self), *(f"  {line}" for line in (*self.notes, family, *self.measures) if str(line))]
            return "\n".join(printable_lines(line) for line in lines)
        hidden = () if verbose else self.details
        notes = [("assumes", "; ".join(note.removeprefix(ASSUMES) for note in self.notes if note.startswith(ASSUMES)))]
        notes += [("note", note) for note in self.notes if not note.startswith(ASSUMES) and note not in hidden]
        values = ", ".join(f"{measure.name} {measure.value:.3f}" for measure in self.measures[:SUMMARISED])
        measured = [("measure", str(measure)) for measure in self.measures] if verbose else [("measures", values)]
        method = [("bound", Bound.__str__(self))] if verbose else []
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
    planted_notes = []
    if question.claim is not None and PLANTED_RECORDS in table.names:  # a claim about as many records as a canary
        records = int(table.integers(PLANTED_RECORDS).max())
        converted = claim_under(question.claim, question.claim.relation, records=records)
        question, planted_notes = replace(question, claim=converted.claim), [converted.note] * bool(converted.note)
    usual_columns = (question.score_column, question.member_column) == (Question.score_column, Question.member_column)
    run_columns = {Question.score_column, OWN_TRUTH, "replay"} <= set(table.names)
    is_run_table = usual_columns and run_columns and Question.member_column not in table.names
    if is_run_table:
        question, table = replace(question, member_column=OWN_TRUTH), with_orders_of_a_run(table)
    canaries = CanaryScores(table, question)
    method = canaries.method
    named = question.method not in (None, TWO_SAMPLES)  # a default method for fair coins has even ones
    coin_is_stated = is_run_table or PLANTING_RATE in table.names
    least = UNEVEN_BY_CHANCE if coin_is_stated else BIASED_BY_CHANCE
    is_biased = (named or method == COINS) and canaries.are_uneven(least)
    usual: dict[str, object] = {"guess": EVEN_GUESS if is_biased else DEFAULT_GUESS}
    usual |= {} if (rate := planting_rate(table)) is None else {"rate": rate}
    estimator = _estimator(method, question, {} if is_run_table else usual)
    is_asked_otherwise = question.score_column != Question.score_column or "guess" in question.options
    states_order = method == COINS and GUESS_ORDER in table.names and question.group_column is None
    states_order &= not is_asked_otherwise
    follows_order = states_order and table.columns.num_rows * estimator.delta <= MAX_DELTA and not canaries.are_uneven()
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
    replays = in_trial_order(canaries.replays, estimator, question)
    guesses = stated_orders(table, question) if follows_order else replays
    require_fair_coins(guesses, estimator, least)
    if not coin_is_stated and isinstance(estimator, SimultaneousGuessCount):
        odds = [float(logit((scores.truth.sum() + 0.5) / (scores.truth.size + 1))) for scores in guesses]
        estimator = cast(Any, replace(estimator, member_log_odds=max(odds, key=abs)))
    tallies = [estimator.tally(scores) for scores in guesses]
    bound: Bound = estimator.bound(tallies)
    blocks = question.method is None and method == TWO_SAMPLES and canaries.are_in_blocks
    notes = [
        *canaries.notes,
        *planted_notes,
        *([IN_THIS_ORDER if follows_order else NOT_IN_THIS_ORDER] if states_order else []),
        *assumption_notes(replays, estimator, question, blocks=blocks, coin_is_stated=coin_is_stated),
        *copy_notes(replays),
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


def _under_family(family: str, replays: Sequence[Scores], tallies: Sequence[Any], bound: Bound) -> FamilyBound:
    """Return the bound under a family: by order statistics for guesses of fair coins, else by bands of two samples."""
    from dpaudit.estimators.family_bound import NamedFamily

    named, limit = NamedFamily.parse(family), None
    if all(isinstance(tally, OneRunTally) for tally in tallies):
        from dpaudit.estimators.one_run import order_statistics  # only needed for a family

        if uneven(replays):
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
    return cast("FamilyBound", limit)


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
    from dpaudit.engine.answer.sensitivity import factor_of_scores  # slow to import

    most = _maximum(replays, estimator)
    if blind := _blind(most, claim):
        return {"maximum": most, "blind": blind}
    is_small = sum(scores.score.size for scores in replays) <= MAX_SENSITIVITY_ROWS and not uneven(replays)
    if not is_small:
        return {"maximum": most}
    factor = factor_of_scores(estimator, replays, claim.curve, replays=len(replays))
    return {"maximum": most, "detectable": factor["factor"], "no_difference": factor["no_difference"]}


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
    columns = {  # query names may be words, all others are numbers
        name: table.values(name) if name == "query" else table.numbers(name)
        for name in table.names
        if any(matches(pattern, name) for pattern in (*estimator.columns, *estimator.optional_columns))
    }
    try:
        readings = cast(CountEstimator, estimator).read(columns)
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


def _reads_scores(estimator: object) -> bool:
    return getattr(estimator, "evidence", None) is Scores


def _missing_columns(table: SourceTable, estimator: Any, question: Question) -> str:
    """Return the message on missing columns, for one estimator or (None) for any."""
    got = f"got {table.listed}"
    counts = list(COUNTS) if estimator is None else [estimator.columns] if isinstance(estimator, CountEstimator) else []
    listed = ", or ".join(",".join(columns) for columns in counts)
    if estimator is not None and not _reads_scores(estimator):
        return f"{table.name} must have the columns {listed} for {estimator.registered_name}, {got}"
    needed = f"{question.score_column},{question.member_column}" + (f" (or counts: {listed})" if listed else "")
    return f"{table.name} must have the columns {needed}, {got}; name yours with --score-column and --member-column"


def _is_reversed(scores: Scores) -> bool:
    """Return True if the rank sum of the members is more than five standard errors below chance."""
    members, others = int(scores.truth.sum()), int((~scores.truth).sum())
    above = pairs_above(np.sort(scores.score[scores.truth]), np.sort(scores.score[~scores.truth]))
    middle, deviation = members * others / 2, math.sqrt(members * others * (members + others + 1) / 12)
    return bool(above < middle - 5 * deviation)
