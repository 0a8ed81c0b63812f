"""Members among the highest scores of one training: counts and replays of `rare-canaries` and `random-subset`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.best_candidate import in_order
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Series, Validity
from dpaudit.estimators.one_run.right_guesses import right_guesses
from dpaudit.estimators.replays import median_rule, per_replay_confidence, replay_note
from dpaudit.estimators.scores import ScoreEstimator, Scores, replay_series

FEW_LOOKS = 1_000
"""Looks over all replays up to which the recursion takes less time in NumPy than compiled code takes to load."""


@dataclass(frozen=True, eq=False)
class HighestTally:
    """Members among the highest scores of one replay."""

    replay: int  # number of the replay
    members: int  # canaries that were planted
    others: int  # canaries that were not
    guess_counts: Ints  # numbers of guesses, ascending, shape (counts,)
    right: Ints  # members among them, shape (counts,)

    @classmethod
    def of(cls, scores: Scores, guess_counts: Ints) -> HighestTally:
        """Count the members among the highest scores, for each number of guesses."""
        members = int(scores.truth.sum())
        right = right_guesses(scores.score, scores.truth, scores.tie_ranks(), "member-only", guess_counts)
        return cls(scores.replay, members, scores.truth.size - members, guess_counts, right)

    @property
    def right_of_members(self) -> int:
        """Members among as many highest scores as there are members, or among the most guesses that are counted."""
        place = min(int(np.searchsorted(self.guess_counts, self.members)), self.right.size - 1)
        return int(self.right[place])


class HighestScores(ScoreEstimator[HighestTally]):
    """Estimator that guesses the canaries with the highest scores as members."""

    tally_type: ClassVar[type[Any]] = HighestTally
    registered_name: ClassVar[str]

    @abstractmethod
    def epsilon(self, tally: HighestTally, *, confidence: float, few: bool) -> float:
        """Return the bound of one replay; `few` is True if compiled code is not worth loading."""

    @abstractmethod
    def selection(self) -> str:
        """Return how the number of guesses was chosen, in words."""

    @abstractmethod
    def assumption(self) -> str:
        """Return the assumption on how members were drawn, in words."""

    def bound(self, tallies: Sequence[HighestTally], *, failed_replays: int = 0) -> Bound:
        """Return the median of the replays' bounds; `counts` are those of the middle replay."""
        best, alone = self._bounds(tallies, failed_replays)
        middle = in_order(tallies)[int(np.argsort(best[: len(tallies)], kind="stable")[(len(tallies) - 1) // 2])]
        lost_replays = (("lost replays", failed_replays),) if failed_replays else ()
        return Bound(
            lower=float(median_rule(best)),
            delta=self.delta,
            confidence=self.confidence,
            method=self.registered_name,
            selection=self.selection(),
            validity=Validity.FINITE_SAMPLE,
            counts=(
                ("members", middle.members),
                ("others", middle.others),
                ("members among as many highest scores", middle.right_of_members),
                ("replays", len(tallies) + failed_replays),
                *lost_replays,
            ),
            notes=(self.assumption(), *replay_note(alone, self.confidence)),
        )

    def series(self, tallies: Sequence[HighestTally], *, failed_replays: int = 0) -> dict[str, Series]:
        """Return the bounds of single replays."""
        best, alone = self._bounds(tallies, failed_replays)
        numbers = [tally.replay for tally in in_order(tallies)]
        bounds = best[: len(numbers)]
        return {"replays": replay_series(numbers, bounds, alone, failed_replays=failed_replays, mean=False)}

    def _bounds(self, tallies: Sequence[HighestTally], failed_replays: int) -> tuple[Floats, Floats]:
        """Return the bounds of the replays, those of failed ones last and 0, and of each replay on its own."""
        ordered, replays = in_order(tallies), len(tallies) + failed_replays
        few = sum(tally.guess_counts.size for tally in ordered) <= FEW_LOOKS
        levels = {self.confidence, per_replay_confidence(self.confidence, replays)}
        bounds = {
            level: np.array([self.epsilon(tally, confidence=level, few=few) for tally in ordered], np.float64)
            for level in levels
        }
        best, alone = bounds[per_replay_confidence(self.confidence, replays)], bounds[self.confidence]
        return np.concatenate([best, np.zeros(failed_replays)]), alone
