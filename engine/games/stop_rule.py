"""When a sequential audit has seen enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpaudit.errors import require
from dpaudit.estimators.bound import format_lower
from dpaudit.given import check_fields


@dataclass(frozen=True)
class StopRule:
    """What ends an audit early; the first that is met does. Its trials are planned in full, and run as far as needed.

    Attributes:
        refuted: Stop when the bound exceeds the claim.
        epsilon: Stop when the bound reaches this, in nats, > 0; None = no bound is enough.
        most_trials: Stop after so many trials, >= 2 (the unit that reaches it is still counted whole); None = all.
    """

    refuted: bool = True
    epsilon: float | None = None
    most_trials: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.epsilon is None or self.epsilon > 0, "epsilon of a stop rule must be > 0", epsilon=self.epsilon)
        require(
            self.most_trials is None or self.most_trials >= 2,
            "most_trials of a stop rule must be >= 2",
            most_trials=self.most_trials,
        )
        require(
            self.refuted or self.epsilon is not None or self.most_trials is not None,
            "a stop rule must name at least one of refuted, epsilon and most_trials",
            do="leave `stop` out to run all trials",
        )

    def reached(self, lower: float, trials: int, claimed: float) -> str:
        """Why to stop, as words; "" to go on.

        Args:
            lower: The bound so far, in nats.
            trials: How many trials it rests on.
            claimed: The claim's epsilon, may be inf.
        """
        if self.refuted and lower > claimed and not math.isinf(claimed):
            return "the claim is refuted"
        if self.epsilon is not None and lower >= self.epsilon:
            return f"the bound has reached {format_lower(self.epsilon)}"
        if self.most_trials is not None and trials >= self.most_trials:
            return f"the budget of {self.most_trials:,} trials is used up"
        return ""
