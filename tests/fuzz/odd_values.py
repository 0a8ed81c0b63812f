"""Odd values of Python callers; each states if it means the same as the good value, is wrong, or may do anything."""

from __future__ import annotations

import array
import datetime
import decimal
import fractions
import pathlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

SAME, WRONG, ANY = "same", "wrong", "any"
"""Expected outcome: the answer of the good value, no answer, or anything but a traceback."""


@dataclass(frozen=True, eq=False)
class Odd:
    """A value to pass in place of a good one.

    Attributes:
        words: Description that depends on the seed only; a `repr` may not.
        value: The value.
        means: SAME, WRONG or ANY.
    """

    words: str
    value: Any
    means: str


def _fails(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("no\nsuch thing\x1b[31m")


class Raises:
    """An object that raises at every access."""

    __array__ = __bool__ = __eq__ = __float__ = __getitem__ = __hash__ = __index__ = __int__ = _fails  # type: ignore[assignment]
    __iter__ = __len__ = __lt__ = __repr__ = __str__ = __fspath__ = __le__ = __gt__ = __ge__ = __contains__ = _fails


class Lies:
    """An object with length 3 whose items have length 3 again, and that equals everything."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: object) -> Lies:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "a\nb\x1b]0;x\x07" * 100


class AnyAttribute:
    """An object with every attribute and method."""

    def __getattr__(self, name: str) -> AnyAttribute:
        return self

    def __call__(self, *_: object, **__: object) -> AnyAttribute:
        return self


def _endless() -> Iterator[int]:
    while True:
        yield 0


class Frame:
    """A data frame of another library, such as polars."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def _cycle() -> Any:
    around: dict[str, Any] = {}
    around["x"] = around
    return around


def _deep() -> Any:
    inside: Any = 0
    for _ in range(5000):
        inside = [inside]
    return inside


ODD: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: -float("inf"),
    "-0.0": lambda: -0.0,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "10**5000": lambda: 10**5000,
    "2**63": lambda: 2**63,
    "1e308": lambda: 1e308,
    "5e-324": lambda: 5e-324,
    "1j": lambda: 1j,
    "'1'": lambda: "1",
    "''": lambda: "",
    "'word'": lambda: "word",
    "lone surrogate": lambda: "\ud800",
    "half a file name": lambda: "x\udc80",
    "nul": lambda: "a\x00b",
    "escapes": lambda: "\x1b[2J\x07\u202e\n",
    "long text": lambda: "x" * 100_000,
    "bytes": lambda: b"\xff1",
    "bytearray": lambda: bytearray(b"1"),
    "Decimal": lambda: decimal.Decimal("0.5"),
    "Decimal NaN": lambda: decimal.Decimal("sNaN"),
    "Decimal huge": lambda: decimal.Decimal("1e9999"),
    "Fraction": lambda: fractions.Fraction(1, 2),
    "Fraction huge": lambda: fractions.Fraction(10**400, 3),
    "date": lambda: datetime.date(2020, 1, 1),
    "datetime": lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "timedelta": lambda: datetime.timedelta(1),
    "Path": lambda: pathlib.Path("no/such/path"),
    "Path with nul": lambda: pathlib.Path("a\x00b"),
    "generator": lambda: (number for number in (1, 2)),
    "endless": _endless,
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset(),
    "()": lambda: (),
    "[]": list,
    "{}": dict,
    "[None]": lambda: [None],
    "[[1], [2, 3]]": lambda: [[1], [2, 3]],
    "odd keys": lambda: {None: 1, (1, 2): 2, 3.5: "x"},
    "keys that are no keys": lambda: {"\ud800": 1, "": 2, "name": []},
    "around": _cycle,
    "deep": _deep,
    "deque": lambda: deque([1, 2]),
    "range": lambda: range(3),
    "slice": lambda: slice(1),
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "object": lambda: object(),
    "class": lambda: dict,
    "function": lambda: len,
    "lambda": lambda: lambda: 0,
    "module": lambda: random,
    "Raises": lambda: Raises(),
    "class Raises": lambda: Raises,
    "Lies": lambda: Lies(),
    "AnyAttribute": lambda: AnyAttribute(),
    "exception": lambda: ValueError("a\nb"),
    "np.float16": lambda: np.float16(0.5),
    "np.float32": lambda: np.float32(0.5),
    "np.longdouble": lambda: np.longdouble(0.5),
    "np.int8": lambda: np.int8(1),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.bool": lambda: np.bool_(True),
    "np.complex": lambda: np.complex128(1 + 1j),
    "np.datetime64": lambda: np.datetime64("2020-01-01"),
    "np.timedelta64": lambda: np.timedelta64(1, "D"),
    "NaT": lambda: np.datetime64("NaT"),
    "np.void": lambda: np.void(b"abc"),
    "np.str": lambda: np.str_("word"),
    "np.bytes": lambda: np.bytes_(b"1"),
    "np.object": lambda: np.array(None, dtype=object),
    "0-d": lambda: np.array(0.5),
    "0-d masked": lambda: np.ma.masked,
    "empty array": lambda: np.empty(0),
    "2-d": lambda: np.zeros((2, 2)),
    "structured": lambda: np.zeros(3, dtype=[("a", "f8"), ("b", "S3")]),
    "pd.NA": lambda: pd.NA,
    "pd.NaT": lambda: pd.NaT,
    "pd.Timestamp": lambda: pd.Timestamp("2020-01-01", tz="Europe/Zurich"),
    "pd.Interval": lambda: pd.Interval(0, 1),
    "empty frame": lambda: pd.DataFrame(),
    "frame": lambda: pd.DataFrame({"a": [1, 2]}),
    "Series": lambda: pd.Series([1.0, 2.0]),
    "MultiIndex": lambda: pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]),
    "pa.scalar": lambda: pa.scalar(0.5),
    "pa.schema": lambda: pa.schema([]),
    "pa.nulls": lambda: pa.nulls(3),
    "empty table": lambda: pa.table({}),
    "tensor": lambda: torch.tensor(0.5, requires_grad=True),
    "meta tensor": lambda: torch.empty(3, device="meta"),
    "torch sparse": lambda: torch.eye(3).to_sparse(),
    "torch dtype": lambda: torch.float32,
}
"""Odd values in any place; created at each call, so that cases do not affect each other."""


def number(good: float, rng: random.Random) -> Odd:
    """Return an odd value in place of a number."""
    forms: list[Odd] = [
        Odd("np.float64", np.float64(good), SAME),
        Odd("Fraction of it", fractions.Fraction(good), SAME),
        *(Odd(name, ODD[name](), WRONG) for name in _NO_NUMBERS),
    ]
    return rng.choice(forms)


_NO_NUMBERS = (
    *("nan", "10**400", "-10**400", "10**5000", "True", "False", "1j", "'1'", "'word'", "bytes", "Decimal NaN", "date"),
    *("datetime", "timedelta", "Path", "generator", "set", "[]", "{}", "np.complex", "np.datetime64", "np.void"),
    *("np.bool", "np.str", "Raises", "class Raises", "Lies", "AnyAttribute", "2-d", "lone surrogate", "pd.NA", "NaT"),
    *("frame", "Series", "meta tensor", "object", "class", "Ellipsis", "around", "empty array", "Fraction huge"),
)


def anything(rng: random.Random, means: str = ANY) -> Odd:
    """Return any odd value."""
    name = rng.choice(list(ODD))
    return Odd(name, ODD[name](), means)


def column(good: list[float], rng: random.Random) -> Odd:
    """Return an odd value in place of a column of small multiples of 1/8, or of 0 and 1."""
    rows = len(good)
    whole = all(value == int(value) for value in good)
    plain = np.array(good)
    spread = np.zeros((rows, 2))
    spread[:, 0] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    same: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(good),
        "array": lambda: plain,
        "float32": lambda: plain.astype(np.float32),
        "float16": lambda: plain.astype(np.float16),
        "big-endian": lambda: plain.astype(">f8"),
        "big-endian float32": lambda: plain.astype(">f4"),
        "read-only": lambda: frozen,
        "strided": lambda: spread[:, 0],
        "backwards twice": lambda: plain[::-1].copy()[::-1],
        "objects": lambda: plain.astype(object),
        "masked nowhere": lambda: np.ma.array(plain, mask=False),
        "array.array": lambda: array.array("d", good),
        "memoryview": lambda: memoryview(plain),
        "list of np.float32": lambda: [np.float32(value) for value in good],
        "list of 0-d": lambda: [np.array(value) for value in good],
        "Series": lambda: pd.Series(good),
        "Series float32": lambda: pd.Series(good, dtype="float32"),
        "Series of objects": lambda: pd.Series(good, dtype=object),
        "Series Float64": lambda: pd.Series(good, dtype="Float64"),
        "Series of Arrow": lambda: pd.Series(good, dtype="float64[pyarrow]"),
        "sparse Series": lambda: pd.Series(pd.arrays.SparseArray(good, fill_value=good[0])),
        "categories": lambda: pd.Series(good, dtype="category"),
        "pd.array": lambda: pd.array(good, dtype="Float64"),
        "pd.Index": lambda: pd.Index(good),
        "pa.array": lambda: pa.array(good),
        "pa.float32": lambda: pa.array(good, pa.float32()),
        "dictionary": lambda: pa.array(good).dictionary_encode(),
        "chunked": lambda: pa.chunked_array([good[:1], good[1:]]),
        "chunked, an empty chunk": lambda: pa.chunked_array([good, []]),
        "slice of Arrow": lambda: pa.array([9.0, *good, 9.0])[1:-1],
        "tensor": lambda: torch.tensor(good),
        "tensor of doubles": lambda: torch.tensor(good, dtype=torch.float64),
    }
    if whole:
        same |= {
            "int8": lambda: plain.astype(np.int8),
            "big-endian ints": lambda: plain.astype(">i4"),
            "uint64": lambda: plain.astype(np.uint64) if min(good) >= 0 else plain,
            "Series Int8": lambda: pd.Series(good, dtype="Int8"),
            "pa.int8": lambda: pa.array(plain.astype(np.int8)),
        }
    if set(good) <= {0, 1}:
        bools = plain.astype(bool)
        same |= {
            "bools": lambda: bools,
            "list of bools": bools.tolist,
            "Series boolean": lambda: pd.Series(bools, dtype="boolean"),
            "sparse bools": lambda: pd.Series(pd.arrays.SparseArray(bools, fill_value=True)),
            "pa.bool": lambda: pa.array(bools),
            "bool tensor": lambda: torch.tensor(bools),
        }
    at = rng.randrange(rows)

    def put(value: Any) -> list[Any]:
        return [*good[:at], value, *good[at + 1 :]]

    hidden = np.zeros(rows, dtype=bool)
    hidden[at] = True
    wrong: dict[str, Callable[[], Any]] = {
        "complex": lambda: plain + 1j * hidden,
        "complex list": lambda: put(1j),
        "complex objects": lambda: (plain + 1j * hidden).astype(object),
        "complex Series": lambda: pd.Series(plain + 1j * hidden),
        "complex tensor": lambda: torch.tensor(plain + 1j * hidden),
        "conjugate tensor": lambda: torch.tensor(plain + 1j * hidden).conj(),
        "masked": lambda: np.ma.array(plain, mask=hidden),
        "masked ints": lambda: np.ma.array(plain.astype(int), mask=hidden),
        "masked list": lambda: put(np.ma.masked),
        "NaN": lambda: put(float("nan")),
        "None": lambda: put(None),
        "pd.NA": lambda: put(pd.NA),
        "NaT": lambda: put(pd.NaT),
        "nullable": lambda: pd.Series(put(None), dtype="Float64"),
        "sparse NaN": lambda: pd.Series(pd.arrays.SparseArray(put(float("nan")))),
        "Arrow null": lambda: pa.array(put(None)),
        "chunked null": lambda: pa.chunked_array([pa.array(good, pa.float64()), pa.nulls(1, pa.float64())]),
        "run ends": lambda: pa.RunEndEncodedArray.from_arrays([rows], pa.array([1.0])),
        "lists": lambda: [[value] for value in good],
        "2-d": lambda: plain.reshape(1, -1),
        "0-d": lambda: np.array(0.5),
        "dates": lambda: [datetime.date(2020, 1, 1)] * rows,
        "datetime64": lambda: plain.astype("datetime64[s]"),
        "datetime64 without unit": lambda: np.full(rows, "NaT", dtype="datetime64"),
        "timedelta64": lambda: plain.astype("timedelta64[s]"),
        "time zones": lambda: pd.Series(pd.date_range("2020-01-01", periods=rows, tz="Asia/Tokyo")),
        "periods": lambda: pd.Series(pd.period_range("2020", periods=rows)),
        "intervals": lambda: pd.Series(pd.interval_range(0, periods=rows)),
        "words": lambda: ["word"] * rows,
        "a word": lambda: put("word"),
        "bytes in a list": lambda: put(b"1"),
        "bytes": lambda: np.array([b"1"] * rows),
        "voids": lambda: np.zeros(rows, dtype="V4"),
        "structured": lambda: np.zeros(rows, dtype=[("a", "f8")]),
        "10**400": lambda: put(10**400),
        "Decimal NaN": lambda: put(decimal.Decimal("sNaN")),
        "lone surrogate": lambda: put("\ud800"),
        "text": lambda: "0101",
        "a set": lambda: set(good),
        "a dictionary": lambda: dict(enumerate(good)),
        "one short": lambda: good[:-1],
        "one more": lambda: [*good, good[0]],
        "empty": list,
        "meta tensor": lambda: torch.empty(rows, device="meta"),
        "sparse tensor": lambda: torch.tensor(good).to_sparse(),
        "raises": lambda: put(Raises()),
        "lies": lambda: put(Lies()),
        "list of classes": lambda: [float] * rows,
        "Raises": Raises,
        "class": lambda: list,
        "Lies": Lies,
        "AnyAttribute": AnyAttribute,
        "generator": lambda: (value for value in good),
        "endless": _endless,
        "frame of two": lambda: pd.DataFrame({"a": good, "b": good}),
    }
    either: dict[str, Callable[[], Any]] = {
        "inf": lambda: put(float("inf")),
        "huge": lambda: put(1e308),
        "-0.0": lambda: put(-0.0),
        "digits": lambda: [str(value) for value in good],
        "Series of digits": lambda: pd.Series([str(value) for value in good]),
        "longdouble": lambda: plain.astype(np.longdouble),
        "pa.decimal": lambda: pa.array([decimal.Decimal(value) for value in good], pa.decimal128(20, 5)),
        "Decimals": lambda: [decimal.Decimal(value) for value in good],
        "Fractions": lambda: [fractions.Fraction(value) for value in good],
        "complex, all real": lambda: plain.astype(complex),
        "tensor with grad": lambda: torch.tensor(good, requires_grad=True),
        "bfloat16": lambda: torch.tensor(good, dtype=torch.bfloat16),
        "a frame": lambda: pd.DataFrame({"a": good}),
        "column of 2-d": lambda: plain.reshape(-1, 1),
        "2**64": lambda: put(2**64),
        "StringDType": lambda: np.array([str(value) for value in good], dtype=np.dtypes.StringDType()),
        "dictionary's values": lambda: dict(enumerate(good)).values(),
        "deque": lambda: deque(good),
        "anything": lambda: anything(rng).value,
    }
    means, forms = rng.choices(((SAME, same), (WRONG, wrong), (ANY, either)), (3, 5, 1))[0]
    words = rng.choice(list(forms))
    return Odd(words, forms[words](), means)


def other_index(rows: int, rng: random.Random) -> Any:
    """Return a pandas index other than that of a new Series."""
    if rng.random() < 0.3:
        return pd.Index([f"row {number}" for number in range(rows)])
    return rng.choice([pd.RangeIndex(1, rows + 1), pd.RangeIndex(rows - 1, -1, -1), pd.Index([0] * rows)])
