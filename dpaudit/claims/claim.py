"""What a mechanism promises, under which notion of neighbouring data sets, and at which delta it is printed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from dpaudit.claims.accounted import AccountedEvent
from dpaudit.claims.closed_forms import ApproximateDP, PureDP
from dpaudit.claims.curve import PrivacyCurve
from dpaudit.claims.relation import Relation
from dpaudit.claims.subsampled_gaussian import SubsampledGaussian
from dpaudit.errors import require
from dpaudit.given import argument, check_fields


@dataclass(frozen=True)
class Claim:
    """What the mechanism promises: a curve of privacy under a neighbouring relation, in short (epsilon, delta)-DP.

    `Claim(epsilon=1.0)` promises pure DP, `Claim(1.0, 1e-5)` one point, `Claim.of(GaussianDP(1.0), ...)` a curve.

    Attributes:
        epsilon: Privacy loss bound in nats at `delta`, > 0; `inf` claims nothing. Left out: the curve's.
        delta: Probability mass the bound may miss, in [0, 1).
        relation: The neighbouring relation the promise is made under.
        curve: All that is promised: at least `epsilon` at `delta`. Left out: that one point.
    """

    epsilon: float = None  # type: ignore[assignment]  # filled in from the curve
    delta: float = 0.0
    relation: Relation = Relation.LABEL
    curve: PrivacyCurve = field(default=None, metadata={"kind": "curve"})  # type: ignore[assignment]  # filled in

    def __post_init__(self) -> None:
        check_fields(self)
        epsilon, curve = cast(float | None, self.epsilon), cast(PrivacyCurve | None, self.curve)
        require(0 <= self.delta < 1, "a claimed delta must be in [0, 1)", delta=self.delta)
        if curve is None:
            require(
                epsilon is not None,
                "a claim must state epsilon, or a curve",
                do="write Claim(epsilon=1.0), or Claim.of(GaussianDP(1.0), relation=..., delta=1e-5)",
            )
            require(self.epsilon > 0, "a claimed epsilon must be > 0", epsilon=epsilon)
            object.__setattr__(self, "curve", _point(self.epsilon, self.delta))
            return
        require(
            self.relation == Relation.ADD_REMOVE or not isinstance(curve, AccountedEvent | SubsampledGaussian),
            f"the curve of {curve} is about adding or removing a record; its claim needs Relation.ADD_REMOVE",
            relation=self.relation,
        )
        promised: float = argument("the epsilon of a curve", curve.epsilon(self.delta), float)
        if epsilon is None:
            object.__setattr__(self, "epsilon", promised)
        require(
            promised <= self.epsilon * (1 + 1e-6),
            "the curve of a claim must promise no less than its epsilon",
            epsilon=epsilon,
            curve=f"{promised:g} at delta = {self.delta:g}",
        )

    @classmethod
    def of(cls, curve: PrivacyCurve, *, relation: Relation, delta: float = 0.0) -> Claim:
        """The claim that a curve makes.

        Args:
            curve: All that is promised.
            relation: The neighbouring relation it is about.
            delta: Where it is printed, and where a bound is compared with it in short; in [0, 1).
        """
        return cls(delta=delta, relation=relation, curve=curve)

    @property
    def is_point(self) -> bool:
        """Whether epsilon and delta are all that is promised."""
        return self.epsilon > 0 and self.curve == _point(self.epsilon, self.delta)

    def __str__(self) -> str:
        if self.is_point and math.isinf(self.epsilon):
            return f"no privacy claimed (epsilon = inf, {self.relation})"
        curve = "" if self.is_point else f"{self.curve}; "
        return f"epsilon <= {self.epsilon:g} at delta={self.delta:g} ({curve}{self.relation})"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; the curve in words."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "curve": str(self.curve),
        }


def _point(epsilon: float, delta: float) -> PureDP | ApproximateDP:
    return PureDP(epsilon) if delta == 0 else ApproximateDP(epsilon, delta)
