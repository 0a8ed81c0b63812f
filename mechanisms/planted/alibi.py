"""Defects on purpose in ALIBI: noise of a scale that is too small."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.planted.labels import OneHotLaplaceHalfScale, OneHotLaplaceSigmaForB
from dpaudit.registry import register


@register("mechanism", "planted-alibi-sigma-for-b", source="planted defect")
@dataclass(frozen=True)
class AlibiSigmaForB(Alibi):
    """DEFECT ON PURPOSE: ALIBI with 2 / eps taken for the noise's standard deviation; the truth is sqrt(2) eps."""

    def labels(self) -> OneHotLaplace:
        """Releases labels with too little noise."""
        return OneHotLaplaceSigmaForB(self.epsilon)


@register("mechanism", "planted-alibi-half-scale", source="planted defect")
@dataclass(frozen=True)
class AlibiHalfScale(Alibi):
    """DEFECT ON PURPOSE: ALIBI with half its noise; the truth is 2 eps."""

    def labels(self) -> OneHotLaplace:
        """Releases labels with too little noise."""
        return OneHotLaplaceHalfScale(self.epsilon)
