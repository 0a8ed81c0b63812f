"""DP-SGD by unchanged Opacus: sampling, clipping, noise and accountant are the library's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.locations import Packages, imported
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_delta, require_finite_epsilon, require_positive
from dpaudit.mechanisms.training.inputs import NumericFeaturesLearner, as_array
from dpaudit.mechanisms.training.private.private_steps import MAX_BATCH_NUMBERS, ClaimedSteps, PrivateSteps, StepCanary
from dpaudit.mechanisms.training.recipe import require_one_of
from dpaudit.registry import register

ACCOUNTANTS = ("prv", "rdp")
CLIPPING = ("flat", "per_layer", "adaptive")
SAMPLING = ("hooks", "ew", "functorch", "ghost")
"""Opacus's methods to compute gradients of single examples; "ghost" computes only their norms, and clips flat."""


@register("mechanism", "opacus-dp-sgd", source="Yousefpour et al. (2021), arXiv:2109.12298; the package opacus")
@dataclass(frozen=True)
class OpacusDpSgd(NumericFeaturesLearner):
    """DP-SGD by Opacus's PrivacyEngine with Poisson sampling (extra `opacus`).

    Opacus takes its sample rate from the number of examples, 1 / ceil(n / batch_size), and divides by its expected
    batch size, floor(n x rate). Both depend on n, which adding or removing a record changes.

    Attributes:
        epsilon: Privacy loss in nats, > 0; Opacus computes the noise for it.
        delta: In (0, 1).
        clip: Largest norm of one example's gradient, > 0.
        accountant: Opacus's accountant, "prv" or "rdp".
        clipping: "flat"; "per_layer", an equal share of `clip` for each layer; or "adaptive" (AdaClip), which starts at
            `clip`.
        grad_sample_mode: "hooks", "ew" (torch's ExpandedWeights), "functorch", or "ghost", which only clips flat.
        model: The network with its batch_size, epochs, learning_rate, momentum, weight_decay and optimizer; other
            fields as for dp-sgd.
    """

    packages: ClassVar[Packages] = {"opacus": "opacus"}
    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    accountant: str = "prv"
    clipping: str = "flat"
    grad_sample_mode: str = "hooks"
    model: Network = field(default=Mlp(learning_rate=0.5, momentum=0.0), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require_delta(self.delta)
        require_positive(self, "clip")
        require_one_of("accountant", self.accountant, ACCOUNTANTS)
        require_one_of("clipping", self.clipping, CLIPPING)
        require_one_of("grad_sample_mode", self.grad_sample_mode, SAMPLING)
        flat = self.clipping == "flat" or self.grad_sample_mode != "ghost"
        require(flat, "grad_sample_mode ghost clips flat", clipping=self.clipping)
        require_network(self.model, of="opacus-dp-sgd")
        net = self.model
        separate = not net.standardise and not net.mixup and net.augment == "none"
        require(separate, "DP-SGD cannot mix several examples", do="leave out standardise, mixup, augment")
        require(net.schedule == "constant", "opacus-dp-sgd needs a constant learning rate", schedule=net.schedule)

    def claim(self) -> Claim:
        """Return (epsilon, delta)-DP for adding or removing one record, as Opacus's accountant computes it."""
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE)

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        """Return Opacus's steps for epsilon on `rows` rows. Raises: InputError if Opacus is not installed."""
        privacy_engine()
        batches = math.ceil(rows / self.model.batch_size)
        noise = noise_multiplier(self.epsilon, self.delta, 1 / batches, self.model.epochs, self.accountant)
        steps = PrivateSteps(self.clip, noise, 1 / batches)
        return ClaimedSteps(steps, batches * self.model.epochs)

    def show_steps(
        self, train: Examples, canary: StepCanary, *, seed: np.random.SeedSequence, compute: Compute
    ) -> None:
        privacy_engine()
        with suppress(TrainingError), steps_of_opacus(canary):
            self.fit(train, seed=seed, compute=compute)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        engine_class = privacy_engine()
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        from dpaudit.mechanisms.compute import spawned, torch_generator
        from dpaudit.mechanisms.training.kernels import draw_weights
        from dpaudit.mechanisms.training.stack import NetworkModel

        torch.set_num_threads(compute.threads)
        weights, order, noise = spawned(seed, 3)
        inputs = torch.from_numpy(np.array(as_array(train.features))).to(compute.device)
        self.model.check(inputs)
        shape = tuple(inputs.shape[1:])
        module = self.model.module(shape, train.classes)
        torch.nn.utils.vector_to_parameters(draw_weights(module, torch_generator(weights)), module.parameters())
        labels = torch.from_numpy(train.labels.copy()).to(compute.device)
        loader = DataLoader(
            TensorDataset(inputs, labels), batch_size=self.model.batch_size, generator=torch_generator(order)
        )
        module = module.to(compute.device)
        engine = engine_class(accountant=self.accountant)
        multiplier = noise_multiplier(self.epsilon, self.delta, 1 / len(loader), self.model.epochs, self.accountant)
        private, optimizer, *criterion, batches = engine.make_private(
            module=module,
            optimizer=_optimizer(self.model, module.parameters()),
            data_loader=loader,
            noise_multiplier=multiplier,
            noise_generator=torch_generator(noise, compute.device),
            clipping=self.clipping,
            grad_sample_mode=self.grad_sample_mode,
            **self._clip_settings(multiplier, len(list(module.parameters()))),
        )
        loss = criterion[0] if criterion else torch.nn.functional.cross_entropy
        private.train()
        for _ in range(self.model.epochs):
            for batch, targets in batches:
                optimizer.zero_grad()
                loss(private(batch), targets).backward()
                optimizer.step()
        flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().cpu().numpy()
        if not np.isfinite(flat).all():
            raise TrainingError("the weights are no longer finite numbers; lower learning_rate")
        return NetworkModel(self.model, shape, train.classes, flat, {}, None, compute)

    def _clip_settings(self, noise_multiplier: float, layers: int) -> dict[str, Any]:
        """Return Opacus's arguments for clipping, for AdaClip with the defaults of its paper."""
        if self.clipping == "per_layer":
            return {"max_grad_norm": [self.clip / math.sqrt(layers)] * layers}
        if self.clipping == "flat":
            return {"max_grad_norm": self.clip}
        return {
            "max_grad_norm": self.clip,
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 100 * self.clip,
            "min_clipbound": self.clip / 100,
            "unclipped_num_std": max(self.model.batch_size / 20, 2 * noise_multiplier),
        }


@contextmanager
def steps_of_opacus(canary: StepCanary) -> Iterator[None]:
    """Add the canaries' gradients to each batch of every Opacus optimizer inside the block, before clipping.

    Canaries are scaled by the optimizer's current clipping bound, which adaptive clipping changes. They are appended to
    `grad_sample`; in the mode "ghost", which has no `grad_sample`, clipped canaries are added to the sum. If a step
    has several parts (`BatchMemoryManager`, several backward passes), they join the last one.

    The canary observes the gradient that Opacus passes to the inner optimizer, with any changes by other code after the
    noise. If the inner optimizer makes no step, it observes the gradient right after the noise. The division by the
    expected batch size is undone, so that it observes a sum.
    """
    import torch
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    waiting: list[Callable[[bool], None]] = []  # shows the step that got its noise: the current gradient, or the saved
    hooks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by inner optimizer
    earlier: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # gradients of earlier parts of a step, by optimizer

    def show(*, now: bool) -> None:
        while waiting:
            waiting.pop()(now)

    def watched(original_pre_step: Any, add_canaries: Callable[[Any, Any, Any], None]) -> Any:
        def pre_step(self: Any, closure: Any = None) -> Any:
            show(now=False)
            step, scale = canary.step, float(self.max_grad_norm) / canary.clip
            batch = _gradients(self.params)
            if self in earlier:
                batch = _joined([earlier.pop(self), batch])
            if self._check_skip_next_step(pop_next=False):
                earlier[self] = batch
                return original_pre_step(self, closure)
            rows = np.zeros((0, 0), np.float32)
            if not canary.awaits_observation:  # otherwise Opacus did not make the step
                batch = None if batch is None else batch / scale
                rows = canary.gradients(step, sum(weights.numel() for weights in self.params), batch)
            if len(rows):
                parts = torch.from_numpy(scale * rows).split([weights.numel() for weights in self.params], 1)
                clipped = torch.from_numpy(np.minimum(1, canary.clip / np.linalg.norm(rows, axis=1)))
                for weights, part in zip(self.params, parts, strict=True):
                    add_canaries(weights, part.reshape(-1, *weights.shape), clipped)
            mean = self.loss_reduction == "mean"
            divisor = self.expected_batch_size * self.accumulated_iterations if mean else 1
            moves = original_pre_step(self, closure)
            if moves:

                def gradient() -> Any:
                    return torch.cat([weights.grad.flatten() for weights in self.params])

                saved = gradient()
                waiting.append(lambda now: canary.observe(step, (gradient() if now else saved) * (divisor / scale)))
                if self.original_optimizer not in hooks:
                    hook = self.original_optimizer.register_step_pre_hook(lambda *_: show(now=True))
                    hooks[self.original_optimizer] = hook
            return moves

        return pre_step

    def as_examples(weights: Any, parts: Any, clipped: Any) -> None:
        *passes, last = _passes(weights.grad_sample)
        last = torch.cat([last, parts.to(last)])
        weights.grad_sample = [*passes, last] if passes else last

    def into_sum(weights: Any, parts: Any, clipped: Any) -> None:
        weights.grad += torch.tensordot(clipped.to(weights.grad), parts.to(weights.grad), 1)

    original, original_ghost = DPOptimizer.pre_step, DPOptimizerFastGradientClipping.pre_step
    DPOptimizer.pre_step = watched(original, as_examples)
    DPOptimizerFastGradientClipping.pre_step = watched(original_ghost, into_sum)
    try:
        yield
        show(now=False)
    finally:
        for hook in hooks.values():
            hook.remove()
        DPOptimizer.pre_step, DPOptimizerFastGradientClipping.pre_step = original, original_ghost


def _passes(grad_sample: Any) -> list[Any]:
    """Return the gradients of examples by backward pass: Opacus keeps a tensor of one, and a list of several."""
    return grad_sample if isinstance(grad_sample, list) else [grad_sample]


def _gradients(params: list[Any]) -> Any:
    """Return the gradients of the examples of all backward passes, shape (examples, weights).

    None if Opacus does not keep them all, or they are too large for an attack.
    """
    import torch

    samples = [_passes(getattr(weights, "grad_sample", None)) for weights in params]
    if any(each is None for passes in samples for each in passes):
        return None
    rows = [torch.cat([each.flatten(1) for each in passes]) for passes in samples]
    same = len({len(each) for each in rows}) == 1 and sum(each.numel() for each in rows) <= MAX_BATCH_NUMBERS
    return torch.cat(rows, 1) if same else None


def _joined(parts: list[Any]) -> Any:
    """Return the rows of all parts; None if a part is None or they are too large for an attack."""
    import torch

    if any(part is None for part in parts) or sum(part.numel() for part in parts) > MAX_BATCH_NUMBERS:
        return None
    return torch.cat(parts)


def privacy_engine() -> Any:
    """Return Opacus's PrivacyEngine. Raises: InputError if Opacus is not installed."""
    return imported("opacus", "opacus").PrivacyEngine


@cache
def noise_multiplier(epsilon: float, delta: float, sample_rate: float, epochs: int, accountant: str) -> float:
    """Return the noise multiplier of `make_private_with_epsilon`, cached because the search takes seconds."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, epochs=epochs, accountant=accountant
        )
    )


def _optimizer(network: Network, parameters: Any) -> Any:
    import torch

    rates: dict[str, Any] = {"lr": network.learning_rate, "weight_decay": network.weight_decay}
    if network.optimizer == "adam":
        return torch.optim.Adam(parameters, **rates)
    return torch.optim.SGD(parameters, momentum=network.momentum, nesterov=network.nesterov, **rates)
