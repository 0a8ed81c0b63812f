"""`FamilyBound`: a bound from the same evidence under an assumed family of curves, printed next to the main bound.

No data can show that a mechanism belongs to a family, so no verdict rests on such a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import require_one_of
from dpaudit.estimators.bound import format_lower

FamilyName = Literal["gaussian", "laplace", "dp-sgd"]


@dataclass(frozen=True)
class NamedFamily:
    """Family of curves as a user names it: "gaussian", "laplace", or "dp-sgd" with its sampling and steps.

    Attributes:
        name: The family.
        sample_rate: Probability with which a step of DP-SGD samples a record, in (0, 1].
        steps: Number of steps of DP-SGD, >= 1.
    """

    name: FamilyName = "gaussian"
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        require_one_of("family", self.name, get_args(FamilyName))
        require(0 < self.sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=self.sample_rate)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    @classmethod
    def parse(cls, text: str) -> NamedFamily:
        """Return the family of a text: "gaussian", "laplace" or "dp-sgd:SAMPLE_RATE,STEPS"."""
        name, _, numbers = text.partition(":")
        if name != "dp-sgd":
            require_one_of("family", text, ("gaussian", "laplace", "dp-sgd:SAMPLE_RATE,STEPS"))
            return cls("gaussian" if text == "gaussian" else "laplace")
        try:
            rate, steps = numbers.split(",")
            stated = float(rate), int(steps)
        except ValueError as err:
            raise InputError(
                f"family dp-sgd must state its sampling rate and steps, such as dp-sgd:0.01,1000, got {text!r}"
            ) from err
        return cls("dp-sgd", *stated)


@dataclass(frozen=True)
class FamilyBound:
    """Bound from the same evidence under a family."""

    epsilon: float  # lower bound at `delta` if the mechanism's curve belongs to the family, in nats
    delta: float  # in [0, 1)
    member: str  # description of the rejected member; "" if none was rejected
    family: str  # name of the family
    independent_leaks: bool = False  # True if it also assumes that the canaries of a training leak independently

    def __str__(self) -> str:
        member = f" ({self.member})" if self.member else ""
        leaks = " and its canaries leak independently" if self.independent_leaks else ""
        return (
            f"epsilon >= {format_lower(self.epsilon)} at delta={self.delta:g}{member} if the mechanism's curve is "
            f"{self.family}{leaks}, which no data show"
        )
