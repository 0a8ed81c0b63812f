"""A user's torch module and training loop; or a user's loop with Opacus, checked against its accountant."""

from __future__ import annotations

import copy
import hashlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError, require
from dpaudit.locations import Packages, location, require_packages
from dpaudit.mechanisms.adapters.opacus_dp_sgd import steps_of_opacus
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, ModelOfUserCode, code_of, global_randomness, take_code
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_delta, require_finite_epsilon
from dpaudit.mechanisms.training.inputs import NumericFeaturesLearner, as_array
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps, StepCanary
from dpaudit.registry import register

if TYPE_CHECKING:
    import torch

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _Copies:
    """Copies of one module with its weights. Only the process that holds the module can make them."""

    architecture: str  # the module's class
    digest: str  # SHA-256 of its structure and weights, 32 hexadecimal digits

    @classmethod
    def of(cls, module: torch.nn.Module) -> _Copies:
        import torch

        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in module.state_dict().items()}, weights)
        content = repr(module).encode() + weights.getvalue()
        copies = cls(type(module).__qualname__, hashlib.sha256(content).hexdigest()[:32])
        copies.__dict__["_first"] = copy.deepcopy(module)  # not a field, because it is not a plain value
        return copies

    def __call__(self) -> Any:
        if "_first" not in self.__dict__:
            raise InputError(
                f"the module {self.architecture} exists only in the process that created it. Continue in that process, "
                "or pass a function that creates the module"
            )
        return copy.deepcopy(self.__dict__["_first"])


@register("mechanism", "torch", source="your own code")
@register("model", "torch", source="your own code")
@dataclass(frozen=True)
class OwnTorch(ClaimedByUser, NumericFeaturesLearner):
    """A torch module trained by a user's loop: a model inside any learner, or with a claim a learner itself.

    For each fit `module()` creates a module, and `train(module, X, y, seed)` trains it in place or returns another one.
    X are tensors of the type of the module's weights, such as float32 or bfloat16, but float32 for a module with
    embeddings. y are classes 0 .. K - 1. Both are on the unit's device. The global generators of torch, NumPy
    and Python are seeded before the module is created. The module returns K logits for each example.

    Attributes:
        module: A class or function that creates the module, or its import path "module:Class".
        train: The loop, or its import path.
        parameters: Keyword arguments of `module`.
    """

    made_by = "from_torch"

    module: Any
    train: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        import torch

        take_code(self, "train", "module", "X", "y", "seed")
        module: Any = self.module
        match module:
            case _Copies():
                pass
            case {"architecture": str() as architecture, "digest": str() as digest}:  # as a spec writes copies
                module = _Copies(architecture, digest)
            case _:
                module = code_of(module, field="module")
        object.__setattr__(self, "module", module)
        with global_randomness(SeedSequence(0)):
            try:
                first = module(**self.parameters)
            except TypeError as err:
                raise InputError(f"module cannot be created from parameters {dict(self.parameters)}: {err}") from err
        require(isinstance(first, torch.nn.Module), "module must create a torch.nn.Module", got=type(first).__name__)

    def initial_network(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        """Return a module before training."""
        module: torch.nn.Module = self.module(**self.parameters)
        return module

    def fit(
        self,
        train: Examples,
        *,
        seed: SeedSequence,
        compute: Compute,
        validation: Examples | None = None,
        initial: NDArray[np.float32] | None = None,
    ) -> Model:
        """Train a module, whose weights are replaced by `initial` of shape (P,) before the loop gets it."""
        import torch

        torch.set_num_threads(compute.threads)
        with global_randomness(seed) as number:
            module = self.module(**self.parameters)
            if initial is not None:
                weights = torch.tensor(
                    initial, dtype=next(module.parameters()).dtype
                )  # a copy, since loops train in place
                torch.nn.utils.vector_to_parameters(weights, module.parameters())
            module = module.to(compute.device)
            features, labels = _tensors(train, compute)
            trained = self.train(module, features.to(_type_of_inputs(module)), labels, number)
        return _probability_model(module if trained is None else trained, train, compute, self.train)


def _probability_model(module: Any, train: Examples, compute: Compute, loop: Any) -> ModelOfUserCode:
    """Return a model whose probabilities are the softmax of a trained module's K logits for each example."""
    ask = partial(_softmax_of_logits, module, train.classes, compute)
    return ModelOfUserCode(ask, train.classes, f"the module of {location(loop)}")


def _softmax_of_logits(module: Any, classes: int, compute: Compute, features: Features) -> NDArray[np.float64]:
    import torch

    torch.set_num_threads(compute.threads)
    module.eval()
    parts = torch.from_numpy(np.array(as_array(features))).split(_ROWS_AT_ONCE)
    kind, answers = _type_of_inputs(module), []
    with torch.no_grad():
        for part in parts:
            logits = module(part.to(compute.device, kind))
            # A softmax in 16 bits gives probabilities that do not add up to 1.
            wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
            answers.append(wide.softmax(-1).cpu().double().numpy())
    return np.concatenate(answers) if answers else np.zeros((0, classes))


def _type_of_inputs(module: Any) -> torch.dtype:
    """Return the type of the first floating-point weights of a module; float32 without any or for embeddings.

    Embeddings read whole numbers, which 16 bits may not hold exactly.
    """
    import torch

    if any(isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) for part in module.modules()):
        return torch.float32
    types = (weights.dtype for weights in module.parameters() if weights.is_floating_point())
    return next(types, torch.float32)


def _tensors(examples: Examples, compute: Compute) -> tuple[Any, Any]:
    import torch

    features = torch.from_numpy(np.array(as_array(examples.features)))
    return features.to(compute.device), torch.from_numpy(examples.labels.copy()).to(compute.device)


def from_torch(module: Any, train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnTorch:
    """Return a mechanism or model for a torch module and a user's training loop; see `OwnTorch`.

    Args:
        module: A class or function that creates it, with fresh weights for each fit; or a module, from whose weights
            each fit starts.
        train: `train(module, X, y, seed)`, which trains in place or returns another module.
        claim: The claim of the training, if it is the mechanism.
        parameters: Keyword arguments of `module`.
    Raises: InputError if these cannot be called with such arguments, or not be pickled for a worker.
    """
    import torch

    return OwnTorch(_Copies.of(module) if isinstance(module, torch.nn.Module) else module, train, parameters, claim)


@register("mechanism", "opacus", source="your own code with Yousefpour et al. (2021), arXiv:2109.12298")
@dataclass(frozen=True)
class OwnOpacus(NumericFeaturesLearner):
    """A function `train(X, y, seed)` that trains with Opacus and returns (module, privacy engine).

    X are float32 tensors, y classes 0 .. K - 1. The global generators that Opacus uses are seeded. A training that
    spends more than the claim, by the engine's accountant, is refused, because the claim does not cover it. Its steps
    can be audited: a canary joins the gradients inside Opacus's optimizer, without changes to the function.

    Attributes:
        train: The function, or its import path "module:function".
        epsilon: The accountant's epsilon in nats, > 0; None takes it from a training on as many rows as the audit's
            trainings have, with `claim="accountant"`.
        delta: The delta of epsilon, in (0, 1).
        rows: Trainings on fewer rows, >= 0, may exceed epsilon: an attack's models may have fewer rows than the target.
        steps: The accountant's record of a training on "rows" rows: "noise_multiplier" (the least of all steps with
            noise), "sample_rate" (the largest), "steps", and "without_noise" (steps without noise) if there are any; if
            empty, a training records it when the audit is planned.
    """

    packages: ClassVar[Packages] = {"opacus": "opacus"}
    train: Any
    epsilon: float | None
    delta: float
    rows: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        take_code(self, "train", "X", "y", "seed")
        if self.epsilon is not None:
            require_finite_epsilon(self.epsilon)
        require_delta(self.delta)
        require_packages(self)

    def claim(self) -> Claim:
        """Return (epsilon, delta)-DP for adding or removing one record. Raises: InputError if epsilon is not set."""
        if self.epsilon is None:
            raise InputError('from_opacus without an engine and epsilon needs `claim="accountant"` in the audit')
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE)

    def held_to_accountant(self, train: Examples, *, seed: SeedSequence) -> OwnOpacus:
        """Train once on these rows, and return the mechanism with the accountant's epsilon and steps."""
        _, engine = self._trained(train, seed, Compute())
        epsilon = _rounded_up(_spent(engine, self.delta), self.delta)
        return replace(self, epsilon=epsilon, rows=len(train), steps=_steps_of(engine, len(train)))

    def with_steps_of(self, train: Examples, *, seed: SeedSequence) -> OwnOpacus:
        """Train once on these rows, and return the mechanism with the accountant's steps."""
        _, engine = self._trained(train, seed, Compute())
        return replace(self, steps=_steps_of(engine, len(train)))

    def claimed_steps(self, rows: int) -> ClaimedSteps | None:
        """Return the recorded steps of a training on `rows` rows, in units of the clip; None for other rows."""
        if self.steps.get("rows") != rows:
            return None
        steps = PrivateSteps(1.0, self.steps["noise_multiplier"], self.steps["sample_rate"])
        return ClaimedSteps(steps, int(self.steps["steps"]), without_noise=int(self.steps.get("without_noise", 0)))

    def show_steps(self, train: Examples, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Train with the canary among the gradients. Raises: InputError if a step had less noise than recorded."""
        with steps_of_opacus(canary):
            _, engine = self._trained(train, seed, compute)
        least = _steps_of(engine, len(train))["noise_multiplier"]
        require(
            least >= self.steps["noise_multiplier"] * (1 - 1e-9),
            f"each training must have a noise multiplier of at least {self.steps['noise_multiplier']:g}",
            do="the training that recorded the steps had this noise; let the noise depend only on the number of rows",
            noise_multiplier=f"{least:g}",
        )

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train the model. Raises: InputError if it spent more than the claim; exceptions of the function pass."""
        module, engine = self._trained(train, seed, compute)
        spent, claimed = _spent(engine, self.delta), self.claim().epsilon
        require(
            spent <= claimed or len(train) < self.rows,
            f"a training must spend at most the claimed epsilon {claimed:g} at delta={self.delta:g}",
            do=f"Opacus's accountant reports more for {len(train):,} rows; with fewer rows, a batch of the same size "
            'is a larger share. Let the accountant state the claim (claim="accountant")',
            spent=f"{spent:g}",
        )
        return _probability_model(module, train, compute, self.train)

    def _trained(self, train: Examples, seed: SeedSequence, compute: Compute) -> tuple[Any, Any]:
        import torch

        torch.set_num_threads(compute.threads)
        with global_randomness(seed) as number:
            result = self.train(*_tensors(train, compute), number)
        require(
            isinstance(result, tuple) and len(result) == 2,
            f"{location(self.train)} must return the trained module and its PrivacyEngine",
            do="end it with `return module, engine`",
            given=type(result).__name__,
        )
        module, engine = result
        _require_trained(engine)
        return module, engine


def _require_trained(engine: Any) -> None:
    """Refuse other objects than privacy engines, and engines without a training."""
    from opacus import PrivacyEngine

    require(isinstance(engine, PrivacyEngine), "engine must be an opacus.PrivacyEngine", engine=type(engine).__name__)
    require(
        len(engine.accountant) > 0, "the privacy engine must come from a finished training: its accountant has no steps"
    )


def _steps_of(engine: Any, rows: int) -> dict[str, float]:
    """Return an accountant's record of a training on `rows` rows: the least noise above 0 and the largest rate."""
    noises, rates, counts = zip(*engine.accountant.history, strict=True)
    record = {"rows": rows, "noise_multiplier": _least_noise(engine), "sample_rate": max(rates), "steps": sum(counts)}
    bare = sum(count for noise, count in zip(noises, counts, strict=True) if noise == 0)
    return record | ({"without_noise": bare} if bare else {})


def _least_noise(engine: Any) -> float:
    """Return the least noise multiplier above 0. Raises: InputError if no step has noise."""
    noises = [noise for noise, _, _ in engine.accountant.history if noise > 0]
    require(len(noises) > 0, "a training must add noise: by its accountant, no step has any")
    return float(min(noises))


def _spent(engine: Any, delta: float) -> float:
    """Return the epsilon of an engine's training; infinite if its accountant has no number for so little noise.

    No finite epsilon holds for a step without noise, and Opacus's accountants raise OverflowError for one. So the claim
    is that of as many steps with noise, which the others break. Opacus's own accountants compute equal steps only once.
    """
    accountant, least = engine.accountant, _least_noise(engine)
    parts = (engine, accountant)
    by_opacus = all(type(part).__module__.startswith("opacus.") and "get_epsilon" not in vars(part) for part in parts)
    try:
        if by_opacus:
            history = tuple((noise or least, rate, count) for noise, rate, count in accountant.history)
            return _recomputed_epsilon(accountant.__class__, history, delta)
        return float(engine.get_epsilon(delta))
    except (OverflowError, ZeroDivisionError):
        return math.inf


@lru_cache(maxsize=64)
def _recomputed_epsilon(kind: Any, history: tuple[Any, ...], delta: float) -> float:
    """Return epsilon by a new accountant, cached because the default one, `prv`, takes seconds."""
    accountant = kind()
    accountant.history = list(history)
    return float(accountant.get_epsilon(delta))


def _rounded_up(spent: float, delta: float) -> float:
    """Return epsilon rounded up to 4 decimal places, so that later trainings stay below it."""
    must = f"Opacus's accountant must give a finite epsilon at delta={delta:g}: this training adds hardly any noise"
    require(math.isfinite(spent), must, do="add noise, or state epsilon", spent=spent)
    return float(math.ceil(spent * 10**4) / 10**4)


def from_opacus(
    train: Callable[..., Any], engine: Any = None, *, delta: float, epsilon: float | None = None
) -> OwnOpacus:
    """Return a mechanism for a training with Opacus, with its accountant's claim; see `OwnOpacus`.

    Args:
        train: `train(X, y, seed)`, which returns the trained module and its PrivacyEngine.
        engine: The engine of a finished training; its accountant's epsilon, rounded up to 4 decimal places, is the
            claim.
        delta: The delta of the claim, in (0, 1).
        epsilon: The claim in nats, instead of an engine. With neither, `claim="accountant"` in the audit takes it from
            a training on as many rows as the audit's trainings have.
    Raises: InputError for invalid arguments.
    """
    require(
        engine is None or epsilon is None,
        "from_opacus takes the engine of a run, or epsilon, or neither",
        do='write from_opacus(train, engine, delta=1e-5), or from_opacus(train, delta=1e-5) and claim="accountant"',
    )
    if engine is not None:
        _require_trained(engine)
        epsilon = _rounded_up(_spent(engine, delta), delta)
    return OwnOpacus(train, epsilon, delta)
