"""What all adapters ask of code that is not ours: its claim, where it is, how it is called, what it answers."""

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
from dpaudit.locations import has_location, import_object, location
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.examples import Features


class ClaimedByUser:
    """Somebody else's code, audited against the claim that its user gave.

    Attributes:
        claimed: What it promises, for a learner; a model needs none.
    """

    made_by: ClassVar[str]  # what a user calls to make one
    claimed: Claim | None

    def claim(self) -> Claim:
        """The claim it was given; refused where it has none."""
        if self.claimed is None:
            raise InputError(
                f"a mechanism made by {self.made_by} needs a claim: {self.made_by}(..., claim=Claim(epsilon, delta, "
                "relation)), in a spec `claimed: {epsilon: ...}`; epsilon = inf claims nothing"
            )
        return self.claimed


def code_of(
    given: object, *, field: str, arguments: tuple[str, ...] | None = None, parameters: Collection[str] = ()
) -> Callable[..., Any]:
    """A class or function, given as it is or as "module:name"; `field` is its name in messages.

    Where the positional `arguments` are given, it must take them, and the keyword arguments `parameters`.

    Raises: InputError when it cannot be imported, called so, or sent to a worker.
    """
    import cloudpickle  # type: ignore[import-untyped]

    code = found(given, field=field)
    require(has_location(code), f"{field} must be a function or a class, or where one is as `module:name`", given=code)
    if arguments is not None:
        try:
            inspect.signature(code).bind(*arguments, **dict.fromkeys(parameters))
        except (TypeError, ValueError) as err:  # some built-in classes have no signature
            wanted = ", ".join([*arguments, *(f"{name}=" for name in parameters)])
            raise InputError(f"{field} must take ({wanted}): {location(code)} does not, {err}") from err
    try:
        cloudpickle.dumps(code)
    except Exception as err:  # whatever its closure holds may raise anything
        raise InputError(
            f"{field} cannot be sent to a worker: {location(code)} holds something that cannot be pickled ({err}); "
            "make it inside the function"
        ) from err
    return code  # type: ignore[no-any-return]


def found(given: object, *, field: str) -> Any:
    """What is given as it is, or as "module:name"; `field` is its name in messages.

    Raises: InputError when it cannot be imported.
    """
    try:
        return import_object(given) if isinstance(given, str) else given
    except UnknownNameError as err:
        raise InputError(f"{field}: {err}") from err


def whole_number(seed: SeedSequence) -> int:
    """A seed as a number in 0..2^31 - 1, which every library takes."""
    return int(seed.generate_state(1)[0] >> 1)


@contextmanager
def global_randomness(seed: SeedSequence) -> Iterator[int]:
    """Inside, the global generators of Python, NumPy and torch draw from `seed`; gives it as a number."""
    python, numpy, torch_seed = (int(word) for word in seed.generate_state(3))
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    random.seed(python)
    np.random.seed(numpy)
    if torch is not None:
        # On a CPU alone the same as `torch.manual_seed`, which takes 2 ms to find that there is nothing else to seed.
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
class AskedModel:
    """A model that is not ours: what it answers is held to be probabilities."""

    ask: Callable[[Features], object]
    classes: int  # of the data, K
    code: str  # what answers, for messages
    columns: NDArray[np.int64] | None = None  # the class of each column of an answer; None: all K in order

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes), each row summing to 1.

        Raises: InputError for an answer of another shape; TrainingError for one that holds what is no probability.
        """
        given = np.asarray(self.ask(features), dtype=np.float64)
        expected = len(features), self.classes if self.columns is None else len(self.columns)
        must = f"{self.code} must give one probability for each example and class, an array of shape {expected}"
        require(given.shape == expected, must, shape=given.shape)
        if not (np.isfinite(given).all() and (given >= 0).all() and (given.sum(axis=1) > 0).all()):
            raise TrainingError(
                f"{self.code} gave numbers that are no probabilities (negative, NaN, infinite or all 0)"
            )
        probabilities = given
        if self.columns is not None:
            probabilities = np.zeros((len(features), self.classes))
            probabilities[:, self.columns] = given
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))
