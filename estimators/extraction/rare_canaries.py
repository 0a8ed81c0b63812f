"""Epsilon from one training whose canaries were drawn by coins of a known, usually small, probability.

Many texts are drawn from one law. An independent coin with probability q decides for each text whether it is planted.
After training all texts are scored, and those that score highest are guessed to be planted. Adding or removing one text
is one neighbouring step. Under pure epsilon-DP the posterior odds of "planted", given the model and all other coins,
are at most lambda = e^epsilon q / (1 - q). So each guess is right with probability at most p = lambda / (1 + lambda),
and the numbers of right guesses are jointly dominated by a Bernoulli walk, as in `one_run.guess_band`.

With q = 1 / N this is as strong as choosing one of N candidates for each secret (`exposure`), for adding or removing a
record instead of replacing it. m planted texts of m N that score highest show about log(N m / 3), fair coins on m
texts about log(m / 3).

At delta > 0, let Q be the posterior of a text's coin when its turn comes, and S the event Q > p. Given the other
coins, Pr[S | planted] <= e^epsilon Pr[S | not planted] + delta, so E[(Q - p) 1_S] <= q delta / (1 + lambda). The sum
over all texts is the expected number of planted texts times delta / (1 + lambda), which replaces the number of canaries
in `OneTraining`.

Source: Ours, after Steinke et al. (2023), arXiv:2305.08846.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import bdtr, bdtrc, logit

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels
from dpaudit.estimators.estimator import Estimator, Replays
from dpaudit.estimators.one_run.delta_allowances import OneTraining
from dpaudit.estimators.one_run.guess_band import FEW_LOOKS, guess_band_epsilon, guess_looks
from dpaudit.estimators.one_run.right_guesses import informative_looks, right_guesses
from dpaudit.estimators.replays import per_replay_confidence, replay_note
from dpaudit.estimators.scores import Scores
from dpaudit.registry import register

GUESSED = 2
"""Largest number of guesses, as a multiple of the expected number of planted texts."""
IMPROBABLE = 1e-6
"""Probability of a number of members below which the stated rate is refused."""


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


class HighestScores(Estimator[Scores, HighestTally]):
    """Base of the estimators that guess the canaries with the highest scores as members."""

    tally_type: ClassVar[type[Any]] = HighestTally
    fair_coins: ClassVar[bool] = False  # members are few, and no fair coins chose them

    @property
    @abstractmethod
    def assumption(self) -> str:
        """The assumption on how members were drawn, in words."""

    def details(self, replays: Replays[HighestTally]) -> dict[str, Any]:
        """Return the counts of the middle replay, the assumption, and the spread of the replays."""
        tally, _ = replays.middle
        place = min(int(np.searchsorted(tally.guess_counts, tally.members)), tally.right.size - 1)  # or of most guesses
        counts = {
            "members": tally.members,
            "others": tally.others,
            "members among as many highest scores": int(tally.right[place]),
        }
        notes = (self.assumption, *replay_note(replays.alone, self.confidence))
        return {"counts": replays.counted(counts), "notes": notes}


@register("estimator", "rare-canaries", source="Ours, after Steinke et al. (2023), arXiv:2305.08846")
@dataclass(frozen=True)
class RareCanaries(HighestScores):
    """Scores of canaries that coins of a known probability made members: the highest ones are guessed as members.

    Attributes:
        rate: Probability with which an independent coin made each canary a member, in (0, 1).
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound, in (0, 1).
    """

    selection = "all numbers of guesses at once"

    rate: float
    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require(0 < self.rate < 1, "rate must be in (0, 1)", rate=self.rate)
        require_levels(self.delta, self.confidence)

    def tally(self, scores: Scores) -> HighestTally:
        """Count the members among the highest scores.

        Raises: InputError if the number of members is improbable for coins of this rate.
        """
        canaries, members = scores.truth.size, int(scores.truth.sum())
        fewer = float(bdtr(members, canaries, self.rate))
        more = float(bdtrc(members - 1, canaries, self.rate)) if members else 1.0
        require(
            2 * min(fewer, more) >= IMPROBABLE,
            f"members must be about {self.rate:g} of the canaries, as coins of this rate make them",
            do="state the rate of the coins, and keep the canaries that were never planted",
            members=members,
            canaries=canaries,
        )
        most = min(canaries, max(10, math.ceil(GUESSED * canaries * self.rate)))
        guess_counts = informative_looks(guess_looks(canaries), scores.score, "member-only")
        return HighestTally.of(scores, guess_counts[: max(1, np.count_nonzero(guess_counts <= most))])

    def lower(self, tally: HighestTally, error: float) -> Floats:
        """Return the bound of the guess band; tests/twins/guess_band_twin.py is the slow form."""
        return np.array([self._epsilon(tally, error, in_numpy=tally.guess_counts.size <= FEW_LOOKS)])

    def best(self, tallies: Sequence[HighestTally], replays: int, *, alone: bool = False) -> tuple[Floats, Ints]:
        """Return `lower` of each replay; compiled code computes many replays."""
        few = sum(tally.guess_counts.size for tally in tallies) <= FEW_LOOKS
        error = 1 - (self.confidence if alone else per_replay_confidence(self.confidence, replays))
        best = [self._epsilon(tally, error, in_numpy=few) for tally in tallies]
        return np.array(best, np.float64), np.zeros(len(tallies), np.int64)

    def _epsilon(self, tally: HighestTally, error: float, *, in_numpy: bool) -> float:
        prior = float(logit(self.rate))
        planted = (tally.members + tally.others) * self.rate
        return guess_band_epsilon(
            tally.right,
            tally.guess_counts,
            significance=error,
            delta_allowance=OneTraining(planted, self.delta, prior),
            in_numpy=in_numpy,
            prior_log_odds=prior,
        )

    @property
    def assumption(self) -> str:
        return f"assumes that a separate coin made each canary a member with probability {self.rate:g}"
