"""Curves in tables, and those composed numerically: of the Poisson-subsampled Gaussian (DP-SGD), of Laplace noise.

Losses are put on a grid: the mass of each cell is split over its two ends so that its weight under both distributions
is kept. Likelihood ratios spread with their mean kept are easier to tell apart, so the discrete pair dominates the true
one ("connecting the dots", Doroshenko et al., 2022, arXiv:2207.04380); what lies past the grid counts as told apart for
certain, or moves up. The k-fold convolution is one power of a Fourier transform; what could wrap around, by Chernoff's
bound, and rounding, are added to delta. So delta and epsilon err upwards only and the trade-off function downwards
only, and evidence above the curve is above the true curve too.

A curve known by its delta at some epsilons is a table: between them delta is convex in e^epsilon, so a chord lies above
it. Such are profiles, and what Google's dp_accounting says of an event (extra `accounting`).
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp, ndtr, ndtri

from dpaudit.claims.curve import (
    ApproximateDP,
    GaussianDP,
    PrivacyCurve,
    PureDP,
    checked_alarm,
    checked_delta,
    checked_epsilon,
    checked_order,
    two_steps,
)
from dpaudit.claims.renyi import RenyiDP
from dpaudit.errors import InputError, require
from dpaudit.registry import register

_CELLS_A_DEVIATION = 100  # of the grid on a standard deviation of a step's loss: its variance grows by <= 1 in 40,000
_CELLS_A_NAT = 32  # cells of the grid between a loss of 0 and of e, for each nat of e begun; for Laplace noise
_CUT_MASS = 1e-17  # that may be cut off a step at each end, and that may wrap around at each end of all steps
_LARGEST_GRID = 2**21
_DeltaAt = Callable[[NDArray[np.float64]], ArrayLike]


def two_answers(curve: PrivacyCurve) -> PrivacyCurve:
    """What two answers about the same records promise, each with noise of its own, where one promises `curve`.

    mu grows by the root of 2 (Dong, Roth and Su, 2022, corollary 3.3); a point's epsilon and delta double, and Renyi
    divergences. Of other curves, what two steps promise, never less: the answers change worlds one after the other.
    """
    match curve:
        case GaussianDP():
            return GaussianDP(math.sqrt(2) * curve.mu)
        case ApproximateDP():
            return ApproximateDP(2 * curve.bound, min(2 * curve.missed, 1 - 1e-12))
        case RenyiDP():
            return RenyiDP(curve.orders, tuple(2 * value for value in curve.values))
        case _:
            return two_steps(curve)


@dataclass(frozen=True, eq=False)
class DeltaTable:
    """Delta at rising epsilons from 0 on; past the last one it stays what it is there."""

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]  # in [0, 1], never rising

    @classmethod
    def of(cls, delta_at: _DeltaAt, last: float) -> DeltaTable:
        """The table of a curve at 20,001 epsilons from 0 to `last`."""
        epsilons = np.linspace(0, last, 20_001)
        deltas = np.clip(np.asarray(delta_at(epsilons), dtype=np.float64), 0, 1)
        return cls(epsilons, np.maximum.accumulate(deltas[::-1])[::-1])

    def delta(self, epsilon: float) -> float:
        """On the chord between the two epsilons around."""
        checked_epsilon(epsilon)
        right = int(np.searchsorted(self.epsilons, epsilon))
        if right == len(self.epsilons):
            return float(self.deltas[-1])
        if self.epsilons[right] == epsilon:
            return float(self.deltas[right])
        left, end = self.epsilons[right - 1], self.epsilons[right]
        # (e^epsilon - e^left) / (e^end - e^left), without a power of e that is no number
        share = math.exp(epsilon - end) * math.expm1(left - epsilon) / math.expm1(left - end)
        return float(self.deltas[right - 1] + share * (self.deltas[right] - self.deltas[right - 1]))

    def epsilon(self, delta: float) -> float:
        """Where the chords come down to `delta`; inf below the last one."""
        checked_delta(delta)
        right = int(np.searchsorted(-self.deltas, -delta))
        if right == len(self.deltas):
            return math.inf
        if right == 0 or self.deltas[right] == delta:
            return float(self.epsilons[right])
        left, end = self.epsilons[right - 1], self.epsilons[right]
        share = (self.deltas[right - 1] - delta) / (self.deltas[right - 1] - self.deltas[right])
        width = end - left
        rise = math.log1p(share * math.expm1(width)) if width < 700 else width + math.log(share)
        return float(min(end, left + max(0.0, rise)))

    def miss_rate(self, alarm: float) -> float:
        """The largest over the table of what each (epsilon, delta) implies: the corners of the chords decide."""
        checked_alarm(alarm)
        if alarm == 0:
            return float(1 - self.deltas[-1])
        grown = np.exp(np.minimum(self.epsilons, 700))
        lines = np.maximum(1 - self.deltas - grown * alarm, (1 - self.deltas - alarm) / grown)
        return max(0.0, float(lines.max()))


class TableCurve(ABC):
    """The faces of a curve that are read off a table of its delta."""

    @property
    @abstractmethod
    def table(self) -> DeltaTable:
        """Delta at some epsilons; where it is computed, not below the true one."""

    def epsilon(self, delta: float, /) -> float:
        return self.table.epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        return self.table.delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        return self.table.miss_rate(alarm)


@register("curve", "profile", source="Balle, Barthe and Gaboardi (2018), arXiv:1807.01647")
@dataclass(frozen=True)
class PrivacyProfile(TableCurve):
    """A curve given by points: (epsilon, delta)-DP at each of several epsilons.

    Attributes:
        epsilons: Rising, the first is 0 (its delta bounds total variation; 1 says nothing).
        deltas: In [0, 1], never rising, as many.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilons", tuple(map(float, self.epsilons)))
        object.__setattr__(self, "deltas", tuple(map(float, self.deltas)))
        epsilons, deltas = len(self.epsilons), len(self.deltas)
        as_many = epsilons == deltas >= 1
        require(as_many, "deltas must hold one value for each epsilon", epsilons=epsilons, deltas=deltas)
        rising = all(low < high for low, high in pairwise(self.epsilons))
        finite = self.epsilons[0] == 0 and self.epsilons[-1] < math.inf
        require(rising and finite, "epsilons must rise from 0 and be finite", epsilons=self.epsilons)
        falling = all(high >= low for high, low in pairwise(self.deltas))
        within = self.deltas[0] <= 1 and self.deltas[-1] >= 0
        require(falling and within, "deltas must be in [0, 1] and never rise", deltas=self.deltas)

    @classmethod
    def of_pld(cls, pld: object) -> PrivacyProfile:
        """The curve of a privacy loss distribution of dp_accounting, which must be a pessimistic one (its default)."""
        delta_at, epsilon_at = pld.get_delta_for_epsilon, pld.get_epsilon_for_delta  # type: ignore[attr-defined]
        table = _pld_table(delta_at, epsilon_at)
        return cls(tuple(table.epsilons.tolist()), tuple(table.deltas.tolist()))

    def __str__(self) -> str:
        return f"a profile of {len(self.epsilons)} points"

    def renyi(self, order: float, /) -> float:
        """inf unless the last delta is 0: then no loss exceeds the last epsilon, and pure DP bounds it."""
        checked_order(order)
        if self.deltas[-1] > 0:
            return math.inf
        return PureDP(self.epsilons[-1]).renyi(order) if self.epsilons[-1] > 0 else 0.0

    @cached_property
    def table(self) -> DeltaTable:
        """The points."""
        return DeltaTable(np.array(self.epsilons), np.array(self.deltas))


@register("curve", "event", source="the package dp-accounting")
@dataclass(frozen=True)
class AccountedEvent(TableCurve):
    """What dp_accounting says of an event, records added or removed; its estimates are pessimistic.

    Attributes:
        event: A `DpEvent`, kept as words: `{name: PoissonSampledDpEvent, sampling_probability: 0.01, event: {name:
            GaussianDpEvent, noise_multiplier: 1.0}}`.
    """

    only_add_remove: ClassVar[bool] = True
    event: Any

    def __post_init__(self) -> None:
        event = _event(self.event)
        object.__setattr__(self, "event", _words(event))
        supported = _package().pld.PLDAccountant().supports(event)
        require(supported, "event must be one that the PLDAccountant of dp_accounting supports", event=event)

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return f"dp_accounting's {_event(self.event)}"

    def renyi(self, order: float, /) -> float:
        """By its RdpAccountant (0.4.4 to 0.6.0: too high at fractional orders); inf for events it does not support."""
        checked_order(order)
        event, accountant = _event(self.event), _package().rdp.RdpAccountant([order])
        return float(accountant.compose(event).rdp[0]) if accountant.supports(event) else float("inf")

    @property
    def table(self) -> DeltaTable:
        """Of the privacy loss distribution."""
        return _table_of_event(self._text)

    @property
    def _text(self) -> str:
        return json.dumps(self.event, sort_keys=True)


def _pld_table(delta_at: _DeltaAt, epsilon_at: Callable[[float], float]) -> DeltaTable:
    """The table of a privacy loss distribution, up to where its delta is 1e-12 or what it always misses."""
    last = next((found for floor in (1e-12, 1e-9, 1e-6, 1e-3) if math.isfinite(found := epsilon_at(floor))), 50.0)
    return DeltaTable.of(delta_at, max(float(last), 1e-6))


@lru_cache(maxsize=64)
def _table_of_event(text: str) -> DeltaTable:
    accountant = _package().pld.PLDAccountant().compose(_event(json.loads(text)))
    # Its own face takes no arrays; a privacy loss distribution does.
    return _pld_table(accountant._pld.get_delta_for_epsilon, accountant.get_epsilon)


def _event(words: Any) -> Any:
    """The event that words describe; an event stands for itself."""
    package = _package()
    if isinstance(words, package.DpEvent):
        return words
    kind = getattr(package, str(words.get("name")), None) if isinstance(words, Mapping) else None
    if not (isinstance(kind, type) and issubclass(kind, package.DpEvent)):
        raise InputError(
            "event must be a DpEvent of dp_accounting, or a mapping with its class as `name` and its fields, got "
            f"{words!r}"
        )
    fields = {name: _part(value) for name, value in words.items() if name != "name"}
    try:
        return kind(**fields)
    except TypeError as err:
        raise InputError(f"event: {kind.__name__} cannot be made from {sorted(fields)}: {err}") from err


def _part(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _event(value)
    return [_part(item) for item in value] if isinstance(value, list | tuple) else value


def _words(event: Any) -> Any:
    if isinstance(event, _package().DpEvent):
        fields = {field.name: _words(getattr(event, field.name)) for field in type(event).__attrs_attrs__}
        return {"name": type(event).__name__, **fields}
    return [_words(item) for item in event] if isinstance(event, list | tuple) else event


def _package() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise InputError(
            'a curve of kind "event" needs the package dp-accounting: pip install "dpaudit[accounting]"; '
            '"subsampled-gaussian", "gaussian" and "renyi" need nothing'
        ) from None
    return dp_accounting


@register("curve", "subsampled-gaussian", source="Doroshenko et al. (2022), arXiv:2207.04380; Mironov et al. (2019)")
@dataclass(frozen=True)
class SubsampledGaussian(TableCurve):
    """Steps of DP-SGD with Poisson sampling, records added or removed.

    One step includes every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C.
    Adding or removing a record, it is no easier to tell apart than P = (1 - q) N(0, m^2) + q N(1, m^2) and
    Q = N(0, m^2) in one direction or the other, and k steps no easier than k-fold products (Zhu, Dong and Wang, 2022):
    delta is the larger of both directions'. Numbers end at a delta of about 1e-14 x steps, below which epsilon is inf.

    Attributes:
        noise_multiplier: Standard deviation of the noise over the sensitivity, > 0.
        sample_rate: Probability with which a step takes a record, in (0, 1].
        steps: Number of steps, >= 1.
    """

    only_add_remove: ClassVar[bool] = True
    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        finite = 0 < self.noise_multiplier < math.inf
        require(finite, "noise_multiplier must be > 0 and finite", given=self.noise_multiplier)
        require(0 < self.sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=self.sample_rate)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    def __str__(self) -> str:
        sampled = "" if self.sample_rate == 1 else f"sampled at {self.sample_rate:g}, "
        return f"Gaussian of multiplier {self.noise_multiplier:g}, {sampled}{self.steps:,} steps"

    @property
    def table(self) -> DeltaTable:
        """Of the larger delta of both directions."""
        return _table_of_steps(self)

    def renyi(self, order: float, /) -> float:
        """Steps x the divergence of one (P from Q, which is the larger direction).

        Whole orders by the binomial sum, others by quadrature (Mironov, Talwar and Zhang, 2019, arXiv:1908.10530,
        section 3.3).
        """
        checked_order(order)
        if self.sample_rate == 1:
            return self.steps * (order / (2 * self.noise_multiplier**2))
        moment = _whole if float(order).is_integer() else _fractional
        return self.steps * max(0.0, moment(order, self.sample_rate, self.noise_multiplier) / (order - 1))


@register("curve", "composed-laplace", source="Dwork et al. (2006); Doroshenko et al. (2022), arXiv:2207.04380")
@dataclass(frozen=True)
class ComposedLaplace(TableCurve):
    """Numbers released with Laplace noise, each moved by at most 1 / `scale` of it.

    One number that moves by at most s, with noise of scale b, is no easier to tell apart than Laplace at 0 and at s,
    and k of them no easier than k-fold products, also where a number depends on those released before.

    Attributes:
        scale: Laplace scale of the noise over the most that one number may move, > 0.
        releases: How many numbers, >= 1.
    """

    scale: float
    releases: int

    def __post_init__(self) -> None:
        require(0 < self.scale < math.inf, "scale must be > 0 and finite", scale=self.scale)
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)

    def __str__(self) -> str:
        return f"Laplace noise of scale {self.scale:g} on {self.releases:,} numbers"

    @property
    def bound(self) -> float:
        """The loss that is never exceeded, in nats."""
        return self.releases / self.scale

    @property
    def table(self) -> DeltaTable:
        """Of the products."""
        return _table_of_numbers(self)

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon at `delta`, rounded up; at most `bound`."""
        checked_delta(delta)
        return min(self.bound, super().epsilon(delta))

    def delta(self, epsilon: float, /) -> float:
        """The hockey-stick divergence, rounded up; 0 from `bound` on."""
        checked_epsilon(epsilon)
        return 0.0 if epsilon >= self.bound else super().delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """The envelope of delta(epsilon), and of pure DP at `bound`."""
        return max(super().miss_rate(alarm), PureDP(self.bound).miss_rate(alarm))

    def renyi(self, order: float, /) -> float:
        """Releases x the divergence of one (Mironov, 2017, arXiv:1702.07476, proposition 6)."""
        checked_order(order)
        e = 1 / self.scale
        nearer = math.log(order / (2 * order - 1)) + (order - 1) * e
        farther = math.log((order - 1) / (2 * order - 1)) - order * e
        return max(0.0, self.releases * float(np.logaddexp(nearer, farther)) / (order - 1))


@dataclass(frozen=True, eq=False)
class _Losses:
    """A distribution of losses on the whole multiples of a width in nats."""

    first: int  # the lowest multiple
    mass: NDArray[np.float64]  # at each from there on
    certain: float  # probability of an infinite loss
    width: float


def _composed(one: _Losses, steps: int) -> _Losses | None:
    """The sum of independent losses; None where it would not fit the largest grid."""
    multiples = one.first + np.arange(len(one.mass))
    start, stop = _window(one, multiples, steps)
    size = 1 << max(len(one.mass), stop - start + 1).bit_length()
    if size > 2 * _LARGEST_GRID:
        return None
    circle = np.zeros(size)
    circle[multiples % size] = one.mass
    summed = np.fft.irfft(np.fft.rfft(circle) ** steps, size)
    mass = np.maximum(np.roll(summed, -(start % size)), 0)
    # One rounding a step, and what may have left the window at its upper end.
    rounding = 2.3e-16 * (100 + 10 * steps)
    certain = -math.expm1(steps * math.log1p(-one.certain)) + _CUT_MASS + rounding
    return _Losses(start, mass, certain, one.width)


def _window(one: _Losses, multiples: NDArray[np.int64], steps: int) -> tuple[int, int]:
    """Multiples between which the sum lies but for `_CUT_MASS` at each end, by Chernoff's bound."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(one.mass)
    losses = multiples * one.width
    ends = []
    for sign in (-1, 1):
        bounds = [
            (steps * float(logsumexp(log_mass + sign * tilt * losses)) - math.log(_CUT_MASS)) / tilt
            for tilt in np.geomspace(1e-2, 1e4, 61).tolist()
        ]
        ends.append(math.ceil(min(bounds) / one.width) + 1)
    return max(-ends[0], steps * int(multiples[0])), min(ends[1], steps * int(multiples[-1]))


def _larger_of(directions: Sequence[_Losses]) -> DeltaTable:
    """Delta at the multiples of the directions' common width from 0 on, the larger of the directions'."""
    width = directions[0].width
    count = max(1, *(direction.first + len(direction.mass) for direction in directions)) + 1
    deltas = np.zeros(count)
    for direction in directions:
        mass = np.zeros(count)
        from_zero = max(0, direction.first)
        kept = direction.mass[from_zero - direction.first :]
        mass[from_zero : from_zero + len(kept)] = kept
        deltas = np.maximum(deltas, _deltas(mass, width) + direction.certain)
    deltas = np.minimum(deltas, 1)
    short = int(np.searchsorted(-deltas, -deltas[-1])) + 1  # the rest repeats the last
    falling = np.maximum.accumulate(deltas[:short][::-1])[::-1]
    return DeltaTable(width * np.arange(short, dtype=np.float64), np.asarray(falling, dtype=np.float64))


def _deltas(mass: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """sum over losses l > epsilon of mass (1 - e^(epsilon - l)), at each multiple of the width from 0 on."""
    from scipy.signal import lfilter  # takes a second to import, and few claims are composed

    # delta_i = delta_(i+1) e^-width + (1 - e^-width) x the mass above i: positive terms only, nothing cancels.
    above = np.concatenate([np.cumsum(mass[::-1])[::-1][1:], [0.0]])
    shrink = math.exp(-width)
    return np.asarray(lfilter([1 - shrink], [1, -shrink], above[::-1])[::-1])


@lru_cache(maxsize=64)
def _table_of_steps(curve: SubsampledGaussian) -> DeltaTable:
    if curve.sample_rate == 1:
        gaussian = GaussianDP(math.sqrt(curve.steps) / curve.noise_multiplier)
        return DeltaTable.of(
            lambda epsilons: np.array([gaussian.delta(float(epsilon)) for epsilon in epsilons]), gaussian.epsilon(1e-15)
        )
    width = _deviation(curve) / _CELLS_A_DEVIATION
    while True:
        step = _one_step(curve, width)
        sums = [_composed(direction, curve.steps) for direction in step] if step else []
        if sums and all(sums):
            return _larger_of([direction for direction in sums if direction])
        width *= 2


def _deviation(curve: SubsampledGaussian) -> float:
    """Standard deviation of one step's loss under Q, by the trapezoid rule."""
    z = np.linspace(-9, 9, 4001)
    weight = np.exp(-(z**2) / 2)
    loss = _loss(z * curve.noise_multiplier, curve.sample_rate, curve.noise_multiplier)
    mean = np.average(loss, weights=weight)
    return math.sqrt(float(np.average((loss - mean) ** 2, weights=weight)))


def _loss(x: NDArray[np.float64], q: float, m: float) -> NDArray[np.float64]:
    return np.asarray(np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * m * m)))


def _one_step(curve: SubsampledGaussian, width: float) -> tuple[_Losses, _Losses] | None:
    """Losses of one step, removing and adding a record; None where the grid would be too fine."""
    q, m = curve.sample_rate, curve.noise_multiplier
    end = 1 - m * float(ndtri(_CUT_MASS))
    first = math.floor(math.log1p(-q) / width)
    last = math.ceil(float(_loss(np.array([end]), q, m)[0]) / width)
    if last - first >= _LARGEST_GRID:
        return None
    at = width * np.arange(first, last + 1)
    # Where each loss is reached; none is below log(1 - q).
    reached = np.full(len(at), -math.inf)
    some = at > math.log1p(-q)
    reached[some] = m * m * (np.log(np.expm1(at[some]) + q) - math.log(q)) + 0.5
    low = _cell_mass(reached / m)  # Q
    high = (1 - q) * low + q * _cell_mass((reached - 1) / m)  # P
    # a at the lower end and b at the upper one: a + b = low, a e^l + b e^(l + width) = high.
    raised = np.clip((high * np.exp(-at[:-1]) - low) / math.expm1(width), 0, low)
    mass = np.zeros(len(at))
    mass[:-1] += low - raised
    mass[1:] += raised
    beyond = float(ndtr(-reached[-1] / m))
    removing = _Losses(first, mass * np.exp(at), (1 - q) * beyond + q * float(ndtr((1 - reached[-1]) / m)), width)
    mass[-1] += beyond  # a loss below -last when adding: moved up to it
    return removing, _Losses(-last, mass[::-1].copy(), 0.0, width)


def _cell_mass(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal mass between neighbours, from the nearer tail."""
    below, above = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.asarray(np.where(z[:-1] < 0, below, above))


@lru_cache(maxsize=64)
def _table_of_numbers(curve: ComposedLaplace) -> DeltaTable:
    cells = _CELLS_A_NAT * math.ceil(1 / curve.scale)
    while cells:
        total = _composed(_one_release(1 / curve.scale, cells), curve.releases)
        if total is not None:
            return _larger_of([total])
        cells //= 2
    require(False, "releases must be fewer: their losses do not fit the largest grid", releases=curve.releases)
    raise AssertionError


def _one_release(e: float, cells: int) -> _Losses:
    """The loss of one number that moves by e scales: e or -e, or spread between.

    Under the geometric mean of both distributions each end has the mass e^(-e/2) / 2, and between them the density is
    e^(-e/2) / 4 everywhere; by symmetry each end of a cell gets e^(-e/2) tanh(width / 4) / 2.
    """
    width = e / cells
    at = width * np.arange(-cells, cells + 1)
    mean = np.full(len(at), math.tanh(width / 4))  # under the geometric mean, but for its factor e^(-e/2)
    mean[[0, -1]] = (1 + math.tanh(width / 4)) / 2
    return _Losses(-cells, mean * np.exp((at - e) / 2), 0.0, width)


def _whole(a: float, q: float, m: float) -> float:
    """log sum_i C(a, i) q^i (1-q)^(a-i) exp(i (i-1) / (2 m^2))."""
    i = np.arange(a + 1)
    log_binomial = gammaln(a + 1) - gammaln(i + 1.0) - gammaln(a - i + 1)
    return float(logsumexp(log_binomial + i * math.log(q) + (a - i) * math.log1p(-q) + i * (i - 1) / (2 * m * m)))


def _fractional(a: float, q: float, m: float) -> float:
    """log E[((1-q) + q exp((2z - 1) / (2 m^2)))^a] for z ~ N(0, m^2), by the trapezoid rule.

    The integrand is analytic up to |Im z| = pi m^2 and falls like a Gaussian, so steps of h err by about
    exp(-2 pi^2 m^2 / h): below 1e-30 here. Its mass lies between the humps at 0 and a.
    """
    h = min(m / 8, m * m / 4)
    z = np.arange(-12 * m, a + 12 * m, h)
    log_ratio = _loss(z, q, m)
    log_density = -0.5 * (z / m) ** 2 - math.log(m * math.sqrt(2 * math.pi))
    return float(logsumexp(log_density + a * log_ratio) + math.log(h))
