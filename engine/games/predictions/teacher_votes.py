"""Audit of PATE by its votes: a fair coin decides the votes of one teacher, and the attacker sees all noisy counts.

A label belongs to one teacher, which may change its vote on each query. So one teacher answers each query with the
first class in world 0 and with the second class in world 1. The attacker knows the votes of all teachers and sees the
noisy counts, whose cost is the claim: labels for the student are drawn from them alone. Its score is the likelihood
ratio of all counts, the strongest test for Laplace noise.

The game first trains all teachers several times with one seed, each time with another label changed. If a label changes
the votes of several teachers, all of these vote in this way.

Source: Papernot et al. (2017), arXiv:1610.05755, section 3; Steinke et al. (2023), arXiv:2305.08846, many coins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Work, tossing, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import Capability, GameTraits, Played, Setting, every_row
from dpaudit.engine.games.steps.dp_sgd_training import join_scores, reveal_records
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.teachers import has_separate_teachers, vote_counts
from dpaudit.registry import register

Floats = NDArray[np.float64]

UNITS = 16
"""Number of units that draw counts."""
RELEASES_TOGETHER = 1_000
"""Releases whose counts are in memory together."""


def _releases_its_noisy_counts(learner: Any) -> bool:
    """Return True if labels are released from the noisy counts alone, as the class PATE does."""
    return has_separate_teachers(learner) and type(learner).answers is PATE.answers


VOTE_LEARNERS = Capability(PATE, "learners with noisy votes of teachers (pate)", condition=_releases_its_noisy_counts)


@dataclass(frozen=True, eq=False)
class VotesOfWorlds:
    """Votes for each class on each query in both worlds, shape (queries, K)."""

    world_0: NDArray[np.int64]
    world_1: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Releases of noisy counts, and the votes of both worlds."""

    counts: Floats  # shape (releases, queries, K)
    votes: VotesOfWorlds
    shows: ClassVar[str] = "all noisy counts of the teachers' votes"


@register("attack", "count-likelihood", source="Neyman and Pearson (1933), for Laplace noise")
@dataclass(frozen=True)
class CountLikelihood:
    """Most powerful test of two votes under Laplace noise, in units of its scale."""

    view: ClassVar[type[NoisyCounts]] = NoisyCounts

    def score(self, view: NoisyCounts) -> Floats:
        """Return the sum of |x - votes in world 0| - |x - votes in world 1|, shape (releases,); 0 if not finite."""
        moved = view.votes.world_0 != view.votes.world_1
        counts = view.counts[:, moved]
        with np.errstate(invalid="ignore"):
            ratio = np.abs(counts - view.votes.world_0[moved]) - np.abs(counts - view.votes.world_1[moved])
        return np.asarray(np.where(np.isfinite(ratio), ratio, 0).sum(axis=1), np.float64)


@register("game", "teacher-votes", source="Ours, after Papernot et al. (2017) and Steinke et al. (2023)")
@dataclass(frozen=True)
class TeacherVotesGame:
    """Game of the noisy votes of PATE: in each release, a fair coin decides the votes of one teacher on all queries.

    Attributes:
        coins: Number of releases of all counts, >= 1, with a coin each; the teachers are not trained again.
        labels: Number of labels that are changed in turn to find out how many teachers a label can change, >= 1. All
            teachers are trained once for each, and twice with no label changed.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins. The attacker is the one of the claim: it sees all noisy counts, knows the "
        "seed of the trainings and the votes of all other teachers, and a teacher may vote in any way.",
        views={VOTE_LEARNERS: NoisyCounts},
        attack="count-likelihood",
        estimator="simultaneous-guess-count",
        run_on=every_row,
        helps="more `coins`",
    )

    coins: int = 500_000
    labels: int = 4

    def __post_init__(self) -> None:
        require(self.coins >= 1, "coins must be >= 1", coins=self.coins)
        require(self.labels >= 1, "labels must be >= 1", labels=self.labels)

    def play(self, setting: Setting, work: Work) -> Played:
        on_cpus = setting.resources.without_gpu
        votes = work.add(
            votes_of_worlds,
            setting.mechanism,
            setting.required_part("target"),
            labels=self.labels,
            seed=setting.seed,
            label="votes of the teachers",
            **setting.unit_options,
        )
        parts = work.split(
            release_counts,
            self.coins,
            math.ceil(self.coins / UNITS),
            setting.mechanism,
            setting.attack,
            votes,
            seed=setting.seed,
            label="noisy counts",
            resources=on_cpus,
        )
        scores = work.add(join_scores, parts, label="scores of all coins", resources=on_cpus)
        ceiling = work.add(reveal_records, self.coins, label="coins told", resources=on_cpus)
        return Played((scores,), trainings=(votes,), ceiling=(ceiling,))


@unit
def votes_of_worlds(mechanism: PATE, target: Examples, compute: Compute, *, labels: int, seed: Seed) -> VotesOfWorlds:
    """Return the votes in both worlds, which differ in the teachers that one label can change; at least one teacher."""
    classes, training = target.classes, seed.child("training").sequence()

    def votes(data: Examples) -> NDArray[np.int64]:
        with limited_threads(compute.threads):
            teachers = range(mechanism.teachers)
            return mechanism.train_teachers(data, teachers, seed=training, compute=compute, validation=None).votes

    first = votes(target)
    same = (votes(target) == first).all(axis=1)  # others do not depend on the seed alone
    moved = np.zeros(len(first), np.bool_)
    for row in seed.child("labels").rng().choice(len(target), min(labels, len(target)), replace=False):
        changed = target.labels.copy()
        changed[row] = (changed[row] + 1) % classes
        by_label = same & (votes(target.with_(labels=changed)) != first).any(axis=1)
        moved = by_label if by_label.sum() > moved.sum() else moved
    moved[0] |= not moved.any()
    world_0, world_1 = (vote_counts(np.where(moved[:, None], label, first), classes) for label in (0, 1))
    return VotesOfWorlds(world_0, world_1)


def coins_of_releases(scores: Sequence[Scores], arguments: Mapping[str, Any]) -> list[NDArray[np.bool_]]:
    """Return the coins of a unit of releases by its numbers and seed."""
    first, last = arguments["first"], arguments["last"]
    return [arguments["seed"].child("counts", first).rng().random(last - first) < 0.5]


@unit
@tossing(coins_of_releases)
def release_counts(mechanism: PATE, attack: Any, votes: VotesOfWorlds, *, first: int, last: int, seed: Seed) -> Scores:
    """Return the scores of releases `first` to `last` - 1; a fair coin decides the world of each."""
    rng = seed.child("counts", first).rng()
    truth = rng.random(last - first) < 0.5
    scores = [
        attack.score(
            NoisyCounts(
                np.stack([mechanism.noisy_counts(votes.world_1 if coin else votes.world_0, rng) for coin in coins]),
                votes,
            )
        )
        for coins in np.split(truth, range(RELEASES_TOGETHER, len(truth), RELEASES_TOGETHER))
    ]
    return scored(0, truth, np.concatenate(scores))
