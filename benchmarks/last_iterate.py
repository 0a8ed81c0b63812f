"""Audits of the final model of DP-SGD: crafted initial weights (`last-iterate`) against random ones (`ind-mia`).

    python -m benchmarks.last_iterate RUNS.jsonl [--only PART ...] --images FASHION_MNIST [--seeds 20] [--write]

Both games see the final model alone, by the confidence at a canary; `ind-mia` has the far point that `check` plays.
Three parts: `tight` measures how much of the claim a 95 % bound reaches on pictures of clothes, averaged to 7 x 7
pixels, by full-batch DP-SGD of a softmax regression; half of the pool is trained on, and the other half crafts the
weights. `honest` counts rejections and limits on mu above the truth, `defects` rejections of planted defects, three of
each kind; both train a perceptron on made data, 100 rows, by 10 and 40 full batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.campaign import by_case, campaign
from benchmarks.false_violations import Scene
from dpaudit import Audit
from dpaudit.actors.seed import Seed
from dpaudit.claims import GaussianDP
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.images import FashionMnist
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.outcomes import Outcomes, Runs
from dpaudit.engine.games.search import paired_coins
from dpaudit.engine.games.two_world.canaries import Blank
from dpaudit.engine.games.two_world.game import IndMia
from dpaudit.engine.games.two_world.last_iterate import PHI, LastIterate
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.planted.dp_sgd import OtherClip, PlantedDpSgd

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.private.private_stack import PrivateStack
else:
    PrivateStack = object

ALL = Partition(target=1.0, reference=0.0, test=0.0)
SIZES = {1_000: (25, 1024, 256), 30_000: (4, 512, 64)}
"""Steps, trials and search trainings by the number of training rows."""
TRIALS, SEARCH, STACK = 1024, 256, 64
DELTA = 1e-5
DEFECT_SEEDS = 1
PARTS, TRIALS_OF_PART = 10, 200
"""Audits of honest DP-SGD that share initial weights, and trials of each."""
PERCEPTRON = Mlp(hidden=(16,), epochs=40, learning_rate=1.0, momentum=0.0, batch_size=100)
MADE = GaussianMixture(rows=200, dimensions=20)
WEIGHTS = ("crafted", "random")


@dataclass(frozen=True)
class SmallClothes:
    """Fashion-MNIST from its idx files, each picture averaged to 7 x 7 pixels, shape (n, 49)."""

    path: str
    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """Return the first `rows` training pictures."""
        pictures = FashionMnist(path=self.path, rows=self.rows).load()
        pixels = np.asarray(pictures.features).reshape(-1, 7, 4, 7, 4).mean((2, 4))
        return pictures.with_(features=np.ascontiguousarray(pixels.reshape(-1, 49)))


def noise(factor: float, *, of_steps: float = 1.0) -> type[Any]:
    """Return a stack with `factor` times the noise in the first `of_steps` of the steps."""

    class Stack(PrivateStack):
        def run_epoch(self, epoch: int) -> None:
            self.early = epoch < of_steps * self.recipe.epochs
            super().run_epoch(epoch)

        def noise_deviation(self, *, last: bool) -> float:
            return super().noise_deviation(last=last) * (factor if self.early else 1.0)

    return Stack


def clip(factor: float, *, after: float = 0.0) -> type[Any]:
    """Return a stack that clips at `factor` times the claimed norm after a share `after` of the steps."""

    class Stack(OtherClip):
        def run_epoch(self, epoch: int) -> None:
            self.factor = factor if epoch >= after * self.recipe.epochs else 1.0
            super().run_epoch(epoch)

        def clip(self) -> float:
            return self.factor * self.private.clip

    return Stack


def more_steps(times: float) -> type[Any]:
    """Return a stack whose noise is accounted for `times` fewer steps than it runs."""
    return noise(times**-0.5)


DEFECTS: Mapping[str, Callable[[], type[Any]]] = {
    "half the noise": partial(noise, 0.5),
    "a third of the noise": partial(noise, 1 / 3),
    "a quarter of the noise in the first half of the steps": partial(noise, 0.25, of_steps=0.5),
    "clip doubled": partial(clip, 2.0),
    "clip tripled": partial(clip, 3.0),
    "clip doubled after a tenth of the steps": partial(clip, 2.0, after=0.1),
    "accountant counts a third of the steps": partial(more_steps, 3.0),
    "accountant counts a quarter of the steps": partial(more_steps, 4.0),
    "accountant counts a tenth of the steps": partial(more_steps, 10.0),
}


@cache
def planted(defect: str) -> type[DpSgd]:
    """Return DP-SGD with a defect, or honest DP-SGD for "none"."""
    return DpSgd if defect == "none" else type("Planted", (PlantedDpSgd,), {"Stack": DEFECTS[defect]()})


def audit(learner: DpSgd, data: Any, weights: str, trials: int, search: int = SEARCH, stack: int = STACK) -> Audit:
    """Return the audit of a learner by its final model."""
    counts = {"trials": trials, "stack": stack, "population": 0}
    game = LastIterate(search=search, **counts) if weights == "crafted" else IndMia(canary=Blank(value=5.0), **counts)
    return Audit(learner, data, game=game, attack="loss", split=ALL, name="audit")


def run(part: str, seed: int, images: str, **case: Any) -> dict[str, Any]:
    """Return the evidence of one audit."""
    epsilon, weights = float(case["claim"]), case["weights"]
    if part == "tight":
        rows = int(case["rows"])
        steps, trials, search = SIZES[rows]
        model = Mlp(hidden=(), epochs=steps, learning_rate=2.0, momentum=0.0, batch_size=rows)
        learner = DpSgd(epsilon, sample_rate=1.0, accountant="pld", model=model)
        planned = audit(learner, SmallClothes(images, 2 * rows), weights, trials, search)
    elif part == "honest":
        return honest(epsilon, seed)
    else:
        learner = planted(case["defect"])(epsilon, sample_rate=1.0, accountant="pld", model=PERCEPTRON)
        planned = audit(learner, MADE, weights, TRIALS, stack=256)
    result = Scene(lambda: (planned,)).results(seed)["audit"]
    return {
        "verdict": result.verdict.value,
        "bound": result.finding.lower,
        "mu": result.mu or 0.0,
        "claimed mu": learner.steps() ** 0.5 / learner.noise_multiplier(),
    }


def honest(epsilon: float, seed: int) -> dict[str, Any]:
    """Return how many of `PARTS` audits of honest DP-SGD, which share a search, exceed the truth."""
    learner = DpSgd(epsilon, sample_rate=1.0, accountant="pld", model=replace(PERCEPTRON, epochs=10))
    game, seeds, pool = LastIterate(search=64), Seed(seed), MADE.load(seed=seed).take(np.arange(200))
    curve, truth = learner.claim().curve, learner.steps() ** 0.5 / learner.noise_multiplier()

    def outcomes(choice: Any, coins: NDArray[np.bool_], name: str) -> Outcomes:
        numbers = np.arange(len(coins))
        return game.run(learner, choice, Runs(coins, numbers, seeds.child(name), (pool, None, None, False), Compute()))

    def shift(choice: Any) -> float:
        tried = game.strength(curve, None, learner, choice, outcomes(choice, paired_coins(32), "search"), Compute())
        return -math.inf if tried is None else tried.distance

    offered = game.propose(learner, (pool,), game.proposing(learner), seeds.child("pairs"), Compute())
    best, coins = max(offered, key=shift), seeds.child("coins").rng().random(PARTS * TRIALS_OF_PART) < 0.5
    scores, estimator = outcomes(best, coins, "fresh").matrix()[:, PHI], FairCoins(delta=DELTA)
    findings = [
        estimator.find([estimator.tally(Scores(score, coin))])
        for score, coin in zip(np.split(scores, PARTS), np.split(coins, PARTS), strict=True)
    ]
    rejected = sum(finding.violation_point(curve) is not None for finding in findings)
    return {"rejected": rejected, "high": sum((finding.mu or 0.0) > truth for finding in findings)}


def cases(seeds: int, images: str) -> Iterator[dict[str, Any]]:
    """Yield the cases of all parts; defects have few seeds, and `tight` one."""
    for rows, claim in [*((1_000, claim) for claim in ("1", "2", "4", "10")), (30_000, "10")]:
        for weights in WEIGHTS:
            yield {"part": "tight", "rows": str(rows), "claim": claim, "weights": weights, "seed": 0}
    for seed in range(seeds):
        yield {"part": "honest", "claim": "4", "weights": "crafted", "seed": seed}
        for defect in DEFECTS if seed < DEFECT_SEEDS else ():
            for weights in WEIGHTS:
                yield {"part": "defects", "defect": defect, "claim": "2", "weights": weights, "seed": seed}


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bounds of `tight`, and the rejections of the other parts."""
    first = audits[0]
    if first["part"] == "tight":
        return {
            "bound": f"{first['bound']:.2f}",
            "limit on mu": f"{first['mu']:.2f}",
            "claimed mu": f"{first['claimed mu']:.2f}",
            "epsilon at the limit on mu": f"{GaussianDP(max(first['mu'], 1e-3)).epsilon(DELTA):.2f}",
        }
    if first["part"] == "defects":
        rejected = sum(line["verdict"] == "VIOLATION" for line in audits)
        return {"rejected": f"{rejected} of {len(audits)}"}
    count = PARTS * len(audits)
    return {
        "claim rejected": f"{sum(line['rejected'] for line in audits)} of {count}",
        "limit on mu above the truth": f"{sum(line['high'] for line in audits)} of {count}",
    }


if __name__ == "__main__":
    campaign(
        cases,
        run,
        columns,
        groups=lambda line: by_case(*(name for name in ("part", "rows", "defect", "claim", "weights") if name in line))(
            line
        ),
        file="last-iterate-crafted.csv",
        seeds=20,
        settings={"images": "folder of the idx files of Fashion-MNIST"},
    )
