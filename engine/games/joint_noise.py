"""The joint noise of the numbers of a result: how far a change of the input moves them, in units of that noise.

Two numbers with one draw of noise hide the input less than their own spreads say: their difference has no noise. Runs
with several seeds on one input show the directions in which the noise varies; a change in any other direction is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.outcomes import Outcomes

Floats = NDArray[np.float64]

MAX_MOVE = 50.0
"""Upper limit of the move of a number, in units of its noise."""
MIN_DEVIATION = 1e-6
"""Smallest deviation along a direction that counts as noise, in spreads of a number."""
EXACT_SHARE = 1e-3
"""Share of the length of a move, in spreads, that lies in directions without noise if the move is exact."""
MIN_VALUES = 4
"""Fewest values of a number for which directions are compared: answers with two values are equal by chance."""
MORE_RUNS = 4
"""Runs beyond the number of directions, from which directions without noise are known."""


@dataclass(frozen=True, eq=False)
class JointNoise:
    """Size of the noise of each number, and of its principal directions.

    Attributes:
        spread: Mean absolute deviation of each number, shape (d,).
        directions: Principal directions of numbers in units of their spread, shape (k, d).
        deviations: Standard deviation along each direction, shape (k,).
        runs: Number of runs that show the noise.
        few_values: True if most numbers with noise have few values.
    """

    spread: Floats
    directions: Floats
    deviations: Floats
    runs: int
    few_values: bool

    @classmethod
    def of(cls, runs: Floats) -> JointNoise:
        """Return the noise of runs with different seeds on one input, shape (n, d)."""
        centred = runs - np.median(runs, 0)
        spread = np.abs(centred).mean(0)
        scaled = centred / np.where(spread > 0, spread, 1.0)
        _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
        values = [len(np.unique(column)) for column in runs.T[spread > 0]]
        few = bool(values) and float(np.median(values)) < MIN_VALUES
        return cls(spread, directions, sizes / np.sqrt(len(runs)), len(runs), few)

    def sum_of_moves(self, move: Floats) -> float:
        """Return the sum over numbers of move over noise: the loss of independent Laplace noise, up to a factor."""
        units = np.divide(np.abs(move), self.spread, out=np.full_like(move, MAX_MOVE), where=self.spread > 0)
        smallest = 1e-6 * np.abs(move).max(initial=0.0)  # rounding errors of numbers without noise
        return float(np.where(np.abs(move) > smallest, np.minimum(units, MAX_MOVE), 0.0).sum())

    def length_of_move(self, move: Floats) -> float:
        """Return the length of the move in standard deviations: the loss of normal noise.

        The noise in directions that these few runs do not show is taken for that of independent numbers.
        """
        noisy = self.spread > 0
        inside, beyond, _ = self._parts(move)
        bare = MAX_MOVE * float(np.abs(move[~noisy]).max(initial=0.0) > 1e-6 * np.abs(move).max(initial=0.0))
        rest = float(np.linalg.norm(beyond))
        if self._dependent:
            rest = MAX_MOVE * float(self.is_exact(move))
        return float(np.sqrt((inside**2).sum() + min(rest, MAX_MOVE) ** 2 + bare**2))

    def is_exact(self, move: Floats) -> bool:
        """True if numbers with noise move in a direction without any, which their sums and differences show."""
        _, beyond, scaled = self._parts(move)
        return self._dependent and float(np.linalg.norm(beyond)) > EXACT_SHARE * float(np.linalg.norm(scaled))

    @property
    def shows_directions(self) -> bool:
        """True if the runs suffice to say which directions have no noise."""
        return not self.few_values and self.runs >= len(self.spread) + MORE_RUNS

    @property
    def _varies(self) -> NDArray[np.bool_]:
        return self.deviations > MIN_DEVIATION

    @property
    def _dependent(self) -> bool:
        """True if some sums of numbers with noise have none."""
        most = min(int((self.spread > 0).sum()), self.runs - 1)
        return int(self._varies.sum()) < most

    def _parts(self, move: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the move along directions in their deviations, the rest in spreads, and all of it in spreads."""
        scaled = np.divide(move, self.spread, out=np.zeros_like(move), where=self.spread > 0)
        along, varies = (self.directions @ scaled)[self._varies], self.deviations[self._varies]
        inside = along / np.maximum(varies, np.median(varies) / 3) if len(varies) else along
        return inside, scaled - self.directions[self._varies].T @ along, scaled


def exact_moves(tried: Sequence[Outcomes]) -> list[float]:
    """Return 1.0 for each pair of inputs between which the runs move in a direction without noise, else 0.0.

    The runs are in pairs of one seed. A pair gets few runs, so the directions are learned from all of them together.
    """
    ending, moves, noise = Outcomes.joined(tried).usual_ending, list[Floats](), list[Floats]()
    for samples in tried:
        worlds = [samples.where(samples.truth == world) for world in (False, True)]
        both = (worlds[0].ending == ending) & (worlds[1].ending == ending)
        first, second = (world.where(both).exact() for world in worlds)
        moves.append(np.median(second - first, 0) if len(first) else np.empty(0))
        noise += [np.diff(side, axis=0) for side in (first, second) if len(side) > 1 and side.size]
    if not noise:
        return [0.0] * len(moves)
    joint = JointNoise.of(np.concatenate([np.zeros((1, noise[0].shape[1])), *noise]))
    return [float(joint.shows_directions and len(move) > 0 and joint.is_exact(move)) for move in moves]
