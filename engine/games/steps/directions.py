"""Directions in which the canaries of a training push: sparse, orthogonal, spread over all tensors of the model.

Every direction is a unit vector on few weights that no other direction has. So canaries of different coins share no
weight, a step costs the same few thousand numbers for a model of any size, and each tensor's noise is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

SETS = 3
"""Sets of directions that take turns, so that the steps after a canary have other canaries on other weights."""
WEIGHTS = 256
"""Number of weights of a direction; more if the model has more tensors."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Sets of orthogonal unit vectors; arrays of shape (sets, coins, weights of a direction).

    Attributes:
        place: Places of the weights in the concatenated tensors of the model.
        sign: Signs 1 or -1; a direction is its signs over the square root of their number.
        tensor: Numbers of the tensors that hold the weights.
        pair: True for a weight that forms a pair with the next one: its neighbour in the tensor, with the other sign.
    """

    place: Ints
    sign: Floats
    tensor: Ints
    pair: Flags

    @classmethod
    def draw(
        cls, shapes: Sequence[Sequence[int]], coins: int, rng: np.random.Generator, *, weights: int | None = None
    ) -> Directions:
        """Draw directions for a model whose tensors have these shapes.

        Every tensor with enough weights gives the same number to each direction, and one with fewer gives all of them.
        In two of three directions, pairs of weights are neighbours, along the last or the first axis of their tensor,
        with opposite signs. Noise that was drawn once for a row, a column or a tensor cancels out in them.
        `weights` is the number of weights of a direction, >= 1; None for as many as are useful.

        Raises: InputError if the model has fewer weights than directions.
        """
        sizes = [math.prod(shape) for shape in shapes]
        total, wanted = sum(sizes), SETS * coins
        require(
            total >= wanted,
            f"a model must have at least {wanted} weights for {coins} coins a step",
            do="choose fewer `coins`",
            weights=total,
        )
        each = min(total // wanted, weights or max(WEIGHTS, 2 * len(sizes)))
        order = np.argsort(sizes, kind="stable")
        chosen, missing, firsts = [], each * wanted, np.concatenate([[0], np.cumsum(sizes)])
        for rank, tensor in enumerate(order.tolist()):  # the smallest tensors first, so that larger ones fill the rest
            count = min(sizes[tensor], -(-missing // (len(sizes) - rank)))
            chosen.append(firsts[tensor] + rng.choice(sizes[tensor], size=count, replace=False))
            missing -= count
        # Dealt in turn, so that each direction has its share of every tensor.
        place = np.concatenate(chosen).reshape(each, wanted).T.copy().reshape(SETS, coins, each)
        sign = np.where(rng.random(place.shape) < 0.5, 1.0, -1.0)
        tensor = np.searchsorted(firsts, place, side="right") - 1
        strides = np.array([(0, 1, max(1, math.prod(shape[1:]))) for shape in shapes])
        slots = {number: slot for slot, number in enumerate(place.ravel().tolist())}
        numbers, signs, tensors = place.reshape(-1), sign.reshape(-1), tensor.reshape(-1)
        paired: set[int] = set()
        pair = np.zeros(place.shape, np.bool_)
        for slot in range(numbers.size - 1):
            coin, at = divmod(slot, each)
            first, second = int(numbers[slot]), int(numbers[slot + 1])
            neighbour = first + int(strides[tensors[slot], coin % 3])
            is_pair = at % 2 == 0 and at + 1 < each and tensors[slot] == tensors[slot + 1] and neighbour > first
            if not is_pair or neighbour >= firsts[tensors[slot] + 1] or {first, neighbour} & paired:
                continue
            other = slots.pop(neighbour, None)  # the weight changes places with the neighbour
            if other is not None:
                numbers[other], slots[second] = second, other
            numbers[slot + 1], slots[neighbour], signs[slot + 1] = neighbour, slot + 1, -signs[slot]
            paired |= {first, neighbour}
            pair.reshape(-1)[slot] = True
        return cls(place, sign, tensor, pair)

    @property
    def coins(self) -> int:
        """Number of directions in a set."""
        return int(self.place.shape[1])

    @property
    def length(self) -> float:
        """Euclidean norm of a row of signs."""
        return float(np.sqrt(self.place.shape[2]))

    @cached_property
    def along(self) -> Floats:
        """Signs, rotated as the numbers of a step are."""
        return self.rotated(self.sign)

    @cached_property
    def kind(self) -> Ints:
        """Kinds of the rotated numbers, in [0, 3 tensors): weight, difference or sum of neighbours of a tensor."""
        kinds = np.zeros(self.place.size, np.int64)
        first = np.flatnonzero(self.pair)
        kinds[first], kinds[first + 1] = 1, 2
        return 3 * self.tensor + kinds.reshape(self.place.shape)

    def rotated(self, values: Floats) -> Floats:
        """Return numbers at the places with the difference and the sum of each pair, over sqrt(2), in its place.

        Independent Gaussian noise keeps its law, and noise that neighbours share has no difference.
        """
        flat, first = values.ravel().copy(), np.flatnonzero(self.pair)
        upper, lower = flat[first], flat[first + 1]
        flat[first], flat[first + 1] = (upper - lower) / math.sqrt(2), (upper + lower) / math.sqrt(2)
        return flat.reshape(values.shape)
