"""Type hints with aliases, as NumPy >= 2.5 defines `NDArray`; older versions are given such an alias here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Optional

import numpy as np
import pytest
from typing_extensions import TypeAliasType, TypeVar

from dpaudit.errors import InputError
from dpaudit.field_checks import check_fields, type_hints, without_aliases

ScalarT = TypeVar("ScalarT", bound=np.generic)
Shape = TypeAliasType("Shape", tuple[Any, ...])
Array: Any = TypeAliasType("Array", np.ndarray[Shape, np.dtype[ScalarT]], type_params=(ScalarT,))  # type: ignore[arg-type]
FLOATS = np.ndarray[tuple[Any, ...], np.dtype[np.float32]]
UNTOUCHED = (int, None, Any, Literal["a", 1], Callable[[int], str], Mapping[str, float], FLOATS, int | None)

WITH_ALIAS = """
import numpy.typing
from tests.test_type_hints import Array
numpy.typing.NDArray = Array
import numpy as np
from dpaudit.actors.values import decode, encode
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.examples import Examples
examples = Examples(np.ones((3, 2), np.float32), np.array([0, 1, 1]), 2)
(again,) = decode(encode([examples], Examples), Examples)
assert again.labels.tolist() == [0, 1, 1] and again.features.shape == (3, 2)
import dpaudit
print(dpaudit.estimate({"score": np.arange(40.0), "member": np.arange(40) > 19}, claim=0.5).headline)
"""


@pytest.mark.parametrize(
    ("hint", "replaced"),
    [
        (Array[np.float32], FLOATS),
        (Shape, tuple[Any, ...]),
        (tuple[Array[np.float32], ...], tuple[FLOATS, ...]),
        (Optional[Array[np.float32]], Optional[FLOATS]),  # noqa: UP045  # `|` is not defined for the alias of 3.11
        (Mapping[str, tuple[Shape, int]], Mapping[str, tuple[tuple[Any, ...], int]]),
        *((hint, hint) for hint in UNTOUCHED),
    ],
)
def test_aliases_are_replaced_at_any_depth(hint: Any, replaced: Any) -> None:
    assert without_aliases(hint) == replaced


def test_fields_of_arrays_are_checked() -> None:
    @dataclass(frozen=True)
    class Part:
        values: Any

        def __post_init__(self) -> None:
            check_fields(self)

    Part.__annotations__["values"] = Array[np.float32]
    type_hints.cache_clear()
    Part(np.ones(2, np.float32))
    with pytest.raises(InputError, match="values must be an array, got a value of the type list"):
        Part([1.0])


def test_the_package_works_where_arrays_are_an_alias() -> None:
    program = subprocess.run([sys.executable, "-c", WITH_ALIAS], capture_output=True, text=True, check=False)
    assert program.returncode == 0, program.stderr
    assert "epsilon" in program.stdout
