"""Epsilon from a confusion table: a fixed attack guessed, in independent trials, which of two worlds it was shown.

Positives are trials of world 1. The true FNR and FPR of any attack on an (epsilon, delta)-private mechanism lie in the
privacy region R(epsilon, delta), so rates outside it reject epsilon. The threshold of the attack must not have been
chosen on the table's own samples.

- `clopper-pearson`: holds for every sample size; the error is split over the limits of the two rates.
- `jeffreys`: the same with Jeffreys limits; no coverage guarantee.
- `bayesian`: a credible bound, the posterior quantile of the smallest epsilon whose region contains the rates, under
  their joint posterior. It is not a confidence bound (on randomised response its error reaches alpha (1 - ln alpha)),
  and at delta = 0 it is positive for every table.

The region has four edges, so an attack that is nearly always wrong is evidence too. All two-sided intervals and the
one-sided Bayesian bound use all four edges. The one-sided rectangles use only the two of Eq. 1, whose limits they pay
for, and show nothing for such an attack (invert its guesses beforehand).

Source: Zanella-Beguelin et al. (2022), "Bayesian Estimation of Differential Privacy"; Kairouz et al. (2017).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import (
    Floats,
    Interval,
    Ints,
    as_confidence,
    as_counts,
    as_delta,
    common_shape,
    require_one_of,
    unboxed,
)
from dpaudit.estimators.proportions.binomial import clopper_pearson, jeffreys

METHODS = ("bayesian", "jeffreys", "clopper-pearson")


def epsilon_interval(
    tp: ArrayLike,
    fp: ArrayLike,
    tn: ArrayLike,
    fn: ArrayLike,
    *,
    delta: ArrayLike,
    confidence: ArrayLike,
    method: str = "bayesian",
    side: str = "two-sided",
) -> Interval:
    """Return bounds, in nats, on the smallest epsilon that this attack's true error rates allow at `delta`.

    Args:
        tp, fp, tn, fn: Integers >= 0, with at least one trial in each world.
        delta: In [0, 1).
        confidence: In (0, 1). "two-sided" allots half of the error alpha = 1 - confidence to each end. The rectangle
            methods also split it over both rates: each rate's two-sided interval has confidence 1 - alpha / 2, and for
            side "lower" each rate's upper limit has error alpha / 2 (its lower limit is not used).
        method: "bayesian", "jeffreys" or "clopper-pearson".
        side: "two-sided", or "lower" for (bound, inf).
    Returns: Ends >= 0 of the broadcast shape; `upper` bounds what this attack can show, not the mechanism. Lower ends
        are rounded down and upper ends up. The rounding is less than 1e-12 for the rectangles and less than 1e-6 for
        the Bayesian ends up to confidence 0.999. It is up to 2e-5, 5e-4 and 2e-2 at alpha 1e-6, 5e-8 and 1e-9, because
        the mass is known to 3e-12 (for tables of a few trials; more trials have a narrower posterior and less
        rounding).
    Raises: InputError for arguments out of range.
    Source: Zanella-Beguelin et al. (2022), Eq. 1 over the rectangle, here with all four edges of the region; Eq. 4 and
        5, section 3.3 for side "lower".
    Slow twin: `rectangle_interval` and `bayesian_interval` of tests/twins/confusion_twin.py.
    """
    tables = _Tables.of(tp, fp, tn, fn, delta, confidence)
    require_one_of("method", method, METHODS)
    require_one_of("side", side, ("two-sided", "lower"))
    if method == "bayesian":
        from dpaudit.estimators.two_world._beta_kernels import quantiles  # compiled when first used

        alpha = 1 - tables.confidence
        # Masses below and above the ends, 0 for none, which are replaced by the ends.
        interval = (alpha, np.zeros_like(alpha)) if side == "lower" else (alpha / 2, alpha / 2)
        quantiles(tables.counts, tables.delta, *interval)
    else:
        interval = _rectangle(tables, method, side)
    return Interval(unboxed(interval[0].reshape(tables.shape)), unboxed(interval[1].reshape(tables.shape)))


def epsilon_posterior_cdf(
    epsilon: ArrayLike, tp: ArrayLike, fp: ArrayLike, tn: ArrayLike, fn: ArrayLike, *, delta: ArrayLike
) -> float | Floats:
    """Return the posterior probability that the true rates lie in R(epsilon, delta), with all four edges.

    Epsilon is in nats, >= 0; the value at 0 is the mass at epsilon = 0. The result has the broadcast shape and an error
    below 1e-11.

    Source: Zanella-Beguelin et al. (2022), Eq. 3 and 6, with the rates' product density.
    Slow twin: `cdf_by_panels` of tests/twins/confusion_twin.py.
    """
    return _posterior(epsilon, tp, fp, tn, fn, delta, column=0)


def epsilon_posterior_pdf(
    epsilon: ArrayLike, tp: ArrayLike, fp: ArrayLike, tn: ArrayLike, fn: ArrayLike, *, delta: ArrayLike
) -> float | Floats:
    """Return the derivative of `epsilon_posterior_cdf` by epsilon, per nat, without the mass at epsilon = 0.

    Source: Zanella-Beguelin et al. (2022), appendix A.2, where R_HI must read
        min{1, 1 + (delta - x) e^-eps, delta + (1 - x) e^eps}.
    """
    return _posterior(epsilon, tp, fp, tn, fn, delta, column=2)


class _Tables(NamedTuple):
    """Checked tables, flattened to one length, and their original shape."""

    tp: Ints
    fp: Ints
    tn: Ints
    fn: Ints
    delta: Floats
    confidence: Floats
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, tp: ArrayLike, fp: ArrayLike, tn: ArrayLike, fn: ArrayLike, delta: ArrayLike, confidence: ArrayLike
    ) -> _Tables:
        names = ("tp", "fp", "tn", "fn", "delta", "confidence")
        counts = [as_counts(name, values) for name, values in zip(names, (tp, fp, tn, fn), strict=False)]
        deltas, levels = as_delta(delta), as_confidence(confidence)
        shape = common_shape(*counts, deltas, levels, names=names)
        flat: list[Any] = [np.ascontiguousarray(np.broadcast_to(a, shape).ravel()) for a in (*counts, deltas, levels)]
        tables = cls._make([*flat, shape])
        for world, trials in (("tp + fn", tables.tp + tables.fn), ("fp + tn", tables.fp + tables.tn)):
            require(bool(np.all(trials >= 1)), f"{world} must be >= 1, a trial in each world", least=trials.min())
        return tables

    @property
    def counts(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.tp, self.fp, self.tn, self.fn

    def inverted(self) -> _Tables:
        """Return the tables of the attack that guesses the other world each time."""
        return self._replace(tp=self.fn, fp=self.tn, tn=self.fp, fn=self.tp)

    def take(self, rows: Ints) -> _Tables:
        flat: list[Any] = [np.ascontiguousarray(column[rows]) for column in self[:6]]
        return _Tables._make([*flat, rows.shape])


def _rectangle(tables: _Tables, method: str, side: str) -> tuple[Floats, Floats]:
    """Return the extremes of epsilon over the rectangle of the two rates' limits."""
    lower, upper = _equation_1_interval(tables, method, side)
    if side == "lower":  # the error covers only the two limits of Eq. 1
        return lower, upper
    # The region's upper two edges are Eq. 1 of the inverted table; at most one of both tables shows more than 0.
    inverted = _equation_1_interval(tables.inverted(), method, side)
    return np.maximum(lower, inverted[0]), np.maximum(upper, inverted[1])


def _equation_1_interval(tables: _Tables, method: str, side: str) -> tuple[Floats, Floats]:
    """Return the extremes of Eq. 1: both its terms decrease in either rate where positive, so corners decide."""
    limits = clopper_pearson if method == "clopper-pearson" else jeffreys
    rate_side = "two-sided" if side == "two-sided" else "upper"
    rate_confidence = (1 + tables.confidence) / 2
    fnr = limits(tables.fn, tables.tp + tables.fn, confidence=rate_confidence, side=rate_side)
    fpr = limits(tables.fp, tables.fp + tables.tn, confidence=rate_confidence, side=rate_side)
    lower = epsilon_of_rates(np.asarray(fnr.upper), np.asarray(fpr.upper), tables.delta)
    if side == "lower":
        return lower, np.full_like(lower, np.inf)
    return lower, epsilon_of_rates(np.asarray(fnr.lower), np.asarray(fpr.lower), tables.delta)


def epsilon_of_rates(x: Floats, y: Floats, delta: Floats | float) -> Floats:
    """Return Eq. 1, max{log((1 - delta - x) / y), log((1 - delta - y) / x), 0}.

    It is inf if one rate is 0 and the other below 1 - delta.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [
            np.where(numerator > 0, np.log(numerator / denominator), -np.inf)
            for numerator, denominator in ((1 - delta - x, y), (1 - delta - y, x))
        ]
    return cast(Floats, np.maximum(np.maximum(*terms), 0.0))


def _posterior(
    epsilon: ArrayLike, tp: ArrayLike, fp: ArrayLike, tn: ArrayLike, fn: ArrayLike, delta: ArrayLike, *, column: int
) -> float | Floats:
    from dpaudit.estimators.two_world._beta_kernels import masses  # compiled when first used

    points = np.asarray(epsilon, dtype=np.float64)
    require(bool(np.all(points >= 0)), "epsilon must be >= 0", epsilon=points)
    tables = _Tables.of(tp, fp, tn, fn, delta, 0.5)
    shape = common_shape(points, np.empty(tables.shape), names=("epsilon", "the counts"))
    rows = np.broadcast_to(np.arange(tables.tp.size).reshape(tables.shape), shape).ravel()
    # e^(-eps/2) must not underflow; no posterior of 2^53 trials reaches 700 nats.
    flat = np.minimum(np.ascontiguousarray(np.broadcast_to(points, shape).ravel()), 700.0)
    tables = tables.take(rows)
    values = masses(flat, tables.counts, tables.delta)[:, column]
    if column == 0:
        values = np.where(
            (flat == 0) & (tables.delta == 0), 0.0, values
        )  # a line has no mass, but rounding leaves 1e-16
    return unboxed(values.reshape(shape))
