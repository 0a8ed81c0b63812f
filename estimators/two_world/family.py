"""Two-sample bounds under an assumed family of trade-off functions: much tighter, and invalid outside the family.

The rates at thresholds passed by many trials determine which members of the family are rejected. The least private
rejected member gives an epsilon at any delta. Rates as small as delta are not observed: there the bound extrapolates by
the family. No data can show that a mechanism belongs to it. Randomised response with pure epsilon 1 gets more than 1
from a Gaussian.

Source: the Gaussian family as in Nasr et al. (2023), arXiv:2302.07956, and jax_privacy; limits of the rates from
    `bands`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args

from dpaudit.claims import GaussianDP, PrivacyCurve, SubsampledGaussian
from dpaudit.errors import require
from dpaudit.estimators.arguments import require_one_of
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.family_bound import FamilyBound, NamedFamily
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.two_sample import Band, RateRegions, TwoSampleTally
from dpaudit.registry import register

STEPS = 14  # bisection steps for the member; the rejected end is returned

Member = Literal["gaussian", "dp-sgd"]


@dataclass(frozen=True)
class CurveFamily:
    """Privacy curves ordered by one parameter."""

    name: str  # in words
    curve: Callable[[float], PrivacyCurve]  # member at a parameter > 0; a larger parameter is less private
    most_private: float  # smallest parameter of the search
    least_private: float  # largest parameter of the search
    words: Callable[[float], str]  # describes a rejected parameter


GAUSSIAN = CurveFamily("Gaussian", GaussianDP, 1e-4, 40.0, lambda mu: f"mu >= {format_lower(mu)}")


def dp_sgd(sample_rate: float, steps: int) -> CurveFamily:
    """Return DP-SGD with known sampling and steps and unknown noise; the parameter is 1 / noise multiplier."""
    return CurveFamily(
        f"DP-SGD (sampled at {sample_rate:g}, {steps:,} steps)",
        lambda inverse: SubsampledGaussian(noise_multiplier=1 / inverse, sample_rate=sample_rate, steps=steps),
        0.05,
        5.0,
        lambda inverse: f"noise multiplier <= {format_upper(1 / inverse)}",
    )


def family_named(named: NamedFamily) -> CurveFamily:
    """Return the curves of a named family.

    Raises: InputError for the Laplace family, which no bands are tested against.
    """
    require_one_of("the family of two samples", named.name, get_args(Member))
    return GAUSSIAN if named.name == "gaussian" else dp_sgd(named.sample_rate, named.steps)


def family_of(curve: PrivacyCurve) -> CurveFamily:
    """Return the family of a claimed curve: DP-SGD for a subsampled Gaussian, else the Gaussian family."""
    return dp_sgd(curve.sample_rate, curve.steps) if isinstance(curve, SubsampledGaussian) else GAUSSIAN


def family_bound(regions: RateRegions, family: CurveFamily, delta: float) -> FamilyBound:
    """Return the epsilon at `delta` of the least private member that the regions reject."""

    def rejected(parameter: float) -> bool:
        return regions.comparison(family.curve(parameter)).exceeds

    low, high = math.log(family.most_private), math.log(family.least_private)
    if not rejected(family.most_private):
        return FamilyBound(0.0, delta, "", family.name)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(math.exp(middle)) else (low, middle)
    member = math.exp(low)
    return FamilyBound(family.curve(member).epsilon(delta), delta, family.words(member), family.name)


@register("estimator", "band-family", source="Nasr et al. (2023), arXiv:2302.07956, inside Berk-Jones bands")
@dataclass(frozen=True)
class BandFamily(Estimator[Scores, TwoSampleTally]):
    """Two-sample scores: the least private member of a family that the bands reject; valid for that family only.

    Attributes:
        delta: Delta at which the bound is stated, in (0, 1).
        confidence: Stated confidence if the mechanism belongs to the family, in (0, 1).
        family: "gaussian", or "dp-sgd" with the two numbers below.
        sample_rate: Sampling rate of DP-SGD, in (0, 1].
        steps: Number of steps of DP-SGD, >= 1.
    """

    independent_trials: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = TwoSampleTally

    delta: float = 1e-5
    confidence: float = 0.95
    family: Member = "gaussian"
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        require(
            0 < self.delta < 1, "delta must be in (0, 1), for no member has a finite epsilon at 0", delta=self.delta
        )
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        family_named(NamedFamily(self.family, self.sample_rate, self.steps))  # checks all three

    @property
    def band(self) -> Band:
        return Band(delta=self.delta, confidence=self.confidence)

    def tally(self, scores: Scores) -> TwoSampleTally:
        return self.band.tally(scores)

    def bound(self, tallies: Sequence[TwoSampleTally], *, failed_replays: int = 0) -> Bound:
        return self._under_family(self.band.bound(tallies, failed_replays=failed_replays))

    def find(self, tallies: Sequence[TwoSampleTally], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        return self._under_family(cast(Bound, self.band.find(tallies, failed_replays=failed_replays)))

    def _under_family(self, bound: Bound) -> Bound:
        """Return the member's epsilon; `counts` and series are those of `band`. It rejects no other curve."""
        family = family_named(NamedFamily(self.family, self.sample_rate, self.steps))
        (regions,) = bound.evidence
        limit = family_bound(cast(RateRegions, regions), family, self.delta)
        return replace(
            bound,
            lower=limit.epsilon,
            method=f"band-family ({family.name})",
            validity=Validity.CONDITIONAL_ON_FAMILY,
            notes=(limit.member,) if limit.member else (),
            evidence=(),
        )


def bound_under_family(bound: Bound, family: CurveFamily) -> FamilyBound | None:
    """Return the bound of the same bands under a family; None if `bound` has no bands."""
    regions = next((evidence for evidence in bound.evidence if isinstance(evidence, RateRegions)), None)
    return None if regions is None else family_bound(regions, family, bound.delta)
