"""From a step of DP-SGD to the whole training: what the accountant makes of the noise that was found."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import expit, ndtri

from dpaudit.claims import Claim, SubsampledGaussian
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.one_run.step_martingale import StepAccuracy
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps

TESTED = "tested: noise and clipping of the steps{sampling}; not the accountant nor the data pipeline, which a game of "
TESTED += "two worlds sees from end to end"


@dataclass(frozen=True)
class WholeTraining:
    """What the steps of an audit belong to.

    Attributes:
        steps: What the training says of its steps.
        claim: What it promises as a whole.
        sampled: Whether the steps were tested with their sampling.
    """

    steps: ClaimedSteps
    claim: Claim
    sampled: bool

    def lines(self, finding: Finding, step_claim: Claim) -> tuple[str, ...]:
        """For a reader: the p-value of the step's claim, the noise that is left, what it costs, what was not tested."""
        seen = (
            [some for some in finding.evidence if isinstance(some, StepAccuracy)] if isinstance(finding, Bound) else []
        )
        p_values = [f"p-value of the step's claim: {some.p_value(step_claim.curve):.2g}" for some in seen]
        composed = [self._composed(some) for some in seen if some.odds > 0 and not self.sampled]
        tested = TESTED.format(sampling=", and their sampling" if self.sampled else "")
        return (*p_values, *composed, tested)

    def _composed(self, seen: StepAccuracy) -> str:
        """An accuracy of Phi(1 / (2 m)) is all that Gaussian noise of multiplier m allows."""
        private = self.steps.private
        most = 1 / (2 * float(ndtri(expit(seen.odds))))
        claimed = f"{private.noise_multiplier:.3g} are claimed"
        found = f"if a step's noise is Gaussian, it is worth at most {format_upper(most)} clips, where {claimed}"
        if most >= private.noise_multiplier:
            return found
        spent = SubsampledGaussian(most, private.sample_rate, self.steps.count).epsilon(self.claim.delta)
        return (
            f"{found}; {self.steps.count:,} such steps spend about epsilon {format_lower(spent, 2)} at "
            f"delta={self.claim.delta:g} by the accountant, where {self.claim.epsilon:g} is claimed"
        )
