"""The optimizer of Opacus, whose steps an audit joins and observes by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpaudit.engine.observer.protocol import Audit
from dpaudit.errors import InputError, require


def stated_by(optimizer: Any) -> dict[str, Any]:
    """Return the arguments of an audit that an optimizer of Opacus states: noise, clip and divisor of its steps.

    Raises: InputError for another optimizer.
    """
    from opacus.optimizers import DPOptimizer

    require(isinstance(optimizer, DPOptimizer), "optimizer must be that of Opacus", given=type(optimizer).__name__)
    processes = int(getattr(optimizer, "world_size", 1))
    averaged = processes if _has_shards(optimizer) else 1  # FSDP averages the gradients of its processes
    divisor = 1.0
    if optimizer.loss_reduction == "mean":
        divisor = float(optimizer.expected_batch_size * processes / averaged)
    return {
        "noise": float(optimizer.noise_multiplier),
        "clip": float(np.linalg.norm(np.atleast_1d(optimizer.max_grad_norm))) / averaged,
        "divisor": divisor,
        "distributed": None if processes == 1 else "weights" if _has_shards(optimizer) else "records",
    }


def _has_shards(optimizer: Any) -> bool:
    return hasattr(optimizer, "grad_state")  # the optimizer for FSDP, which keeps its sums there


def attach(audit: Audit, optimizer: Any) -> None:
    """Let the audit join each step between clipping and noise, and observe what the inner optimizer gets."""
    add_noise, weights = optimizer.add_noise, optimizer.params

    def summed() -> list[Any]:
        if _has_shards(optimizer):
            return [optimizer.grad_state[each]["summed_grad"] for each in weights]
        return [each.summed_grad for each in weights]

    def joining() -> None:
        audit.skip()  # of a step that the inner optimizer did not make
        audit.divisor = stated_by(optimizer)["divisor"] * optimizer.accumulated_iterations
        audit.join(summed(), in_place=True)
        add_noise()

    def observing(*_: Any) -> None:
        if audit.awaits_observation:
            audit.observe([each.grad for each in weights])

    if not math.isfinite(optimizer.noise_multiplier) or optimizer.noise_multiplier <= 0:
        raise InputError("the optimizer adds no noise, so nothing finite is claimed of its steps")
    optimizer.add_noise = joining
    optimizer.original_optimizer.register_step_pre_hook(observing)
