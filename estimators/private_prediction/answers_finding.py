"""The finding about a private predictor: what an answer tells at least, by query and order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, PrivacyCurve
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.finding import Comparison, Series, Validity, ViolationPoint, breach_at

if TYPE_CHECKING:
    from dpaudit.estimators.chart import Chart


DIGITS = 9
"""Of a printed divergence: those of single answers are small."""
INDEPENDENT = "RDP of an answer"
DEPENDENT = "RDP of an answer by data-dependent accounting"


@dataclass(frozen=True, eq=False)
class Directions:
    """Numbers by query and order for both directions, D(with || without) and D(without || with).

    Attributes:
        forward: Shape (n, m), nats.
        backward: Shape (n, m), nats.
    """

    forward: Floats
    backward: Floats

    @property
    def larger(self) -> Floats:
        """The larger direction, shape (n, m)."""
        return np.maximum(self.forward, self.backward)


@dataclass(frozen=True, eq=False)
class AnswersFinding:
    """Lower bounds on the Renyi divergence of single answers, all of which hold together, beside what is known of it.

    Attributes:
        orders: Orders > 1, ascending, shape (m,).
        queries: Number of each query, shape (n,).
        bound: Lower bounds.
        exact: Divergences of the exact laws of answers; NaN where these are not known.
        dependent: What data-dependent accounting charges; NaN where there is none.
        k_cut: Lower bounds for the worst query that look at every answer by itself, shape (m,).
        spread: Smallest and largest exact divergence of the worst query over resampled trainings, and the mean where
            records change nothing, by the fit alone; shape (3, m), empty where nothing was fitted.
        asked: Answers to each query that a total counts, shape (n,).
        together: Whether all queries are about one pair of data sets.
        epsilon: A valid lower bound on the epsilon of one answer at `delta`, from the same counts; None without one.
        delta: In [0, 1).
        confidence: With this probability everything above holds at once; in (0, 1).
        method: The estimator's name with its variant.
        validity: In what sense the confidence holds.
        selection: How the sets of answers were chosen, in words.
        counts: The integers it rests on, by name.
    """

    orders: Floats
    queries: NDArray[np.int64]
    bound: Directions
    exact: Directions
    dependent: Directions
    k_cut: Floats
    spread: Floats
    asked: NDArray[np.int64]
    together: bool
    epsilon: float | None
    delta: float
    confidence: float
    method: str
    validity: Validity
    selection: str
    counts: tuple[tuple[str, int], ...]

    @property
    def worst(self) -> int:
        """Place of the query whose bound is the largest multiple of its order, where any exceeds 0."""
        return int(np.argmax((self.bound.larger / self.orders).max(axis=1)))

    @property
    def headline(self) -> str:
        """The largest bound against its order: that of a noisy argmax grows with it."""
        place = int(np.argmax(self.bound.larger[self.worst] / self.orders))
        return self._words(self.worst, place)

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """At the query and order where a bound is the largest multiple of what is claimed.

        Where that is kept, but data-dependent accounting is not, against that.
        """
        claimed = np.array([curve.renyi(float(order)) for order in self.orders])
        independent = self._standing(np.broadcast_to(claimed, self.bound.forward.shape), INDEPENDENT)
        dependent = self.against_dependent
        return dependent if dependent is not None and dependent.exceeds and not independent.exceeds else independent

    @property
    def against_dependent(self) -> Comparison | None:
        """Against what data-dependent accounting charges; None where there is none. Each direction has its own."""
        if np.isnan(self.dependent.forward).any():
            return None
        forward = self._multiples(self.bound.forward, self.dependent.forward)
        backward = self._multiples(self.bound.backward, self.dependent.backward)
        charged = np.where(forward >= backward, self.dependent.forward, self.dependent.backward)
        found = np.where(forward >= backward, self.bound.forward, self.bound.backward)
        return self._standing(charged, DEPENDENT, found)

    def violation_point(self, curve: PrivacyCurve) -> ViolationPoint | None:
        """Where the claim broke; None where it did not, or where the bound is `as-published`."""
        return breach_at(self.comparison(curve), self.validity)

    @property
    def notes(self) -> tuple[str, ...]:
        """The epsilon that does hold, and what totals are."""
        lines = [self._average]
        if self.epsilon is not None:
            lines.append(
                f"of one answer epsilon >= {format_lower(self.epsilon, 6)} at delta={self.delta:g}, from the same "
                "counts; a divergence from below is not converted, conversions hold from above only"
            )
        dependent = self.against_dependent
        if dependent is not None:
            said = "VIOLATION" if dependent.exceeds else "NO VIOLATION FOUND"
            lines.append(
                f"data-dependent accounting: {said}, observed {dependent.words}, charged {dependent.claimed:.9g}"
            )
        if not np.isnan(self.exact.forward).any():
            exact = self.exact.larger[self.worst]
            place = int(np.argmax(self.bound.larger[self.worst] / self.orders))
            lines.append(f"exact there: {exact[place]:.9g}" + (f", {self._spread(place)}" if self.spread.size else ""))
        if len(self.queries) > 1:
            lines.append(
                "totals add up single answers, as accounting does; they are the divergence of all answers together "
                "where these are independent given the data"
            )
        return tuple(lines)

    @property
    def series(self) -> Mapping[str, Series]:
        """The worst query at every order, totals, their growth, every query."""
        worst = self.worst
        curves = {
            "query": int(self.queries[worst]),
            "order": self.orders,
            "two_cut": self.bound.larger[worst],
            "k_cut": self.k_cut,
            "exact": self.exact.larger[worst],
            "dependent": self.dependent.larger[worst],
        }
        series = {"answer": curves, "epsilon": self._totals()}
        if len(self.queries) > 1:
            every = {"query": self.queries, "bound": self.bound.larger, "exact": self.exact.larger}
            series |= {"growth": self._growth(), "queries": {"order": self.orders, **every}}
        return series

    def charts(self, claim: Claim) -> list[Chart]:
        """What there is to see beside a claim."""
        from dpaudit.estimators.finding_charts import charts  # only where something is drawn

        return charts(self.series, claim, self.comparison(claim.curve))

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON, without the series."""
        return {
            "orders": self.orders.tolist(),
            "query": int(self.queries[self.worst]),
            "lower": self.bound.larger[self.worst].tolist(),
            "average": self.bound.larger.mean(axis=0).tolist(),
            "exact": _known(self.exact.larger[self.worst]),
            "data_dependent": _known(self.dependent.larger[self.worst]),
            "k_cut": _known(self.k_cut),
            "epsilon_of_an_answer": self.epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "method": self.method,
            "selection": self.selection,
            "validity": self.validity.value,
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return f"{self.headline} ({self.confidence:.6g} confidence, {self.validity}; {self.method}, {self.selection})"

    def total(self, values: Directions) -> dict[str, Floats]:
        """The larger direction of each total, by name: of all queries, or of the worst and of the average one."""
        sums = [self.asked[:, None] * each for each in (values.forward, values.backward)]
        if self.together:
            return {"all queries": np.maximum(sums[0].sum(axis=0), sums[1].sum(axis=0))}
        worst, average = ([reduce(each, axis=0) for each in sums] for reduce in (np.max, np.mean))
        return {"worst query": np.maximum(*worst), "average query": np.maximum(*average)}

    @property
    def _known(self) -> Mapping[str, Directions]:
        return {"bound": self.bound, "exact": self.exact, "dependent": self.dependent}

    def _totals(self) -> Series:
        totals = {name: self.total(values) for name, values in self._known.items()}
        answers = int(self.asked.sum() if self.together else self.asked.max())
        stacked = {name: np.stack(list(rows.values())) for name, rows in totals.items()}
        about = {"order": self.orders, "answers": answers, "delta": self.delta or 1e-6}
        return {**about, "names": tuple(totals["bound"]), **stacked}

    def _growth(self) -> Series:
        place = int(np.argmax(self.bound.larger[self.worst] / self.orders))
        order = float(self.orders[place])
        if self.together:
            answers = np.cumsum(self.asked)
            sums = {
                name: np.maximum(
                    *(np.cumsum(self.asked * each[:, place]) for each in (values.forward, values.backward))
                )
                for name, values in self._known.items()
            }
        else:
            answers = np.unique(np.geomspace(1, max(2, int(self.asked.max())), 50).astype(np.int64))
            told = np.minimum(answers, self.asked[self.worst])
            sums = {name: told * values.larger[self.worst, place] for name, values in self._known.items()}
        return {"order": order, "answers": answers, **sums}

    def _standing(self, claimed: Floats, quantity: str, found: Floats | None = None) -> Comparison:
        observed = self.bound.larger if found is None else found
        multiples = self._multiples(observed, claimed)
        query, place = (int(at) for at in np.unravel_index(int(np.argmax(multiples)), multiples.shape))
        where = f"order {self.orders[place]:g} of query {self.queries[query]}"
        words = self._words(query, place, float(observed[query, place]))
        return Comparison(quantity, where, float(observed[query, place]), float(claimed[query, place]), words)

    @staticmethod
    def _multiples(observed: Floats, claimed: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(observed > 0, observed / claimed, 0.0)

    def _words(self, query: int, place: int, value: float | None = None) -> str:
        lower = float(self.bound.larger[query, place]) if value is None else value
        return f"RDP >= {format_lower(lower, DIGITS)} at order {self.orders[place]:g}, query {self.queries[query]}"

    @property
    def _average(self) -> str:
        mean = np.maximum(self.bound.forward.mean(axis=0), self.bound.backward.mean(axis=0))
        place = int(np.argmax(mean / self.orders))
        return f"average query: RDP >= {format_lower(float(mean[place]), DIGITS)} at order {self.orders[place]:g}"

    def _spread(self, place: int) -> str:
        low, high, unmoved = self.spread[:, place]
        return (
            f"{low:.3g} to {high:.3g} by laws fitted to resampled trainings; records that change nothing would show "
            f"{unmoved:.3g} by the fit alone"
        )


def _known(values: Floats) -> list[float] | None:
    return None if np.isnan(values).any() or not all(map(math.isfinite, values)) else values.tolist()
