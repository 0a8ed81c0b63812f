"""Poisoning with an adversarial example of shadow models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds, box, features_of, replace_rows
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register


@register(
    "poisoning",
    "shadow-adversarial",
    source="Nasr et al. (2021), arXiv:2101.04535, adversarial perturbation; Lu et al. (2022), section 4.1, DP-SGD",
)
@dataclass(frozen=True)
class ShadowAdversarial:
    """Replace a random row by an adversarial example of shadow models, each trained on a random half of the data.

    Its class stays. Signed gradient steps raise the mean loss of the shadow models, within the box around the data and
    the length of the longest row.

    Attributes:
        shadows: Number of shadow models, >= 1.
        steps: Number of ascent steps, >= 1; each is a twentieth of the sides of the box.
        model: Network of the shadow models, if the learner has none.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    shadows: int = 8
    steps: int = 40
    model: Network = field(default=Mlp(hidden=(32,), epochs=10), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require(self.shadows >= 1, "shadows must be >= 1", shadows=self.shadows)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)
        require_network(self.model, of="shadow-adversarial")
        require(not self.model.standardise, "the model of the shadows must not standardise features", standardise=True)

    def for_mechanism(self, mechanism: Any) -> ShadowAdversarial:
        """Return the poisoning with the learner's network, if it has one without standardisation."""
        network = getattr(mechanism, "model", None)
        return replace(self, model=network) if isinstance(network, Network) and not network.standardise else self

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Return the data sets.

        Raises: InputError if all shadow models fail.
        """
        features = features_of(data)
        chosen = int(rng.integers(len(data)))
        same = np.flatnonzero(data.labels == data.labels[chosen])
        rows = np.concatenate([[chosen], same[same != chosen]])[:copies]
        require(len(rows) == copies, "shadow-adversarial needs `copies` rows of one class", copies=copies)
        point = self._ascend(data, features[chosen], int(data.labels[chosen]), rng)
        honest = data.take(rows)
        poisoned = honest.with_(features=np.repeat(point[None], copies, 0))
        points = np.concatenate([point[None], features[[chosen]], np.zeros_like(point)[None]])
        return replace_rows(data, np.sort(rows), honest, poisoned, points)

    def _ascend(
        self, data: Examples, start: NDArray[np.float32], label: int, rng: np.random.Generator
    ) -> NDArray[np.float32]:
        """Return the features with the largest mean loss of the shadow models during the ascent, shape (d,)."""
        import torch

        modules = self._train_shadows(data, rng)
        lower, upper = (torch.from_numpy(side) for side in box(data))
        longest = float(np.linalg.norm(features_of(data), axis=1).max())
        target = torch.tensor([label])

        def loss(point: torch.Tensor) -> torch.Tensor:
            answers = [torch.nn.functional.cross_entropy(module(point[None]), target) for module in modules]
            return torch.stack(answers).mean()

        point, best, most = torch.from_numpy(start.copy()), start.copy(), -np.inf
        for _ in range(self.steps + 1):
            point.requires_grad_(True)
            value = loss(point)
            if value.item() > most:
                best, most = point.detach().numpy().copy(), value.item()
            (slope,) = torch.autograd.grad(value, point)
            moved = torch.clamp(point.detach() + slope.sign() * (upper - lower) / 20, lower, upper)
            point = moved * min(1.0, longest / max(float(moved.norm()), 1e-12))
        return best

    def _train_shadows(self, data: Examples, rng: np.random.Generator) -> list[Any]:
        import torch

        halves = [np.sort(rng.choice(len(data), (len(data) + 1) // 2, replace=False)) for _ in range(self.shadows)]
        seeds = np.random.SeedSequence(int(rng.integers(2**63))).spawn(self.shadows)
        tasks = [TrainingTask(half, data.labels[half], seed) for half, seed in zip(halves, seeds, strict=True)]
        models = self.model.fit_stack(data.features, tasks, classes=data.classes, compute=Compute())
        modules = []
        for model in models:
            if isinstance(model, TrainingError):
                continue
            module = self.model.module(model.shape, data.classes)
            torch.nn.utils.vector_to_parameters(torch.from_numpy(model.parameters.copy()), module.parameters())
            modules.append(module.eval())
        require(bool(modules), "at least one shadow model must train successfully", shadows=self.shadows)
        return modules
