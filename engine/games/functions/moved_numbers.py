"""Numbers that two neighbouring tables give with the same seeds: how far they move, against noise and claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, GaussianDP
from dpaudit.engine.games.functions.watched import Pairs, Watched

ROUNDING = 1e-9  # of a number's size
VALUES = 8  # that a number must take to be one with noise added
CHANCE = 1e-4  # that a function which keeps its claim shows on one table alone what is told of it
LOW_BIT_FLOATS = 64  # numbers of a part whose bits are looked at
SURELY = 1.5  # by which more must move what has noise of a size that is guessed
UNITS = {"laplace": "scale", "normal": "standard deviation"}

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class _Noise:
    """What one draw, the same on all tables and seeds but for its values, added to numbers: shape (seeds,).

    Attributes:
        draw: Which draw, and which of its values.
        law: "laplace" or "normal".
    """

    draw: tuple[int, int]
    law: str
    place: str
    scale: float
    values: Vector


@dataclass(frozen=True)
class _Moved:
    """A number that moves by a fixed amount, so many times the unit of its noise: a guess where no draw made it."""

    name: str
    by: float
    ratio: float
    law: str
    noise: _Noise | None

    def beyond(self, allowed: Mapping[str, float]) -> bool:
        """Whether this is more than the claim allows; of noise that is guessed, whatever its law is."""
        if self.noise:
            return self.ratio > allowed[self.law] * (1 + 1e-6)
        return self.ratio > SURELY * max(allowed["laplace"], allowed["normal"] / 0.7)  # standard deviations are larger

    def sentence(self, allowed: float) -> str:
        made = f" (rng.{self.noise.law} at {self.noise.place})" if self.noise else ""
        about = "" if self.noise else "about "
        much = f"{about}{self.ratio:.3g} times the {UNITS[self.law]} of its noise{made}"
        return f"{self.name} moves by {self.by:.4g} from D to D', {much}; the claim allows {allowed:.3g}."


@np.errstate(all="ignore")  # numbers of any size: what overflows is not equal to anything
def numbers_that_differ(pairs: Pairs, names: Sequence[str], claim: Claim, often: int) -> list[str]:
    """A sentence for each number that differs beyond noise; else one for several that do so together.

    Args:
        often: In how many replays something must be so to be no accident.
    """
    found: list[str] = []
    all_moved: list[_Moved] = []
    allowed = {law: _allowed(claim, law) for law in UNITS}
    for name in names:
        same = _alike(pairs, name)
        if len(same) < min(often, VALUES):
            continue
        a, b = _numbers_of(same, name)
        noises = _noises([here for here, _ in same])
        for place in np.flatnonzero(np.any(a != b, axis=0)):
            shown = _shown(name, int(place), a)
            moved = _moved(shown, a[:, place], b[:, place], noises)
            if moved is not None:
                all_moved.append(moved)
                if moved.beyond(allowed):
                    found.append(moved.sentence(allowed[moved.law]))
            elif len(same) >= often:
                found += filter(None, [_other(shown, a[:, place], b[:, place], len(same))])
    return found or _together(all_moved, claim, allowed)


def low_bits_that_differ(pairs: Pairs, names: Sequence[str], claim: Claim) -> list[str]:
    """A sentence for each number that is finer on one table than it ever is on the other.

    Doubles near zero are finer than those near one, so the low bits of a noisy number tell what the noise was added to.
    A number is as fine as its lowest bit that is set.
    Source: Mironov (2012).
    """
    found = []
    for name in names:
        same = _alike(pairs, name)
        if not same:
            continue
        a, b = (_lowest_bits(each[:, :LOW_BIT_FLOATS]) for each in _numbers_of(same, name))
        for place in range(a.shape[1]):
            sides = {"D": a[:, place], "D'": b[:, place]}
            on, never = sorted(sides, key=lambda side: sides[side].min())
            coarser = sides[never].min()
            times = int(np.count_nonzero(sides[on] < coarser))
            if math.isinf(coarser) or (1 - _least_of_other(claim, times / len(same))) ** len(same) > CHANCE:
                continue
            step = f"a multiple of 2^{coarser:.0f} in all {len(same)} replays on {never}, and finer in {times} on {on}"
            found.append(f"The low bits of {_shown(name, place, a)} tell D from D': {step}. {_ROUND}")
    return found


def replays_for_bits(claim: Claim) -> int:
    """How many show what is so in one of seven replays on one table, and never on the other."""
    return math.ceil(math.log(CHANCE) / math.log1p(-max(_least_of_other(claim, 1 / 7), 1e-9)))


_ROUND = "Round what comes back to a fixed step, say 0.001, or add noise in whole steps."


def _lowest_bits(numbers: Vector) -> Vector:
    """The exponent of the lowest bit that is set; infinite for 0."""
    fraction, exponent = np.frexp(numbers)
    whole = np.abs(fraction * 2.0**53).astype(np.int64)
    return np.where(whole == 0, np.inf, exponent - 53 + np.log2(np.maximum(whole & -whole, 1)))


def _least_of_other(claim: Claim, share: float) -> float:
    """How likely, at least, the claim makes on one table what has this probability on the other."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 - claim.curve.miss_rate(middle) >= share else (middle, high)
    return low


def _alike(pairs: Pairs, name: str) -> Pairs:
    """Those in which the part has its most usual form on both tables, if that is one form."""
    both = [pair for pair in pairs if all(name in call.parts for call in pair)]
    kinds = [{(call.parts[name].ending, len(call.parts[name].numbers)) for call in pair} for pair in both]
    usual = Counter(map(frozenset, kinds)).most_common(1)[0][0] if both else frozenset()
    return [pair for pair, kind in zip(both, kinds, strict=True) if kind == usual] if len(usual) == 1 else []


def _numbers_of(pairs: Pairs, name: str) -> tuple[Vector, Vector]:
    """Of the part on D and on D', shape (pairs, numbers)."""
    a, b = (np.array([pair[side].parts[name].numbers for pair in pairs]) for side in (0, 1))
    return a, b


def _shown(name: str, place: int, numbers: Vector) -> str:
    return f"`{name}`" if numbers.shape[1] == 1 else f"number {place + 1} of `{name}`"


def _moved(name: str, a: Vector, b: Vector, noises: Sequence[_Noise]) -> _Moved | None:
    """The number's move, where it is the same in half the replays or more and noise is added to it."""
    by = float(np.median(b - a))
    same = np.abs(b - a - by) <= _rounding(a, b)
    if same.mean() < 0.5 or len(np.unique(a[same])) < min(VALUES, same.sum()) or np.ptp(a[same]) <= _rounding(a, b):
        return None
    noise = _made_of(a, noises)
    if noise is not None:
        z, centred = (each[same] - each[same].mean() for each in (noise.values, a))
        slope = float(z @ centred / (z @ z))
        if np.abs(centred - slope * z).max() <= 1e-6 * np.abs(centred).max() + _rounding(a, b):
            return _Moved(name, by, abs(by / (slope * noise.scale)), noise.law, noise)
    return _Moved(name, by, abs(by) / float(np.abs(a[same] - np.median(a[same])).mean()), "laplace", None)


def _made_of(a: Vector, noises: Sequence[_Noise]) -> _Noise | None:
    """The draw that goes most with a number."""
    if not noises:
        return None
    z = np.stack([noise.values for noise in noises])
    z = z - z.mean(axis=1, keepdims=True)
    with_a = np.abs(z @ (a - a.mean())) / np.sqrt((z * z).sum(axis=1))
    return noises[int(with_a.argmax())]


def _rounding(a: Vector, b: Vector) -> float:
    return ROUNDING * float(np.median(np.abs(a)) + np.median(np.abs(b)))  # whatever one seed gives


def _other(name: str, a: Vector, b: Vector, replays: int) -> str:
    """A number without noise, with noise of another width, or always smaller on one table."""
    rounding = _rounding(a, b)
    if max(np.ptp(a), np.ptp(b)) <= rounding:
        differs = abs(float(a[0] - b[0])) > rounding
        return f"{name} has no noise: {a[0]:.9g} on D and {b[0]:.9g} on D' in {replays} replays." if differs else ""
    if len(np.unique(a)) >= VALUES:
        slope = float(np.ptp(b) / np.ptp(a))
        start = float(b[a.argmin()] - slope * a.min())
        width = np.abs(b - np.median(b))
        if abs(slope - 1) > 1e-5 and np.all(np.abs(slope * a + start - b) <= 1e-6 * (width + np.median(width))):
            return f"The noise of {name} is {slope:.6g} times as wide on D' as on D."
    if a.max() < b.min() or b.max() < a.min():
        ranges = (f"{each.min():.4g} to {each.max():.4g}" for each in (a, b))
        return "{} lies apart: {} on D and {} on D' in {} replays.".format(name, *ranges, replays)
    return ""


def _noises(calls: Sequence[Watched]) -> list[_Noise]:
    """Draws of Laplace and Gaussian noise that all calls make alike."""
    found = []
    for index in range(min(len(call.draws) for call in calls)):
        draws = [call.draws[index] for call in calls]
        first, law = draws[0], draws[0].method.removeprefix("standard_")
        alike = all(
            (each.method, each.size, each.arguments.get("scale"))
            == (first.method, first.size, first.arguments.get("scale"))
            for each in draws
        )
        if law not in UNITS or not alike:
            continue
        for place in range(len(first.values)):
            values = np.array([each.values[place] - _at(each.arguments.get("loc", 0.0), place) for each in draws])
            scale = _at(first.arguments.get("scale", 1.0), place)
            if scale > 0 and np.ptp(values) > 0:
                found.append(_Noise((index, place), law, first.place, scale, values))
    return found


def _at(argument: float | tuple[float, ...], place: int) -> float:
    return argument if isinstance(argument, float) else argument[place % len(argument)]


def _together(moved: Sequence[_Moved], claim: Claim, allowed: Mapping[str, float]) -> list[str]:
    """Several numbers, each with noise of its own: Laplace losses add up, Gaussian ones as squares."""
    for law in ("laplace", "normal"):
        by_draw: dict[tuple[int, int], _Moved] = {}
        for each in moved:
            if each.noise and each.law == law:
                known = by_draw.setdefault(each.noise.draw, each)
                by_draw[each.noise.draw] = max(known, each, key=lambda one: one.ratio)
        ratios = [each.ratio for each in by_draw.values()]
        total = sum(ratios) if law == "laplace" else math.hypot(*ratios)
        if total > allowed[law] * (1 + 1e-6) and (law == "normal" or (claim.is_point and not claim.delta)):
            names = [each.name for each in by_draw.values()]
            some = " and ".join(names) if len(names) == 2 else f"{names[0]} and {len(names) - 1} more numbers"
            much = f"{total:.3g} times the {UNITS[law]} of their noise"
            return [f"{some} move by {much} together; the claim allows {allowed[law]:.3g}."]
    return []


def _allowed(claim: Claim, law: str) -> float:
    """The largest move, in units of the noise, that the claim permits one number of this law."""
    if law == "normal" and math.isfinite(claim.curve.epsilon(0.0)):
        return 0.0  # its tails break any claim without delta
    epsilons = np.unique([0.0, *np.geomspace(1e-3, 50.0, 60), min(claim.epsilon, 500.0)])
    promised = [claim.curve.delta(float(epsilon)) for epsilon in epsilons]

    def breaks(ratio: float) -> bool:
        needed = (_delta(law, ratio, float(epsilon)) for epsilon in epsilons)
        return any(need > promise + 1e-12 for need, promise in zip(needed, promised, strict=True))

    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if breaks(middle) else (middle, high)
    return low


def _delta(law: str, ratio: float, epsilon: float) -> float:
    if law == "normal":
        return GaussianDP(ratio).delta(epsilon)
    return max(0.0, -math.expm1((epsilon - ratio) / 2))
