"""Recognising a release: one that was seen before in one world only gives the world away."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class RepeatsView:
    """Releases of n rows, of which one, the canary, had the first of two labels in world 1 and the second in world 0.

    Attributes:
        search: Releases whose world is known, shape (releases, n).
        worlds: Their worlds, shape (releases,).
        fresh: Releases to be told apart, shape (trials, n).
        canary: The row of the canary.
        classes: Number of classes K.
    """

    search: NDArray[np.int64]
    worlds: NDArray[np.bool_]
    fresh: NDArray[np.int64]
    canary: int
    classes: int
    shows: ClassVar[str] = "the same labels but for one, released again and again"


@register("attack", "recognised-release", source="Ours; Neyman-Pearson on counted releases")
@dataclass(frozen=True)
class RecognisedRelease:
    """How often the whole release was seen in each world before; where never, how often the canary's own label was.

    Noise that follows nothing but the labels (a seed in the source, a seed hashed from the labels, none at all) makes
    the same release of the same labels, whatever generator is handed over.
    """

    view: ClassVar[type[RepeatsView]] = RepeatsView

    def score(self, view: RepeatsView) -> NDArray[np.float64]:
        """Log-odds of world 1, in nats, shape (trials,)."""
        own = np.stack(
            [np.bincount(view.search[view.worlds == world, view.canary], minlength=view.classes) for world in (0, 1)]
        )
        by_label = np.diff(np.log(own + 0.5) - np.log(own.sum(axis=1, keepdims=True) + view.classes / 2), axis=0)[0]
        seen = [Counter(row.tobytes() for row in view.search[view.worlds == world]) for world in (0, 1)]
        scores: NDArray[np.float64] = by_label[view.fresh[:, view.canary]].astype(np.float64)
        for trial, row in enumerate(view.fresh):
            absent, present = (counts[row.tobytes()] for counts in seen)
            if absent + present:
                scores[trial] = np.log(present + 0.5) - np.log(absent + 0.5)
        return scores
