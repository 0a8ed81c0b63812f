"""`synthetic`: the audit of a synthetic table from three tables, without the generator."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from dpaudit.claims import Claim, ConvertedClaim, Relation, claim_under, parse_claim
from dpaudit.engine.answer.record import Sensitivity, Test
from dpaudit.engine.answer.sensitivity import p_value_of
from dpaudit.engine.attacks.guess_order import signed_tail_rank
from dpaudit.engine.data.cells import group_codes, read_as_line
from dpaudit.errors import DataError, InputError, require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores, SharedOrders
from dpaudit.field_checks import checked_argument
from dpaudit.registry import catalogue, load
from dpaudit.synthetic_tables.attacks.texts import shared_words
from dpaudit.synthetic_tables.front_door.inputs import data_frame, sample_notes, sampled, surplus, synthetic_frames
from dpaudit.synthetic_tables.front_door.result import AttackAlone, GuessedPairs, Risk, SyntheticAudit
from dpaudit.synthetic_tables.games.columns import read_as
from dpaudit.synthetic_tables.games.derived import Derived, derived_views
from dpaudit.synthetic_tables.games.pairs import (
    Canaries,
    PairedTables,
    PairFeatures,
    paired,
    row_codes,
    slices,
    stacked,
)
from dpaudit.synthetic_tables.games.risks import Attempts, attempts
from dpaudit.synthetic_tables.games.split_control import exchanged, split_control
from dpaudit.synthetic_tables.games.usual_measures import usual_measures
from dpaudit.synthetic_tables.games.utility import MOST_WORDS, utility
from dpaudit.synthetic_tables.games.view import MixedTable

T = TypeVar("T")

Split = Literal["random", "other"]
"""Split of the rows into the two files: uniformly at random, or in any other way."""
PRINTED = 0.95
"""Confidence of the printed bounds, over all tests together."""
WHOLE_SHARE = 0.8
"""Share of the error of the test of all pairs; the slices share the rest."""
RISKS = 3
"""Number of risks by plain names, which share an error of their own."""
FEWEST_PAIRS = 10
"""Smallest number of pairs from which anything can be learned."""
UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names that an index gets when a table is written or read without one."""
FOLLOWED_FIRST = "nearest-neighbour"
"""Attack that the order of guesses follows before any coin is revealed."""
NARROW = FOLLOWED_FIRST, "copies", "rare-values"
"""Attacks on all views but that of the means of persons."""
MORE_ROWS = "more rows in both files"
MOST_ROWS_ADVISED = 1_000_000
"""Number of rows up to which the number that could reject a claim is sought."""
ANNOUNCED = 100_000
"""Number of real cells from which the steps of an audit are announced."""
POWER = 0.9
"""Probability of detection at which the smallest share of copied rows is stated."""
ASSUMES = (
    "valid if the {records} were split into training and holdout uniformly at random, and the generator did not use "
    "the holdout{tuned}"
)
SHARED = "all bounds hold together: the tests share the error, and all attacks are combined in one order of guesses"
STRICTER = (
    "no second table exists to repeat the test on: a violation needs the same guesses to exceed the claim at {:.5g} % "
    "confidence"
)


@dataclass(frozen=True)
class Reading:
    """The claim, and the confidence and the condition under which guesses are compared with it.

    Attributes:
        claim: The claim as stated; of infinite epsilon if none was.
        compared: The claim about one replaced record or person.
        target: Column that the model of the utility predicts. None for the last column.
        confidence: Confidence that a violation needs, over all tests together.
        doubt: Reason why the split was not random, in words; "" for none.
        releases: Number of releases that share the error.
    """

    claim: Claim
    compared: ConvertedClaim
    confidence: float
    doubt: str
    releases: int = 1

    def at(self, confidence: float, share: float = 1.0) -> float:
        """Return the confidence of a test that has a share of the error of a release; all releases share one."""
        return 1 - share * (1 - confidence) / self.releases

    def bound(self, scores: Scores, confidence: float) -> Bound:
        """Return the bound from guesses in their order."""
        estimator = self.estimator(confidence)
        bound = estimator.bound([estimator.tally(scores)])
        return bound.conditional_on_proxy() if self.doubt else bound

    def estimator(self, confidence: float) -> SimultaneousGuessCount:
        """Return the estimator at the delta of the claim."""
        return SimultaneousGuessCount(delta=self.compared.claim.delta, confidence=confidence)


def synthetic(
    train: object,
    holdout: object,
    synth: object,
    *,
    claim: Claim | float | tuple[float, float] | str | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    groups: str | None = None,
    strata: str | None = None,
    split: Split = "random",
    tuned_on_holdout: bool = False,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    confidence: float = 0.999,
    releases: int = 1,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> SyntheticAudit:
    """Return a lower bound on how much a synthetic table gives away of a training row, and the verdict on a claim.

        dpaudit.synthetic("train.csv", "holdout.csv", "synthetic.csv", claim=3)

    Each training row is paired with a random holdout row. If the rows were split uniformly at random, which row of a
    pair was trained on is a fair coin, and guessing it more often than a claim allows rejects the claim. The generator
    itself is not needed. The bound is about one replaced row, so a claim under add/remove is compared at twice its
    epsilon.

    Args:
        train: Rows that the generator was fitted on: a path (CSV, TSV, Parquet), data frame, Arrow table or mapping.
        holdout: Rows of the same kind that it did not see.
        synth: Synthetic rows of any number, or a list of several tables of the same fit.
        claim: Claim to compare with: a `Claim`; epsilon; (epsilon, delta); or "mu=1", "rho=0.5". None for a bound
            without a verdict.
        relation: Neighbouring relation of the claim, "add-remove" or "replace"; ignored for a `Claim`.
        groups: Column that names the person of each row. All rows of a person are one canary, and the claim must be
            about persons.
        strata: Column within whose values the rows were split, for a stratified split. Pairs are drawn within them.
        split: "random" if the rows (persons) were split uniformly at random; "other" if not, or if unknown. The bound
            is then conditional on a random split and never gives VIOLATION.
        tuned_on_holdout: True if settings of the generator were chosen by looking at the holdout. Each pair then
            changes two records, and the claim must be about the holdout as well.
        columns: Columns to compare, if not all; they must be in all tables. `groups` and `strata` are kept.
        confidence: Confidence that a violation needs, over all tests together, in [0.95, 1). The printed bounds of a
            claim that is not rejected hold at 95 %.
        releases: Number of releases that are compared, of which this is one, >= 1. The error is divided by it, so that
            the bounds of all hold together.
        seed: Seed of the pairs and of all other random choices, >= 0.
        progress: Called with the name of each step of a large audit before it starts.
    Returns: The verdict with all tests, attacks and measures; `print` shows them.
    Raises: DataError for unsuitable tables, InputError for an argument out of range.
    """
    started = time.perf_counter()
    neighbours: Relation = checked_argument("relation", relation, Relation)
    require(neighbours is not Relation.LABEL, "relation must be add-remove or replace", given=str(neighbours))
    require(split in get_args(Split), "split must be random or other", split=split)
    require(PRINTED <= confidence < 1, f"confidence must be in [{PRINTED}, 1)", confidence=confidence)
    require(releases >= 1, "releases must be >= 1", releases=releases)
    require(seed >= 0, "seed must be >= 0", seed=seed)
    stated = Claim(np.inf, relation=neighbours) if claim is None else parse_claim(claim, neighbours)
    compared = claim_under(stated, Relation.REPLACE, records=2 if tuned_on_holdout else 1)
    real = [data_frame(train, "training"), data_frame(holdout, "holdout")]
    released = synthetic_frames(synth)
    row_numbers = _row_numbers([*real, *released]) - {*(columns or ()), groups, strata}
    real, released = ([table.drop(columns=row_numbers, errors="ignore") for table in part] for part in (real, released))
    canaries = _canaries(real, groups, strata)
    compared_frames = _chosen(real, released, groups, columns, strata)
    names = [str(name) for name in compared_frames[0].columns]
    dropped = surplus(names, target)
    compared_frames = [table.drop(columns=dropped, errors="ignore") for table in compared_frames]
    require(target is None or target in names, "target must be a compared column", target=target, columns=names)
    tables, spelled = read_as(*compared_frames)
    synthetic_rows = tables[2]
    for more in tables[3:]:
        synthetic_rows = stacked(synthetic_rows, more)
    all_rows = {"training": len(tables[0]), "holdout": len(tables[1]), "synthetic": len(synthetic_rows)}
    tables, canaries = sampled([tables[0], tables[1], synthetic_rows], canaries, seed)
    synthetic_rows = tables[2]
    left_out = [f"the column {name!r} has no name and holds row numbers: it is left out" for name in row_numbers]
    left_out += sample_notes(len(names), len(dropped), all_rows, tables)
    for role, frame in zip(all_rows, compared_frames, strict=False):
        left_out += [f"the column {name!r} is empty in the {role} table" for name in frame if frame[name].isna().all()]
    pairs = paired(tables[0], tables[1], synthetic_rows, seed=seed, canaries=canaries)
    require(
        pairs.pairs >= FEWEST_PAIRS,
        f"the tables must give at least {FEWEST_PAIRS} pairs of a training and a holdout record"
        + (f" of one value of {strata!r}" if strata else ""),
        do="give more rows of both files",
        pairs=pairs.pairs,
    )
    long = len(names) * len(pairs.view.real) > ANNOUNCED
    seconds = {"reading": time.perf_counter() - started}

    def timed(name: str, step: Callable[[], T]) -> T:
        if long and progress is not None:
            progress(name)
        began = time.perf_counter()
        value = step()
        seconds[name] = time.perf_counter() - began
        return value

    views = timed("further views", lambda: derived_views(pairs))
    narrow = [each.view for each in views if each.is_narrow]
    control = timed("control", lambda: split_control(pairs, seed=seed, views=narrow))
    features, failures = attack_features(pairs, timed)
    of_views, failed = timed("attacks on views", lambda: view_features(pairs, views, features))
    failures += failed
    standard = len(features) + 1  # the first view has the largest surplus, which no coin decides
    features |= of_views
    own_scores = {name: values[:, 0] for name, values in features.items()}
    exchanges = exchanged(pairs, own_scores)
    stated_other = "the split was not random, as stated" if split == "other" else ""
    reading = Reading(stated, compared, confidence, exchanges or control.doubt or stated_other, releases)
    guessed = timed("guesses", lambda: guessed_pairs(pairs, list(features.values()), reading, standard=standard))
    view_scores = [values[:, 0] for values in of_views.values()]
    risks = timed("risks", lambda: [_risk(pairs, each, reading) for each in attempts(pairs, view_scores, seed)])
    measures = timed("usual measures", lambda: usual_measures(pairs.view, pairs.trained, own_scores, seed=seed))
    usefulness = timed(
        "utility",
        lambda: utility(tables[0], tables[1], synthetic_rows, names[-1] if target is None else target),
    )
    if len(names) > 1 and not any(measure.name.startswith("test_") for measure in usefulness):
        left_out.append(
            "the model of the utility is left out: `target` must name a column with values in all tables, of at most "
            f"{MOST_WORDS} words"
        )
    doubts = (*_doubts(pairs, tables, groups), *read_as_line(spelled), *left_out, *failures)
    return SyntheticAudit(
        name="synthetic table",
        tests=tuple(_record(each, reading, pairs.recognisable, exchanges) for each in guessed),
        guessed=guessed,
        attacks=tuple(
            _alone(pairs, name, values, reading, seconds.get(name, 0.0)) for name, values in features.items()
        ),
        risks=tuple(risks),
        measures=measures,
        utility=usefulness,
        control=control,
        notes=(*_notes(pairs, groups, tuned_on_holdout, reading), *doubts),
        doubts=doubts,
        confidence=confidence,
        rows=all_rows,
        trained=pairs.trained,
        first_trained=pairs.first_trained,
        seconds=seconds,
    )


def _row_numbers(tables: Sequence[pd.DataFrame]) -> set[str]:
    """Return the names of unnamed columns that hold another whole number in each row of a table."""
    unnamed = [(table, name) for table in tables for name in table.columns if UNNAMED.fullmatch(name)]
    numbers = [(name, pd.to_numeric(table[name].map(str).astype(object), errors="coerce")) for table, name in unnamed]
    others = {name for name, values in numbers if (values % 1 != 0).any() or values.duplicated().any()}
    return {name for name, _ in numbers} - others


def _chosen(
    real: Sequence[pd.DataFrame],
    released: Sequence[pd.DataFrame],
    groups: str | None,
    columns: Sequence[str] | None,
    strata: str | None,
) -> list[pd.DataFrame]:
    """Return the tables with the compared columns; persons are not compared, nor is a column without any value."""
    tables = [*real, *released]
    if columns is not None:
        names = list(dict.fromkeys(checked_argument("columns", columns, tuple[str, ...])))
        missing = next((name for name in names for table in tables if name not in table.columns), None)
        require(missing is None, "columns must be in all tables", missing=missing)
        return [table[[name for name in names if name != groups]] for table in tables]
    without = {groups} if groups is not None else set()
    if strata is not None and any(strata not in table.columns for table in released):
        without.add(strata)
    shared = set.intersection(*(set(table.columns) for table in tables))
    without |= {name for name in shared if all(table[name].isna().all().all() for table in tables)}
    return [table[[name for name in table.columns if name not in without]] for table in tables]


def _canaries(real: Sequence[pd.DataFrame], groups: str | None, strata: str | None) -> tuple[Canaries, Canaries] | None:
    """Return the canaries of both files by the columns of persons and strata; None if each row is one."""
    if groups is None and strata is None:
        return None
    sizes = [len(table) for table in real]
    person = np.arange(sum(sizes)) if groups is None else _shared_codes(real, groups, "groups")
    stratum = np.zeros(sum(sizes), np.int64) if strata is None else _shared_codes(real, strata, "strata")
    first = Canaries(person[: sizes[0]], stratum[: sizes[0]])
    return first, Canaries(person[sizes[0] :], stratum[sizes[0] :])


def _shared_codes(real: Sequence[pd.DataFrame], name: str, argument: str) -> Ints:
    """Return a code for each distinct value of a column of both files, one below the other."""
    for table, role in zip(real, ("training", "holdout"), strict=True):
        if name not in table.columns:
            raise DataError(f"`{argument}` must name a column of both files, but the {role} table has no {name!r}")
        if list(table.columns).count(name) > 1:
            raise DataError(f"`{argument}` must name one column, but the {role} table has several called {name!r}")
    codes = group_codes([value for table in real for value in table[name].tolist()])
    for role, missing in zip(("training", "holdout"), np.split(codes < 0, [len(real[0])]), strict=True):
        if missing.any():
            raise DataError(
                f"the column {name!r} of `{argument}` must have a value in each row, got none in {missing.sum():,} "
                f"rows of the {role} table; fill it in, or leave these rows out of all tables"
            )
    return codes


def attack_features(
    pairs: PairedTables, timed: Callable[[str, Callable[[], Floats]], Floats]
) -> tuple[dict[str, Floats], list[str]]:
    """Return the features of the real rows by each registered attack, and a sentence on each attack that failed."""
    features: dict[str, Floats] = {}
    failures = []
    names = catalogue("table-attack")
    for name in sorted(names, key=lambda name: (name != FOLLOWED_FIRST, name)):
        try:
            step = partial(load("table-attack", name)().features, pairs.view)
            values = np.asarray(timed(name, step), np.float64)
            require(
                values.ndim == 2 and values.shape[0] == pairs.trained.size and bool(np.isfinite(values).all()),
                "features must be finite numbers, one row for each real row",
                shape=values.shape,
            )
        except Exception as err:  # an attack of another package may raise anything; the others still count
            failures.append(f"the attack {name} failed and is left out: {type(err).__name__}: {err}")
            continue
        features[name] = values
    if not features:
        raise InputError("; ".join(failures) or "at least one table-attack must be registered, got none")
    return features, failures


def view_features(
    pairs: PairedTables, views: Sequence[Derived], attacks: Collection[str]
) -> tuple[dict[str, Floats], list[str]]:
    """Return the features of the real rows by the attacks on each view and on free text, and what failed, in sentences.

    The attack on near rows comes first, and its own score reads numbers alone if a view has both numbers and words.
    Attacks on densities and marginals read the means of persons alone: they look at all sets of few columns in the
    whole table.

    Args:
        attacks: Names of the attacks that read the whole table.
    """
    texts = {f"words of {name}": values for name, values in shared_words(pairs.view)}
    features, failures = {}, []
    for derived in views:
        names = [name for name in attacks if not derived.is_narrow or name in NARROW]
        try:
            columns = [np.asarray(load("table-attack", name)().features(derived.view), np.float64) for name in names]
            values = np.concatenate(columns, axis=1)
            require(bool(np.isfinite(values).all()), "features must be finite")
        except Exception as err:
            failures.append(f"the view of {derived.name} is left out: {type(err).__name__}: {err}")
            continue
        if names[0] == FOLLOWED_FIRST and columns[0].shape[1] > 4:
            values[:, :8] = np.roll(columns[0], 4, axis=1)
        features[derived.name] = values[derived.record]
    narrow = {each.name: features[each.name] for each in views if each.is_narrow and each.name in features}
    return narrow | texts | features, failures


def guessed_pairs(
    pairs: PairedTables, attacks: Sequence[Floats], reading: Reading, *, standard: int | None = None
) -> tuple[GuessedPairs, ...]:
    """Return the guesses and bounds of all pairs and of each slice; a slice learns from all coins outside it."""
    features = PairFeatures.of(pairs, attacks, standard=standard)
    parts = slices(pairs)
    masks = {"all pairs": np.ones(pairs.pairs, bool), **parts}
    shares = {name: (1 - WHOLE_SHARE) / len(parts) for name in parts}
    shares["all pairs"] = 1 - sum(shares.values())
    guessed = []
    for name, mask in masks.items():
        scores = features.order(pairs.first_trained, mask)
        printed, strict = (
            reading.bound(scores, reading.at(each, shares[name])) for each in (PRINTED, reading.confidence)
        )
        guessed.append(GuessedPairs(name, shares[name], mask, scores, printed, strict))
    return tuple(guessed)


def _record(guessed: GuessedPairs, reading: Reading, recognisable: NDArray[np.bool_], blind: str = "") -> Test:
    """Return the record of a test: at the strict confidence if that exceeds the claim, else as printed."""
    test = Test(
        name=guessed.name,
        claimed=reading.claim,
        compared=reading.compared,
        finding=guessed.bound,
        split_doubt=reading.doubt,
        sensitivity=replace(_sensitivity(guessed, reading, recognisable), blind=blind),
        units=(1, 1),
    )
    if not test.claims_something:
        return test
    estimator, curve = reading.estimator(guessed.bound.confidence), reading.compared.claim.curve
    p_value = p_value_of(estimator, [estimator.tally(guessed.scores)], guessed.bound, curve)
    return replace(test.at_confidence_of(guessed.strict), p_value=min(1.0, reading.releases * p_value / guessed.share))


def _sensitivity(guessed: GuessedPairs, reading: Reading, recognisable: NDArray[np.bool_]) -> Sensitivity:
    """Return the bound if each recognisable pair is guessed right, and what leak or how many rows would show.

    Args:
        recognisable: True for recognisable canaries, shape (2, pairs): those trained on, then those held out.
    """
    count, certain = int(guessed.pairs.sum()), int((recognisable[0] | recognisable[1])[guessed.pairs].sum())
    curve = reading.compared.claim.curve
    has_claim = np.isfinite(reading.compared.claim.epsilon) or not reading.compared.claim.is_point
    confidence = guessed.strict.confidence if has_claim else guessed.bound.confidence
    maximum = reading.bound(_first_right(count, certain), confidence)
    maximum = max((maximum, guessed.strict, guessed.bound), key=lambda bound: bound.lower)

    def detected(right: int, of: int = count) -> bool:
        bound = reading.bound(_first_right(of, right), confidence)
        return bound.violation_point(curve) is not None if has_claim else bound.lower > 0

    if not guessed.pairs.all():
        return Sensitivity(maximum=maximum, helps=MORE_ROWS)
    if not detected(certain):
        return Sensitivity(maximum=maximum, helps=_rows_that_would_do(detected, count, certain / count))
    low, high = 0, certain  # `high` right guesses are detected
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detected(middle) else (middle, high)
    copied = int(recognisable[0].sum())
    if high > copied:
        return Sensitivity(maximum=maximum, helps=MORE_ROWS)
    # Copied rows fall into pairs at random, so the share must give `high` of them with the stated power.
    share = float(stats.beta.ppf(POWER, high, copied - high + 1)) if high < copied else 1.0
    words = (
        f"would detect {100 * share:.2g} % of the training rows copied verbatim ({100 * POWER:.0f} % power, if the "
        "attacks recognise the copies)"
    )
    return Sensitivity(maximum=maximum, helps=MORE_ROWS, detectable=words)


def _rows_that_would_do(detected: Callable[[int, int], bool], count: int, certain: float) -> str:
    """Return advice on the numbers of rows that could reject the claim if all, or one in ten, of the rows are copied.

    Args:
        detected: Function from right guesses and pairs to whether they reject the claim.
        count: Number of pairs of this audit.
        certain: Share of the pairs that can be recognised, in [0, 1].
    """
    advice = []
    words = "about {:,} rows in each file if each training row is copied", "about {:,} if one row in ten is"
    for share, sentence in zip((certain, certain / 10), words, strict=True):
        if detected(int(share * MOST_ROWS_ADVISED), MOST_ROWS_ADVISED):
            low, high = count, MOST_ROWS_ADVISED
            while high > 1.05 * low:
                middle = math.ceil(math.sqrt(low * high))
                low, high = (low, middle) if detected(int(share * middle), middle) else (middle, high)
            rounding = int(10 ** (len(str(high)) - 2))  # to two digits
            advice.append(sentence.format(math.ceil(high / rounding) * rounding))
    return ", or ".join(advice) or "columns in which each row differs from all others, and more rows in both files"


def _first_right(count: int, right: int) -> SharedOrders:
    """Return guesses of the learned order, of which the first ones are right, and every second one of the others."""
    is_right = np.arange(count) < right
    is_right[right + 1 :: 2] = True
    size = np.arange(count, 0, -1, dtype=np.float64)
    truth = np.ones(count, bool)
    return SharedOrders(np.where(is_right, size, -size), truth, further=np.zeros((count, 1)))


def _alone(pairs: PairedTables, name: str, features: Floats, reading: Reading, seconds: float) -> AttackAlone:
    """Return the accuracy of an attack's own score, and its bound in the order of what stands out most."""
    ahead = pairs.ahead(features[:, 0])
    right = np.where(ahead == 0, 0.5, ahead > 0)
    order = signed_tail_rank(PairFeatures.of(pairs, [features[:, :1]]).opinions)[:, 0]
    bound = reading.bound(Scores(order, pairs.first_trained), reading.at(PRINTED))
    attack = catalogue("table-attack").get(name)
    summary = "The attacks on these columns alone." if attack is None else attack.summary
    return AttackAlone(name, summary, float(right.mean()), bound, seconds, features[:, 0])


def _risk(pairs: PairedTables, attempt: Attempts, reading: Reading) -> Risk:
    """Return how often attempts succeed on either record of the pairs, and the bound from guesses by their scores."""
    chosen = np.unique(pairs.view.pair[attempt.attempted])
    success = pairs.of_canaries(attempt.success[:, None])[1][:, chosen, 0]
    first = pairs.first_trained[chosen]
    training, holdout = np.where(first, success, success[::-1])
    difference = training - holdout
    margin = float(stats.norm.ppf(0.975) * difference.std() / np.sqrt(chosen.size))
    order = signed_tail_rank(PairFeatures.of(pairs, [attempt.score[:, None]]).opinions)[chosen, 0]
    bound = reading.bound(Scores(order, first), reading.at(PRINTED, 1 / RISKS))
    middle = float(difference.mean())
    shares = float(training.mean()), float(holdout.mean())
    return Risk(attempt.name, attempt.meaning, *shares, middle - margin, middle + margin, bound)


def _notes(pairs: PairedTables, groups: str | None, tuned: bool, reading: Reading) -> list[str]:
    """Return the assumptions of the bound, and what was counted."""
    unpaired = abs(pairs.training_canaries - pairs.holdout_canaries)
    unit = "persons" if groups else "rows"
    notes = [
        ASSUMES.format(records=unit, tuned=" but to choose settings" if tuned else ""),
        f"{pairs.pairs:,} random pairs of {pairs.training_canaries:,} training and {pairs.holdout_canaries:,} holdout "
        f"{unit}{f'; {unpaired:,} {unit} of the larger file are known to the attacker' if unpaired else ''}",
        SHARED,
    ]
    if reading.claim.epsilon < np.inf:
        notes.append(STRICTER.format(100 * reading.at(reading.confidence)))
    if reading.releases > 1:
        notes.append(f"{reading.releases:,} releases share the error: the bounds of all hold together")
    if groups:
        notes.append(f"rows with an equal {groups} are one person: the claim must be about persons")
    return notes


def _doubts(pairs: PairedTables, tables: Sequence[MixedTable], groups: str | None) -> list[str]:
    """Return what is unusual about the pairs, in sentences."""
    notes = []
    if pairs.persons_in_both:
        notes.append(f"{pairs.persons_in_both:,} persons have rows in both files and are left out of the pairs")
    codes = row_codes(stacked(tables[0], tables[1]))
    shared = np.isin(codes[: len(tables[0])], codes[len(tables[0]) :])
    if shared.any():
        notes.append(
            f"{int(shared.sum()):,} training rows ({100 * shared.mean():.3g} %) are equal to a holdout row; a pair of "
            "equal rows tells nothing"
        )
    other = "persons" if groups else "rows"
    alike = int((~(pairs.recognisable[0] | pairs.recognisable[1])).sum())
    if alike:
        notes.append(
            f"{alike:,} of {pairs.pairs:,} pairs hold only rows that other {other} have too: the sensitivity counts "
            "them as guessed by chance"
        )
    return notes
