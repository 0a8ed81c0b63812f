"""A defect on purpose in ALIBI: the scale of its noise taken for the standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.planted.labels import OneHotLaplaceSigmaForB
from dpaudit.registry import register


@register("mechanism", "planted-alibi-sigma-for-b", source="planted defect")
@dataclass(frozen=True)
class AlibiSigmaForB(Alibi):
    """DEFECT ON PURPOSE: ALIBI with 2 / eps taken for the noise's standard deviation; the truth is sqrt(2) eps."""

    def labels(self) -> OneHotLaplace:
        """Releases labels with too little noise."""
        return OneHotLaplaceSigmaForB(self.epsilon)
