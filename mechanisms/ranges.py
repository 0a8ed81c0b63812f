"""Ranges of fields and of budgets, each refused in one way."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

from dpaudit.errors import require


class NoiseByEpsilon:
    """A mechanism that can be played without its noise, since epsilon alone says how much there is.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
    """

    noiseless_epsilon: ClassVar[float] = math.inf
    """In nats; 10,000, whose noise hides nothing, where infinity is refused."""

    def without_noise(self) -> Self:
        """The same at that epsilon."""
        return replace(self, epsilon=self.noiseless_epsilon)  # type: ignore[type-var]


def require_positive(instance: object, *names: str) -> None:
    """Refuses fields of these names that are not > 0; those that are None pass."""
    for name in names:
        value = getattr(instance, name)
        require(value is None or value > 0, f"{name} must be > 0", given=value)


def require_at_least(least: int, instance: object, *names: str) -> None:
    """Refuses fields of these names that are not >= `least`; those that are None pass."""
    for name in names:
        value = getattr(instance, name)
        require(value is None or value >= least, f"{name} must be >= {least}", given=value)


def require_epsilon(epsilon: float) -> None:
    """Refuses an epsilon that is not > 0; `inf` asks for no privacy."""
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)


def require_finite_epsilon(epsilon: float) -> None:
    """Refuses an epsilon that is not > 0 and finite."""
    require(0 < epsilon < math.inf, "epsilon must be > 0 and finite", epsilon=epsilon)


def require_delta(delta: float) -> None:
    """Refuses a delta outside (0, 1)."""
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
