"""What a verdict is decided from: what the tests of one claim showed, without a word of prose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from dpaudit.claims import Claim, ConvertedClaim
from dpaudit.claims.scope import NO_FRACTIONS, Scope
from dpaudit.engine.reading.shift import ShiftControl
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Comparison, Finding

if TYPE_CHECKING:
    from dpaudit.engine.planning.asked_twice import Memory

STATED_NOISE_P = 1e-6
"""p-value below which noise that is not the stated noise leaves a claim undecided."""


class Confirmation(Enum):
    """What became of a test when it was repeated with fresh randomness."""

    NOT_PLANNED = "not planned"
    CONFIRMED = "the repeated test rejects the claim too"
    CLOSE = "the repeated test exceeds the claim at the confidence of the first pass alone"
    NOT_CONFIRMED = "the repeated test does not exceed the claim"
    MISSING = "the repeated test did not finish, or is undecided itself"


@dataclass(frozen=True)
class Sensitivity:
    """What a test could have detected.

    Attributes:
        factor: The noise would have to be this many times smaller for the test to reject the claim with 90 %
            probability, >= 1; inf if even noise scaled down 8 times would not be detected; None if not known.
        maximum: The finding for a mechanism with no privacy; None if not known.
        noiseless: True if `maximum` was measured by running the mechanism without its noise.
        lost: True if `maximum` was to be measured and that failed.
        helps: What would raise the sensitivity, in words; "" if nothing is known.
        blind: Why the test could not have rejected the claim, in words, if that is known from the data themselves.
    """

    factor: float | None = None
    maximum: Finding | None = None
    noiseless: bool = False
    lost: bool = False
    helps: str = ""
    blind: str = ""

    def could_reject(self, claim: Claim) -> bool:
        """True unless it is known that the test could not have rejected the claim, or that look failed."""
        if self.lost or self.blind:
            return False
        if self.maximum is None or (self.noiseless and self.factor is not None and self.factor < math.inf):
            return True  # runs without noise are few; a factor that is known speaks of all trials
        return self.maximum.comparison(claim.curve).exceeds


@dataclass(frozen=True, eq=False)
class TestRecord:
    """What one test of a claim showed.

    Attributes:
        name: The test's name.
        claim: The claim as stated.
        compared: The claim under the relation of the test.
        finding: The bound of the first pass; None if there is none.
        repeated: The finding of the confirmatory run, at the confidence of the verdict; None if it did not run.
        at_first_confidence: The finding of a confirmatory run that does not reject, at the first pass's confidence.
        confirmation: What became of the confirmatory run.
        scope: What the test is about: the claim, or a side finding.
        p_value: Upper limit of the p-value of the claim, from the run that decides; None if not computed.
        sensitivity: What the test could have detected.
        on_proxy: True if the finding takes a proxy for the truth.
        control: The negative control of a test on a proxy; None if it was not played.
        control_lost: True if a planned control failed.
        rows_needed: Rows of a control that would decide; None if no number would.
        planted_next: True if the same run tests the mechanism with planted labels too.
        state: What is known of state between calls; None if nobody looked.
        noise: The form of the noise of DP-SGD's steps (`NoiseForm`); None if nobody looked.
        unreadable: Results of the audited code that could not be read, each in words.
        whole: What a bound on a part of a mechanism means for the whole, in sentences; () for a test of the whole.
        where: Where the code seems to leak, in sentences.
        assumed_method: Name of a method that holds for independent trials only, which nobody stated; "" otherwise.
        failed_trials: Number of trials that failed, each counted as a wrong guess.
        failures: (label, error) of units that failed.
        units: Number of planned units.
    """

    __test__ = False  # no test of pytest

    name: str
    claim: Claim
    compared: ConvertedClaim
    finding: Finding | None
    repeated: Finding | None = None
    at_first_confidence: Finding | None = None
    confirmation: Confirmation = Confirmation.NOT_PLANNED
    scope: Scope = Scope.CLAIM
    p_value: float | None = None
    sensitivity: Sensitivity = Sensitivity()
    on_proxy: bool = False
    control: ShiftControl | None = None
    control_lost: bool = False
    rows_needed: int | None = None
    planted_next: bool = False
    state: Memory | None = None
    noise: Any = None
    unreadable: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    assumed_method: str = ""
    failed_trials: int = 0
    failures: tuple[tuple[str, str], ...] = ()
    units: int = 0

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
        """True if the code keeps state between calls, or if that could not be found out."""
        return self.state is not None and self.state.carried

    @property
    def rejects(self) -> bool:
        """True if the claim is rejected and nothing else explains it."""
        confirmed = self.confirmation in (Confirmation.NOT_PLANNED, Confirmation.CONFIRMED)
        trusted = self.beyond_proxy or self.confirmation is Confirmation.CONFIRMED
        return self.exceeds and confirmed and trusted and not self.keeps_state and not self.assumed_method

    @property
    def is_open(self) -> bool:
        """True if the bound exceeds the claim and it is not known whether the claim is broken."""
        return self.exceeds and not self.rejects and self.confirmation is not Confirmation.NOT_CONFIRMED

    @property
    def digits_cannot_tell(self) -> bool:
        """True for a test at full digits of results without fractions: what it rejects is the claim itself."""
        return self.scope is Scope.FLOATING_POINT and NO_FRACTIONS in self.where

    @property
    def odd_noise(self) -> bool:
        """True if the noise was shown not to be the stated one."""
        return self.noise is not None and self.noise.smallest_p < STATED_NOISE_P

    @property
    def shown(self) -> Finding | None:
        """The finding that the verdict rests on: of the confirmatory run if there was one."""
        if self.confirmation is Confirmation.CONFIRMED and self.repeated is not None:
            return self.repeated
        if self.confirmation in (Confirmation.CLOSE, Confirmation.NOT_CONFIRMED):
            return self.at_first_confidence or self.finding
        return self.finding

    @property
    def comparison(self) -> Comparison | None:
        """The finding beside the claim; None without a finding."""
        return None if self.shown is None else self.shown.comparison(self.compared.claim.curve)

    def maximum_at(self, point: Comparison) -> Comparison | None:
        """Return the maximum detectable finding at the point of the claim that `point` is about; None if unknown."""
        curve = self.compared.claim.curve
        maximum = self.sensitivity.maximum
        if maximum is None:
            return None
        found = [maximum.comparison(curve)]
        if isinstance(maximum, Bound):
            found += [maximum.at_its_delta(curve), *(evidence.comparison(curve) for evidence in maximum.evidence)]
        return next((each for each in found if each.caption == point.caption), None)

    @property
    def reach(self) -> tuple[float, float]:
        """How little a test needs to detect something, to compare tests by: larger detects more."""
        factor, maximum = self.sensitivity.factor, self.sensitivity.maximum
        least = 0.0 if factor is None else 1 / factor
        if maximum is None:
            return least, 0.0
        comparison = maximum.comparison(self.compared.claim.curve)
        return least, comparison.observed - comparison.claimed


@dataclass(frozen=True, eq=False)
class Record:
    """What the tests of one claim showed together.

    Attributes:
        name: Of the run, or of the only test.
        tests: All tests that were read, those of side findings among them.
        not_played: Names of planned tests that were not begun.
        cut: Which tests had fewer trials than usual because of the budget, in a sentence; "" if none.
    """

    name: str
    tests: Sequence[TestRecord] = field(default_factory=tuple)
    not_played: tuple[str, ...] = ()
    cut: str = ""

    @property
    def of_claim(self) -> list[TestRecord]:
        """Tests that the verdict is decided from."""
        return [test for test in self.tests if test.scope is Scope.CLAIM]

    @property
    def readable(self) -> list[TestRecord]:
        """Tests of the claim that ended in a finding."""
        return [test for test in self.of_claim if test.finding is not None]
