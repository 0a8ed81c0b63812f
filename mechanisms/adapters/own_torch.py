"""A torch module and a training loop of one's own; or a loop with Opacus, held to what its own accountant says."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError, require
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.opacus_dp_sgd import steps_of_opacus
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, ModelOfUserCode, code_of, global_randomness
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_delta, require_finite_epsilon
from dpaudit.mechanisms.training.inputs import as_array, example_shape
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps, StepCanary
from dpaudit.registry import register

if TYPE_CHECKING:
    import torch

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _Copies:
    """Copies of one module, each with the weights that the first has. Only the program that holds it can make them."""

    architecture: str  # the module's class
    digest: str  # SHA-256 of its structure and weights, 32 hexadecimal digits

    @classmethod
    def of(cls, module: torch.nn.Module) -> _Copies:
        import torch

        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in module.state_dict().items()}, weights)
        content = repr(module).encode() + weights.getvalue()
        copies = cls(type(module).__qualname__, hashlib.sha256(content).hexdigest()[:32])
        copies.__dict__["_first"] = copy.deepcopy(module)  # no field: it is no plain value
        return copies

    def __call__(self) -> Any:
        if "_first" not in self.__dict__:
            raise InputError(
                f"the module {self.architecture} was in the memory of another program; go on from Python, or give a "
                "function that makes it"
            )
        return copy.deepcopy(self.__dict__["_first"])


@register("mechanism", "torch", source="one's own code")
@register("model", "torch", source="one's own code")
@dataclass(frozen=True)
class OwnTorch(ClaimedByUser):
    """A torch module trained by one's own loop: a model inside any learner, or with a claim a learner of its own.

    For each fit `module()` makes a new module and `train(module, X, y, seed)` trains it in place (or gives another one
    back). X are float32 tensors, y classes 0 .. K - 1, both on the unit's device; torch's, NumPy's and Python's global
    generators are seeded, before the module is made. The module gives K logits for each example.

    Attributes:
        module: A class or function that makes the module, or where one is: "module:Class".
        train: The loop, or where it is.
        parameters: Keyword arguments of `module`.
    """

    made_by = "from_torch"

    module: Any
    train: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        import torch

        check_fields(self)
        module: Any = self.module
        match module:
            case _Copies():
                pass
            case {"architecture": str() as architecture, "digest": str() as digest}:  # as a spec writes copies
                module = _Copies(architecture, digest)
            case _:
                module = code_of(module, field="module")
        train = code_of(self.train, field="train", arguments=("module", "X", "y", "seed"))
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "train", train)
        with global_randomness(SeedSequence(0)):
            try:
                first = module(**self.parameters)
            except TypeError as err:
                raise InputError(f"module cannot be made from parameters {dict(self.parameters)}: {err}") from err
        require(isinstance(first, torch.nn.Module), "module must make a torch.nn.Module", made=type(first).__name__)

    def require_features(self, train: Examples) -> None:
        """Raises InputError for columns that are no numbers."""
        example_shape(train.features)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        import torch

        torch.set_num_threads(compute.threads)
        with global_randomness(seed) as number:
            module = self.module(**self.parameters).to(compute.device)
            trained = self.train(module, *_tensors(train, compute), number)
        return _probability_model(module if trained is None else trained, train, compute, self.train)


def _probability_model(module: Any, train: Examples, compute: Compute, loop: Any) -> ModelOfUserCode:
    """A trained module, which gives K logits for each example; its probabilities are their softmax."""
    ask = partial(_softmax_of_logits, module, train.classes, compute)
    return ModelOfUserCode(ask, train.classes, f"the module of {location(loop)}")


def _softmax_of_logits(module: Any, classes: int, compute: Compute, features: Features) -> NDArray[np.float64]:
    import torch

    torch.set_num_threads(compute.threads)
    module.eval()
    parts = torch.from_numpy(np.array(as_array(features))).split(_ROWS_AT_ONCE)
    with torch.no_grad():
        answers = [module(part.to(compute.device)).softmax(-1).cpu().double().numpy() for part in parts]
    return np.concatenate(answers) if answers else np.zeros((0, classes))


def _tensors(examples: Examples, compute: Compute) -> tuple[Any, Any]:
    import torch

    features = torch.from_numpy(np.array(as_array(examples.features)))
    return features.to(compute.device), torch.from_numpy(examples.labels.copy()).to(compute.device)


def from_torch(module: Any, train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnTorch:
    """A torch module and one's own training loop for an audit; see `OwnTorch`.

    Args:
        module: A class or function that makes it, with fresh weights for each fit; or a module, whose weights each fit
            starts from.
        train: `train(module, X, y, seed)`, in place; it may give another module back.
        claim: What it promises, where it is the mechanism.
        parameters: Keyword arguments of `module`.
    Raises: InputError when these cannot be called so, or not be sent to a worker.
    """
    import torch

    return OwnTorch(_Copies.of(module) if isinstance(module, torch.nn.Module) else module, train, parameters, claim)


@register("mechanism", "opacus", source="one's own code with Yousefpour et al. (2021), arXiv:2109.12298")
@dataclass(frozen=True)
class OwnOpacus:
    """A function `train(X, y, seed)` that trains with Opacus and gives (module, privacy engine).

    X are float32 tensors, y classes 0 .. K - 1; the global generators that Opacus draws from are seeded. A training
    that spent more than is claimed, by the engine's accountant, is refused: the claim would not be about it. Its steps
    can be watched: a canary joins the gradients inside of Opacus's optimizer, and nothing of the function changes.

    Attributes:
        train: The function, or where it is: "module:function".
        epsilon: What the accountant says, in nats, > 0; None leaves that to a training on as many rows as the audit's
            trainings have, with `claim="accountant"`.
        delta: At which delta it is asked, in (0, 1).
        rows: Of how many rows at least a training is held to epsilon, >= 0: an attack's own models may have fewer.
        steps: What the accountant saw of a training on so many rows: "rows", "noise_multiplier", "sample_rate", "steps"
            (of all its steps the least noise); empty leaves that to a training when the audit is planned.
    """

    train: Any
    epsilon: float | None
    delta: float
    rows: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epsilon is not None:
            require_finite_epsilon(self.epsilon)
        require_delta(self.delta)
        if importlib.util.find_spec("opacus") is None:
            raise InputError("this needs the package opacus; install it with `pip install dpaudit[opacus]`")
        object.__setattr__(self, "train", code_of(self.train, field="train", arguments=("X", "y", "seed")))

    def claim(self) -> Claim:
        """(epsilon, delta)-DP under adding or removing one record; refused where nobody has asked the accountant."""
        if self.epsilon is None:
            raise InputError(
                'from_opacus without an engine and epsilon needs `claim="accountant"` beside the mechanism'
            )
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE)

    def held_to_accountant(self, train: Examples, *, seed: SeedSequence) -> OwnOpacus:
        """The same with what the accountant says of one training on these rows, made here and now: claim and steps."""
        _, engine = self._trained(train, seed, Compute())
        epsilon = _rounded_up(_spent(engine, self.delta), self.delta)
        return replace(self, epsilon=epsilon, rows=len(train), steps=_steps_of(engine, len(train)))

    def with_steps_of(self, train: Examples, *, seed: SeedSequence) -> OwnOpacus:
        """The same with the steps that the accountant saw of one training on these rows, made here and now."""
        _, engine = self._trained(train, seed, Compute())
        return replace(self, steps=_steps_of(engine, len(train)))

    def claimed_steps(self, rows: int) -> ClaimedSteps | None:
        """What its accountant saw of a training on so many rows: a step in clips, whatever they are."""
        if self.steps.get("rows") != rows:
            return None
        steps = PrivateSteps(1.0, self.steps["noise_multiplier"], self.steps["sample_rate"])
        return ClaimedSteps(steps, int(self.steps["steps"]))

    def show_steps(self, train: Examples, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Calls the function with the canary among its gradients; refuses less noise than stated, by its accountant."""
        with steps_of_opacus(canary):
            _, engine = self._trained(train, seed, compute)
        least = _steps_of(engine, len(train))["noise_multiplier"]
        require(
            least >= self.steps["noise_multiplier"] * (1 - 1e-9),
            f"each training must have a noise multiplier of at least {self.steps['noise_multiplier']:g}",
            do="as the one that its steps are stated by had; let its noise depend on nothing but the number of rows",
            noise_multiplier=f"{least:g}",
        )

    def require_features(self, train: Examples) -> None:
        """Raises InputError for columns that are no numbers."""
        example_shape(train.features)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Calls the function, whose own exceptions pass; refuses what spent more than is claimed."""
        module, engine = self._trained(train, seed, compute)
        spent, claimed = _spent(engine, self.delta), self.claim().epsilon
        require(
            spent <= claimed or len(train) < self.rows,
            f"a training must spend at most the claimed epsilon {claimed:g} at delta={self.delta:g}",
            do=f"Opacus's accountant says so of this one, on {len(train):,} rows: of fewer rows, a batch of "
            'the same size takes a larger share; have the accountant state it (claim="accountant")',
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
            f"{location(self.train)} must give the trained module and its PrivacyEngine",
            do="end it with `return module, engine`",
            given=type(result).__name__,
        )
        module, engine = result
        _require_trained(engine)
        return module, engine


def _require_trained(engine: Any) -> None:
    """Refuses what is no privacy engine, or has seen no training."""
    from opacus import PrivacyEngine

    require(isinstance(engine, PrivacyEngine), "engine must be an opacus.PrivacyEngine", engine=type(engine).__name__)
    require(len(engine.accountant) > 0, "the privacy engine must have seen a training: its accountant has no steps")


def _steps_of(engine: Any, rows: int) -> dict[str, float]:
    """What a privacy engine's accountant saw of a training on so many rows; of all its steps the least noise."""
    noises, rates, counts = zip(*engine.accountant.history, strict=True)
    return {"rows": rows, "noise_multiplier": min(noises), "sample_rate": max(rates), "steps": sum(counts)}


def _spent(engine: Any, delta: float) -> float:
    """The epsilon of an engine's training: of Opacus's own accountants, once for all trainings of the same steps."""
    accountant = engine.accountant
    both = (engine, accountant)
    if all(type(one).__module__.startswith("opacus.") and "get_epsilon" not in vars(one) for one in both):
        return _recomputed_epsilon(accountant.__class__, tuple(map(tuple, accountant.history)), delta)
    return float(engine.get_epsilon(delta))


@lru_cache(maxsize=64)
def _recomputed_epsilon(kind: Any, history: tuple[Any, ...], delta: float) -> float:
    """By a new accountant: the default one, `prv`, takes seconds."""
    accountant = kind()
    accountant.history = list(history)
    return float(accountant.get_epsilon(delta))


def _rounded_up(spent: float, delta: float) -> float:
    """Rounded up to 4 digits, so that the accountant's figure stays below it."""
    must = f"Opacus's accountant must give a finite epsilon at delta={delta:g}: this training adds hardly any noise"
    require(math.isfinite(spent), must, do="add noise, or give the epsilon that is claimed", spent=spent)
    return float(math.ceil(spent * 10**4) / 10**4)


def from_opacus(
    train: Callable[..., Any], engine: Any = None, *, delta: float, epsilon: float | None = None
) -> OwnOpacus:
    """A training with Opacus for an audit, with the claim its privacy engine's accountant states; see `OwnOpacus`.

    Args:
        train: `train(X, y, seed)`, gives the trained module and its PrivacyEngine.
        engine: The engine of a run of it: epsilon is taken from its accountant, rounded up to 4 digits.
        delta: At which delta, in (0, 1).
        epsilon: The claim in nats, instead of an engine. With neither, `claim="accountant"` beside the mechanism takes
            what the accountant says of a training on as many rows as the audit's trainings have.
    Raises: InputError when these are no such things.
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
