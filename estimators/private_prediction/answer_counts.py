"""Tables of private predictions: counts of answers or of votes in, Renyi divergences out.

One row is one query. Bounds from samples speak of the mechanism from below, `gnmax` of a known one exactly, and
`rdp-to-epsilon` from above; they meet in Renyi divergence, since no conversion takes a lower bound to epsilon.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Ints
from dpaudit.estimators.bound import format_upper
from dpaudit.estimators.counts import (
    GUARANTEE,
    K_CUT,
    TWO_CUT,
    VOTES,
    Column,
    CountEstimator,
    Table,
    TextTable,
    classes,
    count_columns,
    number_columns,
    per_class,
    same_classes,
)
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.private_prediction.conversion import Conversion, rdp_to_epsilon
from dpaudit.estimators.private_prediction.divergence import renyi_divergence_of_logs
from dpaudit.estimators.private_prediction.k_cut import KCut, bootstrap_bound
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_rdp_data_dependent, noisy_argmax_probabilities
from dpaudit.estimators.private_prediction.rdp_bound import (
    VALIDITY,
    compose_bounds,
    k_cut_audit,
    query_confidence,
    two_cut_audit,
    worst_query,
)
from dpaudit.estimators.private_prediction.renyi_bound import RenyiBound
from dpaudit.estimators.private_prediction.two_cut import TwoCut, two_cut_set
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class AnswerCounts:
    """The answers to one query: independent draws of a private predictor on each of two neighbouring data sets.

    Attributes:
        world_1: How often each class was answered with the first data set, shape (classes,), classes >= 2; at least one
            answer.
        world_0: The same with its neighbour, shape (classes,).
        query: Which query this is.
    """

    words: ClassVar[str] = "counts of answers"

    world_1: NDArray[np.int64]
    world_0: NDArray[np.int64]
    query: int = 0

    def __post_init__(self) -> None:
        for name in ("world_1", "world_0"):
            counts = np.asarray(getattr(self, name))
            require(
                counts.ndim == 1 and counts.size >= 2, f"{name} must count at least two classes", shape=counts.shape
            )
            whole = counts.astype(np.int64)
            require(bool((whole == counts).all() and (whole >= 0).all()), f"{name} must hold whole numbers >= 0")
            require(int(whole.sum()) > 0, f"{name} must hold at least one answer", do="draw some in both worlds")
            object.__setattr__(self, name, whole)
        require(
            self.world_1.shape == self.world_0.shape,
            "both worlds must count the same classes",
            world_1=self.world_1.shape,
            world_0=self.world_0.shape,
        )


ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)
NO_EPSILON = (
    "a lower bound on the Renyi divergence must not be converted to epsilon: the conversion holds for upper bounds only"
)


@register("estimator", "two-cut", source="Chadha et al. (2024), section 4.2 and appendix B; the corner is ours")
@dataclass(frozen=True)
class TwoCutCounts(Estimator[AnswerCounts, AnswerCounts], CountEstimator):
    """Counts k1 of n1 and k2 of n2 answers in one fixed set: lower bounds on the Renyi divergence of two data sets.

    Several rows are several queries that share the error: each row's bound, the largest and their sum hold together.

    Attributes:
        orders: Orders > 1.
        confidence: Of everything printed together, in (0, 1).
        cut: "corner" (exact minimum over the limits) or "termwise" (as published, valid and looser).
        answers: For answers of several classes: numbers of those in the set, chosen without looking at these answers.
    """

    evidence: ClassVar[type[Any]] = AnswerCounts
    tally_type: ClassVar[type[Any]] = AnswerCounts

    columns: ClassVar[tuple[str, ...]] = TWO_CUT
    optional_columns: ClassVar[tuple[str, ...]] = ("query",)

    orders: tuple[float, ...] = ORDERS
    confidence: float = 0.95
    cut: TwoCut = "corner"
    answers: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        _check(self.orders, self.confidence)
        distinct = len(set(self.answers)) == len(self.answers) > 0 and min(self.answers) >= 0
        require(distinct, "answers must be distinct numbers of classes, from 0, at least one", answers=self.answers)
        require(self.cut in get_args(TwoCut), f"cut must be one of {', '.join(get_args(TwoCut))}", cut=self.cut)

    def tally(self, evidence: AnswerCounts) -> AnswerCounts:
        """How many answers are in the set, and how many outside."""
        inside = np.zeros(evidence.world_1.size, dtype=np.bool_)
        require(
            max(self.answers) < inside.size,
            "answers must be numbers of classes that are counted",
            answers=self.answers,
            classes=inside.size,
        )
        inside[list(self.answers)] = True
        sums = [np.array([world[inside].sum(), world[~inside].sum()]) for world in (evidence.world_1, evidence.world_0)]
        return AnswerCounts(sums[0], sums[1], evidence.query)

    def find(self, tallies: Sequence[AnswerCounts], *, lost: int = 0) -> RenyiBound:
        """The largest bound of all queries at each order."""
        each = query_confidence(self.confidence, len(tallies) + lost)
        bounds = [self._audit(*_hits(tally.world_1), *_hits(tally.world_0), confidence=each) for tally in tallies]
        return _worst(f"two-cut ({self.cut})", tallies, bounds, self.confidence, lost)

    def _audit(self, k1: int, n1: int, k2: int, n2: int, *, confidence: float) -> RenyiBound:
        return two_cut_audit(k1, n1, k2, n2, self.orders, confidence=confidence, method=self.cut)

    def read(self, table: Table) -> Sequence[TextTable]:
        """Bounds of each query, then of all together."""
        rows = np.stack(list(count_columns(table, TWO_CUT).values()), axis=1).tolist()
        each = query_confidence(self.confidence, len(rows))
        bounds = [self._audit(*row, confidence=each) for row in rows]
        return _queries("two-cut", bounds, table, self.confidence, limits=4)


@register("estimator", "k-cut", source="Chadha et al. (2024), appendix B; Huber and Strassen (1973)")
@dataclass(frozen=True)
class KCutCounts(Estimator[AnswerCounts, AnswerCounts], CountEstimator):
    """Counts c1_* and c2_* of every answer: lower bounds on the Renyi divergence of two data sets.

    Several rows are several queries that share the error, as with two-cut.

    Attributes:
        orders: Orders > 1.
        confidence: Of everything printed together, in (0, 1).
        intervals: "clopper-pearson" (holds for every sample size), "goodman", "sison-glaz" (as published, asymptotic),
            or "bootstrap" (as published; no bound where little leaks).
        seed: Of the bootstrap.
    """

    evidence: ClassVar[type[Any]] = AnswerCounts
    tally_type: ClassVar[type[Any]] = AnswerCounts

    columns: ClassVar[tuple[str, ...]] = K_CUT
    optional_columns: ClassVar[tuple[str, ...]] = ("query",)

    orders: tuple[float, ...] = ORDERS
    confidence: float = 0.95
    intervals: KCut | Literal["bootstrap"] = "clopper-pearson"
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.orders, self.confidence)
        known = (*get_args(KCut), "bootstrap")
        require(self.intervals in known, f"intervals must be one of {', '.join(known)}", intervals=self.intervals)
        require(self.seed >= 0, "a seed must be >= 0", seed=self.seed)

    def tally(self, evidence: AnswerCounts) -> AnswerCounts:
        """The counts themselves: all of them are needed."""
        return evidence

    def find(self, tallies: Sequence[AnswerCounts], *, lost: int = 0) -> RenyiBound:
        """The largest bound of all queries at each order."""
        each = query_confidence(self.confidence, len(tallies) + lost)
        bounds = [self._audit(tally.world_1, tally.world_0, each, tally.query) for tally in tallies]
        return _worst(f"k-cut ({self.intervals})", tallies, bounds, self.confidence, lost)

    def read(self, table: Table) -> Sequence[TextTable]:
        """Bounds of each query, then of all together."""
        named = same_classes(table, "c1_", "c2_")
        first, second = (per_class(table, prefix, named) for prefix in ("c1_", "c2_"))
        each = query_confidence(self.confidence, len(first))
        bounds = [self._audit(*pair, each, row) for row, pair in enumerate(zip(first, second, strict=True))]
        return _queries("k-cut", bounds, table, self.confidence, limits=4 * len(named))

    def _audit(self, first: Ints, second: Ints, confidence: float, row: int) -> RenyiBound:
        if self.intervals != "bootstrap":
            return k_cut_audit(first, second, self.orders, confidence=confidence, method=self.intervals)
        ends = [
            np.atleast_1d(
                bootstrap_bound(
                    *pair,
                    self.orders,
                    confidence=confidence,
                    rng=np.random.default_rng([self.seed, row, direction]),
                )
            )
            for direction, pair in enumerate(((first, second), (second, first)))
        ]
        forward, backward = (tuple(float(value) for value in end) for end in ends)
        return RenyiBound(self.orders, forward, backward, confidence, "bootstrap", VALIDITY["bootstrap"])


@register("estimator", "gnmax", source="Papernot et al. (2018); Chadha et al. (2024), Eq. 4")
@dataclass(frozen=True)
class GNMax(CountEstimator):
    """Votes v1_* of every class (and v2_* of a neighbour): exact answers of the noisy argmax, and what they leak.

    One row is one query. With the neighbour's votes the Renyi divergence of the two laws is exact, in both directions.
    With a delta the guarantee for all queries, which comes from above, is converted to epsilon.

    Attributes:
        sigma: Standard deviation of the Gaussian noise on each count, > 0.
        orders: Orders > 1, finite.
        delta: Where the guarantee is converted to epsilon, in [0, 1); 0 converts nothing.
    """

    columns: ClassVar[tuple[str, ...]] = VOTES
    optional_columns: ClassVar[tuple[str, ...]] = ("v2_*", "query")

    sigma: float
    orders: tuple[float, ...] = ORDERS
    delta: float = 0.0

    def __post_init__(self) -> None:
        _check(self.orders, 0.5)
        require(all(map(math.isfinite, self.orders)), "orders must be finite", orders=self.orders)
        require(math.isfinite(self.sigma) and self.sigma > 0, "sigma must be finite and > 0", sigma=self.sigma)
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)

    def read(self, table: Table) -> Sequence[TextTable]:
        """Two findings a query, probabilities and divergences; then what all of them cost."""
        neighbour = any(name.startswith("v2_") for name in table)
        named = same_classes(table, "v1_", "v2_") if neighbour else classes(table, "v1_")
        first = per_class(table, "v1_", named)
        second = per_class(table, "v2_", named) if neighbour else None
        found = []
        for row, query in enumerate(_labels(table, len(first))):
            found += self._query(query, named, first[row], None if second is None else second[row])
        return [*found, *self._cost(len(first))]

    def _query(self, query: str, named: tuple[str, ...], votes: Ints, other: Ints | None) -> list[TextTable]:
        logs = noisy_argmax_probabilities(votes, self.sigma, log=True)
        words = [Column("class", named), Column("votes", tuple(str(vote) for vote in votes))]
        words.append(_column("probability", np.exp(logs)))
        costs = [
            Column("order", self.orders),
            Column("order / sigma^2", tuple(order / self.sigma**2 for order in self.orders), "up"),
            _column("data-dependent", gnmax_rdp_data_dependent(votes, self.sigma, self.orders), "up"),
        ]
        notes = [
            "order / sigma^2 holds for both directions when one vote moves; data-dependent bounds "
            "D(histogram || neighbour) only, and leaks when published"
        ]
        if other is not None:
            other_logs = noisy_argmax_probabilities(other, self.sigma, log=True)
            words += [Column("neighbour's", tuple(str(vote) for vote in other))]
            words += [_column("neighbour's probability", np.exp(other_logs))]
            costs += [
                _column("D(v1 || v2)", renyi_divergence_of_logs(logs, other_logs, self.orders)),
                _column("D(v2 || v1)", renyi_divergence_of_logs(other_logs, logs, self.orders)),
            ]
            notes += self._moved(named, votes, other, np.exp(logs), np.exp(other_logs))
        return [
            TextTable(f"{query}: noisy argmax, sigma {self.sigma:g} (exact)", tuple(words)),
            TextTable(f"{query}: Renyi divergence in nats (exact; guarantees from above)", tuple(costs), tuple(notes)),
        ]

    def _moved(
        self, named: tuple[str, ...], votes: Ints, other: Ints, p: NDArray[np.float64], q: NDArray[np.float64]
    ) -> list[str]:
        notes = []
        if int(np.abs(votes - other).sum()) > 2:
            notes.append("v1 and v2 differ by more than one moved vote: the guarantees do not cover them")
        if (votes != other).any():
            best = two_cut_set(p / p.sum(), q / q.sum(), self.orders[0])
            inside = ", ".join(name for name, chosen in zip(named, best, strict=True) if chosen)
            notes.append(f"the set of answers with the largest two-cut at order {self.orders[0]:g}: {inside}")
        return notes

    def _cost(self, queries: int) -> list[TextTable]:
        if not self.delta:
            return []
        guarantee = queries * np.asarray(self.orders) / self.sigma**2
        return [_converted(self.orders, guarantee, self.delta, "improved", f"answers: {queries}; data-independent")]


@register("estimator", "rdp-to-epsilon", source="Balle et al. (2020), Theorem 21; Mironov (2017), Proposition 3")
@dataclass(frozen=True)
class RdpToEpsilon(CountEstimator):
    """A guarantee rdp at each order, one a row: the epsilon that it implies; a conversion of upper bounds, no audit.

    Attributes:
        delta: Where epsilon is stated, in (0, 1).
        conversion: "improved" or "classical".
    """

    columns: ClassVar[tuple[str, ...]] = GUARANTEE

    delta: float = 1e-5
    conversion: Conversion = "improved"

    def __post_init__(self) -> None:
        require(0 < self.delta < 1, "delta must be in (0, 1)", delta=self.delta)
        known = get_args(Conversion)
        require(self.conversion in known, f"conversion must be one of {', '.join(known)}", conversion=self.conversion)

    def read(self, table: Table) -> Sequence[TextTable]:
        """One finding for the whole table."""
        rows = number_columns(table, GUARANTEE)
        return [_converted(rows["order"], rows["rdp"], self.delta, self.conversion, "the guarantee of the table")]


def _converted(orders: Any, rdp: Any, delta: float, conversion: Conversion, what: str) -> TextTable:
    epsilon = float(rdp_to_epsilon(orders, rdp, delta=delta, conversion=conversion))
    title = f"epsilon <= {format_upper(epsilon, 6)} at delta={delta:g} ({what}, {conversion} conversion)"
    return TextTable(title, notes=("a conversion of upper bounds, no result of an audit",))


def _hits(inside_and_outside: Ints) -> tuple[int, int]:
    """Answers in the set, and all answers."""
    return int(inside_and_outside[0]), int(inside_and_outside.sum())


def _worst(
    method: str, tallies: Sequence[AnswerCounts], bounds: Sequence[RenyiBound], confidence: float, lost: int
) -> RenyiBound:
    """The finding of several queries that share the error with those that failed.

    The largest bound speaks against a claim about one query and against one about all of them; the sum only against the
    latter.
    """
    counts = {
        "queries": len(tallies) + lost,
        "answers in world 1": sum(int(tally.world_1.sum()) for tally in tallies),
        "answers in world 0": sum(int(tally.world_0.sum()) for tally in tallies),
    }
    if lost:
        counts["lost queries"] = lost
    return dataclasses.replace(
        worst_query(bounds) if len(bounds) > 1 else bounds[0],
        confidence=confidence,
        method=method,
        counts=tuple(counts.items()),
        notes=(NO_EPSILON,),
    )


def _queries(
    method: str, bounds: Sequence[RenyiBound], table: Table, confidence: float, *, limits: int
) -> list[TextTable]:
    """The queries' bounds one by one; of several also the largest and the sum; what holds is said once, at the end."""
    found = [
        _finding(f"{method}, {query}", bound) for query, bound in zip(_labels(table, len(bounds)), bounds, strict=True)
    ]
    if len(bounds) > 1:
        found.append(_finding(f"{method}, worst query", worst_query(bounds)))
        found.append(_finding(f"{method}, all {len(bounds)} queries answered", compose_bounds(bounds)))
    last = found.pop()
    validity = bounds[0].validity
    if validity is Validity.FINITE_SAMPLE:
        shared = f"the error {1 - confidence:.3g} is shared by {limits} limits, for both directions and every order"
    else:
        shared = f"the error {1 - confidence:.3g} is shared by both directions; its validity is {validity}"
    shared += f", of each of {len(bounds)} queries" if len(bounds) > 1 else ""
    return [*found, TextTable(last.title, last.columns, (shared, NO_EPSILON))]


def _finding(title: str, bound: RenyiBound) -> TextTable:
    return TextTable(
        f"{title}: RDP lower bounds in nats ({bound.confidence:.6g} confidence, {bound.validity}; {bound.method})",
        (
            Column("order", bound.orders),
            Column("D(1 || 2) >=", bound.forward, "down"),
            Column("D(2 || 1) >=", bound.backward, "down"),
            Column("RDP >=", bound.lower, "down"),
        ),
    )


def _labels(table: Table, rows: int) -> list[str]:
    return [f"query {name}" for name in (table["query"] if "query" in table else range(1, rows + 1))]


def _column(name: str, values: Any, rounding: Literal["down", "up", "nearest"] = "nearest") -> Column:
    return Column(name, tuple(float(value) for value in np.atleast_1d(values)), rounding)


def _check(orders: Sequence[float], confidence: float) -> None:
    require(len(orders) > 0 and all(order > 1 for order in orders), "orders must be numbers > 1", orders=orders)
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
