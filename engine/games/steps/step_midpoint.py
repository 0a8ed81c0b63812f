"""White-box, step by step: did the canary take part in the step that has just been released?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.registry import register

Floats = NDArray[np.float64]

BELIEVED = 3.0
"""Steps of either kind that must be seen before the claim (a canary adds one clip, the data nothing) is forgotten."""


@dataclass(frozen=True, eq=False)
class StepView:
    """A step that has just been released, and all before it, whose coins are known by now.

    Attributes:
        products: What each released gradient has along the canary, in clips, shape (steps so far,), >= 1 of them; NaN
            where it was not finite.
        coins: Whether the canary was let in, shape (steps so far - 1,).
    """

    products: NDArray[np.float64]
    coins: NDArray[np.bool_]
    shows: ClassVar[str] = "the steps of one training, one after another"


@register("attack", "step-midpoint", source="Ours, after Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class StepMidpoint:
    """Guesses that it did where the step lies above the middle of the steps with and without it.

    Three rules for the middle, all of them from the past alone; the one that would have been right most often so far is
    followed (the first at ties):

    * the canary adds one clip, as it should, to what the data have had along it so far;
    * halfway between the means of the steps with and without it, whatever it adds: gradients that are not clipped;
    * half of what it adds above the last step without it: noise that is used again.
    """

    view: ClassVar[type[StepView]] = StepView

    def score(self, view: StepView) -> Floats:
        """Of the last step alone, shape (1,): in clips above the middle; 0 where it was not finite."""
        x, coins = view.products, np.append(view.coins, False)
        known = np.isfinite(x)
        x, seen = np.where(known, x, 0.0), known.astype(np.float64)
        after = coins & known
        with_it, without = _mean_before(x, after, 1.0), _mean_before(x, known & ~after, 0.0)
        adds = with_it - without
        data = _sum_before((x - coins) * seen) / (BELIEVED + _sum_before(seen))
        last = np.concatenate([[0.0], (x - adds * coins)[:-1]])
        rules = np.stack(
            [
                x - data - 0.5,
                (x - (with_it + without) / 2) * np.sign(adds),
                (x - last - adds / 2) * np.sign(adds),
            ]
        )
        right = ((rules[:, :-1] > 0) == coins[:-1]).sum(1)
        return np.array([rules[int(np.argmax(right)), -1] * seen[-1]])


def _sum_before(values: Floats) -> Floats:
    """Of all earlier places, shape as `values`."""
    return np.cumsum(values) - values


def _mean_before(x: Floats, where: NDArray[np.bool_], believed: float) -> Floats:
    """Mean of the earlier places `where`; while they are few, with one place more that holds what is believed."""
    chosen = where.astype(np.float64)
    count = _sum_before(chosen)
    prior = (count < BELIEVED).astype(np.float64)
    return np.asarray((_sum_before(x * chosen) + prior * believed) / (count + prior))
