"""Splitting n examples: disjoint arrays of positions, each in ascending order, decided by the seed alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require

SLACK = 1e-9  # shares written in decimals add up to 1 only nearly

Positions = NDArray[np.int64]


def halves(n: int, seed: int | np.random.SeedSequence) -> tuple[Positions, Positions]:
    """Two random halves; the first has the odd one.

    Raises: InputError when n < 2.
    """
    require(n >= 2, "n must be >= 2 to have two halves", n=n)
    order = _shuffled(n, seed)
    middle = (n + 1) // 2
    return np.sort(order[:middle]), np.sort(order[middle:])


def fractions(n: int, shares: Mapping[str, float], seed: int | np.random.SeedSequence) -> dict[str, Positions]:
    """Random parts by name, as {"train": 0.8, "validation": 0.04, "test": 0.16}.

    Args:
        n: Number of examples, >= 1.
        shares: The share of each part, > 0, adding up to at most 1; what is left over is in no part.
        seed: Decides the split.
    Returns: The parts in the order of `shares`; a size differs from n times the share by at most 1.
    Raises: InputError when shares are out of range or n is too small for one of them.
    """
    ends = _ends(n, shares)
    order = _shuffled(n, seed)
    return {name: np.sort(order[begin:end]) for name, (begin, end) in ends.items()}


def in_time(n: int, shares: Mapping[str, float]) -> dict[str, Positions]:
    """Consecutive parts of examples in the order of time, as {"before": 0.5, "after": 0.5}; see `fractions`."""
    return {name: np.arange(begin, end) for name, (begin, end) in _ends(n, shares).items()}


def _shuffled(n: int, seed: int | np.random.SeedSequence) -> Positions:
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return np.random.default_rng(sequence).permutation(n)


def _ends(n: int, shares: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    require(len(shares) > 0, "shares must name at least one part")
    require(all(share > 0 for share in shares.values()), "shares must be > 0", shares=dict(shares))
    total = sum(shares.values())
    require(total <= 1 + SLACK, "shares must add up to at most 1", shares=dict(shares))
    cuts = [0, *(min(n, int(np.floor(n * share + 0.5))) for share in np.cumsum(list(shares.values())))]
    ends = dict(zip(shares, pairwise(cuts), strict=True))
    for name, (begin, end) in ends.items():
        require(end > begin, f"part {name!r} must get at least one example", n=n, share=shares[name])
    return ends
