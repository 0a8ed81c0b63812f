"""What all adapters ask of code that is not ours: where it is, how it is called, what it answers, what it claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError, UnknownNameError, require
from dpaudit.given import check_fields
from dpaudit.locations import has_location, located, location
from dpaudit.mechanisms.compute import TrainingError


def code_of(given: object, *, field: str, arguments: tuple[str, ...] | None = None) -> Callable[..., Any]:
    """A class or function, given as it is or as "module:name".

    Args:
        given: What was given.
        field: Its name, for messages.
        arguments: The positional arguments it is going to be called with; None does not look.
    Raises: InputError when it cannot be imported, called so, or sent to a worker.
    """
    try:
        code: Any = located(given) if isinstance(given, str) else given
    except UnknownNameError as err:
        raise InputError(f"{field}: {err}") from err
    require(
        has_location(code),
        f"{field} must be a function or a class, or where one is as `module:name`",
        given=code,
    )
    if arguments is not None:
        try:
            inspect.signature(code).bind(*arguments)
        except TypeError as err:
            raise InputError(f"{field} must take ({', '.join(arguments)}): {location(code)} does not, {err}") from err
    _check_travels(code, field)
    return code  # type: ignore[no-any-return]


def _check_travels(code: Any, field: str) -> None:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        cloudpickle.dumps(code)
    except Exception as err:  # whatever its closure holds may raise anything
        raise InputError(
            f"{field} cannot be sent to a worker: {location(code)} holds something that cannot be pickled ({err}); "
            "make it inside the function"
        ) from err


@dataclass(frozen=True)
class OwnFunction:
    """A function `train(X, y, seed)` of the user's, and what it promises.

    Attributes:
        train: The function, or where it is: "module:function".
        parameters: Keyword arguments it is called with besides.
        claimed: What it promises.
    """

    train: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "train", code_of(self.train, field="train", arguments=("X", "y", "seed")))


def stated(claim: Claim | None, *, adapter: str) -> Claim:
    """The claim somebody else's code is audited against.

    Raises: InputError when there is none.
    """
    if claim is None:
        raise InputError(
            f"a mechanism made by {adapter} needs a claim: {adapter}(..., claim=Claim(epsilon, delta, relation)), in a "
            "spec `claimed: {epsilon: ...}`; epsilon = inf claims nothing"
        )
    return claim


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
