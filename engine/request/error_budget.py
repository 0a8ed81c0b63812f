"""Who gets which share of the error, in a plain run, a check and a sweep alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpaudit.claims.scope import STRICT_SCOPES, Scope
from dpaudit.errors import require

SCREENING = 0.95
"""Confidence of the bounds of a first pass, all together."""


@dataclass(frozen=True)
class ErrorBudget:
    """What each bound of a spec may err with.

    The error is split evenly; the union bound asks nothing of how the bounds depend on each other, so they may share
    data, seeds and trainings, and whichever is picked afterwards holds.
    """

    confidence: float  # the spec's, in (0, 1): of each bound where none share, else of all that share
    sharing: int = 1  # how many bounds share the error, fixed before any was seen, >= 1
    # Of a check: confidence of the bounds of its first pass, all together. Given all that was seen in it, a
    # confirmatory run is a test of its own, which has its share of what `confidence` leaves
    screening: float | None = None

    def __post_init__(self) -> None:
        require(self.sharing >= 1, "the bounds that share the error must be >= 1", sharing=self.sharing)

    @property
    def first_pass(self) -> float:
        """Confidence of each bound of the first pass."""
        return self._share(self.confidence if self.screening is None else self.screening)

    def confirmatory(self, first: float) -> float:
        """Confidence of the confirmatory run of an audit whose first pass has this one."""
        return first if self.screening is None else self._share(self.confidence)

    def require_within(self, confidences: Mapping[str, float]) -> None:
        """Refuses bounds of a first pass that spend more than there is."""
        if self.screening is None:
            for name, confidence in confidences.items():
                require(
                    confidence >= self.first_pass - 1e-12,
                    f"{name}: the confidence of the estimator must be at least {self.first_pass:.6g}, since "
                    f"{self.sharing} configurations share the error",
                    do="leave it out",
                    confidence=confidence,
                )
            return
        available, spent = 1 - self.screening, sum(1 - confidence for confidence in confidences.values())
        require(
            spent <= available * (1 + 1e-9),
            f"the errors of audits that are tests of one claim must sum to at most {available:.6g}",
            do="leave the confidence of their estimators out",
            sum=spent,
        )

    def _share(self, together: float) -> float:
        return together if self.sharing == 1 else 1 - (1 - together) / self.sharing


@dataclass(frozen=True)
class JointTest:
    """That the audits of a spec are tests of one claim.

    In a first pass each has its own share of the error. A test that refutes the claim is repeated, with other seeds
    and at its share of what the spec's confidence leaves: the verdict is VIOLATION where that refutes the claim too.
    Given all that was seen before, what is repeated is a test of its own, so the spec's confidence holds whatever
    the first pass was.

    Attributes:
        budget_s: Seconds after which no test but the first is begun, > 0; one that stops early ends where it is. None
            has no limit.
        chosen: Why each audit is among them, in sentences, for the report.
        left_out: Which games are for other claims, and which a budget is not enough for.
        cut: Which have fewer trainings or calls than usual, since the budget is enough for no more; "" for none.
        screening: Confidence of the bounds of the first pass, all together, in (0, 1).
        again: By the name of an audit, by how much fields of its game grow when it is repeated, > 0.
        side: By the name of an audit, the scope of the side finding it looks for. Such an audit is no part of the
            verdict; each scope has an error of its own, as large as that of the verdict.
    """

    budget_s: float | None = None
    chosen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    cut: str = ""
    screening: float = SCREENING
    again: dict[str, dict[str, float]] = field(default_factory=dict)
    side: dict[str, Scope] = field(default_factory=dict)

    def scope(self, audit: str) -> Scope:
        """Return what an audit, given by its name, is about."""
        return self.side.get(audit, Scope.CLAIM)

    def __post_init__(self) -> None:
        require(self.budget_s is None or self.budget_s > 0, "budget_s must be > 0", budget_s=self.budget_s)
        require(0 < self.screening < 1, "screening must be in (0, 1)", screening=self.screening)
        for name, factors in self.again.items():
            for grown, factor in factors.items():
                require(factor > 0, f"again.{name}.{grown} must be > 0", factor=factor)
        scopes = {scope.value: scope for scope in STRICT_SCOPES}
        for name, scope in self.side.items():
            require(
                isinstance(scope, str) and scope in scopes,
                f"side.{name} must be one of {', '.join(scopes)}",
                scope=scope,
            )
        object.__setattr__(self, "side", {name: scopes[scope] for name, scope in self.side.items()})  # text in a spec
