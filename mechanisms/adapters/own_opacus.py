"""One's own training with Opacus, run as it is, and held to what its own accountant says."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError, require
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.own_torch import TorchModel, tensors
from dpaudit.mechanisms.adapters.randomness import global_randomness, whole_number
from dpaudit.mechanisms.adapters.user_code import code_of
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register

DIGITS = 4
"""Digits after the point of a claim; it is rounded up, so that the accountant's figure stays below it."""


@register("mechanism", "opacus", source="one's own code with Yousefpour et al. (2021), arXiv:2109.12298")
@dataclass(frozen=True)
class OwnOpacus:
    """A function `train(X, y, seed)` that trains with Opacus and gives (module, privacy engine).

    X are float32 tensors, y classes 0 .. K - 1; the global generators that Opacus draws from are seeded. After each
    training the engine's accountant is asked what that training spent; one that spent more than is claimed is refused,
    since the claim would not be about it. (A sample rate depends on the number of rows, so may the privacy spent.)

    Attributes:
        train: The function, or where it is: "module:function".
        epsilon: What the accountant says, in nats, > 0.
        delta: At which delta it was asked, in (0, 1).
    """

    train: Any
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.epsilon < np.inf, "epsilon must be > 0 and finite", epsilon=self.epsilon)
        require(0 < self.delta < 1, "delta must be in (0, 1)", delta=self.delta)
        if importlib.util.find_spec("opacus") is None:
            raise InputError("this needs the package opacus; install it with `pip install dpaudit[opacus]`")
        object.__setattr__(self, "train", code_of(self.train, field="train", arguments=("X", "y", "seed")))

    def claim(self) -> Claim:
        """(epsilon, delta)-DP under adding or removing one record: the relation of Opacus's accountants."""
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Calls the function; `validation` is not used. Its own exceptions pass.

        Raises: InputError when it gives something else than a module and an engine, or spent more than is claimed.
        """
        import torch

        torch.set_num_threads(compute.threads)
        with global_randomness(seed):
            given = self.train(*tensors(train, compute), whole_number(seed))
        require(
            isinstance(given, tuple) and len(given) == 2,
            f"{location(self.train)} must give the trained module and its PrivacyEngine",
            do="end it with `return module, engine`",
            given=type(given).__name__,
        )
        module, engine = given
        spent = spent_epsilon(engine, self.delta)
        require(
            spent <= self.epsilon,
            f"a training must spend at most the claimed epsilon {self.epsilon:g} at delta={self.delta:g}",
            do=f"Opacus's accountant says so of this one, on {len(train)} rows; claim it, or fix epsilon with "
            "make_private_with_epsilon",
            spent=f"{spent:g}",
        )
        return TorchModel(module, train.classes, compute, location(self.train))


def spent_epsilon(engine: Any, delta: float) -> float:
    """What a privacy engine's accountant says of the training it has seen, in nats.

    Raises: InputError when it is no engine of Opacus, or has seen no step.
    """
    from opacus import PrivacyEngine

    require(isinstance(engine, PrivacyEngine), "engine must be an opacus.PrivacyEngine", engine=type(engine).__name__)
    require(len(engine.accountant) > 0, "the privacy engine must have seen a training: its accountant has no steps")
    return float(engine.get_epsilon(delta))


def from_opacus(
    train: Callable[..., Any], engine: Any = None, *, delta: float, epsilon: float | None = None
) -> OwnOpacus:
    """A training with Opacus for an audit, with the claim its privacy engine's accountant states; see `OwnOpacus`.

    Args:
        train: `train(X, y, seed)`, gives the trained module and its PrivacyEngine.
        engine: The engine of a run of it: epsilon is taken from its accountant, rounded up to 4 digits.
        delta: At which delta, in (0, 1).
        epsilon: The claim in nats, instead of an engine.
    Raises: InputError when these are no such things.
    """
    require(
        (engine is None) != (epsilon is None),
        "from_opacus takes the engine of a run, or epsilon",
        do="write from_opacus(train, engine, delta=1e-5)",
    )
    if epsilon is None:
        epsilon = math.ceil(spent_epsilon(engine, delta) * 10**DIGITS) / 10**DIGITS
    return OwnOpacus(train, epsilon, delta)
