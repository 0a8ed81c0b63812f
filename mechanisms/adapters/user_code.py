"""Common parts of all adapters of user code: its claim, its import, its global seeds and its predictions."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError, UnknownNameError, require
from dpaudit.field_checks import check_fields
from dpaudit.locations import has_location, import_object, location
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.tensors import numpy_of


class ClaimedByUser:
    """User code, audited against a claim that the user states.

    Attributes:
        claimed: The claim of a mechanism. A model inside a learner needs none, nor does a classifier of which an audit
            measures how much it leaks.
    """

    made_by: ClassVar[str]  # the function that users call, for messages
    claimed: Claim | None

    def claim(self) -> Claim:
        """Return the user's claim. Raises: InputError if there is none."""
        if self.claimed is None:
            raise InputError(
                f"a mechanism made by {self.made_by} needs a claim: {self.made_by}(..., claim=Claim(epsilon, delta, "
                "relation)), in a spec `claimed: {epsilon: ...}`; epsilon = inf claims nothing"
            )
        return self.claimed


def lacks_claim(mechanism: object) -> bool:
    """Return True for a classifier of user code without a claim: an audit measures how much it leaks."""
    return isinstance(mechanism, ClaimedByUser) and mechanism.claimed is None and isinstance(mechanism, Trainer)


def code_of(
    source: object, *, field: str, arguments: tuple[str, ...] | None = None, parameters: Collection[str] = ()
) -> Callable[..., Any]:
    """Return a class or function, given directly or as "module:name"; `field` is its name in messages.

    With `arguments`, it must accept these positional arguments and the keyword arguments `parameters`.

    Raises: InputError if it cannot be imported, called with these arguments, or pickled for a worker.
    """
    import cloudpickle  # type: ignore[import-untyped]

    code = imported(source, field=field)
    require(has_location(code), f"{field} must be a function or a class, or its import path `module:name`", given=code)
    if arguments is not None:
        try:
            inspect.signature(code).bind(*arguments, **dict.fromkeys(parameters))
        except (TypeError, ValueError) as err:  # some built-in classes have no signature
            wanted = ", ".join([*arguments, *(f"{name}=" for name in parameters)])
            raise InputError(f"{field} must take ({wanted}): {location(code)} does not, {err}") from err
    try:
        cloudpickle.dumps(code)
    except Exception as err:  # objects in its closure may raise anything
        raise InputError(
            f"{field} cannot be sent to a worker: {location(code)} holds an object that cannot be pickled ({err}). "
            "Create that object inside the function"
        ) from err
    return code  # type: ignore[no-any-return]


def take_code(mechanism: Any, field: str, *arguments: str, parameters: Collection[str] = ()) -> None:
    """Check the fields of a new mechanism, and replace the import path in `field` by the code; see `code_of`."""
    check_fields(mechanism)
    code = code_of(getattr(mechanism, field), field=field, arguments=arguments or None, parameters=parameters)
    object.__setattr__(mechanism, field, code)


def imported(source: object, *, field: str) -> Any:
    """Return `source`, or the object that it names as "module:name"; `field` is its name in messages.

    Raises: InputError if it cannot be imported.
    """
    try:
        return import_object(source) if isinstance(source, str) else source
    except UnknownNameError as err:
        raise InputError(f"{field}: {err}") from err


def whole_number(seed: SeedSequence) -> int:
    """Return a seed as a number in 0..2^31 - 1, which every library accepts."""
    return int(seed.generate_state(1)[0] >> 1)


@contextmanager
def global_randomness(seed: SeedSequence) -> Iterator[int]:
    """Seed the global generators of Python, NumPy and torch inside the block; yield the seed as a number."""
    python, numpy, torch_seed = (int(word) for word in seed.generate_state(3))
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    random.seed(python)
    np.random.seed(numpy)
    if torch is not None:
        # Without a GPU equal to `torch.manual_seed`, which takes 2 ms to look for other devices.
        seeded = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
        seeded(torch_seed)
    try:
        yield whole_number(seed)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])


@dataclass(frozen=True, eq=False)
class ModelOfUserCode:
    """A model trained by user code, whose predictions are checked and normalised."""

    ask: Callable[[Features], object]
    classes: int  # of the data, K
    code: str  # name of the predicting code, for messages
    columns: NDArray[np.int64] | None = None  # class of each column of a prediction; None: all K in order

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Return class probabilities, shape (n, classes), each row summing to 1.

        Raises: InputError for a wrong shape; TrainingError for negative, non-finite or all-zero rows.
        """
        answers = numpy_of(self.ask(features)).astype(np.float64)
        expected = len(features), self.classes if self.columns is None else len(self.columns)
        must = f"{self.code} must return one probability for each example and class, an array of shape {expected}"
        require(answers.shape == expected, must, shape=answers.shape)
        if not (np.isfinite(answers).all() and (answers >= 0).all() and (answers.sum(axis=1) > 0).all()):
            raise TrainingError(
                f"{self.code} returned numbers that are not probabilities (negative, NaN, infinite or all 0)"
            )
        probabilities = answers
        if self.columns is not None:
            probabilities = np.zeros((len(features), self.classes))
            probabilities[:, self.columns] = answers
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))
