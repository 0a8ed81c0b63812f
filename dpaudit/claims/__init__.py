"""What mechanisms promise: a curve of privacy, under a notion of neighbouring data sets, and a place to print it.

Curves that few claims are made of are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpaudit.claims.claim import Claim, ConvertedClaim, claim_under
from dpaudit.claims.curve import ApproximateDP, GaussianDP, PrivacyCurve, PureDP, Relation, TwoSteps, two_steps

if TYPE_CHECKING:
    from dpaudit.claims.composition import ComposedLaplace, SubsampledGaussian
    from dpaudit.claims.renyi import RenyiDP
    from dpaudit.claims.table import AccountedEvent, PrivacyProfile

__all__ = [
    "AccountedEvent",
    "ApproximateDP",
    "Claim",
    "ComposedLaplace",
    "ConvertedClaim",
    "GaussianDP",
    "PrivacyCurve",
    "PrivacyProfile",
    "PureDP",
    "Relation",
    "RenyiDP",
    "SubsampledGaussian",
    "TwoSteps",
    "claim_under",
    "two_steps",
]

_LATER = {
    "composition": ("ComposedLaplace", "SubsampledGaussian"),
    "renyi": ("RenyiDP",),
    "table": ("AccountedEvent", "PrivacyProfile"),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _LATER.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'dpaudit.claims' has no attribute {name!r}")
    return getattr(import_module(f"dpaudit.claims.{home}"), name)
