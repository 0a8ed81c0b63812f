"""Shares of the error probability in plain runs, checks and sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpaudit.claims import SIDE_SCOPES, Scope
from dpaudit.errors import require

SCREENING = 0.95
"""Joint confidence of the bounds of a first pass."""


@dataclass(frozen=True)
class ErrorBudget:
    """Confidence of each bound of a spec.

    The error is split evenly. The union bound needs no independence, so bounds may share data, seeds and trainings, and
    remain valid if one is selected afterwards.

    Attributes:
        confidence: Confidence of the spec, in (0, 1): of each bound if `sharing` is 1, else of all bounds together.
        sharing: Number of bounds that share the error, >= 1, fixed before any bound is computed.
        screening: In a check, the joint confidence of the bounds of the first pass. A confirmatory run is a separate
            test given the results of the first pass, with its own share of the error that `confidence` leaves.
    """

    confidence: float
    sharing: int = 1
    screening: float | None = None

    def __post_init__(self) -> None:
        require(self.sharing >= 1, "the bounds that share the error must be >= 1", sharing=self.sharing)

    @property
    def first_pass(self) -> float:
        """Confidence of each bound of the first pass."""
        return self._share(self.confidence if self.screening is None else self.screening)

    def confirmatory(self, first: float) -> float:
        """Confidence of the confirmatory run of an audit whose first pass has the confidence `first`."""
        return first if self.screening is None else self._share(self.confidence)

    def require_within(self, confidences: Mapping[str, float]) -> None:
        """Refuse confidences of a first pass whose errors exceed the budget."""
        if self.screening is None:
            for name, confidence in confidences.items():
                require(
                    confidence >= self.first_pass - 1e-12,
                    f"{name}: the confidence of the estimator must be at least {self.first_pass:.6g}, since "
                    f"{self.sharing} configurations share the error",
                    do="remove it",
                    confidence=confidence,
                )
            return
        available, spent = 1 - self.screening, sum(1 - confidence for confidence in confidences.values())
        require(
            spent <= available * (1 + 1e-9),
            f"the errors of audits that are tests of one claim must sum to at most {available:.6g}",
            do="remove the confidence of their estimators",
            sum=spent,
        )

    def _share(self, together: float) -> float:
        return together if self.sharing == 1 else 1 - (1 - together) / self.sharing


@dataclass(frozen=True)
class JointTest:
    """Settings of a spec whose audits test one claim.

    In a first pass, each audit has its own share of the error. A test that rejects the claim is repeated with new
    seeds, at its share of the error that the spec's confidence leaves. The verdict is VIOLATION if the repeat rejects
    the claim too. The repeat is a separate test given the results of the first pass, so the spec's confidence holds for
    any first pass.

    Attributes:
        budget_s: Seconds after which no further test starts, > 0; the first test always runs. None has no limit.
        chosen: Reasons for the audits, as sentences for the report.
        left_out: Games that need other claims or exceed the budget, with reasons.
        cut: Audits with fewer trainings or calls than usual because of the budget; "" for none.
        screening: Joint confidence of the bounds of the first pass, in (0, 1).
        again: Factors > 0 on fields of the game in a confirmatory run, by name of the audit.
        side: Scope of the side finding that an audit looks for, by name of the audit. Such audits do not count for the
            verdict. Each scope has an error budget as large as that of the verdict.
    """

    budget_s: float | None = None
    chosen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    cut: str = ""
    screening: float = SCREENING
    again: dict[str, dict[str, float]] = field(default_factory=dict)
    side: dict[str, Scope] = field(default_factory=dict)

    def scope(self, audit: str) -> Scope:
        """Return the scope of the audit with a name."""
        return self.side.get(audit, Scope.CLAIM)

    def __post_init__(self) -> None:
        require(self.budget_s is None or self.budget_s > 0, "budget_s must be > 0", budget_s=self.budget_s)
        require(0 < self.screening < 1, "screening must be in (0, 1)", screening=self.screening)
        for name, factors in self.again.items():
            for grown, factor in factors.items():
                require(factor > 0, f"again.{name}.{grown} must be > 0", factor=factor)
        scopes = {scope.value: scope for scope in SIDE_SCOPES}
        for name, scope in self.side.items():
            require(
                isinstance(scope, str) and scope in scopes,
                f"side.{name} must be one of {', '.join(scopes)}",
                scope=scope,
            )
        object.__setattr__(self, "side", {name: scopes[scope] for name, scope in self.side.items()})  # specs hold text
