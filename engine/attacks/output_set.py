"""Attack "output-set": a classifier orders summaries of trainings by their log-odds of world 1.

By the Neyman-Pearson lemma, the best output sets have the largest likelihood ratios. Each classifier learns on two
thirds of the search samples and is evaluated by its likelihood on the last third. The best one learns again on all
samples (`learn.HeldOut`). If a summary has more numbers than there are samples, a few numbers are selected on separate
samples first.

Some values occur in one world only: exact values, multiples of 1/n, low bits of floating-point noise, numbers outside
the range of the other world. A classifier that sums evidence over all numbers dilutes them, so separate rules detect
them and come first in the order. A rule is found on two thirds of the search samples. It counts if the last third never
contradicts it, if chance would not confirm it as often, and if the classifier makes its first error earlier. The last
condition excludes rules that hold because the noise is small: they would fail in a few of many fresh runs.
Source: Lu et al. (2022), section 4.2, after Bichsel et al. (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.classifiers import CLASSIFIERS, MOVED_LAWS, Flags, Floats, Odds, calibrated
from dpaudit.engine.attacks.learn import Classifier, HeldOut, Runs
from dpaudit.engine.attacks.stated_law import STATED_LAW
from dpaudit.errors import InputError, require
from dpaudit.registry import register

HELD_OUT_EVERY = 3
"""One in this many search samples is held out; it also confirms or contradicts rules."""
RULE_LOG_ODDS = 60.0
"""Smallest log-odds of a rule in nats, larger than those of any classifier."""
MAX_RULE_CHANCE = 0.01
"""Probability that chance confirms any rule for a summary if both worlds have the same law."""
MIN_VALUE_COUNT = 2
"""Occurrences in one world only that make a value part of a rule."""
MAX_COLUMNS = 500
"""Largest width of summaries for which rules are tried."""
FLOAT32_ERROR = 2.0**-24
"""Relative rounding error of a 32-bit number."""
MAX_FRACTION_STEPS = 24
"""Largest number of steps of the continued fraction that finds the denominator of a number."""
MAX_FRACTION_CHANCE = 0.25
"""Largest probability that a random number passes for a fraction."""

Rule = Callable[[Floats], Floats]
"""Function from numbers of a column to 1 for world 1, -1 for world 0, and 0 if the rule does not apply."""


@dataclass(frozen=True, eq=False)
class SummaryView:
    """Search samples of known worlds, and fresh samples of unknown worlds."""

    search: NDArray[Any]  # summaries of search samples, shape (m, width); float32 if they are long
    search_truth: NDArray[np.bool_]  # their worlds, shape (m,)
    fresh: NDArray[Any]  # summaries of fresh samples, shape (n, width)
    # log-odds of world 1 by the law that the mechanism states, shape (n, width) to (n,); None if it states none
    stated: Odds | None = None
    # change of the summary from world 0 to world 1 by trainings with one seed, shape (width,); None if unknown
    move: Floats | None = None
    shows: ClassVar[str] = "summaries of independent runs on neighbouring data sets"


@register("attack", "output-set", source="Lu et al. (2022), Algorithm 1")
@dataclass(frozen=True)
class OutputSet:
    """Attack that scores summaries by the log-odds of a classifier, which learns on search samples.

    Rules about values that occur in one world only (`separating`) come first, if they are better than the classifier.

    Attributes:
        classifiers: Names of the classifiers to try:

            - "linear": logistic regression on whitened numbers
            - "laplace": likelihood ratio of independent Laplace noise
            - "limits": numbers outside the range of one world
            - "atoms": values that recur exactly
            - "additive": logistic regression on binned numbers, suited to independent noise
            - "trees": gradient boosting
            - "shrunken": as "laplace", with medians shrunk by their errors, for many numbers of which few matter
            - "moved-normal", "moved-laplace", "moved-spherical": likelihood ratios of normal, of independent Laplace,
              and of spherical noise (density exp(-length)), with the change between the worlds that a search measured
              by trainings with one seed; skipped without it
            - "most-moved-normal": as "moved-normal", of the numbers that change most
            - "stated": law that the mechanism states by its method `log_density`; skipped without that method
            - "forest": random forest
            - "mlp": multilayer perceptron
        seed: Random seed of randomised classifiers.
    """

    classifiers: tuple[str, ...] = (
        "linear",
        "laplace",
        "limits",
        "atoms",
        "additive",
        "trees",
        "shrunken",
        "moved-normal",
        "moved-laplace",
        "moved-spherical",
        "most-moved-normal",
        "stated",
    )
    seed: int = 0
    view: ClassVar[type[SummaryView]] = SummaryView

    def __post_init__(self) -> None:
        object.__setattr__(self, "classifiers", tuple(self.classifiers))
        require(len(self.classifiers) > 0, "classifiers must have at least one name")
        names = (*CLASSIFIERS, *MOVED_LAWS, STATED_LAW)
        unknown = [name for name in self.classifiers if name not in names]
        require(not unknown, f"classifiers must be among {', '.join(names)}", unknown=unknown)

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        """Return log-odds of world 1, in nats.

        Raises: InputError if all search samples are of one world, or if the only classifiers need a law or a change
            that is unknown.
        """
        if len(np.unique(view.search_truth)) < 2:
            raise InputError("search samples must come from both worlds. Increase `search`")
        classifiers = self._usable(view)
        if not classifiers:
            raise InputError(
                f"{', '.join(self.classifiers)} need a mechanism that states its law, or a search by trainings with "
                "one seed. Add other `classifiers`"
            )
        runs, way = Runs(view.search, view.search_truth), _held_out(view, classifiers)
        best = classifiers[way.best(runs)]
        odds = best(runs)(view.fresh)
        rule_scores = separating(view.search, view.search_truth)(view.fresh)
        if rule_scores.any():
            held_out = way.held_out_odds(best, way.runs_to_learn(runs), runs)
            before_first_error = int(np.count_nonzero(held_out > max(0.0, -held_out.min())))
            rule_scores[np.abs(rule_scores) <= RULE_LOG_ODDS + math.log(max(1, before_first_error))] = 0
        return np.where(rule_scores == 0, odds, rule_scores)

    def candidates(self) -> tuple[OutputSet, ...]:
        return tuple(replace(self, classifiers=(name,)) for name in self.classifiers)

    def best(self, worth: Sequence[float]) -> OutputSet:
        return self.candidates()[int(np.argmax(worth))]

    def worth(self, view: SummaryView) -> float:
        """Return the mean log-likelihood of held-out search samples' worlds by the first classifier, in nats.

        It is -inf if one world is missing there, or if the classifier needs a law or a change that is unknown.
        """
        classifiers = self._usable(view)
        if not classifiers:
            return -math.inf
        return -_held_out(view, classifiers[:1]).losses(Runs(view.search, view.search_truth))[0]

    def _usable(self, view: SummaryView) -> list[Classifier]:
        """Return the classifiers whose law is known, or learned from samples."""
        return [fit for name in self.classifiers if (fit := self._classifier(name, view)) is not None]

    def _classifier(self, name: str, view: SummaryView) -> Classifier | None:
        """Return a classifier by its name; None if it needs a law or a change that is unknown."""
        stated, move = view.stated, view.move
        if name == STATED_LAW:
            return None if stated is None else lambda runs: calibrated(stated, runs.features, runs.coins)

        def fit(runs: Runs) -> Odds:
            features, coins = runs.short
            if name in MOVED_LAWS:
                assert move is not None
                law = MOVED_LAWS[name](features, coins, runs.narrow(move[None])[0])
                odds = calibrated(law, features, coins)
            else:
                odds = CLASSIFIERS[name](features, coins, self.seed)
            return lambda long: odds(runs.narrow(long))

        usable = name not in MOVED_LAWS or (move is not None and len(move) == view.search.shape[1])
        return fit if usable else None


def _held_out(view: SummaryView, classifiers: Sequence[Classifier]) -> HeldOut:
    rows = np.arange(len(view.search))
    held_out = rows % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return HeldOut(classifiers, rows[~held_out], rows[held_out])


@dataclass(frozen=True, eq=False)
class _Column:
    """Column of summaries, or the denominators of its numbers."""

    place: int  # position of the column
    denominator: bool  # True for denominators

    def numbers(self, summaries: Floats) -> Floats:
        return denominators(summaries[:, self.place]) if self.denominator else summaries[:, self.place]


def separating(summaries: Floats, truth: Flags) -> Callable[[Floats], Floats]:
    """Return a function from summaries, shape (n, d), to log-odds by rules, shape (n,); 0 if no rule applies.

    Their absolute value is at least `RULE_LOG_ODDS`. If several rules apply, the one confirmed most often decides.

    Args:
        summaries: Search samples, shape (m, d), rounded to 32 bits.
        truth: Worlds of the search samples, shape (m,).
    """
    confirming = np.arange(len(truth)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    if any(len(np.unique(truth[part])) < 2 for part in (confirming, ~confirming)):
        return lambda others: np.zeros(len(others))
    columns = [(column, column.numbers(summaries)) for column in _columns(summaries)]
    needed = math.ceil(math.log2(max(1, 2 * len(columns)) / MAX_RULE_CHANCE))
    rules: list[tuple[int, _Column, Rule]] = []
    for column, numbers in columns:
        for find_rule in (_values, _limits_of_worlds):
            predictions = find_rule(numbers[~confirming], truth[~confirming])(numbers[confirming])
            decided = predictions != 0
            confirmed = int(np.count_nonzero(decided))
            if confirmed >= needed and ((predictions > 0) == truth[confirming])[decided].all():
                rules.append((confirmed, column, find_rule(numbers, truth)))
    rules.sort(key=lambda ranked: -ranked[0])

    def rank(others: Floats) -> Floats:
        ranks = np.zeros(len(others))
        for confirmed, column, rule in rules:
            ranks = np.where(ranks == 0, rule(column.numbers(others)) * (RULE_LOG_ODDS + math.log(confirmed)), ranks)
        return ranks

    return rank


def _columns(summaries: Floats) -> Iterator[_Column]:
    if summaries.shape[1] <= MAX_COLUMNS:
        for place in range(summaries.shape[1]):
            yield _Column(place, False)
            if (summaries[:, place] % 1 != 0).any():
                yield _Column(place, True)


def _values(numbers: Floats, truth: Flags) -> Rule:
    """Return the rule about values that occur in one world only, at least twice."""
    values, place = np.unique(numbers, return_inverse=True)
    count_zero, count_one = (np.bincount(place[truth == world], minlength=len(values)) for world in (False, True))
    exclusive = ((count_zero == 0) | (count_one == 0)) & (count_zero + count_one >= MIN_VALUE_COUNT)
    values, of_world = values[exclusive], np.where(count_one > count_zero, 1.0, -1.0)[exclusive]

    def rule(others: Floats) -> Floats:
        if not len(values):
            return np.zeros(len(others))
        nearest = np.minimum(np.searchsorted(values, others), len(values) - 1)
        return np.where(values[nearest] == others, of_world[nearest], 0.0)

    return rule


def _limits_of_worlds(numbers: Floats, truth: Flags) -> Rule:
    """Return the rule about numbers outside the range of exactly one world."""
    ranges = [(numbers[truth == world].min(), numbers[truth == world].max()) for world in (False, True)]

    def rule(others: Floats) -> Floats:
        beyond_zero, beyond_one = (((others < low) | (others > high)).astype(np.float64) for low, high in ranges)
        return np.asarray(beyond_zero - beyond_one)

    return rule


def denominators(numbers: Floats) -> Floats:
    """Return the smallest n for which a number is a multiple of 1/n, up to rounding; 0 if chance explains n.

    The convergents of the continued fraction are the best rational approximations. Shape (n,) to (n,).
    """
    denominator = np.zeros(len(numbers))
    error = FLOAT32_ERROR * np.maximum(np.abs(numbers), np.finfo(np.float64).tiny)
    fraction, previous, current = np.abs(numbers), np.zeros(len(numbers)), np.ones(len(numbers))
    fraction = fraction - np.floor(fraction)  # a number and its fractional part have the same denominator
    original = fraction.copy()
    unresolved = np.isfinite(numbers)
    for _ in range(MAX_FRACTION_STEPS):
        distance = np.abs(original * current - np.round(original * current)) / current
        # Expected number of fractions with denominators up to n this close by chance: 2 n^2 error.
        fits = unresolved & (distance <= error)
        denominator[fits] = current[fits]
        unresolved &= ~fits & (current**2 * 2 * error <= MAX_FRACTION_CHANCE) & (fraction > 0)
        if not unresolved.any():
            break
        inverse = 1 / np.where(fraction > 0, fraction, 1.0)
        quotient = np.floor(inverse)
        fraction = inverse - quotient
        previous, current = current, quotient * current + previous
    return np.where(denominator**2 * 2 * error <= MAX_FRACTION_CHANCE, denominator, 0.0)
