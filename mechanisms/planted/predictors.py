"""Defects on purpose in private predictors: an audit that does not find them is not looking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, PrivacyCurve, Relation
from dpaudit.mechanisms.predictors.ensemble import CaPC, Ensemble, PatePredictor
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn
from dpaudit.mechanisms.predictors.releases import ConfidentArgmax, GaussianArgmax, Release
from dpaudit.registry import register

Ints = NDArray[np.int64]


class _OtherRelease(Ensemble):
    """What it releases is not what it claims: that is about the honest release."""

    def claim(self) -> Claim:
        return Claim.of(Ensemble.release(self).curve(), relation=Relation.ADD_REMOVE, delta=self.delta)


@register("mechanism", "planted-capc-half-the-noise", source="planted defect")
class CaPCHalfTheNoise(_OtherRelease, CaPC):
    """DEFECT ON PURPOSE: half of the noise that is claimed; the truth is four times the claim."""

    def release(self) -> Release:
        return GaussianArgmax(self.sigma / 2)


@dataclass(frozen=True)
class _ArgmaxFirst:
    """The most voted class as it is; the noise comes when nothing depends on it any more."""

    sigma: float  # of the noise that is claimed

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        return np.asarray(votes.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        return GaussianArgmax(self.sigma).curve()


@register("mechanism", "planted-pate-argmax-before-noise", source="planted defect")
class PateArgmaxBeforeNoise(PatePredictor):
    """DEFECT ON PURPOSE: the argmax is taken before the noise, so the most voted class is released as it is."""

    def release(self) -> Release:
        return _ArgmaxFirst(self.sigma)


@register("mechanism", "planted-capc-counted-twice", source="planted defect")
class CaPCCountedTwice(CaPC):
    """DEFECT ON PURPOSE: the first party's votes are counted twice; the truth is four times the claim."""

    def weights(self, voters: int) -> Ints:
        weights = super().weights(voters)
        weights[0] = 2
        return weights


@register("mechanism", "planted-capc-threshold-without-noise", source="planted defect")
@dataclass(frozen=True)
class CaPCThresholdWithoutNoise(_OtherRelease, CaPC):
    """DEFECT ON PURPOSE: the largest count is held against the threshold as it is; whether one answers tells all."""

    threshold: float | None = 20.0

    def release(self) -> Release:
        assert self.threshold is not None
        return ConfidentArgmax(self.sigma, self.threshold, 1e-6)


@register("mechanism", "planted-private-knn-twice-the-rate", source="planted defect")
class PrivateKnnTwiceTheRate(PrivateKnn):
    """DEFECT ON PURPOSE: records are kept with twice the probability that is claimed."""

    def sampled(self) -> float:
        return min(1.0, 2 * self.rate)
