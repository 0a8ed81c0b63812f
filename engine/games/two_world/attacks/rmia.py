"""RMIA: compares the target's probability of the challenge with that of other points, relative to shadow models.

With ratio(x) = p(x | target) / p(x), the score is the share of population points z with ratio(x) / ratio(z) > gamma.
p(x) is the mean over models, half of which were trained on x. The offline attack replaces it by
((1 + a) p_out(x) + 1 - a) / 2, since p_in is about a p_out + 1 - a. Augmented queries are not used.
Source: Zarifzadeh et al. (2024), arXiv:2312.03262, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views import ChallengeView, Shadows
from dpaudit.errors import require
from dpaudit.registry import register

CANDIDATES = np.linspace(0.0, 1.0, 11)
MAX_TUNED_ON = 2000


@register("attack", "rmia", source="Zarifzadeh et al. (2024), arXiv:2312.03262")
@dataclass(frozen=True)
class Rmia:
    """RMIA: share of population points with a smaller likelihood ratio than the challenge.

    Attributes:
        gamma: Factor between the likelihood ratios, > 0.
        offline: True to use only shadow models that were not trained on the point.
        a: Parameter of the offline attack, in [0, 1]; None to tune it on one shadow model, whose members are known.
    """

    gamma: float = 1.0
    offline: bool = False
    a: float | None = None
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"shadows", "population"})

    def __post_init__(self) -> None:
        require(self.gamma > 0, "gamma must be > 0", gamma=self.gamma)
        require(self.a is None or 0 <= self.a <= 1, "a must be in [0, 1]", a=self.a)

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Return shares in [0, 1]; with a strict inequality, an uninformed target has score 0 at gamma = 1.

        Raises: InputError if the population is empty, or a point lacks shadow models.
        """
        assert view.shadows is not None
        require(view.population.shape[1] > 0, "rmia needs points of the population", do="set `population` in the game")
        a = self._a(view.shadows, view.population_points)
        points, place = view.points()
        challenge_inverse = inverse_ratio(view.target[:, 0], self._marginal(view.shadows.at_points(points), a)[place])
        marginal = self._marginal(view.shadows.at_points(view.population_points), a)
        return shares_beaten(challenge_inverse, view.population, marginal, self.gamma)

    def _a(self, shadows: Shadows, population: NDArray[np.int64]) -> float:
        if not self.offline:
            return 1.0
        return tuned_a(shadows, population, self.gamma) if self.a is None else self.a

    def _marginal(self, shadows: Shadows, a: float) -> NDArray[np.float64]:
        return offline_marginal(shadows, a) if self.offline else online_marginal(shadows)


def shares_beaten(
    challenge_inverse: NDArray[np.float32],
    population: NDArray[np.float32],
    marginal: NDArray[np.floating[Any]],
    gamma: float,
) -> NDArray[np.float64]:
    """Return the share of population points whose ratio, times gamma, is below that of the trial, shape (T,)."""
    least = (gamma * challenge_inverse).astype(np.float32)
    counts = above(least, np.ascontiguousarray(population, np.float32), marginal.astype(np.float32))
    return np.asarray(counts / len(marginal))


def inverse_ratio(phi: NDArray[np.float32], marginal: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return p(x) / p(x | target) = p(x) (1 + e^-phi) in float32, bit-equal for equal points; shapes (n,)."""
    inverse = np.empty(len(phi), np.float32)
    inverse_ratios(np.ascontiguousarray(phi, np.float32), marginal.astype(np.float32), inverse)
    return inverse


def beaten_of_one_model(
    ratio: NDArray[np.float64], of_others: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """Return the share of `of_others` that, times gamma, are below each ratio; shapes (n,) and (P,) to (n,)."""
    return np.asarray(np.searchsorted(np.sort(gamma * of_others), ratio) / len(of_others))


def online_marginal(shadows: Shadows) -> NDArray[np.float64]:
    """Return the mean probability of each point: (mean over members + mean over others) / 2, shape (points,)."""
    probabilities = probability(shadows.confidence[:, 0])
    return (_mean(probabilities, shadows.member) + _mean(probabilities, ~shadows.member)) / 2


def offline_marginal(shadows: Shadows, a: float) -> NDArray[np.float64]:
    """Return ((1 + a) p_out + 1 - a) / 2 of each point, shape (points,)."""
    return _from_outside(_mean(probability(shadows.confidence[:, 0]), ~shadows.member), a)


def _from_outside(p_out: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    return np.asarray(((1 + a) * p_out + 1 - a) / 2)


def tuned_a(shadows: Shadows, population: NDArray[np.int64], gamma: float) -> float:
    """Return the a in 0, 0.1, ..., 1 with the largest area under the curve against the first shadow model.

    The attacker knows its members. At most 2,000 points outside the population are used.
    """
    others = np.setdiff1d(np.arange(shadows.member.shape[1]), population)[:MAX_TUNED_ON]
    rest = shadows.of_models(slice(1, None))
    target, is_member = shadows.of_models(slice(1)), shadows.member[0]
    outsiders = population[~is_member[population]]
    if not len(outsiders) or len(rest.member) < 2:
        return 0.0
    out_of_points, out_of_population = (
        _mean(probability(models.confidence[:, 0]), ~models.member)
        for models in (rest.at_points(others), rest.at_points(outsiders))
    )
    of_points = probability(target.at_points(others).confidence[:, 0])
    of_population = probability(target.at_points(outsiders).confidence[:, 0])
    areas = [
        _area(
            beaten_of_one_model(
                (of_points / _from_outside(out_of_points, a))[0],
                (of_population / _from_outside(out_of_population, a))[0],
                gamma,
            ),
            is_member[others],
        )
        for a in CANDIDATES
    ]
    return float(CANDIDATES[int(np.argmax(areas))])


def _mean(probabilities: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    require(bool(chosen.any(0).all()), "each point must have a shadow model of its world")
    return np.asarray(np.where(chosen, probabilities, 0.0).sum(0) / chosen.sum(0))


def _area(score: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve; ties count half."""
    from scipy.stats import rankdata

    inside = int(member.sum())
    if inside in (0, len(member)):
        return 0.5
    ranks = rankdata(score)
    return float((ranks[member].sum() - inside * (inside + 1) / 2) / (inside * (len(member) - inside)))


def probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return p_y = 1 / (1 + e^-phi); 0 below e^-709."""
    with np.errstate(over="ignore"):
        result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-phi.astype(np.float64)))
    return result


_LANES = 16
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(32), _LANES)
_SERIES = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
"""Coefficients of e^x for |x| <= ln(2) / 2, highest power first, from Cephes' `expf`."""


def _everywhere(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [float(np.float32(value))] * _LANES)


def _write_sixteen(context: Any, phi: Any, marginal: Any, out: Any) -> Any:
    """Write sixteen inverse ratios, from addresses: infinite for phi < -88, NaN for NaN."""

    def generate(target: Any, code: Any, signature: Any, arguments: Any) -> Any:
        phi, marginal, out = (code.inttoptr(address, _FLOATS.as_pointer()) for address in arguments)

        def named(name: str, *values: Any) -> Any:
            name = f"llvm.{name}.v{_LANES}f32"
            kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(values))
            return code.call(code.module.globals.get(name) or ir.Function(code.module, kind, name), values)

        x = code.fneg(code.load(phi, align=4))
        inside = code.select(code.fcmp_ordered(">", x, _everywhere(-87)), x, _everywhere(-87))
        inside = code.select(code.fcmp_ordered("<", inside, _everywhere(88)), inside, _everywhere(88))
        whole = named("rint", code.fmul(inside, _everywhere(1.4426950408889634)))
        rest = named("fma", whole, _everywhere(-0.693359375), inside)
        rest = named("fma", whole, _everywhere(2.12194440e-4), rest)
        power = _everywhere(_SERIES[0])
        for coefficient in _SERIES[1:]:
            power = named("fma", power, rest, _everywhere(coefficient))
        bits = code.add(code.fptosi(whole, _INTS), ir.Constant(_INTS, [127] * _LANES))
        scale = code.bitcast(code.shl(bits, ir.Constant(_INTS, [23] * _LANES)), _FLOATS)
        power = code.fmul(power, scale)
        power = code.select(code.fcmp_ordered(">", x, _everywhere(88)), _everywhere(np.inf), power)
        power = code.select(code.fcmp_ordered("ord", x, x), power, x)
        product = code.fmul(code.load(marginal, align=4), code.fadd(power, _everywhere(1)))
        code.store(product, out, align=4)
        return target.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


_sixteen: Any = intrinsic(_write_sixteen)


@njit(cache=True, nogil=True, error_model="numpy")
def inverse_ratios(phi: NDArray[np.float32], marginal: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write marginal (1 + e^-phi) to `out`, with relative error of about 1e-7; all contiguous, shape (n,)."""
    end = len(phi) // _LANES * _LANES
    for i in range(0, end, _LANES):
        _sixteen(phi.ctypes.data + 4 * i, marginal.ctypes.data + 4 * i, out.ctypes.data + 4 * i)
    remaining = len(phi) - end
    if remaining:
        few = np.zeros((3, _LANES), np.float32)
        few[0, :remaining], few[1, :remaining] = phi[end:], marginal[end:]
        _sixteen(few.ctypes.data, few.ctypes.data + 4 * _LANES, few.ctypes.data + 8 * _LANES)
        out[end:] = few[2, :remaining]


@njit(cache=True, nogil=True, error_model="numpy")
def above(least: NDArray[np.float32], phi: NDArray[np.float32], marginal: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the number of inverse ratios in a row above its least; contiguous, shapes (T,), (T, P), (P,) to (T,)."""
    counts = np.zeros(len(least), np.int64)
    inverse = np.empty(len(marginal), np.float32)
    for row in range(len(least)):
        inverse_ratios(phi[row], marginal, inverse)
        bar, count = least[row], 0
        for i in range(len(inverse)):
            count += inverse[i] > bar
        counts[row] = count
    return counts
