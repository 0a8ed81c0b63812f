"""Private predictors with planted defects, which an audit must detect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, PrivacyCurve, Relation
from dpaudit.mechanisms.predictors.ensemble import CaPC, Ensemble, PatePredictor
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn
from dpaudit.mechanisms.predictors.vote_laws import ConfidentArgmax, GaussianArgmax, Release

Ints = NDArray[np.int64]


class _OtherRelease(Ensemble):
    """Claims the privacy of the correct release, but uses another release."""

    def claim(self) -> Claim:
        return Claim.of(Ensemble.release(self).curve(), relation=Relation.ADD_REMOVE, delta=self.delta)


class CaPCHalfTheNoise(_OtherRelease, CaPC):
    """DEFECT ON PURPOSE: half of the claimed noise; the truth is four times the claim."""

    def release(self) -> Release:
        return GaussianArgmax(self.sigma / 2)


@dataclass(frozen=True)
class _ArgmaxFirst:
    """Releases the majority class without noise: noise added later has no effect."""

    sigma: float  # standard deviation of the claimed noise

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        return np.asarray(votes.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        return GaussianArgmax(self.sigma).curve()


class PateArgmaxBeforeNoise(PatePredictor):
    """DEFECT ON PURPOSE: takes the argmax before adding noise, so it releases the exact majority class."""

    def release(self) -> Release:
        return _ArgmaxFirst(self.sigma)


class CaPCCountedTwice(CaPC):
    """DEFECT ON PURPOSE: counts the votes of the first party twice; the truth is four times the claim."""

    def weights(self, voters: int) -> Ints:
        weights = super().weights(voters)
        weights[0] = 2
        return weights


@dataclass(frozen=True)
class CaPCThresholdWithoutNoise(_OtherRelease, CaPC):
    """DEFECT ON PURPOSE: compares the exact largest count with the threshold, which the decision to answer reveals."""

    threshold: float | None = 20.0

    def release(self) -> Release:
        assert self.threshold is not None
        return ConfidentArgmax(self.sigma, self.threshold, 1e-6)


class PrivateKnnTwiceTheRate(PrivateKnn):
    """DEFECT ON PURPOSE: samples records with twice the claimed probability."""

    def sampled(self) -> float:
        return min(1.0, 2 * self.rate)
