"""What mechanisms promise: a curve of privacy, under a notion of neighbouring data sets, and a place to print it."""

from dpaudit.claims.accounted import AccountedEvent
from dpaudit.claims.claim import Claim
from dpaudit.claims.closed_forms import ApproximateDP, GaussianDP, PureDP
from dpaudit.claims.composed_laplace import ComposedLaplace
from dpaudit.claims.conversion import ConvertedClaim, claim_under
from dpaudit.claims.curve import PrivacyCurve
from dpaudit.claims.relation import Relation
from dpaudit.claims.renyi import RenyiDP
from dpaudit.claims.subsampled_gaussian import SubsampledGaussian
from dpaudit.claims.table import PrivacyProfile
from dpaudit.claims.two_steps import TwoSteps, two_steps

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
