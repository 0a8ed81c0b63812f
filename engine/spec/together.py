"""Several looks at one claim: they share the error, run in order, and end in one verdict."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.errors import require


@dataclass(frozen=True)
class Together:
    """That the audits of a spec are looks at one claim.

    Each has its own share of the error, so the rest may be left out as soon as one refutes the claim, or time is up.

    Attributes:
        budget_s: Seconds after which no look but the first is begun, > 0; one that stops early ends where it is. None
            has no limit.
        chosen: Why each audit is among them, in sentences, for the report.
        left_out: Which games are not, and why.
    """

    budget_s: float | None = None
    chosen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.budget_s is None or self.budget_s > 0, "budget_s must be > 0", budget_s=self.budget_s)
