"""What the scores against a proxy share: the more the proxy doubts what is shown, the more it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpaudit.engine.games.one_run.canary_view import CanaryView
from dpaudit.errors import require


@dataclass(frozen=True)
class WeightedByDoubt:
    """A score s1 * s2^t, where s2 is 1 less the proxy's (or another baseline's) probability of what is shown.

    Attributes:
        t: Weight of s2, >= 0; t > 1 gives tight bounds for randomised response.
    """

    t: float = 2.0
    view: ClassVar[type[CanaryView]] = CanaryView

    def __post_init__(self) -> None:
        require(self.t >= 0, "t must be >= 0", t=self.t)
