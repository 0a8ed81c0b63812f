"""Several looks at one claim: they share the error, run in order, and end in one verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpaudit.errors import require

SCREENING = 0.95
"""Confidence of the bounds of a first pass, all together."""


@dataclass(frozen=True)
class Together:
    """That the audits of a spec are looks at one claim.

    In a first pass each has its own share of the error. A look that refutes the claim is played again, with other seeds
    and at its share of what the spec's confidence leaves: the verdict is VIOLATION where that refutes the claim too.
    Given all that was seen before, what is played again is a test of its own, so the spec's confidence holds whatever
    the first pass was.

    Attributes:
        budget_s: Seconds after which no look but the first is begun, > 0; one that stops early ends where it is. None
            has no limit.
        chosen: Why each audit is among them, in sentences, for the report.
        left_out: Which games are not, and why.
        screening: Confidence of the bounds of the first pass, all together, in (0, 1).
        again: By the name of an audit, by how much fields of its game grow when it is played again, > 0.
    """

    budget_s: float | None = None
    chosen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    screening: float = SCREENING
    again: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.budget_s is None or self.budget_s > 0, "budget_s must be > 0", budget_s=self.budget_s)
        require(0 < self.screening < 1, "screening must be in (0, 1)", screening=self.screening)
        for name, factors in self.again.items():
            for grown, factor in factors.items():
                require(factor > 0, f"again.{name}.{grown} must be > 0", factor=factor)
