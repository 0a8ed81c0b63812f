"""The best adversary against a release about bags, given the priors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.label_reconstruction.advantage import bag_log_ratio
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class BagView:
    """What the adversary sees of B bags of k examples: what it believed of them, and what their release may mean.

    Attributes:
        prior: P[label = 1] of each example by its features alone, shape (B, k).
        released: The numbers released for label 1, shape (B,).
        law: log P[released | s labels are 1] for s = 0 .. k, up to a constant in each bag, shape (B, k + 1).
    """

    prior: NDArray[np.float64]
    released: NDArray[np.float64]
    law: NDArray[np.float64]
    shows: ClassVar[str] = "what a release says of bags of labels"


@register("attack", "bayes-optimal", source="Busa-Fekete et al. (2024), Definition 3.6 and section 4")
@dataclass(frozen=True)
class BayesOptimal:
    """How much likelier the release of an example's bag is if its label is 1 than if it is 0, exactly.

    No guess of the label is right more often, if the priors are those of the labels and these are independent.
    """

    view: ClassVar[type[BagView]] = BagView

    def score(self, view: BagView) -> NDArray[np.float64]:
        """log P[release | label 1] - log P[release | label 0] for each example, in nats, shape (B, k)."""
        return bag_log_ratio(view.prior, view.law)
