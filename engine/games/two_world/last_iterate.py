"""Game about the final model of DP-SGD: training starts from crafted weights, with or without a crafted point.

The attacker chooses the initial weights: trained on rows that no trial trains on, then multiplied by a factor. Almost
all rows then have a gradient that vanishes or stays constant, and the canary's label is so unlikely that its gradient
stays constant too. So the loss is nearly linear along that gradient, and the last weights reveal the sum of all noisy
steps in its direction, as the confidence at the canary shows. Few search trainings choose the canary and the factor.

Source: Annamalai and De Cristofaro (2024), arXiv:2405.14106, who train the initial weights; the factor, the point of
least variance and the search are ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.claims import PrivacyCurve, Relation
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.protocol import Capability, CheckTest
from dpaudit.engine.games.search import MAX_DISTANCE, Strength, Tried
from dpaudit.engine.games.two_world.canaries import array_features, crafted_challenges, last_direction
from dpaudit.engine.games.two_world.game import FixedBase, half_of_the_pool
from dpaudit.engine.games.two_world.views import ChallengeView
from dpaudit.engine.games.two_world.work import TrialSetup, phi_of_logits
from dpaudit.engine.games.two_worlds import PairTraits, Proposing
from dpaudit.mechanisms.adapters.user_code import global_randomness
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import ObservableLearner, StartingLearner, StepLearner
from dpaudit.mechanisms.training.inputs import example_shape
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import nn

STARTING_LEARNERS = Capability(
    StartingLearner, "learners that can start from given weights (`from_torch` and `dp-sgd`)"
)
UNSEEN_STEPS = replace(
    STARTING_LEARNERS,
    words="learners that can start from given weights, and whose steps cannot be seen (`from_torch`)",
    condition=lambda mechanism: not isinstance(mechanism, ObservableLearner | StepLearner),
)
LOG_ODDS = (60.0, 15.0, 240.0, 4.0)
"""Log-odds against the canary's label at the initial weights, in order of promise; probabilities hold none above 87."""
FACTORS = 2.0 ** np.arange(0.0, 10.5, 0.5)
"""Factors on the trained weights; the smallest that reaches such log-odds is tried."""
RUNS_PER_CHOICE = 32
"""Search trainings for each choice of a canary and a factor that is tried."""
STEPS, BATCH, RATE = 500, 256, 5e-3
"""Steps of Adam, examples in each, and learning rate, of the training of the initial weights."""
FAR = 5.0
"""Value of every feature of the point that is far from the data."""
PHI = 1
"""Position of the confidence at the canary among the numbers of a run, after the accuracy."""


@register("game", "last-iterate", source="Annamalai and De Cristofaro (2024), arXiv:2405.14106")
@dataclass(frozen=True)
class LastIterate(FixedBase):
    """Two-world game under add/remove about the final model only, from initial weights that the attacker crafts.

    Attributes:
        trials: Number of scored trainings, each with a separate coin, in 2 .. 10,000,000.
        search: Number of trainings that choose the canary and the factor on the weights, in 16 .. 10,000,000.
    """

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Initial weights and canary were fixed before the audited models were trained. A claim for a public "
        "(fixed) initial model covers this. A claim that relies on a random initial model excludes it.",
        views={STARTING_LEARNERS: ChallengeView},
        attack="loss",
        run_on=half_of_the_pool,
        check_tests=(
            CheckTest(
                UNSEEN_STEPS,
                (Relation.ADD_REMOVE,),
                "too little noise or a wrong clip over all steps, from the final model alone, if training starts from "
                "crafted weights",
                trainings=1280,
                scales={"trials": 0.8, "search": 0.2},
                slow_trainings=320,
                search_field="search",
                growth_on_repeat={"trials": 2},
            ),
        ),
    )
    search_share: ClassVar[float] = 1.0
    ranks_by_strength: ClassVar[bool] = True
    learns_once: ClassVar[bool] = True

    search: int = 256
    population: int = 0

    @property
    def challenge_canary(self) -> None:
        return None

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[TrialSetup]:
        """Yield nothing: `propose` gives all choices, because they need a training."""
        return iter(())

    def proposing(self, mechanism: Any) -> Proposing:
        return Proposing(max(1, min(2 * len(LOG_ODDS), self.search // RUNS_PER_CHOICE)), runs=0)

    def propose(
        self, mechanism: Any, rows: tuple[Any, ...], proposing: Proposing, seed: Seed, compute: Compute
    ) -> Iterator[TrialSetup]:
        """Yield canaries with initial weights, trained on the rows of the pool that are not in the base set."""
        import torch

        torch.set_num_threads(compute.threads)
        pool = rows[0]
        setup = self.setup(len(pool), None, seed.child("setup").rng())
        others = pool.take(np.setdiff1d(np.arange(len(pool)), setup.base))
        with global_randomness(seed.child("weights").sequence()):
            network = mechanism.initial_network(example_shape(pool.features), pool.classes).float()
            train(network, others, seed.child("batches").rng(), compute)
        weights = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
        choices = itertools.product(LOG_ODDS, crafted_points(pool, network))
        names = set()
        for odds, (name, point) in itertools.islice(choices, proposing.pairs):
            for factor in FACTORS.tolist():
                torch.nn.utils.vector_to_parameters(factor * weights, network.parameters())
                label, confidence = least_likely(network, point, compute)
                if confidence <= -odds:
                    break
            name = f"a point {name}, trained weights times {factor:.3g}"
            if name not in names:
                names.add(name)
                challenges = crafted_challenges(pool, point, label, np.array([-1]))
                initial = (factor * weights).cpu().numpy().astype(np.float32)
                yield replace(setup, challenges=challenges, initial=initial, name=name)

    def strength(
        self, curve: PrivacyCurve, attack: Any, mechanism: Any, pair: TrialSetup, outcomes: Outcomes, compute: Compute
    ) -> Strength | None:
        """Return the shift of the confidence at the canary in its standard deviations; None after too few trainings."""
        trained = outcomes.where(outcomes.fault == "")
        phi = trained.matrix()[:, PHI].astype(np.float64) if len(trained.truth) else np.empty(0)
        absent, present = phi[~trained.truth], phi[trained.truth]
        if min(len(absent), len(present)) < 2:
            return None
        spread = np.sqrt((absent.var(ddof=1) + present.var(ddof=1)) / 2)
        shift = present.mean() - absent.mean()
        distance = min(shift / spread, MAX_DISTANCE) if spread > 0 else MAX_DISTANCE * float(shift > 0)
        return Strength(float(distance), 0.0, 0.0)

    def ranking(
        self, size: int, tried: Sequence[Tried], strengths: Sequence[Strength], *, by_scores: bool
    ) -> list[int]:
        return sorted(range(len(tried)), key=lambda place: -strengths[place].distance)[:size]

    def judged(self, chosen: Sequence[Tried], tried: Sequence[Tried], strengths: Sequence[Strength]) -> tuple[str, ...]:
        """Return what was chosen, with the measured shift of each choice of the last round."""
        shifts = (f"{each.pair.name}: {by.distance:.2f}" for each, by in zip(tried, strengths, strict=True))
        return (
            f"canary and initial weights chosen: {chosen[0].pair.name}. Shifts of the confidence by the canary in "
            f"search trainings, in standard deviations: {'; '.join(shifts)}",
        )


def crafted_points(pool: Examples, network: nn.Module) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the name and features (1, ...) of crafted points: in the direction of least variance, and far away.

    The first one has the median length of the rows. It is left out for embeddings, which read whole numbers.
    """
    from torch import nn

    features = array_features(pool)
    flat = features.reshape(len(features), -1).astype(np.float64)
    length = float(np.median(np.linalg.norm(flat, axis=1)))
    shape = (1, *features.shape[1:])
    if not any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in network.modules()):
        yield "in the direction of least variance", (length * last_direction(flat)).reshape(shape).astype(np.float32)
    yield "far from the data", np.full(shape, FAR, np.float32)


def train(network: nn.Module, rows: Examples, rng: np.random.Generator, compute: Compute) -> None:
    """Train a network in place, without privacy."""
    import torch

    network.to(compute.device).train()
    features, labels = torch.from_numpy(np.array(array_features(rows))), torch.from_numpy(rows.labels.copy())
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    for _ in range(STEPS):
        batch = torch.from_numpy(rng.integers(len(rows), size=BATCH))
        optimizer.zero_grad()
        logits = network(features[batch].to(compute.device))
        torch.nn.functional.cross_entropy(logits, labels[batch].to(compute.device)).backward()
        optimizer.step()


def least_likely(network: nn.Module, point: NDArray[np.float32], compute: Compute) -> tuple[NDArray[np.int64], float]:
    """Return the label that a network finds least likely at a point (1, ...), shape (1,), and its confidence phi."""
    import torch

    network.eval()
    with torch.no_grad():
        logits = network(torch.from_numpy(point).to(compute.device)).cpu().numpy()
    label = logits.argmin(1)
    return label, float(phi_of_logits(logits, label)[0])
