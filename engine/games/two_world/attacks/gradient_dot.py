"""White-box: what the released gradients of DP-SGD have in common with the canary's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views.challenge_view import ChallengeView
from dpaudit.registry import register


@register("attack", "gradient-dot", source="Nasr et al. (2021), arXiv:2101.04535; Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class GradientDot:
    """Inner product of each step's noisy gradient with the canary's own; sees every step of DP-SGD.

    Attributes:
        steps: "all" sums over them; "last" looks at the last one alone.
    """

    steps: Literal["all", "last"] = "all"
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"gradients"})

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """In units of the clip norm: about 1 for each step that held the canary."""
        if self.steps == "last":
            return view.gradient_products[:, -1]
        return np.asarray(view.gradient_products.sum(1))
