"""Lower bounds on the Renyi divergence of single answers, jointly for all queries, orders and directions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels, require_one_of
from dpaudit.estimators.bound import FindingBase, format_lower
from dpaudit.estimators.estimator import Estimator, share_of
from dpaudit.estimators.finding import Comparison, Series, Validity
from dpaudit.estimators.private_prediction.divergence import renyi_divergence
from dpaudit.estimators.private_prediction.k_cut import KCut, bootstrap_bound, k_cut_bound
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_rdp_of_flip
from dpaudit.estimators.private_prediction.rdp_bound import VALIDITY, query_confidence
from dpaudit.estimators.private_prediction.two_cut import TwoCut, two_cut_bound
from dpaudit.estimators.two_world.ratio import ratio_epsilon
from dpaudit.registry import register


def _none() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class AnsweredQuery:
    """Answers to one query: independent draws from a private predictor in two worlds.

    World 1 includes some records; world 0 does not.
    """

    words: ClassVar[str] = "answers to queries"

    query: int  # index of the query, from 0
    world_1: Ints  # count of each answer with the records, shape (answers,), answers >= 2; at least one draw
    world_0: Ints  # count of each answer without the records, shape (answers,)
    chosen: NDArray[np.bool_]  # True for answers in the set, which was chosen on other draws; shape (answers,)
    # exact probability of each answer with the records, shape (answers,); empty if unknown
    law_1: Floats = field(default_factory=_none)
    law_0: Floats = field(default_factory=_none)  # exact probability of each answer without the records
    # laws with the records, fitted to resampled trainings, shape (resamples, answers); no rows without a fit
    resampled_1: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # laws without the records, fitted to resampled trainings
    resampled_0: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # laws fitted to as many votes drawn from `law_0`, as if the records changed nothing: the divergence due to the fit
    # alone; shape (resamples, answers)
    unmoved_1: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # logarithm of the bound on the probability that noise changes the winner, for histograms with the records, shape
    # (histograms,); the input of data-dependent accounting, empty if there is none
    log_p_flip_1: Floats = field(default_factory=_none)
    log_p_flip_0: Floats = field(default_factory=_none)  # the same bound for histograms without the records
    # logarithm of the probability of the less likely threshold outcome for the same histograms, shape (histograms,);
    # empty without a threshold
    log_p_check_1: Floats = field(default_factory=_none)
    log_p_check_0: Floats = field(default_factory=_none)  # the same probability without the records
    sigma: float = float("nan")  # standard deviation of the Gaussian noise on each count; NaN for other noise
    threshold_sigma: float = float("nan")  # standard deviation of the Gaussian noise at the threshold; NaN without one
    fitted: bool = False  # True if the law of the votes is a model: a fit, or a finite number of drawn histograms
    asked: int = 1  # number of answers to this query that a total counts, >= 0
    # True if all queries use one pair of data sets, so that a total is their sum; False if each query has its own pair,
    # so that a total is the largest
    together: bool = True

    def __post_init__(self) -> None:
        shapes = {self.world_1.shape, self.world_0.shape, self.chosen.shape}
        require(len(shapes) == 1 and self.world_1.size >= 2, "both worlds must count the same answers, at least two")
        require(bool(self.world_1.sum() > 0 and self.world_0.sum() > 0), "each world must hold at least one answer")
        require(self.law_1.size in (0, self.world_1.size), "a law must have one probability for each answer")
        require(self.law_0.shape == self.law_1.shape, "the law must be known in both worlds or in none")

    @property
    def answers_given(self) -> tuple[int, ...]:
        """Answers that occurred in either world."""
        return tuple(np.flatnonzero(self.world_0 + self.world_1).tolist())


Cut = Literal["corner", "termwise", "clopper-pearson", "goodman", "sison-glaz", "bootstrap", "k-bootstrap"]

DIRECTIONS = ("forward", "backward")
ORDERS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclass(frozen=True, eq=False)
class QueryTally:
    """Counts of one query, and known divergences of its answers at the estimator's orders."""

    query: int  # index of the query
    world_1: Ints  # count of each answer with the records, shape (answers,)
    world_0: Ints  # count of each answer without the records, shape (answers,)
    chosen: NDArray[np.bool_]  # True for answers in the set, shape (answers,)
    exact_forward: Floats  # D(with || without), shape (orders,); NaN if unknown
    exact_backward: Floats  # D(without || with), shape (orders,); NaN if unknown
    dependent_forward: Floats  # charge of data-dependent accounting for D(with || without); NaN if there is none
    dependent_backward: Floats  # charge of data-dependent accounting for D(without || with)
    low: Floats  # smallest exact divergence over resampled trainings; NaN without a fit
    high: Floats  # largest exact divergence over resampled trainings
    unmoved: Floats  # mean exact divergence if the records change nothing, due to the fit alone; NaN without a fit
    fitted: bool  # True if the law of the votes was fitted
    asked: int  # number of answers that a total counts
    together: bool  # True if all queries use one pair of data sets


@dataclass(frozen=True, eq=False)
class QueryBounds:
    """Lower bounds on the divergences of some of the queries that share the error."""

    pieces: int  # number of all queries
    query: Ints  # index of the query, shape (queries,)
    forward: Floats  # lower bounds on D_a(with || without) in nats, shape (queries, orders)
    backward: Floats  # lower bounds on D_a(without || with), shape (queries, orders)


@register("estimator", "answers", source="Chadha et al. (2024), section 4.2 and appendix B; the corner is ours")
@dataclass(frozen=True)
class Answers(Estimator[AnsweredQuery, QueryTally]):
    """Lower bounds on Renyi divergences of single answers by query, for both directions and all orders at once.

    All queries share the error, so the worst one is selected at no further cost. Sets of answers must have been chosen
    on other draws.

    Attributes:
        orders: Orders > 1, ascending.
        confidence: Joint confidence of all bounds, in (0, 1).
        delta: Delta at which the epsilon of one answer is bounded, in [0, 1).
        cut: One set of answers: "corner" (exact minimum over the limits), "termwise" (as published, valid and looser),
            "bootstrap" (as published, not a bound); all answers: "clopper-pearson", "goodman", "sison-glaz"
            (asymptotic), "k-bootstrap" (as published, not a bound).
        seed: Seed of a bootstrap.
    """

    evidence: ClassVar[type[Any]] = AnsweredQuery
    tally_type: ClassVar[type[Any]] = QueryTally
    part_type: ClassVar[type[Any] | None] = QueryBounds
    query_s: ClassVar[Mapping[str, float]] = {
        "corner": 2e-4,
        "termwise": 2e-4,
        "clopper-pearson": 2.5e-3,
        "goodman": 5e-4,
        "sison-glaz": 2e-2,
        "bootstrap": 5e-3,
        "k-bootstrap": 1e-2,
    }
    """Seconds for the bounds of a query with 10 answers, by `cut`."""

    orders: tuple[float, ...] = ORDERS
    confidence: float = 0.95
    delta: float = 1e-6
    cut: Cut = "corner"
    seed: int = 0

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.orders, self.orders[1:], strict=False))
        require(
            len(self.orders) > 0 and self.orders[0] > 1 and self.orders[-1] < np.inf and rising,
            "orders must be > 1, finite and rising",
            orders=self.orders,
        )
        require_levels(self.delta, self.confidence)
        require_one_of("cut", self.cut, get_args(Cut))

    def tally(self, evidence: AnsweredQuery) -> QueryTally:
        """Return the counts and the divergences of the known laws at the orders."""
        forward, backward = self._exact(evidence.law_1, evidence.law_0)
        resampled = self._larger(evidence.resampled_1, evidence.resampled_0)
        unmoved = self._larger(evidence.unmoved_1, [evidence.law_0] * len(evidence.unmoved_1))
        return QueryTally(
            query=evidence.query,
            world_1=evidence.world_1,
            world_0=evidence.world_0,
            chosen=evidence.chosen,
            exact_forward=forward,
            exact_backward=backward,
            dependent_forward=self._dependent(evidence, evidence.log_p_flip_1, evidence.log_p_check_1),
            dependent_backward=self._dependent(evidence, evidence.log_p_flip_0, evidence.log_p_check_0),
            low=resampled.min(axis=0),
            high=resampled.max(axis=0),
            unmoved=unmoved.mean(axis=0),
            fitted=evidence.fitted,
            asked=evidence.asked,
            together=evidence.together,
        )

    def _unknown(self) -> Floats:
        return np.full(len(self.orders), np.nan)

    def _exact(self, law_1: Floats, law_0: Floats) -> tuple[Floats, Floats]:
        if not law_1.size:
            return self._unknown(), self._unknown()
        first, second = law_1 / law_1.sum(), law_0 / law_0.sum()
        return (
            np.asarray(renyi_divergence(first, second, self.orders)),
            np.asarray(renyi_divergence(second, first, self.orders)),
        )

    def _larger(self, laws_1: Iterable[Floats], laws_0: Iterable[Floats]) -> Floats:
        """Return the larger direction for each pair of laws, shape (pairs, orders); one row of NaN without pairs."""
        larger = [np.maximum(*self._exact(law_1, law_0)) for law_1, law_0 in zip(laws_1, laws_0, strict=True)]
        return np.array(larger) if larger else self._unknown()[None]

    def _dependent(self, evidence: AnsweredQuery, flips: Floats, checks: Floats) -> Floats:
        """Return the charge for a mixture of histograms, by joint convexity.

        It is the logarithm of the mean of exp((a - 1) charge), divided by a - 1.
        """
        if not flips.size:
            return self._unknown()
        # The threshold is a separate answer. Its count moves half as much, so its noise counts sqrt(2) times.
        scales = [evidence.sigma, math.sqrt(2) * evidence.threshold_sigma]
        rows = np.stack([flips, checks] if checks.size else [flips])
        values, copies = np.unique(rows, axis=1, return_counts=True)
        charges = sum(
            np.array([gnmax_rdp_of_flip(float(value), sigma, self.orders) for value in row])
            for row, sigma in zip(values, scales, strict=False)
        )
        powers = np.asarray(self.orders) - 1
        weights = (copies / copies.sum())[:, None]
        return np.asarray(logsumexp(powers * charges, axis=0, b=weights) / powers)

    def seconds(self, pieces: int, rows: int) -> float:
        return pieces * self.query_s[self.cut]

    def part(self, tallies: Sequence[QueryTally], *, pieces: int, share: int, shares: int) -> QueryBounds:
        """Return the bounds of some queries."""
        some = share_of(_ranked(tallies), share, shares)
        bounds = self._both_directions(some, query_confidence(self.confidence, pieces))
        return QueryBounds(pieces, _queries(some), bounds.forward, bounds.backward)

    def find(
        self, tallies: Sequence[QueryTally], *, failed_replays: int = 0, parts: Sequence[QueryBounds] = ()
    ) -> AnswersFinding:
        """Return the finding; failed queries show nothing and keep their share of the error.

        `parts` are results of `part` for some of the tallies.
        """
        ranked, pieces = _ranked(tallies), len(tallies) + failed_replays
        each = query_confidence(self.confidence, pieces)
        finished = [part for part in parts if part.pieces == pieces]
        computed_already = {query for part in finished for query in part.query.tolist()}
        missing = [tally for tally in ranked if tally.query not in computed_already]
        computed = self._both_directions(missing, each)
        finished.append(QueryBounds(pieces, _queries(missing), computed.forward, computed.backward))
        row_of = {query: row for row, query in enumerate(np.concatenate([part.query for part in finished]).tolist())}
        place = [row_of[tally.query] for tally in ranked]
        forward, backward = (np.concatenate([getattr(part, name) for part in finished])[place] for name in DIRECTIONS)
        bound = Directions(forward, backward)
        worst = ranked[int(np.argmax((bound.larger / np.asarray(self.orders)).max(axis=1)))]
        spread = np.stack([worst.low, worst.high, worst.unmoved])
        counts = {
            "queries": pieces,
            "answers with the records": sum(int(tally.world_1.sum()) for tally in ranked),
            "answers without": sum(int(tally.world_0.sum()) for tally in ranked),
        }
        if failed_replays:
            counts["lost queries"] = failed_replays
        validity = VALIDITY["bootstrap" if "bootstrap" in self.cut else self.cut]
        if any(tally.fitted for tally in ranked) and validity is not Validity.AS_PUBLISHED:
            validity = Validity.CONDITIONAL_ON_MODEL
        return AnswersFinding(
            orders=np.asarray(self.orders),
            queries=_queries(ranked),
            bound=bound,
            exact=_stacked(ranked, "exact"),
            dependent=_stacked(ranked, "dependent"),
            k_cut=self._k_cut(worst, each),
            spread=np.empty((0, 0)) if np.isnan(spread).any() else spread,
            asked=np.array([tally.asked for tally in ranked]),
            together=ranked[0].together,
            epsilon=self._epsilon(ranked, each),
            delta=self.delta,
            confidence=self.confidence,
            method=f"answers ({self.cut})",
            validity=validity,
            selection="sets of answers chosen on other draws, the worst query corrected for",
            counts=tuple(counts.items()),
        )

    def _both_directions(self, tallies: Sequence[QueryTally], confidence: float) -> Directions:
        if not tallies:
            return Directions(*np.empty((2, 0, len(self.orders))))
        forward, backward = (self._one_direction(tallies, confidence, forward=forward) for forward in (True, False))
        return Directions(forward, backward)

    def _one_direction(self, tallies: Sequence[QueryTally], confidence: float, *, forward: bool) -> Floats:
        pairs = [(tally.world_1, tally.world_0) if forward else (tally.world_0, tally.world_1) for tally in tallies]
        if self.cut == "corner" or self.cut == "termwise":
            k1, n1, k2, n2 = _in_sets(tallies, pairs)
            cut: TwoCut = self.cut
            return np.asarray(two_cut_bound(k1, n1, k2, n2, self.orders, confidence=confidence, method=cut))
        return np.array(
            [self._query_bound(tally, *pair, confidence, forward) for tally, pair in zip(tallies, pairs, strict=True)]
        )

    def _query_bound(self, tally: QueryTally, first: Ints, second: Ints, confidence: float, forward: bool) -> Floats:
        if "bootstrap" not in self.cut:
            return np.asarray(
                k_cut_bound(first, second, self.orders, confidence=confidence, method=cast(KCut, self.cut))
            )
        rng = np.random.default_rng([self.seed, tally.query, int(forward)])
        if self.cut == "bootstrap":
            first, second = (
                np.array([counts[tally.chosen].sum(), counts[~tally.chosen].sum()]) for counts in (first, second)
            )
        return np.asarray(bootstrap_bound(first, second, self.orders, confidence=confidence, rng=rng))

    def _k_cut(self, tally: QueryTally, confidence: float) -> Floats:
        pairs = ((tally.world_1, tally.world_0), (tally.world_0, tally.world_1))
        forward, backward = (k_cut_bound(*pair, self.orders, confidence=confidence) for pair in pairs)
        return np.asarray(np.maximum(forward, backward))

    def _epsilon(self, tallies: Sequence[QueryTally], confidence: float) -> float | None:
        """Return the largest epsilon of all queries; it uses the divergence's limits, so both hold together."""
        if self.cut not in ("corner", "termwise"):
            return None
        k1, n1, k0, n0 = _in_sets(tallies, [(tally.world_1, tally.world_0) for tally in tallies])
        return float(np.max(ratio_epsilon(k1, k0, n1, n0, delta=self.delta, confidence=confidence)))


def _ranked(tallies: Sequence[QueryTally]) -> list[QueryTally]:
    return sorted(tallies, key=lambda tally: tally.query)


def _queries(tallies: Sequence[QueryTally]) -> Ints:
    return np.array([tally.query for tally in tallies], np.int64)


def _in_sets(tallies: Sequence[QueryTally], pairs: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Return answers in the set and all answers, for the first of each pair and for the second; shape (4, queries)."""
    rows = [
        (first[tally.chosen].sum(), first.sum(), second[tally.chosen].sum(), second.sum())
        for tally, (first, second) in zip(tallies, pairs, strict=True)
    ]
    return np.array(rows, np.int64).T


def _stacked(tallies: Sequence[QueryTally], name: str) -> Directions:
    forward, backward = (
        np.stack([getattr(tally, f"{name}_{direction}") for tally in tallies]) for direction in DIRECTIONS
    )
    return Directions(forward, backward)


DIGITS = 9  # decimals of a printed divergence, because those of single answers are small
INDEPENDENT = "RDP of an answer"
DEPENDENT = "RDP of an answer by data-dependent accounting"


@dataclass(frozen=True, eq=False)
class Directions:
    """Values by query and order for both directions, D(with || without) and D(without || with)."""

    forward: Floats  # shape (n, m), nats
    backward: Floats  # shape (n, m), nats

    @property
    def larger(self) -> Floats:
        return np.maximum(self.forward, self.backward)


@dataclass(frozen=True, eq=False)
class AnswersFinding(FindingBase):
    """Simultaneous lower bounds on the Renyi divergence of single answers, with known exact values and charges."""

    orders: Floats  # orders > 1, ascending, shape (m,)
    queries: NDArray[np.int64]  # index of each query, shape (n,)
    bound: Directions  # lower bounds
    exact: Directions  # divergences of the exact laws of answers; NaN if unknown
    dependent: Directions  # charges of data-dependent accounting; NaN if there are none
    k_cut: Floats  # lower bounds for the worst query that use the count of every answer, shape (m,)
    # smallest and largest exact divergence of the worst query over resampled trainings, and the mean if records change
    # nothing; shape (3, m), empty without a fit
    spread: Floats
    asked: NDArray[np.int64]  # number of answers to each query that a total counts, shape (n,)
    together: bool  # True if all queries use one pair of data sets
    # valid lower bound on the epsilon of one answer at `delta`, from the same counts; None without one
    epsilon: float | None
    delta: float  # in [0, 1)
    confidence: float  # joint confidence of all bounds, in (0, 1)
    method: str  # name of the estimator with its variant
    validity: Validity  # sense in which the confidence holds
    selection: str  # how the sets of answers were chosen, in words
    counts: tuple[tuple[str, int], ...]  # integers that the finding was computed from, by name

    @property
    def worst(self) -> int:
        """Position of the query whose bound is the largest multiple of its order; the first one if all bounds are 0."""
        return int(np.argmax((self.bound.larger / self.orders).max(axis=1)))

    @property
    def headline(self) -> str:
        """Bound with the largest ratio to its order: the divergence of a noisy argmax grows with the order."""
        place = int(np.argmax(self.bound.larger[self.worst] / self.orders))
        return self._words(self.worst, place)

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """Compare at the query and order where a bound is the largest multiple of the claim.

        If the claim holds there but data-dependent accounting is exceeded, return that comparison.
        """
        claimed = np.array([curve.renyi(float(order)) for order in self.orders])
        independent = self._largest_multiple(np.broadcast_to(claimed, self.bound.forward.shape), INDEPENDENT)
        dependent = self.dependent_comparison
        return dependent if dependent is not None and dependent.exceeds and not independent.exceeds else independent

    @property
    def dependent_comparison(self) -> Comparison | None:
        """Comparison with the charge of data-dependent accounting, by direction; None if there is no charge."""
        if np.isnan(self.dependent.forward).any():
            return None
        forward = self._multiples(self.bound.forward, self.dependent.forward)
        backward = self._multiples(self.bound.backward, self.dependent.backward)
        charged = np.where(forward >= backward, self.dependent.forward, self.dependent.backward)
        observed = np.where(forward >= backward, self.bound.forward, self.bound.backward)
        return self._largest_multiple(charged, DEPENDENT, observed)

    @property
    def notes(self) -> tuple[str, ...]:
        lines = [self._average]
        if self.epsilon is not None:
            lines.append(
                f"of one answer epsilon >= {format_lower(self.epsilon, 6)} at delta={self.delta:g}, from the same "
                "counts; a lower bound on the divergence is not converted, conversions hold for upper bounds only"
            )
        dependent = self.dependent_comparison
        if dependent is not None:
            verdict = "VIOLATION" if dependent.exceeds else "NO VIOLATION FOUND"
            lines.append(
                f"data-dependent accounting: {verdict}, observed {dependent.words}, charged {dependent.claimed:.9g}"
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
        """Columns for figures: the worst query at every order, totals, their growth, and every query."""
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

    def to_dict(self) -> Mapping[str, Any]:
        return {
            "orders": self.orders.tolist(),
            "query": int(self.queries[self.worst]),
            "lower": self.bound.larger[self.worst].tolist(),
            "average": self.bound.larger.mean(axis=0).tolist(),
            "exact": _finite_list(self.exact.larger[self.worst]),
            "data_dependent": _finite_list(self.dependent.larger[self.worst]),
            "k_cut": _finite_list(self.k_cut),
            "epsilon_of_an_answer": self.epsilon,
            "delta": self.delta,
            **self._common_fields(),
        }

    def total(self, values: Directions) -> dict[str, Floats]:
        """Return the larger direction of each total by name: of all queries, or of the worst and of the average one."""
        sums = [self.asked[:, None] * each for each in (values.forward, values.backward)]
        if self.together:
            return {"all queries": np.maximum(sums[0].sum(axis=0), sums[1].sum(axis=0))}
        worst, average = ([reduce(each, axis=0) for each in sums] for reduce in (np.max, np.mean))
        return {"worst query": np.maximum(*worst), "average query": np.maximum(*average)}

    @property
    def _by_kind(self) -> Mapping[str, Directions]:
        return {"bound": self.bound, "exact": self.exact, "dependent": self.dependent}

    def _totals(self) -> Series:
        totals = {name: self.total(values) for name, values in self._by_kind.items()}
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
                for name, values in self._by_kind.items()
            }
        else:
            answers = np.unique(np.geomspace(1, max(2, int(self.asked.max())), 50).astype(np.int64))
            counted = np.minimum(answers, self.asked[self.worst])
            sums = {name: counted * values.larger[self.worst, place] for name, values in self._by_kind.items()}
        return {"order": order, "answers": answers, **sums}

    def _largest_multiple(self, claimed: Floats, quantity: str, observed: Floats | None = None) -> Comparison:
        observed = self.bound.larger if observed is None else observed
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


def _finite_list(values: Floats) -> list[float] | None:
    return None if np.isnan(values).any() or not all(map(math.isfinite, values)) else values.tolist()
