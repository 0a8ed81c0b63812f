"""Compiled integrals of the joint posterior of two error rates over the privacy region.

With Jeffreys' prior a rate p after k errors and m hits has the density sin^2k(t) cos^2m(t) in the angle t = arcsin sqrt
p. In the angle it has no singularity, is log-concave with curvature >= 2(k + m), and has width 1 / (2 sqrt(k + m))
wherever it lies. A window of a fixed drop in log-density is cut into pieces with one polynomial each. This gives the
density and the distribution function for 1 and for 10^8 trials alike. Normalising by its own sum needs no gamma
function.

Outside the region lie two mirror images of one set, {e^eps x + y < 1 - delta or x + e^eps y < 1 - delta}. Its mass is
the square up to the corner x = y = (1 - delta) / (1 + e^eps), and one strip along each edge. A strip integrates the
density of one rate times the distribution function of the other, by Gauss-Legendre panels no wider than either scale.
"""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import numpy as np

from dpaudit.compiling import compiled, prange
from dpaudit.estimators.arguments import Floats, Ints

Law: TypeAlias = tuple[float, float, float, Floats]
"""Posterior of a rate in the angle: lowest angle, highest angle, panel width, and table."""
Pair: TypeAlias = tuple[Law, Law]

PIECES = 16
DEGREE = 12
DROP = 31.0  # nats below the mode at which the window ends: 7.9 standard deviations, 4e-15 of the mass
PANEL = 4.0  # widest panel in standard deviations of either rate
SLACK = 1e-8  # relative distance to the level, on its safe side, to which quantiles are solved
ABSOLUTE_SLACK = 3e-12
"""Absolute part of `SLACK`: three times the largest error of the mass in 3,000 random tables up to 10^7 a class."""

COLUMNS = DEGREE + 2
"""Columns of a piece's row: coefficients of its density in t in [-1, 1], constant first; last the mass below t = 0."""
_ABSCISSAE, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_RECIPROCALS = 1.0 / (np.arange(DEGREE + 1) + 1.0)
_NODES = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))[::-1].copy()


def _node_values_to_coefficients() -> Floats:
    """Return the matrix from values at the Chebyshev nodes to coefficients of 1, t, t^2, ..."""
    chebyshev = np.polynomial.chebyshev
    to_series = np.linalg.inv(chebyshev.chebvander(_NODES, DEGREE))
    to_powers = np.zeros((DEGREE + 1, DEGREE + 1))
    for n in range(DEGREE + 1):
        powers = chebyshev.cheb2poly(np.eye(DEGREE + 1)[n])
        to_powers[: powers.size, n] = powers
    return cast(Floats, np.ascontiguousarray(to_powers @ to_series))


_FIT = _node_values_to_coefficients()


_compiled = compiled(error_model="numpy")
_parallel = compiled(error_model="numpy", parallel=True)


@_compiled
def _log_density(u: float, k: float, m: float, cotangent: float, tangent: float) -> float:
    """Return the log-density at the angle mode + u, relative to the mode; exact to 1e-12 for counts of 1e8."""
    sine = math.sin(u)
    half = math.sin(0.5 * u)
    bend = 2.0 * half * half
    value = 0.0
    if k > 0.0:
        value += 2.0 * k * math.log1p(max(cotangent * sine - bend, -1.0))
    if m > 0.0:
        value += 2.0 * m * math.log1p(max(-tangent * sine - bend, -1.0))
    return value


@_compiled
def _window_end(k: float, m: float, cotangent: float, tangent: float, limit: float, sign: float) -> float:
    """Return the offset from the mode, towards `sign`, where the log-density has fallen by DROP; at most `limit`."""
    n = k + m
    u = limit if n == 0.0 else min(limit, math.sqrt(DROP / n))
    if u < limit or (n > 0.0 and _log_density(sign * u * (1.0 - 1e-12), k, m, cotangent, tangent) < -DROP):
        u = min(u, limit * (1.0 - 1e-12))
        for _ in range(4):  # Newton from outside on a concave function stays outside
            drop = _log_density(sign * u, k, m, cotangent, tangent)
            rise = math.tan(sign * u)
            slope = 0.0
            if k > 0.0:
                slope += 2.0 * k * (cotangent - rise) / (1.0 + cotangent * rise)
            if m > 0.0:
                slope -= 2.0 * m * (tangent + rise) / (1.0 - tangent * rise)
            u = min(u, max(u - (drop + DROP) / (slope * sign), 1e-300))
    return u


@_compiled
def _tabulate(errors: int, hits: int) -> Law:
    table = np.empty((PIECES, COLUMNS))
    k = float(errors)
    m = float(hits)
    if k + m == 0.0:
        mode, cotangent, tangent = 0.25 * math.pi, 1.0, 1.0
    else:
        mode = math.atan2(math.sqrt(k), math.sqrt(m))
        cotangent = math.sqrt(m / k) if k > 0.0 else 0.0
        tangent = math.sqrt(k / m) if m > 0.0 else 0.0
    below = _window_end(k, m, cotangent, tangent, mode, -1.0) if mode > 0.0 else 0.0
    above = _window_end(k, m, cotangent, tangent, 0.5 * math.pi - mode, 1.0) if mode < 0.5 * math.pi else 0.0
    half = 0.5 * (below + above) / PIECES
    total = 0.0
    values = np.empty(DEGREE + 1)
    for piece in range(PIECES):
        centre = -below + (2 * piece + 1) * half
        for j in range(DEGREE + 1):
            values[j] = math.exp(_log_density(centre + half * _NODES[j], k, m, cotangent, tangent))
        left_sum = 0.0
        before = total
        for i in range(DEGREE + 1):
            coefficient = 0.0
            for j in range(DEGREE + 1):
                coefficient += _FIT[i, j] * values[j]
            table[piece, i] = coefficient
            if i % 2 == 0:
                total += 2.0 * coefficient / (i + 1)
                left_sum += coefficient / (i + 1)
            else:
                left_sum -= coefficient / (i + 1)
        table[piece, COLUMNS - 1] = before + left_sum
    for piece in range(PIECES):
        for i in range(COLUMNS):
            table[piece, i] /= total
    return mode - below, mode + above, PANEL * 0.5 / math.sqrt(k + m + 1.0), table


@_compiled
def _mass_below(angle: float, law: Law) -> float:
    low, high, _, table = law
    if angle <= low:
        return 0.0
    if angle >= high:
        return 1.0
    position = (angle - low) / (high - low) * PIECES
    piece = min(int(position), PIECES - 1)
    t = 2.0 * (position - piece) - 1.0
    primitive = 0.0
    for i in range(DEGREE, -1, -1):
        primitive = primitive * t + table[piece, i] * _RECIPROCALS[i]
    return float(table[piece, COLUMNS - 1] + primitive * t)


@_compiled
def _density(angle: float, law: Law) -> float:
    low, high, _, table = law
    if angle <= low or angle >= high:
        return 0.0
    position = (angle - low) / (high - low) * PIECES
    piece = min(int(position), PIECES - 1)
    t = 2.0 * (position - piece) - 1.0
    value = 0.0
    for i in range(DEGREE, -1, -1):
        value = value * t + table[piece, i]
    return float(value * 2.0 * PIECES / (high - low))


@_compiled
def _angle(square: float, complement: float) -> float:
    """Return the angle with the given squared sine and cosine."""
    return math.atan2(math.sqrt(max(square, 0.0)), math.sqrt(max(complement, 0.0)))


@_compiled
def _strip(x: Law, y: Law, root: float, delta: float, corner: float) -> tuple[float, float]:
    """Return the mass under the edge y = e^-eps (1 - delta - x) right of the corner, and its derivative by -epsilon.

    `root` is e^(-eps/2), `corner` the corner's angle. Along the edge sin(angle of y) = root w with w^2 = 1 - delta - x,
    so x's angle t has cos^2 t = delta + w^2.
    """
    low_x, high_x, width_x, _ = x
    low_y, high_y, width_y, _ = y
    left_edge = max(corner, low_x)
    right = min(_angle(1.0 - delta, delta), high_x)
    if left_edge >= right:
        return 0.0, 0.0
    mass = 0.0
    # Left of the point where the edge leaves y's window upwards, all of y lies below it.
    full = math.sin(high_y) / root
    if delta + full * full < 1.0:
        inner = min(_angle(1.0 - delta - full * full, delta + full * full), right)
        if inner > left_edge:
            mass += _mass_below(inner, x) - _mass_below(left_edge, x)
            left_edge = inner
    none = math.sin(low_y) / root
    if none > 0.0:
        if delta + none * none >= 1.0:
            return mass, 0.0
        right = min(right, _angle(1.0 - delta - none * none, delta + none * none))
    slope = 0.0
    # Near w = 0 the angle of y has a square root in t, none in w; the panel [0, w_near] is smooth because t(w) has its
    # singularity at w = +-i sqrt(delta).
    near = math.sqrt(min(3.0 * delta, 0.5 * (1.0 - delta)))
    end = _angle(1.0 - delta, delta)
    while right > left_edge:
        cosine = math.cos(right)
        w = math.sqrt(max(cosine * cosine - delta, 0.0)) if delta > 0.0 else cosine
        angle_y = math.asin(min(root * w, 1.0))
        w_next = math.sin(min(angle_y + width_y, 0.5 * math.pi)) / root
        stop = left_edge
        if delta + w_next * w_next < 1.0:
            stop = max(stop, _angle(1.0 - delta - w_next * w_next, delta + w_next * w_next))
        stop = max(stop, right - width_x)
        by_w = delta > 0.0 and w < near * (1.0 - 1e-9)
        if by_w:
            stop = max(stop, _angle(1.0 - delta - near * near, delta + near * near))
        elif delta > 0.0:
            stop = max(stop, right - max(end - right, 1e-300))
        stop = min(stop, right)
        if not stop < right:
            break
        if by_w:
            cosine = math.cos(stop)
            a, b = w, math.sqrt(max(cosine * cosine - delta, 0.0))
        else:
            a, b = stop, right
        for i in range(_ABSCISSAE.size):
            point = 0.5 * (a + b) + 0.5 * (b - a) * _ABSCISSAE[i]
            if by_w:
                square = 1.0 - delta - point * point
                complement = delta + point * point
                sine = root * point
                t = _angle(square, complement)
                weight = 0.5 * (b - a) * _WEIGHTS[i] * point / math.sqrt(square * complement)
            else:
                t = point
                cosine = math.cos(t)
                sine = root * math.sqrt(max(cosine * cosine - delta, 0.0)) if delta > 0.0 else root * cosine
                weight = 0.5 * (b - a) * _WEIGHTS[i]
            density = _density(t, x) * weight
            angle_y = math.asin(min(sine, 1.0))
            mass += density * _mass_below(angle_y, y)
            slope += density * _density(angle_y, y) * 0.5 * math.tan(angle_y)
        right = stop
    return mass, slope


@_compiled
def _mass_beyond(epsilon: float, delta: float, x: Law, y: Law) -> tuple[float, float]:
    """Return Pr[e^eps x + y < 1 - delta or x + e^eps y < 1 - delta], and its derivative by -epsilon."""
    root = math.exp(-0.5 * epsilon)
    shrunk = root * root
    least_x = math.sin(x[0]) ** 2
    least_y = math.sin(y[0]) ** 2
    if least_x + shrunk * least_y >= shrunk * (1.0 - delta) and shrunk * least_x + least_y >= shrunk * (1.0 - delta):
        return 0.0, 0.0
    corner = _angle((1.0 - delta) * shrunk / (1.0 + shrunk), (1.0 + delta * shrunk) / (1.0 + shrunk))
    square = _mass_below(corner, x) * _mass_below(corner, y)
    right, slope_right = _strip(x, y, root, delta, corner)
    above, slope_above = _strip(y, x, root, delta, corner)
    return square + right + above, slope_right + slope_above


@_compiled
def _cdf_and_pdf(epsilon: float, delta: float, x: Pair, y: Pair) -> tuple[float, float, float]:
    """Return (mass inside the region, mass outside, density) at epsilon."""
    under, slope = _mass_beyond(epsilon, delta, x[0], y[0])
    over, slope_over = _mass_beyond(epsilon, delta, x[1], y[1])
    outside = min(max(under + over, 0.0), 1.0)
    return 1.0 - outside, outside, max(slope + slope_over, 0.0)


@_compiled
def _with_mirror(law: Law) -> Pair:
    """Return a law, and that of the complementary rate, whose angle is pi/2 minus this one."""
    low, high, width, table = law
    mirrored = np.empty((PIECES, COLUMNS))
    for piece in range(PIECES):
        row = PIECES - 1 - piece
        for i in range(DEGREE + 1):
            mirrored[row, i] = table[piece, i] if i % 2 == 0 else -table[piece, i]
        mirrored[row, COLUMNS - 1] = 1.0 - table[piece, COLUMNS - 1]
    quarter = 0.5 * math.pi
    return law, (quarter - high, quarter - low, width, mirrored)


@_compiled
def _solve(level: float, start: float, delta: float, x: Pair, y: Pair) -> float:
    """Return the epsilon >= 0 with mass `level` inside the region, or -`level` outside it; log-odds within 1e-8."""
    low = 0.0
    high = math.inf
    target = math.log(level) - math.log1p(-level) if level > 0.0 else math.log1p(level) - math.log(-level)
    if delta > 0.0:
        inside, outside, _ = _cdf_and_pdf(0.0, delta, x, y)
        if (level > 0.0 and inside >= level) or (level < 0.0 and outside <= -level):
            return 0.0
    epsilon = start
    for _ in range(200):
        inside, outside, density = _cdf_and_pdf(epsilon, delta, x, y)
        below = inside < level if level > 0.0 else outside > -level
        if below:
            low = epsilon
        else:
            high = epsilon
        step = math.nan
        if inside > 1e-14 and outside > 1e-14 and density > 0.0:
            miss = math.log(inside) - math.log(outside) - target
            step = -miss * inside * outside / density
            if abs(miss) < 1e-5:  # one more step leaves an error of its square
                return min(max(epsilon + step, low), high)
        if high < math.inf and high - low <= 1e-13 * high:
            break
        proposed = epsilon + step
        if low < proposed < high and proposed < 2.0 * epsilon + 5.0:
            epsilon = proposed
        elif high < math.inf:
            epsilon = 0.5 * (low + high)
        else:
            epsilon = 2.0 * epsilon + 0.5
    return low if level > 0.0 else high


@_compiled
def _start(level: float, tp: int, fp: int, tn: int, fn: int, delta: float) -> float:
    """Return an initial value: the plug-in epsilon, moved by normal deviations of its logarithm."""
    x = (fn + 0.5) / (tp + fn + 1.0)
    y = (fp + 0.5) / (fp + tn + 1.0)
    if x + y > 1.0:
        x, y = 1.0 - x, 1.0 - y
    variance_x = x * (1.0 - x) / (tp + fn + 1.0)
    variance_y = y * (1.0 - y) / (fp + tn + 1.0)
    tail = level if level > 0.0 else -level
    if tail < 0.5:
        squared = -2.0 * math.log(tail)
        deviations = math.sqrt(max(squared - math.log(squared + 1.0) - 1.5, 0.0))
    else:
        deviations = 0.0
    guess = 0.0
    for _ in range(2):
        x, y, variance_x, variance_y = y, x, variance_y, variance_x
        gap = 1.0 - delta - x
        if gap > 0.0:
            value = math.log(gap / y)
            spread = math.sqrt(variance_x / (gap * gap) + variance_y / (y * y))
            guess = max(guess, value - deviations * spread if level > 0.0 else value + deviations * spread)
    return max(guess, 0.02)


@_compiled
def _quantiles_of_range(
    first: int, last: int, tp: Ints, fp: Ints, tn: Ints, fn: Ints, delta: Floats, lower: Floats, upper: Floats
) -> None:
    """Replace masses by quantiles in some rows; a posterior is tabulated again only if its counts change."""
    x = _with_mirror(_tabulate(fn[first], tp[first]))
    y = _with_mirror(_tabulate(fp[first], tn[first]))
    for i in range(first, last):
        if i > first and (tp[i] != tp[i - 1] or fn[i] != fn[i - 1]):
            x = _with_mirror(_tabulate(fn[i], tp[i]))
        if i > first and (fp[i] != fp[i - 1] or tn[i] != tn[i - 1]):
            y = _with_mirror(_tabulate(fp[i], tn[i]))
        below = lower[i] * (1.0 - SLACK) - ABSOLUTE_SLACK
        if below > 0.0:
            lower[i] = _solve(below, _start(below, tp[i], fp[i], tn[i], fn[i], delta[i]), delta[i], x, y)
        else:
            lower[i] = 0.0
        beyond = upper[i] * (1.0 - SLACK) - ABSOLUTE_SLACK
        if beyond > 0.0:
            upper[i] = _solve(-beyond, _start(-beyond, tp[i], fp[i], tn[i], fn[i], delta[i]), delta[i], x, y)
        else:
            upper[i] = math.inf


@_compiled
def _masses_of_range(
    first: int, last: int, epsilon: Floats, tp: Ints, fp: Ints, tn: Ints, fn: Ints, delta: Floats, filled: Floats
) -> None:
    x = _with_mirror(_tabulate(fn[first], tp[first]))
    y = _with_mirror(_tabulate(fp[first], tn[first]))
    for i in range(first, last):
        if i > first and (tp[i] != tp[i - 1] or fn[i] != fn[i - 1]):
            x = _with_mirror(_tabulate(fn[i], tp[i]))
        if i > first and (fp[i] != fp[i - 1] or tn[i] != tn[i - 1]):
            y = _with_mirror(_tabulate(fp[i], tn[i]))
        filled[i, 0], filled[i, 1], filled[i, 2] = _cdf_and_pdf(epsilon[i], delta[i], x, y)


BLOCK = 256  # rows that a thread takes at once: long enough to share tables, short enough to share work


@_parallel
def _quantiles_on_all_cores(
    tp: Ints, fp: Ints, tn: Ints, fn: Ints, delta: Floats, lower: Floats, upper: Floats
) -> None:
    for block in prange((tp.size + BLOCK - 1) // BLOCK):
        _quantiles_of_range(block * BLOCK, min(tp.size, (block + 1) * BLOCK), tp, fp, tn, fn, delta, lower, upper)


@_parallel
def _masses_on_all_cores(
    epsilon: Floats, tp: Ints, fp: Ints, tn: Ints, fn: Ints, delta: Floats, filled: Floats
) -> None:
    for block in prange((tp.size + BLOCK - 1) // BLOCK):
        _masses_of_range(block * BLOCK, min(tp.size, (block + 1) * BLOCK), epsilon, tp, fp, tn, fn, delta, filled)


def quantiles(counts: tuple[Ints, Ints, Ints, Ints], delta: Floats, lower: Floats, upper: Floats) -> None:
    """Replace masses by quantiles in place: `lower` holds the mass to leave below, `upper` that above, 0 for none."""
    if lower.size <= BLOCK:
        _quantiles_of_range(0, lower.size, *counts, delta, lower, upper)
    else:
        _quantiles_on_all_cores(*counts, delta, lower, upper)


def masses(epsilon: Floats, counts: tuple[Ints, Ints, Ints, Ints], delta: Floats) -> Floats:
    """Return rows (mass inside, mass outside, density) at each epsilon."""
    filled = np.empty((epsilon.size, 3))
    if epsilon.size <= BLOCK:
        _masses_of_range(0, epsilon.size, epsilon, *counts, delta, filled)
    else:
        _masses_on_all_cores(epsilon, *counts, delta, filled)
    return filled
