"""Sums of independent privacy losses on a grid, and the curve they make.

The k-fold convolution is one power of a Fourier transform; what could wrap around, by Chernoff's bound, and rounding,
are added to delta, which so errs upwards only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.claims.table import DeltaTable

CUT_MASS = 1e-17
"""Probability that may be cut off one step at each end, and that may wrap around at each end of all steps."""
LARGEST_GRID = 2**21


@dataclass(frozen=True, eq=False)
class Losses:
    """A distribution of losses on the whole multiples of a width.

    Attributes:
        first: The lowest multiple.
        mass: Probability at each from there on, shape (n,).
        certain: Probability of an infinite loss.
        width: In nats.
    """

    first: int
    mass: NDArray[np.float64]
    certain: float
    width: float


def composed(one: Losses, steps: int) -> Losses | None:
    """The sum of independent losses; None where it would not fit the largest grid."""
    multiples = one.first + np.arange(len(one.mass))
    start, stop = _window(one, multiples, steps)
    size = 1 << max(len(one.mass), stop - start + 1).bit_length()
    if size > 2 * LARGEST_GRID:
        return None
    circle = np.zeros(size)
    circle[multiples % size] = one.mass
    summed = np.fft.irfft(np.fft.rfft(circle) ** steps, size)
    mass = np.maximum(np.roll(summed, -(start % size)), 0)
    # One rounding a step, and what may have left the window at its upper end.
    rounding = 2.3e-16 * (100 + 10 * steps)
    certain = -math.expm1(steps * math.log1p(-one.certain)) + CUT_MASS + rounding
    return Losses(start, mass, certain, one.width)


def _window(one: Losses, multiples: NDArray[np.int64], steps: int) -> tuple[int, int]:
    """Multiples between which the sum lies but for `CUT_MASS` at each end, by Chernoff's bound."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(one.mass)
    losses = multiples * one.width
    ends = []
    for sign in (-1, 1):
        bounds = [
            (steps * float(logsumexp(log_mass + sign * tilt * losses)) - math.log(CUT_MASS)) / tilt
            for tilt in np.geomspace(1e-2, 1e4, 61).tolist()
        ]
        ends.append(math.ceil(min(bounds) / one.width) + 1)
    return max(-ends[0], steps * int(multiples[0])), min(ends[1], steps * int(multiples[-1]))


def larger_of(directions: Sequence[Losses]) -> DeltaTable:
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
