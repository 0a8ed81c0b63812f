"""Records of tests: the values, without prose, from which a verdict is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpaudit.claims import NO_FRACTIONS, Claim, ConvertedClaim, Scope
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Comparison, Finding

if TYPE_CHECKING:
    from dpaudit.engine.answer.shift import ShiftControl
    from dpaudit.engine.planning.state_between_calls import StateBetweenCalls

STATED_NOISE_P = 1e-6
"""A claim is undecided if the stated noise is rejected with a p-value below this."""
CHANGE_P = 1e-6
"""A claim is undecided if a first pass that is not confirmed rejects it with at most this p-value."""


class Verb(StrEnum):
    """Way in which an audit was started; an answer advises only what that way offers."""

    RUN = "run"
    CHECK = "check"
    ESTIMATE = "estimate"
    SYNTHETIC = "synthetic"
    TEXTS = "texts"
    TRAINING = "training"


class Confirmation(Enum):
    """Outcome of repeating a test with fresh randomness."""

    NOT_PLANNED = "not planned"
    CONFIRMED = "the repeated test rejects the claim too"
    CLOSE = "the repeated test exceeds the claim at the confidence of the first pass alone"
    NOT_CONFIRMED = "the repeated test does not exceed the claim"
    MISSING = "the repeated test did not finish, or is undecided itself"
    LESS_CONFIDENT = "no repetition is possible, and the bound exceeds the claim only at less than full confidence"


@dataclass(frozen=True)
class Failure:
    """A unit that did not finish."""

    label: str  # label of the unit
    key: str  # key of the unit; `units/<key>.failed` holds its log
    error: str  # the last line of its error
    skipped: bool = False  # True if it was not tried, usually because it needs a failed unit


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of a test.

    Attributes:
        factor: Scaling of the noise that the test would detect: with noise this many times smaller, it rejects the
            claim with 90 % probability. In [1, 8]; inf if a factor of 8 is not detected, None if not known.
        maximum: The finding for a mechanism with no privacy; None if not known.
        played: True if `maximum` was measured by playing the game with fully revealing answers.
        noiseless: True if `maximum` was measured by running the mechanism without its noise.
        reference_failed: True if measuring `maximum` was planned and failed.
        helps: Advice on raising the sensitivity; "" if there is none.
        tried: Inputs to which `factor` is limited, in words; "" for no limit.
        blind: Reason why the test could not have rejected the claim, if the data show that; else "".
        one_outcome: True if all results were the same, so that a leak might not show in results at all.
        no_difference: True if the scores do not tell the worlds apart, so that they say nothing about smaller noise.
        detectable: Smallest leak of a stated kind that the test would detect with 90 % power, in words; "" if unknown.
    """

    factor: float | None = None
    maximum: Finding | None = None
    played: bool = False
    noiseless: bool = False
    reference_failed: bool = False
    helps: str = ""
    tried: str = ""
    blind: str = ""
    detectable: str = ""
    one_outcome: bool = False
    no_difference: bool = False

    def could_reject(self, claim: Claim) -> bool:
        """True unless the test is known to be unable to reject the claim, or its reference run failed."""
        if self.reference_failed or self.blind:
            return False
        if self.maximum is None or (self.noiseless and self.factor is not None and self.factor < math.inf):
            return True  # noiseless runs are few; a known factor rests on all trials
        return self.maximum.violation_point(claim.curve) is not None


@dataclass(frozen=True, eq=False)
class Test:
    """Result of one test of a claim.

    Attributes:
        name: Name of the test.
        claimed: The claim as stated.
        compared: The claim under the relation of the test.
        finding: The bound of the first pass; None if there is none.
        repeated: The finding of the confirmatory run, at the confidence of the verdict; None if it did not run.
        at_first_confidence: Finding of a confirmatory run that does not reject, at the confidence of the first pass.
        confirmation: Outcome of the confirmatory run.
        scope: Subject of the test: the claim or a side finding.
        p_value: Upper limit of the p-value of the claim, from the run that decides; None if not computed.
        first_p_value: Upper limit of the p-value of the claim, from the first pass; None if not computed.
        sensitivity: Sensitivity of the test.
        on_proxy: True if the finding relies on a proxy.
        control: Negative control of a test on a proxy; None if it was not run.
        control_lost: True if a planned control failed.
        rows_needed: Number of held-out rows that would decide; None if no number would.
        planted_next: True if the same run tests the mechanism with planted labels too.
        state: Check for state between calls; None if it was not run.
        noise: Form of the noise of DP-SGD steps (`NoiseForm`); None if not checked.
        unreadable: Results of the audited code that could not be read, each in words.
        meaning_for_whole: Consequences of a bound on a part for the whole, in sentences; () for a test of the whole.
        leak_location: Probable place of the leak in the code, in sentences.
        assumed_method: Method that holds only for independent trials, if independence was not stated; else "".
        split_doubt: Reason why the split into training and holdout rows was not random, in words; "" if there is none.
        without_noise: Observation that steps of the training had no noise, in words; "" if there is none.
        differs_from_claim: How the training differs from the one that the claim is about, in words; "" if it does not.
        failed_trials: Trials that failed, each with its seed and error; each counts as a wrong guess.
        failures: Units that failed.
        units: Numbers of finished and planned units.
    """

    __test__ = False  # pytest must not collect this class

    name: str
    claimed: Claim
    compared: ConvertedClaim
    finding: Finding | None
    repeated: Finding | None = None
    at_first_confidence: Finding | None = None
    confirmation: Confirmation = Confirmation.NOT_PLANNED
    scope: Scope = Scope.CLAIM
    p_value: float | None = None
    first_p_value: float | None = None
    sensitivity: Sensitivity = Sensitivity()
    on_proxy: bool = False
    control: ShiftControl | None = None
    control_lost: bool = False
    rows_needed: int | None = None
    planted_next: bool = False
    state: StateBetweenCalls | None = None
    noise: Any = None
    unreadable: tuple[str, ...] = ()
    meaning_for_whole: tuple[str, ...] = ()
    leak_location: tuple[str, ...] = ()
    assumed_method: str = ""
    split_doubt: str = ""
    without_noise: str = ""
    differs_from_claim: str = ""
    failed_trials: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    units: tuple[int, int] = (0, 0)

    @property
    def tried_failures(self) -> tuple[Failure, ...]:
        """Units that ran and failed."""
        return tuple(failure for failure in self.failures if not failure.skipped)

    @property
    def claims_something(self) -> bool:
        """False for a claim of infinite epsilon."""
        claim = self.compared.claim
        return not (claim.is_point and math.isinf(claim.epsilon))

    @property
    def exceeds(self) -> bool:
        """True if the bound of the first pass exceeds the claim."""
        claim = self.compared.claim
        return self.finding is not None and self.finding.violation_point(claim.curve) is not None

    def at_confidence_of(self, surer: Finding) -> Test:
        """Return the test with the finding at the confidence that a violation needs, if both exceed the claim.

        If only the first finding exceeds the claim, the test is not confirmed at that confidence.
        """
        if not self.exceeds:
            return self
        if surer.violation_point(self.compared.claim.curve) is None:
            return replace(self, confirmation=Confirmation.LESS_CONFIDENT)
        return replace(self, finding=surer)

    @property
    def beyond_proxy(self) -> bool:
        """True if the bound exceeds what proxy error could explain in every planned control."""
        if not self.on_proxy:
            return True
        if self.control is None or self.control_lost:
            return False
        return self.control.exceeds(self.compared.claim.curve)

    @property
    def keeps_state(self) -> bool:
        """True if the code keeps state between calls, or if that could not be decided."""
        return self.state is not None and self.state.possible

    @property
    def rejects(self) -> bool:
        """True if the claim is rejected and nothing else explains the evidence."""
        confirmed = self.confirmation in (Confirmation.NOT_PLANNED, Confirmation.CONFIRMED)
        trusted = self.beyond_proxy or self.confirmation is Confirmation.CONFIRMED
        explained = self.keeps_state or bool(self.assumed_method) or bool(self.split_doubt)
        return self.exceeds and confirmed and trusted and not explained

    @property
    def rejects_without_proxy(self) -> bool:
        """True if the claim is rejected without relying on a proxy."""
        return self.rejects and not self.on_proxy

    @property
    def is_open(self) -> bool:
        """True if the bound exceeds the claim and it is not known whether the claim is broken."""
        return self.exceeds and not self.rejects and self.confirmation is not Confirmation.NOT_CONFIRMED

    @property
    def changes(self) -> bool:
        """True if the first pass is too clear for chance and was not confirmed, so results change from call to call."""
        clear = self.first_p_value is not None and self.first_p_value <= CHANGE_P
        return clear and self.exceeds and self.confirmation is Confirmation.NOT_CONFIRMED

    @property
    def digits_cannot_tell(self) -> bool:
        """True if a test at full digits has results without fractions, so that digits cannot explain a rejection."""
        return self.scope is Scope.FLOATING_POINT and NO_FRACTIONS in self.leak_location

    @property
    def rejects_stated_noise(self) -> bool:
        """True if the stated noise was rejected."""
        return self.noise is not None and self.noise.smallest_p < STATED_NOISE_P

    @property
    def deciding_finding(self) -> Finding | None:
        """Finding that the verdict rests on: that of the confirmatory run, unless there is none or results change."""
        if self.confirmation is Confirmation.CONFIRMED and self.repeated is not None:
            return self.repeated
        if self.confirmation in (Confirmation.CLOSE, Confirmation.NOT_CONFIRMED) and not self.changes:
            return self.at_first_confidence or self.finding
        return self.finding

    @cached_property
    def comparison(self) -> Comparison | None:
        """Comparison of the deciding finding with the claim; None without a finding."""
        return None if self.deciding_finding is None else self.deciding_finding.comparison(self.compared.claim.curve)

    def maximum_at(self, point: Comparison) -> Comparison | None:
        """Return the maximum detectable finding at the same point of the claim as `point`; None if unknown."""
        curve = self.compared.claim.curve
        maximum = self.sensitivity.maximum
        if maximum is None:
            return None
        points = [maximum.comparison(curve)]
        if isinstance(maximum, Bound):
            points += [
                maximum.comparison_at_delta(curve),
                *(evidence.comparison(curve) for evidence in maximum.evidence),
            ]
        return next((candidate for candidate in points if candidate.caption == point.caption), None)

    @property
    def detection_strength(self) -> tuple[float, float]:
        """Sort key: tests with a larger value detect smaller leaks."""
        factor, maximum = self.sensitivity.factor, self.sensitivity.maximum
        least = 0.0 if factor is None else 1 / factor
        if maximum is None:
            return least, 0.0
        comparison = maximum.comparison(self.compared.claim.curve)
        return least, comparison.observed - comparison.claimed


@dataclass(frozen=True, eq=False)
class Record:
    """Results of all tests of one claim.

    Attributes:
        name: Name of the run, or of the only test.
        tests: All tests that were read, including those of side findings.
        not_played: Names of planned tests that did not start.
        cut: Sentence on tests that had fewer trials because of the budget; "" if there are none.
        verb: Way in which the audit was started.
    """

    name: str
    tests: Sequence[Test] = field(default_factory=tuple)
    not_played: tuple[str, ...] = ()
    cut: str = ""
    verb: Verb = Verb.RUN

    @property
    def of_claim(self) -> list[Test]:
        """Tests that the verdict is decided from."""
        return [test for test in self.tests if test.scope is Scope.CLAIM]

    @property
    def readable(self) -> list[Test]:
        """Tests of the claim that ended in a finding."""
        return [test for test in self.of_claim if test.finding is not None]

    @property
    def able(self) -> list[Test]:
        """Readable tests that are not known to be unable to reject the claim."""
        return [test for test in self.readable if test.sensitivity.could_reject(test.compared.claim)]

    @property
    def noisy(self) -> list[Test]:
        """Tests whose noise was found not to be the stated noise."""
        return [test for test in self.tests if test.noise is not None and test.noise.odd]
