"""DP-SGD by Opacus, run as it is: its sampling, its clipping, its noise and its accountant, none of ours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.protocols import Compute, Model, TrainingError
from dpaudit.mechanisms.training.private_steps import ClaimedSteps, PrivateSteps
from dpaudit.mechanisms.training.recipe import one_of
from dpaudit.mechanisms.training.step_canary import StepCanary
from dpaudit.registry import register

ACCOUNTANTS = ("prv", "rdp")


@register("mechanism", "opacus-dp-sgd", source="Yousefpour et al. (2021), arXiv:2109.12298; the package opacus")
@dataclass(frozen=True)
class OpacusDpSgd:
    """DP-SGD by Opacus's PrivacyEngine with Poisson sampling, to be audited as others use it (extra `opacus`).

    Opacus takes its sample rate from the number of examples, 1 / ceil(n / batch_size), and divides by its own expected
    batch size, floor(n x rate): both depend on n, which adding or removing a record changes.

    Attributes:
        epsilon: Privacy loss in nats, > 0; Opacus finds the noise for it.
        delta: In (0, 1).
        clip: Largest norm of one example's gradient, > 0.
        accountant: "prv" or "rdp", of Opacus.
        model: The network, its batch_size, epochs, learning_rate, momentum, weight_decay and optimizer; the rest as
            for dp-sgd.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    accountant: str = "prv"
    model: Network = field(default=Mlp(learning_rate=0.5, momentum=0.0), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require(0 < self.epsilon < np.inf, "epsilon must be > 0 and finite", epsilon=self.epsilon)
        require(0 < self.delta < 1, "delta must be in (0, 1)", delta=self.delta)
        require(self.clip > 0, "clip must be > 0", clip=self.clip)
        one_of("accountant", self.accountant, ACCOUNTANTS)
        require_network(self.model, of="opacus-dp-sgd")
        net = self.model
        alone = not net.standardise and not net.mixup and net.augment == "none"
        require(alone, "DP-SGD cannot look at several examples at once", do="leave out standardise, mixup, augment")
        require(net.schedule == "constant", "opacus-dp-sgd keeps its learning rate", schedule=net.schedule)

    def claim(self) -> Claim:
        """(epsilon, delta)-DP under adding or removing one record, as Opacus's accountant says."""
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE)

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        """What Opacus makes of epsilon on so many rows.

        Raises: InputError when Opacus is not installed.
        """
        _privacy_engine()
        batches = math.ceil(rows / self.model.batch_size)
        noise = _noise_multiplier(self.epsilon, self.delta, 1 / batches, self.model.epochs, self.accountant)
        steps = PrivateSteps(self.clip, noise, 1 / batches)
        return ClaimedSteps(steps, batches * self.model.epochs, max(1, int(rows / batches)))

    def show_steps(
        self, train: Examples, canary: StepCanary, *, seed: np.random.SeedSequence, compute: Compute
    ) -> None:
        """`fit` as it is, while Opacus's optimizers let the canary in and show what they go on with."""
        _privacy_engine()
        with suppress(TrainingError), steps_of_opacus(canary):
            self.fit(train, seed=seed, compute=compute)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains by Opacus; `validation` is not used.

        Raises: InputError when Opacus is not installed; TrainingError when the weights stop being numbers.
        """
        engine_class = _privacy_engine()
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        from dpaudit.mechanisms.seeds import spawned
        from dpaudit.mechanisms.training.generators import torch_generator
        from dpaudit.mechanisms.training.inputs import as_array
        from dpaudit.mechanisms.training.network_model import NetworkModel
        from dpaudit.mechanisms.training.parameters import initial

        torch.set_num_threads(compute.threads)
        weights, order, noise = spawned(seed, 3)
        inputs = torch.from_numpy(np.array(as_array(train.features))).to(compute.device)
        self.model.check(inputs)
        shape = tuple(inputs.shape[1:])
        module = self.model.module(shape, train.classes)
        torch.nn.utils.vector_to_parameters(initial(module, torch_generator(weights)), module.parameters())
        labels = torch.from_numpy(train.labels.copy()).to(compute.device)
        loader = DataLoader(
            TensorDataset(inputs, labels), batch_size=self.model.batch_size, generator=torch_generator(order)
        )
        module = module.to(compute.device)
        engine = engine_class(accountant=self.accountant)
        private, optimizer, batches = engine.make_private(
            module=module,
            optimizer=_optimizer(self.model, module.parameters()),
            data_loader=loader,
            noise_multiplier=_noise_multiplier(
                self.epsilon, self.delta, 1 / len(loader), self.model.epochs, self.accountant
            ),
            max_grad_norm=self.clip,
            noise_generator=torch_generator(noise, compute.device),
        )
        private.train()
        for _ in range(self.model.epochs):
            for batch, targets in batches:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(private(batch), targets).backward()
                optimizer.step()
        flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().cpu().numpy()
        if not np.isfinite(flat).all():
            raise TrainingError("the weights are no longer finite numbers; lower learning_rate")
        return NetworkModel(self.model, shape, train.classes, flat, {}, None, compute)


@contextmanager
def steps_of_opacus(canary: StepCanary) -> Iterator[None]:
    """Inside, every optimizer of Opacus has the canary's gradient among those of the batch, before it clips them.

    The row is appended to `grad_sample`, so of Opacus only the computation of per-example gradients is passed over; the
    gradient that is shown is the one the weights are moved by, noise and division done.
    """
    import torch
    from opacus.optimizers import DPOptimizer

    own = DPOptimizer.pre_step

    def pre_step(self: Any, closure: Any = None) -> Any:
        step = len(canary.products)
        if not canary.asked:  # else a further part of one large batch
            row = canary.gradient(step, sum(weights.numel() for weights in self.params))
            if row is not None:
                parts = torch.from_numpy(row).split([weights.numel() for weights in self.params])
                for weights, part in zip(self.params, parts, strict=True):
                    joined = part.view(1, *weights.shape).to(weights.grad_sample)
                    weights.grad_sample = torch.cat([weights.grad_sample, joined])
        moves = own(self, closure)
        if moves:
            canary.observe(step, torch.cat([weights.grad.flatten() for weights in self.params]))
        return moves

    DPOptimizer.pre_step = pre_step
    try:
        yield
    finally:
        DPOptimizer.pre_step = own


def _privacy_engine() -> Any:
    try:
        from opacus import PrivacyEngine
    except ImportError as err:
        raise InputError(
            "opacus-dp-sgd needs the package opacus; install it with `pip install dpaudit[opacus]`"
        ) from err
    return PrivacyEngine


@cache
def _noise_multiplier(epsilon: float, delta: float, sample_rate: float, epochs: int, accountant: str) -> float:
    """What `make_private_with_epsilon` takes; it searches for seconds, so an audit's models share the answer."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=sample_rate,
            epochs=epochs,
            accountant=accountant,
        )
    )


def _optimizer(network: Network, parameters: Any) -> Any:
    import torch

    if network.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=network.learning_rate, weight_decay=network.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=network.learning_rate,
        momentum=network.momentum,
        nesterov=network.nesterov,
        weight_decay=network.weight_decay,
    )
