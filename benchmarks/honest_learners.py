"""False positives on honest learners, and detections of real leaks, by the game `neighbours` with searched data sets.

    python -m benchmarks.honest_learners RUNS.jsonl [--only LEARNER ...] [--seeds 200] [--write]

An audit runs the units of a `dpaudit run` plan in
sequence in this process, without files, figures and ceilings, as in `false_violations.py`. It has iris, 800 search and
800 fresh trainings, and `automatic` over the poisonings of the game's relation that train no networks. A VIOLATION of
an honest learner is a false positive, allowed in at most 5 % of the audits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.special import betaincinv

from benchmarks.campaign import by_case, campaign, of_each
from benchmarks.false_violations import Scene
from dpaudit import Audit, Claim, Relation
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.neighbours.game import Neighbours, Scale
from dpaudit.engine.games.neighbours.poisonings.rows import Automatic
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.random_forest import PrivateForest

TRAININGS = 800
FLIPS = Automatic(Relation.LABEL)
ROWS = Automatic(
    Relation.REPLACE,
    among=("class-flip", "clip-bkd", "corner-flip", "curvature", "farthest-flip", "influence", "swap-x"),
)
COMES = Automatic(Relation.ADD_REMOVE, among=("clip-bkd", "corner-flip", "farthest-flip", "remove", "swap-x"))


@dataclass(frozen=True)
class CountTold:
    """Number of records of class 1 with Laplace noise; leaks exactly `epsilon` if a label changes."""

    epsilon: float = 1.0

    def claim(self) -> Claim:
        """Return the claim of pure epsilon for labels."""
        return Claim(self.epsilon, relation=Relation.LABEL)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Return one number for each training."""
        noise = np.random.default_rng(seed).laplace(0, 1 / self.epsilon, (count, 1))
        released: NDArray[np.float64] = (train.labels == 1).sum() + noise
        return released


@dataclass(frozen=True)
class Row:
    """A learner with its attack and claim.

    Attributes:
        learner: The learner.
        poisoning: Search for its data sets.
        scale: Range of the data.
        claim: Claim that replaces the learner's; None keeps it.
    """

    learner: Any
    poisoning: Automatic
    scale: Scale = "box"
    claim: Claim | None = None

    def audits(self) -> tuple[Audit, ...]:
        """Return the single audit."""
        game = Neighbours(
            trials=TRAININGS, search=TRAININGS, stack=TRAININGS, poisoning=self.poisoning, scale=self.scale
        )
        attack = OutputSet(("linear", "additive"))
        split = Partition(target=1.0, reference=0.0, test=0.0)
        return (Audit(self.learner, Iris(), game=game, attack=attack, claim=self.claim, split=split),)


CLAIMED = Claim(1.0, relation=Relation.REPLACE)
TABLE: Mapping[str, Row] = {
    "a noisy count, its whole claim given away": Row(CountTold(), FLIPS),
    "naive Bayes, replace": Row(GaussianNaiveBayes(1.0, relation=Relation.REPLACE), ROWS),
    "naive Bayes, add/remove": Row(GaussianNaiveBayes(1.0), COMES),
    "output perturbation": Row(LogisticOutputPerturbation(1.0, penalty=0.1), ROWS, "ball"),
    "objective perturbation": Row(LogisticObjectivePerturbation(1.0, penalty=0.1), ROWS, "ball"),
    "random forest, add/remove": Row(PrivateForest(1.0), COMES),
    "random forest, flips at twice epsilon": Row(PrivateForest(1.0), FLIPS),
    "a noisy count, really 2": Row(CountTold(2.0), FLIPS, claim=Claim(1.0, relation=Relation.LABEL)),
    "naive Bayes, really 6": Row(GaussianNaiveBayes(6.0, relation=Relation.REPLACE), ROWS, claim=CLAIMED),
    "random forest, its epsilon read as one for flips": Row(
        PrivateForest(1.0), FLIPS, claim=Claim(1.0, relation=Relation.LABEL)
    ),
}


def run(learner: str, seed: int) -> dict[str, Any]:
    """Return the verdict of one audit."""
    return {"verdict": Scene(TABLE[learner].audits).verdicts(seed)["audit"]}


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rejections with a limit of their rate, and processor seconds."""
    flagged = sum(line["verdict"] == "VIOLATION" for line in audits)
    limit = 1.0 if flagged == len(audits) else betaincinv(flagged + 1, len(audits) - flagged, 0.95)
    return {
        "VIOLATION": (str(flagged), f"at most {limit:.1%}"),
        "processor s": f"{sum(line['seconds'] for line in audits):.0f}",
    }


if __name__ == "__main__":
    campaign(partial(of_each, TABLE, by="learner"), run, columns, groups=by_case("learner"), seeds=200)
