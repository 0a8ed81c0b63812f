"""A torch module and a training loop of one's own."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError, require
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.randomness import global_randomness, whole_number
from dpaudit.mechanisms.adapters.user_code import checked_probabilities, code_of, stated
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.training.inputs import as_array
from dpaudit.registry import register

if TYPE_CHECKING:
    import torch

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Copies:
    """Copies of one module, each with the weights that the first has. Only the program that holds it can make them.

    Attributes:
        architecture: The module's class.
        digest: SHA-256 of its structure and weights, 32 hexadecimal digits.
    """

    architecture: str
    digest: str

    @classmethod
    def of(cls, module: torch.nn.Module) -> Copies:
        """Copies of this module as it is now."""
        import torch

        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in module.state_dict().items()}, weights)
        content = repr(module).encode() + weights.getvalue()
        made = cls(type(module).__qualname__, hashlib.sha256(content).hexdigest()[:32])
        made.__dict__["_first"] = copy.deepcopy(module)  # no field: it is no plain value
        return made

    def __call__(self) -> Any:
        """A copy.

        Raises: InputError when the module was in the memory of another program.
        """
        if "_first" not in self.__dict__:
            raise InputError(
                f"the module {self.architecture} was in the memory of another program; go on from Python, or give a "
                "function that makes it"
            )
        return copy.deepcopy(self.__dict__["_first"])


@register("mechanism", "torch", source="one's own code")
@register("model", "torch", source="one's own code")
@dataclass(frozen=True)
class OwnTorch:
    """A torch module trained by one's own loop: a model inside any learner, or with a claim a learner of its own.

    For each fit `module()` makes a new module and `train(module, X, y, seed)` trains it in place (or gives another one
    back). X are float32 tensors, y classes 0 .. K - 1, both on the unit's device; torch's, NumPy's and Python's global
    generators are seeded, before the module is made. The module gives K logits for each example.

    Attributes:
        module: A class or function that makes the module, or where one is: "module:Class".
        train: The loop, or where it is.
        parameters: Keyword arguments of `module`.
        claimed: What it promises, for a learner; a model needs none.
    """

    module: Any
    train: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        import torch

        check_fields(self)
        made = _described_copies(self.module)
        made = made if isinstance(made, Copies) else code_of(made, field="module")
        train = code_of(self.train, field="train", arguments=("module", "X", "y", "seed"))
        object.__setattr__(self, "module", made)
        object.__setattr__(self, "train", train)
        with global_randomness(SeedSequence(0)):
            try:
                first = made(**self.parameters)
            except TypeError as err:
                raise InputError(f"module cannot be made from parameters {dict(self.parameters)}: {err}") from err
        require(isinstance(first, torch.nn.Module), "module must make a torch.nn.Module", made=type(first).__name__)

    def claim(self) -> Claim:
        """The claim it was given.

        Raises: InputError when it has none.
        """
        return stated(self.claimed, adapter="from_torch")

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Makes a module and runs the loop; `validation` is not used. Its own exceptions pass."""
        import torch

        torch.set_num_threads(compute.threads)
        with global_randomness(seed):
            module = self.module(**self.parameters).to(compute.device)
            trained = self.train(module, *tensors(train, compute), whole_number(seed))
        return TorchModel(module if trained is None else trained, train.classes, compute, location(self.train))


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A trained module.

    Attributes:
        module: It gives K logits for each example.
        classes: Number of classes K.
        compute: Where it answers.
        code: Where the training is, for messages.
    """

    module: Any
    classes: int
    compute: Compute
    code: str

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes): the softmax of the logits.

        Raises: InputError when the module does not give K logits.
        """
        import torch

        torch.set_num_threads(self.compute.threads)
        self.module.eval()
        parts = torch.from_numpy(np.array(as_array(features))).split(ROWS_AT_ONCE)
        with torch.no_grad():
            answers = [self.module(part.to(self.compute.device)).softmax(-1).cpu().double().numpy() for part in parts]
        answer = np.concatenate(answers) if answers else np.zeros((0, self.classes))
        who = f"the module of {self.code}"
        return checked_probabilities(answer, rows=len(features), classes=self.classes, columns=None, code=who)


def tensors(examples: Examples, compute: Compute) -> tuple[Any, Any]:
    """Features and labels as tensors on the unit's device."""
    import torch

    features = torch.from_numpy(np.array(as_array(examples.features)))
    return features.to(compute.device), torch.from_numpy(examples.labels.copy()).to(compute.device)


def _described_copies(module: Any) -> Any:
    """`Copies` as a spec writes them, else what was given."""
    match module:
        case {"architecture": str() as architecture, "digest": str() as digest}:
            return Copies(architecture, digest)
    return module


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

    return OwnTorch(Copies.of(module) if isinstance(module, torch.nn.Module) else module, train, parameters, claim)
