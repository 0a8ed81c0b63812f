"""Arguments from Python are converted without loss, or refused with a one-line error."""

from __future__ import annotations

import datetime
import inspect
import itertools
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpaudit
from dpaudit.claims import Claim, GaussianDP, Relation
from dpaudit.engine.data.frames import column, frame, matrix
from dpaudit.engine.request.build import build, describe
from dpaudit.errors import AuditError, DataError, InputError, SpecError, shortened
from dpaudit.field_checks import checked_argument, checked_methods, checked_path, require_yaml_values, type_hints
from tests.loops import Cases


class Fails:
    """Object whose methods all raise."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("a\nsecret")

    __bool__ = __eq__ = __float__ = __iter__ = __len__ = __str__ = __repr__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (np.float64(0.5), float, 0.5),
        (np.float32(0.5), float, 0.5),
        (Fraction(1, 2), float, 0.5),
        (Decimal("0.5"), float, 0.5),
        (3, float, 3),
        (float("inf"), float, float("inf")),
        (np.int8(3), int, 3),
        (None, int | None, None),
        (np.True_, bool, True),
        (np.str_("x"), str, "x"),
        (["a", "b"], tuple[str, ...], ("a", "b")),
    ],
)
def test_equivalent_values_are_converted_to_python_types(value: object, hint: Any, expected: object) -> None:
    converted = checked_argument("x", value, hint)
    assert (converted, type(converted)) == (expected, type(expected))


def test_a_numpy_number_is_written_as_a_number() -> None:
    """Fields of a curve, for example, are not converted."""
    described = describe(Claim.of(GaussianDP(np.float64(0.5)), relation=Relation.ADD_REMOVE, delta=1e-6))
    assert type(described["curve"]["mu"]) is float


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        *(
            (value, float)
            for value in ("1", True, np.True_, 10**400, -(10**400), 1j, b"1", None, Fails(), float, [1.0])
        ),
        *(
            (value, float)
            for value in (Decimal("sNaN"), Decimal("1e999"), np.timedelta64(1, "ns"), datetime.date.today())
        ),
        *((value, float) for value in (np.array([0.5]), np.array(0.5), np.complex128(1), pd.NA, pd.Series([1.0]))),
        *((value, int) for value in (1.0, True, "1", 10**400, np.timedelta64(1, "ns"), Fails())),
        *((value, bool) for value in (0, 1, "no", None, Fails(), np.array(True))),
        *((value, str) for value in (b"x", 1, "\ud800", Path("x"), Fails())),
        *((value, tuple[str, ...]) for value in ("ab", {"a"}, [1], ["\ud800"], Fails())),
        (5, dpaudit.Claim | None),
        ("odd", dpaudit.Relation),
    ],
)
def test_other_values_give_a_one_line_error(value: object, hint: Any) -> None:
    with pytest.raises(InputError, match=r"^x(\[0\])? must be .*, got ") as raised:
        checked_argument("x", value, hint)
    assert str(raised.value).isprintable()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", b"x", 1, None, Fails(), Path("a\0b"), ["x"]])
def test_an_invalid_path_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="must be a path or a URI as text"):
        checked_path("x", value)
    for call in (dpaudit.load_spec, dpaudit.restore_sweep):
        with pytest.raises(AuditError):
            call(value)  # type: ignore[arg-type]


def test_contents_of_a_spec_have_limits() -> None:
    around: dict[str, Any] = {}
    around["x"] = around
    for value in ({1: 2}, {"a": [{"\ud800": 1}]}, {"a": "\ud800"}, {"a": 10**5000}, around):
        with pytest.raises(SpecError):
            require_yaml_values(value, "x")
    require_yaml_values({"a": [1, Fails()]}, "x")


def test_an_error_prints_only_plain_values_on_one_line() -> None:
    assert shortened(Fails()) == "an object of Fails"
    assert shortened("a\nb\x1b") == "a\\nb\\x1b"


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.5, -1]),
        np.array([0.5, -1], dtype=">f4"),
        [np.float32(0.5), np.float16(-1)],
        [np.array(0.5), -1],
        pd.Series(pd.arrays.SparseArray([0.5, -1.0], fill_value=-1.0)),
        pd.Series([0.5, -1.0], dtype="Float64"),
        np.ma.array([0.5, -1], mask=False),
        pa.chunked_array([[0.5], [-1.0]]),
        memoryview(np.array([0.5, -1])),
    ],
)
def test_equal_columns_of_different_types_are_equal(values: object) -> None:
    assert column("x", values).cast(pa.float64()).to_pylist() == [0.5, -1]


@pytest.mark.parametrize(
    "values",
    [[0.5, None], np.ma.array([0.5, 1], mask=[0, 1]), [0.5, np.ma.masked], [0.5, pd.NA], [0.5, float("nan")]],
)
def test_masked_values_are_missing(values: object) -> None:
    assert column("x", values).to_pylist() == [0.5, None]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 1j]),
        [1, 1j],
        pd.Series([1j, 2]),
        [[1], [2]],
        np.zeros((2, 2)),
        np.zeros(2, "V3"),
        [10**400, 1],
        "text",
        {1, 2},
        {1: 2},
        (number for number in (1, 2)),
        Fails(),
        [Fails()],
        list,
        None,
        5,
        ["\ud800"],
        [object()],
    ],
)
def test_an_invalid_column_gives_a_one_line_error(values: object) -> None:
    with pytest.raises(DataError, match="x must be one column of ") as raised:
        column("x", values)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "values",
    [
        np.array([[1j, 1]]),
        np.array([[1j, 1]], dtype=object),
        np.array([["2020", "2021"]], dtype="M8[D]"),
        np.array([[1, 2]], dtype="m8[s]"),
        [["1", "2"]],
        [[1], [1, 2]],
        np.zeros((1, 2), "V3"),
        {1},
        Fails(),
        "text",
    ],
)
def test_an_invalid_matrix_gives_a_one_line_error(values: object) -> None:
    with pytest.raises(DataError, match="X must be numbers"):
        matrix("X", values)


def test_masked_entries_of_an_array_are_missing() -> None:
    values = matrix("X", np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]]))
    assert np.isnan(values).tolist() == [[False, True], [False, False]]


def test_column_names_are_unique_text() -> None:
    for rows in (
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame([[1, 2]], columns=[1, "1"]),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    ):
        with pytest.raises(DataError, match="must name each column once"):
            frame(rows)
    with pytest.raises(DataError, match="named by text"):
        frame({"\ud800": [1]})


SCORES = [0.5, -1.0, 2.0, 0.25]
MEMBERS = [1, 0, 1, 0]


def _series(values: list[Any], first: int) -> pd.Series[Any]:
    return pd.Series(values, index=range(first, first + len(values)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: dpaudit.estimate(_series(SCORES, 0), _series(MEMBERS, 1)),
        lambda: dpaudit.estimate(_series(SCORES, 0), MEMBERS, groups=_series([1, 2, 3, 4], 1)),
        lambda: dpaudit.estimate({"score": _series(SCORES, 0), "member": _series(MEMBERS, 1)}),
        lambda: build_pair(pd.DataFrame({"a": SCORES}), _series(MEMBERS, 1)),
    ],
)
def test_rows_of_two_indices_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(DataError, match=r"must have one pandas index, got two that differ; .*reset_index"):
        call()


def build_pair(features: object, labels: object) -> object:
    mechanism = build("mechanism", {"name": "randomized-response", "epsilon": 1.0})
    return dpaudit.AuditSpec((dpaudit.Audit(mechanism, (features, labels)),))


def test_rows_of_one_index_are_accepted() -> None:
    assert dpaudit.estimate(_series(SCORES, 3), _series(MEMBERS, 3)) == dpaudit.estimate(SCORES, MEMBERS)


def test_a_part_needs_a_method_of_its_kind() -> None:
    for value in (datetime.date.today(), np.float32(1), object(), dict, Fails()):
        with pytest.raises(SpecError, match="must be a name, a mapping with `name`, or an object with"):
            build("game", value)


def test_an_endless_iterator_is_refused() -> None:
    with pytest.raises(SpecError, match=r"rungs\.values must be a list, got a value of the type callable_iterator"):
        dpaudit.sweep(
            {"name": "x", "mechanism": "randomized-response", "data": "iris"},
            rungs={"field": "mechanism.epsilon", "values": iter(int, 1)},
        )


def test_checking_arguments_imports_no_large_libraries() -> None:
    heavy = "print({'numpy', 'pandas', 'pyarrow', 'pydantic', 'scipy'} & set(sys.modules))"
    code = f"import sys, dpaudit, dpaudit.field_checks; {heavy}"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def count(rows: pd.DataFrame, rng: np.random.Generator) -> float:
    return len(rows) + rng.laplace()


GOOD: dict[str, Any] = {"schema": {"age": (0, 100)}, "claim": 1.0}


@pytest.mark.parametrize(
    "odd",
    [
        *({"schema": value} for value in ([1], "x", 1e308, 10**400, {1: 2}, {"a": "x"}, {"a": [1, 10**400]}, Fails())),
        *({"settings": value} for value in ("x", [1], 5, {1: 2}, Fails())),
        *({"relation": value} for value in ("x", 5, None, Fails())),
        *({"claim": value} for value in (Fails(), [1, 2, 3], 10**400, Decimal("sNaN"), "rho=x", "nan", (1.0, "x"), -1)),
        *({"seed": value} for value in (Fails(), "x", 10**400, -1, 1.5)),
        *({"until_decided": value} for value in (Fails(), "x", 1)),
        *({"budget": value} for value in ("9" * 400 + " trainings", "x", 5, "", "-1s", "0s", Fails())),
        *({"form": value} for value in ("x", 5, Fails())),
        *({"time": value} for value in ("x", 5, Fails())),
        *({"memory_mb": value} for value in ("x", -1, 10**400, Fails())),
        *({"confidence": value} for value in ("x", 1.0, 2, float("nan"), Fails())),
        *({"name": value} for value in (5, "\ud800", Fails())),
        {"claim": None},
        {"claim": None, "settings": {"epsilon": Fails()}},
    ],
    ids=lambda odd: " ".join(f"{name}={shortened(value, 20)}" for name, value in odd.items()),
)
def test_an_invalid_argument_of_check_gives_a_one_line_error(odd: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AuditError) as raised:
        dpaudit.check(count, **GOOD | odd, output=tmp_path / "run", quiet=True)
    assert len(str(raised.value)) < 1000
    assert "secret" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("function", [dict, len, print, object(), Fails(), "no.module:name", 5, None, pd.DataFrame])
def test_an_invalid_function_gives_a_one_line_error(function: object, tmp_path: Path) -> None:
    with pytest.raises(AuditError) as raised:
        dpaudit.check(function, schema={"age": (0, 100)}, output=tmp_path / "run", quiet=True)
    assert len(str(raised.value)) < 1000


class Counter:
    """A class whose constructor and public methods check their arguments."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, steps: Sequence[int], *more: int, by: float = 1.0, **options: int) -> float:
        return self.value + by * sum(steps)

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(len(name))

    def _inner(self, steps: int) -> int:
        return steps


def test_one_decorator_checks_the_arguments_of_a_class() -> None:
    checked = checked_methods(Counter)
    assert checked(np.int64(2)).add([np.int64(3)], "x", by=Fraction(1, 2), other="x") == 3.5  # type: ignore[arg-type]
    assert checked.of("abc").value == 3
    assert checked()._inner("x") == "x"  # type: ignore[arg-type, comparison-overlap]
    with Cases() as cases:
        for message, call in [
            ("start must be a whole number, got True", lambda: checked(True)),
            ("steps must be a list, got 3", lambda: checked().add(3)),  # type: ignore[arg-type]
            (r"steps\[1\] must be a whole number, got 'x'", lambda: checked().add([1, "x"])),  # type: ignore[list-item]
            ("by must be a number, got None", lambda: checked().add([1], by=None)),  # type: ignore[arg-type]
            ("name must be text", lambda: checked.of(b"x")),  # type: ignore[arg-type]
        ]:
            with cases.case(message), pytest.raises(InputError, match=message):
                call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'begin'"):
        checked(begin=1)  # type: ignore[call-arg]


def test_names_without_end_are_refused_at_the_first_wrong_one() -> None:
    with pytest.raises(InputError, match=r"drop\[0\] must be text") as refused:
        dpaudit.rows(pd.DataFrame({"a": [1, 2]}), drop=itertools.chain(["b"], itertools.repeat(0)))  # type: ignore[list-item]
    assert "got 0" in str(refused.value)


def test_every_public_function_checks_its_arguments() -> None:
    """Each refuses an object in place of a number, text or list, before it looks at any other argument."""
    for name in set(dpaudit.__all__) - {"__version__"}:
        function = getattr(dpaudit, name)
        if inspect.isfunction(function):
            hints, parameters = type_hints(inspect.unwrap(function)), inspect.signature(function).parameters.values()
            checked = [
                each.name
                for each in parameters
                if hints[each.name] not in (Any, object) and each.kind is not each.VAR_KEYWORD
            ]
            checked = [each for each in checked if typing.get_origin(hints[each]) is not Callable]
            needed = [
                each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD
            ]
            for argument in checked:
                with pytest.raises(InputError, match="|".join(checked)):
                    function(**{each: object() for each in (*needed, argument)})


def test_classes_of_trainings_check_their_arguments() -> None:
    for call in (
        lambda: dpaudit.LossRecord(3),  # type: ignore[arg-type]
        lambda: dpaudit.TextAudit(3),  # type: ignore[arg-type]
        lambda: dpaudit.Canaries(3, 3),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=r"(canaries|texts) must be"):
            call()
