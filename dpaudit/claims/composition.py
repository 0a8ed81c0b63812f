"""Tabulated privacy curves, and numerical composition of the subsampled Gaussian (DP-SGD) and of Laplace noise.

The privacy loss is discretised on a grid: the mass of each cell is split over its two ends so that its weight under
both distributions is preserved. The discrete pair dominates the true one ("connecting the dots", Doroshenko et al.,
2022, arXiv:2207.04380). Losses beyond the grid count as infinite or move up to its end. The k-fold convolution is the
k-th power of a Fourier transform. Rounding errors and Chernoff's bound on the mass that wraps around are added to
delta. So delta and epsilon err only upwards and the trade-off function only downwards. Evidence above the computed
curve is therefore above the true curve too.

Between tabulated epsilons, delta is convex in e^epsilon, so a chord lies above it. `PrivacyProfile` is such a table;
`AccountedEvent` takes one from Google's dp_accounting (extra `accounting`).
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
    RenyiDP,
    require_alarm,
    require_delta,
    require_epsilon,
    require_order,
    two_steps,
)
from dpaudit.errors import InputError, require
from dpaudit.registry import register

_CELLS_A_DEVIATION = 100  # grid cells a standard deviation of a step's loss: its variance grows by <= 1 in 40,000
_CELLS_A_NAT = 32  # grid cells a nat of the loss of one Laplace release, rounded up to whole nats
_CUT_MASS = 1e-17  # mass cut off at each end of a step, and bound on the mass wrapped around at each end of the sum
_LARGEST_GRID = 2**21
_DeltaAt = Callable[[NDArray[np.float64]], ArrayLike]


def two_answers(curve: PrivacyCurve) -> PrivacyCurve:
    """Return the curve of two answers with independent noise about the same records, if `curve` is that of one answer.

    mu grows by sqrt(2) (Dong, Roth and Su, 2022, corollary 3.3). Epsilon and delta of a point double, and so do Renyi
    divergences. For other curves, `two_steps` is an upper bound: the answers change worlds one after the other.
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
    """Table of delta at increasing epsilons from 0; delta is constant beyond the last epsilon."""

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]  # in [0, 1], non-increasing

    @classmethod
    def of(cls, delta_at: _DeltaAt, last: float) -> DeltaTable:
        """Return the table of a curve at 20,001 epsilons from 0 to `last`."""
        epsilons = np.linspace(0, last, 20_001)
        deltas = np.clip(np.asarray(delta_at(epsilons), dtype=np.float64), 0, 1)
        return cls(epsilons, np.maximum.accumulate(deltas[::-1])[::-1])

    def delta(self, epsilon: float) -> float:
        """Return delta on the chord between the two tabulated epsilons around `epsilon`."""
        require_epsilon(epsilon)
        right = int(np.searchsorted(self.epsilons, epsilon))
        if right == len(self.epsilons):
            return float(self.deltas[-1])
        if self.epsilons[right] == epsilon:
            return float(self.deltas[right])
        lower, upper = self.epsilons[right - 1], self.epsilons[right]
        # (e^epsilon - e^lower) / (e^upper - e^lower), without overflow
        share = math.exp(epsilon - upper) * math.expm1(lower - epsilon) / math.expm1(lower - upper)
        return float(self.deltas[right - 1] + share * (self.deltas[right] - self.deltas[right - 1]))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at which the chords reach `delta`; inf below the last delta."""
        require_delta(delta)
        right = int(np.searchsorted(-self.deltas, -delta))
        if right == len(self.deltas):
            return math.inf
        if right == 0 or self.deltas[right] == delta:
            return float(self.epsilons[right])
        lower, upper = self.epsilons[right - 1], self.epsilons[right]
        share = (self.deltas[right - 1] - delta) / (self.deltas[right - 1] - self.deltas[right])
        width = upper - lower
        rise = math.log1p(share * math.expm1(width)) if width < 700 else width + math.log(share)
        return float(min(upper, lower + max(0.0, rise)))

    def miss_rate(self, alarm: float) -> float:
        """Return the largest miss rate that a tabulated (epsilon, delta) implies; points on chords imply no more."""
        require_alarm(alarm)
        if alarm == 0:
            return float(1 - self.deltas[-1])
        powers = np.exp(np.minimum(self.epsilons, 700))
        lines = np.maximum(1 - self.deltas - powers * alarm, (1 - self.deltas - alarm) / powers)
        return max(0.0, float(lines.max()))


class TableCurve(ABC):
    """Base of curves that interpolate a table of delta."""

    @property
    @abstractmethod
    def table(self) -> DeltaTable:
        """Table of delta, never below the true delta."""

    def epsilon(self, delta: float, /) -> float:
        return self.table.epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        return self.table.delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        return self.table.miss_rate(alarm)


@register("curve", "profile", source="Balle, Barthe and Gaboardi (2018), arXiv:1807.01647")
@dataclass(frozen=True)
class PrivacyProfile(TableCurve):
    """A curve defined by points: (epsilon, delta)-DP at each of several epsilons.

    Attributes:
        epsilons: Increasing from 0, at which delta bounds total variation (1 bounds nothing).
        deltas: One delta in [0, 1] for each epsilon, non-increasing.
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
        """Return the curve of a privacy loss distribution of dp_accounting; `pld` must be pessimistic (its default)."""
        delta_at, epsilon_at = pld.get_delta_for_epsilon, pld.get_epsilon_for_delta  # type: ignore[attr-defined]
        table = _pld_table(delta_at, epsilon_at)
        return cls(tuple(table.epsilons.tolist()), tuple(table.deltas.tolist()))

    def __str__(self) -> str:
        return f"a profile of {len(self.epsilons)} points"

    def renyi(self, order: float, /) -> float:
        """Return inf unless the last delta is 0; then the last epsilon bounds the loss, as in pure DP."""
        require_order(order)
        if self.deltas[-1] > 0:
            return math.inf
        return PureDP(self.epsilons[-1]).renyi(order) if self.epsilons[-1] > 0 else 0.0

    @cached_property
    def table(self) -> DeltaTable:
        return DeltaTable(np.array(self.epsilons), np.array(self.deltas))


@register("curve", "event", source="the package dp-accounting")
@dataclass(frozen=True)
class AccountedEvent(TableCurve):
    """Pessimistic curve computed by dp_accounting for an event, under the add/remove relation.

    Attributes:
        event: A `DpEvent`, or its description, which is stored: `{name: PoissonSampledDpEvent, sampling_probability:
            0.01, event: {name: GaussianDpEvent, noise_multiplier: 1.0}}`.
    """

    only_add_remove: ClassVar[bool] = True
    event: Any

    def __post_init__(self) -> None:
        event = _build_event(self.event)
        object.__setattr__(self, "event", _describe_event(event))
        supported = _dp_accounting().pld.PLDAccountant().supports(event)
        require(supported, "event must be one that the PLDAccountant of dp_accounting supports", event=event)

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return f"dp_accounting's {_build_event(self.event)}"

    def renyi(self, order: float, /) -> float:
        """Return the divergence by RdpAccountant; inf for events it does not support.

        Versions 0.4.4 to 0.6.0 give too high a divergence at fractional orders.
        """
        require_order(order)
        event, accountant = _build_event(self.event), _dp_accounting().rdp.RdpAccountant([order])
        return float(accountant.compose(event).rdp[0]) if accountant.supports(event) else float("inf")

    @property
    def table(self) -> DeltaTable:
        return _table_of_event(self._text)

    @property
    def _text(self) -> str:
        return json.dumps(self.event, sort_keys=True)


def _pld_table(delta_at: _DeltaAt, epsilon_at: Callable[[float], float]) -> DeltaTable:
    """Return the table up to the epsilon at which delta is 1e-12, or up to 1e-3 if smaller deltas are not reached."""
    last = next((epsilon for floor in (1e-12, 1e-9, 1e-6, 1e-3) if math.isfinite(epsilon := epsilon_at(floor))), 50.0)
    return DeltaTable.of(delta_at, max(float(last), 1e-6))


@lru_cache(maxsize=64)
def _table_of_event(text: str) -> DeltaTable:
    accountant = _dp_accounting().pld.PLDAccountant().compose(_build_event(json.loads(text)))
    # The accountant's method takes no arrays, but that of its private distribution does.
    return _pld_table(accountant._pld.get_delta_for_epsilon, accountant.get_epsilon)


def _build_event(description: Any) -> Any:
    """Return the event of a description; an event is returned unchanged."""
    package = _dp_accounting()
    if isinstance(description, package.DpEvent):
        return description
    kind = getattr(package, str(description.get("name")), None) if isinstance(description, Mapping) else None
    if not (isinstance(kind, type) and issubclass(kind, package.DpEvent)):
        raise InputError(
            "event must be a DpEvent of dp_accounting, or a mapping with its class as `name` and its fields, got "
            f"{description!r}"
        )
    fields = {name: _build_value(value) for name, value in description.items() if name != "name"}
    try:
        return kind(**fields)
    except TypeError as err:
        raise InputError(f"event: {kind.__name__} cannot be made from {sorted(fields)}: {err}") from err


def _build_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _build_event(value)
    return [_build_value(item) for item in value] if isinstance(value, list | tuple) else value


def _describe_event(event: Any) -> Any:
    if isinstance(event, _dp_accounting().DpEvent):
        fields = {field.name: _describe_event(getattr(event, field.name)) for field in type(event).__attrs_attrs__}
        return {"name": type(event).__name__, **fields}
    return [_describe_event(item) for item in event] if isinstance(event, list | tuple) else event


def _dp_accounting() -> Any:
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
    """DP-SGD with Poisson sampling, under the add/remove relation.

    One step includes every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C.
    Its outputs on neighbours are dominated by P = (1 - q) N(0, m^2) + q N(1, m^2) and Q = N(0, m^2), in one of the two
    directions. The outputs of k steps are dominated by the k-fold products (Zhu, Dong and Wang, 2022). Delta is the
    larger one of the two directions. Precision ends at a delta of about 1e-14 x steps, below which epsilon is inf.

    Attributes:
        noise_multiplier: Standard deviation of the noise divided by the sensitivity, > 0.
        sample_rate: Probability with which a step samples a record, in (0, 1].
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
        return _table_of_steps(self)

    def renyi(self, order: float, /) -> float:
        """Return steps x the divergence of P from Q in one step, which is the larger direction.

        Integer orders use the binomial sum, others quadrature (Mironov, Talwar and Zhang, 2019, arXiv:1908.10530,
        section 3.3).
        """
        require_order(order)
        if self.sample_rate == 1:
            return self.steps * (order / (2 * self.noise_multiplier**2))
        moment = _log_moment_integer if float(order).is_integer() else _log_moment_fractional
        return self.steps * max(0.0, moment(order, self.sample_rate, self.noise_multiplier) / (order - 1))


@register("curve", "composed-laplace", source="Dwork et al. (2006); Doroshenko et al. (2022), arXiv:2207.04380")
@dataclass(frozen=True)
class ComposedLaplace(TableCurve):
    """Adaptive composition of numbers released with Laplace noise.

    The outputs for one number of sensitivity s are dominated by Laplace noise around 0 and around s. Those for k
    numbers are dominated by the k-fold products, even if a number depends on those released before.

    Attributes:
        scale: Scale of the Laplace noise divided by the sensitivity of one number, > 0.
        releases: Number of released numbers, >= 1.
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
        """Largest possible loss in nats."""
        return self.releases / self.scale

    @property
    def table(self) -> DeltaTable:
        return _table_of_numbers(self)

    def epsilon(self, delta: float, /) -> float:
        """Return the smallest epsilon at `delta`, rounded up; at most `bound`."""
        require_delta(delta)
        return min(self.bound, super().epsilon(delta))

    def delta(self, epsilon: float, /) -> float:
        """Return the hockey-stick divergence, rounded up; 0 from `bound` on."""
        require_epsilon(epsilon)
        return 0.0 if epsilon >= self.bound else super().delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """Return the envelope of delta(epsilon) and of pure DP at `bound`."""
        return max(super().miss_rate(alarm), PureDP(self.bound).miss_rate(alarm))

    def renyi(self, order: float, /) -> float:
        """Return releases x the divergence of one release (Mironov, 2017, arXiv:1702.07476, proposition 6)."""
        require_order(order)
        e = 1 / self.scale
        nearer = math.log(order / (2 * order - 1)) + (order - 1) * e
        farther = math.log((order - 1) / (2 * order - 1)) - order * e
        return max(0.0, self.releases * float(np.logaddexp(nearer, farther)) / (order - 1))


@dataclass(frozen=True, eq=False)
class _Losses:
    """Distribution of privacy losses on integer multiples of `width`."""

    first: int  # the lowest multiple
    mass: NDArray[np.float64]  # probability of each multiple from `first` on
    certain: float  # probability of an infinite loss
    width: float  # nats


def _compose(step_losses: _Losses, steps: int) -> _Losses | None:
    """Return the distribution of the sum of `steps` independent losses; None if it exceeds the largest grid."""
    multiples = step_losses.first + np.arange(len(step_losses.mass))
    start, stop = _window(step_losses, multiples, steps)
    size = 1 << max(len(step_losses.mass), stop - start + 1).bit_length()
    if size > 2 * _LARGEST_GRID:
        return None
    circle = np.zeros(size)
    circle[multiples % size] = step_losses.mass
    summed = np.fft.irfft(np.fft.rfft(circle) ** steps, size)
    mass = np.maximum(np.roll(summed, -(start % size)), 0)
    # Rounding errors of the transforms, and the mass above the window.
    rounding = 2.3e-16 * (100 + 10 * steps)
    certain = -math.expm1(steps * math.log1p(-step_losses.certain)) + _CUT_MASS + rounding
    return _Losses(start, mass, certain, step_losses.width)


def _window(step_losses: _Losses, multiples: NDArray[np.int64], steps: int) -> tuple[int, int]:
    """Return the multiples between which the sum lies, except for `_CUT_MASS` at each end, by Chernoff's bound."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(step_losses.mass)
    losses = multiples * step_losses.width
    ends = []
    for sign in (-1, 1):
        bounds = [
            (steps * float(logsumexp(log_mass + sign * tilt * losses)) - math.log(_CUT_MASS)) / tilt
            for tilt in np.geomspace(1e-2, 1e4, 61).tolist()
        ]
        ends.append(math.ceil(min(bounds) / step_losses.width) + 1)
    return max(-ends[0], steps * int(multiples[0])), min(ends[1], steps * int(multiples[-1]))


def _max_delta_table(directions: Sequence[_Losses]) -> DeltaTable:
    """Return the table of the larger delta of all directions, at multiples of their common width from 0."""
    width = directions[0].width
    count = max(1, *(direction.first + len(direction.mass) for direction in directions)) + 1
    deltas = np.zeros(count)
    for direction in directions:
        mass = np.zeros(count)
        from_zero = max(0, direction.first)
        positive = direction.mass[from_zero - direction.first :]
        mass[from_zero : from_zero + len(positive)] = positive
        deltas = np.maximum(deltas, _deltas(mass, width) + direction.certain)
    deltas = np.minimum(deltas, 1)
    length = int(np.searchsorted(-deltas, -deltas[-1])) + 1  # the rest repeats the last
    falling = np.maximum.accumulate(deltas[:length][::-1])[::-1]
    return DeltaTable(width * np.arange(length, dtype=np.float64), np.asarray(falling, dtype=np.float64))


def _deltas(mass: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """Return the sum over losses l > epsilon of mass (1 - e^(epsilon - l)), at each multiple of the width from 0."""
    from scipy.signal import lfilter  # takes a second to import, and few claims are composed

    # delta_i = delta_(i+1) e^-width + (1 - e^-width) x the mass above i. All terms are positive: no cancellation.
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
        sums = [_compose(direction, curve.steps) for direction in step] if step else []
        if sums and all(sums):
            return _max_delta_table([direction for direction in sums if direction])
        width *= 2


def _deviation(curve: SubsampledGaussian) -> float:
    """Return the standard deviation of one step's loss under Q, by the trapezoid rule."""
    z = np.linspace(-9, 9, 4001)
    weight = np.exp(-(z**2) / 2)
    loss = _loss(z * curve.noise_multiplier, curve.sample_rate, curve.noise_multiplier)
    mean = np.average(loss, weights=weight)
    return math.sqrt(float(np.average((loss - mean) ** 2, weights=weight)))


def _loss(x: NDArray[np.float64], q: float, m: float) -> NDArray[np.float64]:
    return np.asarray(np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * m * m)))


def _one_step(curve: SubsampledGaussian, width: float) -> tuple[_Losses, _Losses] | None:
    """Return the losses of one step for removing and for adding a record; None if the grid would be too fine."""
    q, m = curve.sample_rate, curve.noise_multiplier
    end = 1 - m * float(ndtri(_CUT_MASS))
    first = math.floor(math.log1p(-q) / width)
    last = math.ceil(float(_loss(np.array([end]), q, m)[0]) / width)
    if last - first >= _LARGEST_GRID:
        return None
    at = width * np.arange(first, last + 1)
    # Output at which each loss occurs; all losses exceed log(1 - q).
    outputs = np.full(len(at), -math.inf)
    is_reached = at > math.log1p(-q)
    outputs[is_reached] = m * m * (np.log(np.expm1(at[is_reached]) + q) - math.log(q)) + 0.5
    low = _cell_mass(outputs / m)  # Q
    high = (1 - q) * low + q * _cell_mass((outputs - 1) / m)  # P
    # Mass a at the lower end l of a cell and b at the upper end: a + b = low, a e^l + b e^(l + width) = high.
    raised = np.clip((high * np.exp(-at[:-1]) - low) / math.expm1(width), 0, low)
    mass = np.zeros(len(at))
    mass[:-1] += low - raised
    mass[1:] += raised
    beyond = float(ndtr(-outputs[-1] / m))
    removing = _Losses(first, mass * np.exp(at), (1 - q) * beyond + q * float(ndtr((1 - outputs[-1]) / m)), width)
    mass[-1] += beyond  # when adding, losses below -last move up to -last
    return removing, _Losses(-last, mass[::-1].copy(), 0.0, width)


def _cell_mass(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal mass between consecutive points, computed from the nearer tail."""
    below, above = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.asarray(np.where(z[:-1] < 0, below, above))


@lru_cache(maxsize=64)
def _table_of_numbers(curve: ComposedLaplace) -> DeltaTable:
    cells = _CELLS_A_NAT * math.ceil(1 / curve.scale)
    while cells:
        total = _compose(_one_release(1 / curve.scale, cells), curve.releases)
        if total is not None:
            return _max_delta_table([total])
        cells //= 2
    raise InputError(f"releases must be fewer: their losses do not fit the largest grid, got {curve.releases}")


def _one_release(e: float, cells: int) -> _Losses:
    """Return the loss of one number whose sensitivity is e noise scales: a distribution on [-e, e].

    Under the geometric mean of both distributions, -e and e have the mass e^(-e/2) / 2 each, and the density between
    them is e^(-e/2) / 4. By symmetry each end of a cell gets e^(-e/2) tanh(width / 4) / 2.
    """
    width = e / cells
    at = width * np.arange(-cells, cells + 1)
    mean = np.full(len(at), math.tanh(width / 4))  # mass under the geometric mean, without its factor e^(-e/2)
    mean[[0, -1]] = (1 + math.tanh(width / 4)) / 2
    return _Losses(-cells, mean * np.exp((at - e) / 2), 0.0, width)


def _log_moment_integer(a: float, q: float, m: float) -> float:
    """Return log sum_i C(a, i) q^i (1-q)^(a-i) exp(i (i-1) / (2 m^2))."""
    i = np.arange(a + 1)
    log_binomial = gammaln(a + 1) - gammaln(i + 1.0) - gammaln(a - i + 1)
    return float(logsumexp(log_binomial + i * math.log(q) + (a - i) * math.log1p(-q) + i * (i - 1) / (2 * m * m)))


def _log_moment_fractional(a: float, q: float, m: float) -> float:
    """Return log E[((1-q) + q exp((2z - 1) / (2 m^2)))^a] for z ~ N(0, m^2), by the trapezoid rule.

    The integrand is analytic up to |Im z| = pi m^2 and falls like a Gaussian. So steps of h err by about
    exp(-2 pi^2 m^2 / h), here below 1e-30. Its mass lies between the peaks at 0 and a.
    """
    h = min(m / 8, m * m / 4)
    z = np.arange(-12 * m, a + 12 * m, h)
    log_ratio = _loss(z, q, m)
    log_density = -0.5 * (z / m) ** 2 - math.log(m * math.sqrt(2 * math.pi))
    return float(logsumexp(log_density + a * log_ratio) + math.log(h))
