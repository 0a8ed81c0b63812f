"""Floating-point operations of a training, counted on a network without weights."""

from __future__ import annotations

from functools import cache
from typing import Any

from dpaudit.mechanisms.learners.pate import PateFm
from dpaudit.mechanisms.models.networks import Network

SUSTAINED_FLOPS = 2e13
"""Assumed training speed of one GPU, in operations per second: 20 TFLOP/s, not measured."""


@cache
def forward_flops(network: Network, shape: tuple[int, ...], classes: int = 10) -> int:
    """Return the operations of one example's forward pass; `shape` is that of its features."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        module, example = network.module(shape, classes), torch.empty(1, *shape)
    with FlopCounterMode(display=False) as counter:
        module(example)
    return int(counter.get_total_flops())


def training_flops(learner: Any, rows: int, shape: tuple[int, ...], classes: int = 10) -> float:
    """Return the operations of one training of a learner with a network `model` on `rows` rows.

    A step costs three forward passes for each example. Gradients of single examples count like ordinary ones.
    """
    if isinstance(learner, PateFm):
        steps = learner.teachers * learner.teacher_steps + learner.student_steps
        return steps * fixmatch_step_flops(learner, shape, classes)
    network: Network = learner.model
    return 3.0 * forward_flops(network, shape, classes) * network.epochs * rows


def fixmatch_step_flops(learner: PateFm, shape: tuple[int, ...], classes: int = 10) -> float:
    """Return the operations of one step of a teacher or of the student of PATE-FM."""
    # Labelled and strongly augmented images need gradients; weakly augmented images need a forward pass only.
    images = learner.model.batch_size * (1 + learner.ratio + learner.ratio / 3)
    return 3.0 * images * forward_flops(learner.model, shape, classes)
