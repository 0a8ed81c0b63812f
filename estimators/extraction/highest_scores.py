"""Members among the highest scores of one training: counts and replays of `rare-canaries` and `random-subset`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.estimators.arguments import Ints
from dpaudit.estimators.estimator import Estimator, Replays
from dpaudit.estimators.one_run.right_guesses import right_guesses
from dpaudit.estimators.replays import replay_note
from dpaudit.estimators.scores import Scores


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


class HighestScores(Estimator[Scores, HighestTally]):
    """Base of the estimators that guess the canaries with the highest scores as members."""

    tally_type: ClassVar[type[Any]] = HighestTally

    @property
    @abstractmethod
    def assumption(self) -> str:
        """The assumption on how members were drawn, in words."""

    def details(self, replays: Replays[HighestTally]) -> dict[str, Any]:
        """Return the counts of the middle replay, the assumption, and the spread of the replays."""
        tally, _ = replays.middle
        counts = {
            "members": tally.members,
            "others": tally.others,
            "members among as many highest scores": tally.right_of_members,
        }
        notes = (self.assumption, *replay_note(replays.alone, self.confidence))
        return {"counts": replays.counted(counts), "notes": notes}
