"""Range checks of fields and privacy budgets, with one error message each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

from dpaudit.errors import require


class NoiseByEpsilon:
    """A mechanism whose noise depends on epsilon alone, so that it can run without noise.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
    """

    noiseless_epsilon: ClassVar[float] = math.inf
    """Epsilon in nats that stands for no noise; 10,000 in mechanisms that reject infinity."""

    def without_noise(self) -> Self:
        """Return a copy with `noiseless_epsilon`."""
        return replace(self, epsilon=self.noiseless_epsilon)  # type: ignore[type-var]


def require_positive(instance: object, *names: str) -> None:
    """Reject fields that are not > 0; None passes."""
    for name in names:
        value = getattr(instance, name)
        require(value is None or value > 0, f"{name} must be > 0", given=value)


def require_at_least(least: int, instance: object, *names: str) -> None:
    """Reject fields that are not >= `least`; None passes."""
    for name in names:
        value = getattr(instance, name)
        require(value is None or value >= least, f"{name} must be >= {least}", given=value)


def require_epsilon(epsilon: float) -> None:
    """Reject an epsilon that is not > 0; `inf` means no privacy."""
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)


def require_finite_epsilon(epsilon: float) -> None:
    """Reject an epsilon that is not > 0 and finite."""
    require(0 < epsilon < math.inf, "epsilon must be > 0 and finite", epsilon=epsilon)


def require_delta(delta: float) -> None:
    """Reject a delta outside (0, 1)."""
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
