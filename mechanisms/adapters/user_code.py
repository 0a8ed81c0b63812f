"""What all adapters ask of code that is not ours: its claim, where it is, how it is called, what it answers."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError, UnknownNameError, require
from dpaudit.locations import has_location, located, location
from dpaudit.mechanisms.compute import TrainingError


class ClaimedByUser:
    """Somebody else's code, audited against the claim that its user gave."""

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

    try:
        code: Any = located(given) if isinstance(given, str) else given
    except UnknownNameError as err:
        raise InputError(f"{field}: {err}") from err
    require(has_location(code), f"{field} must be a function or a class, or where one is as `module:name`", given=code)
    if arguments is not None:
        try:
            inspect.signature(code).bind(*arguments, **dict.fromkeys(parameters))
        except TypeError as err:
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


def checked_probabilities(
    answer: object, *, rows: int, classes: int, columns: NDArray[np.int64] | None, code: str
) -> NDArray[np.float64]:
    """Class probabilities of shape (rows, classes), each row summing to 1.

    Args:
        answer: What the code gave: shape (rows, classes), or one column for each class it saw in training.
        rows: How many examples it was asked about.
        classes: Number of classes K of the data.
        columns: The class of each column; None = there is one column for each of the K classes, in order.
        code: What gave it, for messages.
    Raises: InputError when it has another shape; TrainingError when it holds something that is no probability.
    """
    given = np.asarray(answer, dtype=np.float64)
    expected = classes if columns is None else len(columns)
    require(
        given.shape == (rows, expected),
        f"{code} must give one probability for each example and class, an array of shape ({rows}, {expected})",
        shape=given.shape,
    )
    if not (np.isfinite(given).all() and (given >= 0).all() and (given.sum(axis=1) > 0).all()):
        raise TrainingError(f"{code} gave numbers that are no probabilities (negative, NaN, infinite or all 0)")
    probabilities = given
    if columns is not None:
        probabilities = np.zeros((rows, classes))
        probabilities[:, columns] = given
    normalised: NDArray[np.float64] = probabilities / probabilities.sum(axis=1, keepdims=True)
    return normalised
