"""Summaries of what calls return: discrete parts as words, the rest as numbers, for any object."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import itertools
import math
import re
import warnings
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.mechanisms.adapters.other_python import worker
from dpaudit.mechanisms.adapters.other_python.calls import OUT_OF_TIME, call_in_process
from dpaudit.mechanisms.adapters.other_python.worker import LOW_BIT_FLOATS, MAX_ENDING, MAX_NUMBERS, outcome_of
from dpaudit.mechanisms.queries.row_function import UNREADABLE, CallLimits, CallOutcome, is_unreadable
from tests.loops import Cases

NOTHING = pa.table({"x": [0.0]})
Colour = enum.Enum("Colour", "RED")
Pair = namedtuple("Pair", "low high")


@dataclasses.dataclass
class Estimate:
    mean: float
    text: str = "a"


class Unhashable(str):
    __hash__ = None  # type: ignore[assignment]


class Fitted:
    def __init__(self) -> None:
        self.coef_ = np.array([0.5, 0.25])
        self._hidden = 3.0
        self.other = object()
        self.parts = Estimate(0.5)


class Slotted:
    __slots__ = ("_b", "a")

    def __init__(self) -> None:
        self.a, self._b = 1, 2


class Answers:
    @property
    def value(self) -> int:
        return 7


def summed(summary: Any) -> Any:
    return SimpleNamespace(summary=summary, coef=1.0)


BITS = [-1.0, 1.0]  # of 0.5
VALUES = [
    (None, "None", []),
    (True, "bool", [1]),
    (7, "int", [7]),
    (0.5, "float", [0.5, *BITS]),
    (12.0, "float", [12, 2, 2]),
    (0.0, "float", [0, 0, 0]),
    (0.5j, "complex", [0, 0.5, 0, 0, *BITS]),
    (decimal.Decimal("0.5"), "Decimal", [0.5, *BITS, 0.0, 0.0]),
    (np.float32(0.5), "float32", [0.5, *BITS]),
    (np.int8(-3), "int8", [-3]),
    (np.bool_(True), "bool", [1]),
    (math.nan, "float; nan at 0", []),
    ([1.0, -math.inf, math.inf], "list of 3 float; inf at 2; -inf at 1", [1, 0, 1]),
    (10**400, "int; inf at 0; 1 integers above 2^53 of up to 64 parts", None),
    ("of 17.5 rows at 0x7f12", "str 'of # rows at 0x'", [17.5]),
    (b"ab", "bytes of 2", [97, 98]),
    (Colour.RED, "Colour str 'Colour.RED'", []),
    (datetime.date(2026, 1, 2), "date str '#-#-#'", [2026, 1, 2]),
    (ValueError("17 rows"), "ValueError str '# rows'", [17]),
    ([1, 2, 3], "list of 3 int", [1, 2, 3]),
    ([1, "a", 2.5, 2.5], "list of 4 (int, str 'a', 2 float)", [1, 2.5, 2.5, -1, 3, -1, 3]),
    (("b", "a", None, "b"), "tuple of 4 words ['None', 'a', 'b']", [2, 1, 0, 2, 1, 1, 2]),
    (Pair(1, 2), "Pair ('low', 'high') of 2 int", [1, 2]),
    ({"b", "a"}, "set of 2 words ['a', 'b']", [0, 1, 1, 1]),
    ({"a": [2], "b": 1}, "dict{'a': list of 1 int, 'b': int}", [2, 1]),
    ({"b": 1, "a": [2]}, "dict{'a': list of 1 int, 'b': int} in another order", [2, 1, 1, 0]),
    (collections.Counter("bbca"), "Counter{'a': int, 'b': int, 'c': int} in another order", [1, 2, 1, 2, 0, 1]),
    ({1.5: 1, 2: 3}, "dict{float: int, 2: int}", [1.5, 1, 3, -1, 2]),
    (
        [{"w": "a", "x": 1}, {"w": "b", "x": 2}],
        "list of 2 rows {'w': list of 2 words ['a', 'b'], 'x': list of 2 int}",
        None,
    ),
    ([{"x": 1, "w": 2}, {"x": 3, "w": 4}], None, [2, 4, 1, 3, 1, 0]),
    (
        [{"x": 1, "w": 2}, {"w": 3, "x": 4}],
        "list of 2 (dict{'w': int, 'x': int} in another order, dict{'w': int, 'x': int})",
        [2, 1, 1, 0, 3, 4],
    ),
    ([(1, "a"), (2, "a")], "list of 2 rows of 2 (list of 2 int, list of 2 words ['a'])", [1, 2, 0, 0, 2]),
    (np.array([[1, 2]]), "int64 (1, 2)", [1, 2]),
    (np.array([0.5]), "float64 (1,)", [0.5, *BITS]),
    (np.array(["a", "bb"]), "words (2,) of 2 words ['a', 'bb']", [0, 1, 1, 1]),
    (np.array([1, "a"], object), "object (2,) of 2 (int, str 'a')", [1]),
    (
        np.array([(1, 2)], [("a", int), ("b", int)]),
        "[('a', '<i8'), ('b', '<i8')] (1,){a: int64 (1,), b: int64 (1,)}",
        [1, 2],
    ),
    (np.ma.masked_array([1, 2], [0, 1]), "MaskedArray int64 (2,) of 2 (int, None)", [1]),
    (
        pd.DataFrame({"b": [1, 2], "a": [True, False]}),
        "DataFrame {b: int64, a: bool} of up to 16 rows of 2, floats in []",
        None,
    ),
    (
        pd.DataFrame({"b": [1, 2], "a": [True, False]}, index=["u", "v"]),
        "DataFrame by object (2,) of 2 words ['u', 'v'] {b: int64 int64 (2,), a: bool bool (2,)}",
        [1, 2, 1, 0, 0, 1, 1, 1],
    ),
    (pd.Series([7], ["u"], name="n"), "Series n by object (1,) of 1 (str 'u') int64 int64 (1,)", [7]),
    (pd.Series(["u"], dtype=pd.CategoricalDtype(["v", "u"])), None, [1, 0, 1, 1]),
    (pd.Timestamp("2026-01-02"), "Timestamp str '#-#-# #:#:#'", [2026, 1, 2, 0, 0, 0]),
    (pa.table({"n": [1, None]}), "Table{n: of 2 (int, None)}", [1]),
    (pa.array([1]), "Int64Array int64 of 1 int", [1]),
    (pa.scalar(1), "Int64Scalar int", [1]),
    (torch.tensor([0.5], requires_grad=True), "Tensor float32 (1,)", [0.5, *BITS]),
    (torch.tensor([0.5], dtype=torch.bfloat16), "torch.bfloat16 Tensor float32 (1,)", [0.5, *BITS]),
    (scipy.sparse.csr_array([[0, 2]]), None, [0, 1, 2]),
    (Estimate(0.5), "object Estimate{mean: float, text: str 'a'}", [0.5, *BITS]),
    (
        Fitted(),
        "object Fitted{coef_: float64 (2,), parts: object Estimate{mean: float, text: str 'a'}} "
        "with a state of up to 19 numbers",
        None,
    ),
    (Slotted(), "object Slotted{a: int} with a state of up to 19 numbers", None),
    (Answers(), "object Answers{value: int}", [7]),
    (summed({"a": 1}), "SimpleNamespace summary dict{'a': int}", [1]),
    (summed(lambda: 5), "SimpleNamespace summary int", [5]),
    (summed(lambda needed: 5), "object SimpleNamespace{coef: float} with a state of up to 19 numbers", None),
    ((n for n in range(3)), "generator of 3 int", [0, 1, 2]),
]


def test_endings_and_numbers_of_values() -> None:
    with Cases() as cases:
        for value, ending, numbers in VALUES:
            with cases.case(value, ending, numbers):
                actual_ending, actual_numbers, *_ = outcome_of(value)
                assert actual_ending == (ending or actual_ending)
                assert actual_numbers == (actual_numbers if numbers is None else numbers)


class Broken:
    """Raises on every access."""

    def __getattribute__(self, name: str) -> Any:
        raise OSError(f"no {name}")

    def __repr__(self) -> str:
        raise OSError("no words")


class Hidden:
    def __init__(self) -> None:
        self.a = 1

    @property
    def summary(self) -> Any:
        raise OSError("not yet")

    def __getattr__(self, name: str) -> Any:
        raise MemoryError(name)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise OSError("no words")


def raises(error: BaseException) -> Any:
    raise error


def cycle() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


def tower(height: int) -> list[Any]:
    values: list[Any] = []
    for _ in range(height):
        values = [values, values]
    return values


class Endless(dict[Any, Any]):
    def __len__(self) -> int:
        return 1 << 70


GARBAGE = {
    "broken": (Broken, "raises OSError: no __class__"),
    "hidden": (Hidden, "object Hidden{a: int}"),
    "cycle": (cycle, "list of 2 (int, itself)"),
    "function": (lambda: len, "function builtins.len"),
    "class": (lambda: Broken, f"class {__name__}.Broken"),
    "endless": (itertools.count, f"count of {MAX_NUMBERS + 1} int"),
    "numbers": (lambda: np.zeros(10**7), "float64 (10000000,)"),
    "list": (lambda: [0] * 10**6, "list of 1000000 int"),
    "length": (Endless, "raises OverflowError: cannot fit 'int' into an index-sized integer"),
    "half a sign": (lambda: raises(ValueError("\ud800")), "raises ValueError: \\ud800"),
    "unprintable": (
        lambda: raises(Unprintable()),
        "raises Unprintable: an object of Unprintable that cannot be printed",
    ),
    "huge number": (lambda: raises(ValueError("9" * 1_000)), "raises ValueError: #"),
    "exit": (lambda: raises(SystemExit(3)), "raises SystemExit: #"),
    "interrupt": (lambda: raises(KeyboardInterrupt()), "raises KeyboardInterrupt"),
    "late": (lambda: (raises(ValueError("late")) for _ in range(2)), "raises ValueError: late"),
}


def _called(make: Callable[[], object]) -> CallOutcome:
    (outcome,) = call_in_process(lambda rows, rng: make(), NOTHING, [0], form="list")
    return outcome


def test_garbage_is_an_outcome() -> None:
    with Cases() as cases:
        for what in GARBAGE:
            with cases.case(what):
                make, ending = GARBAGE[what]
                outcome = _called(make)
                assert outcome.ending == ending
                assert len(outcome.numbers) <= MAX_NUMBERS + 2 * LOW_BIT_FLOATS
                assert np.isfinite(outcome.numbers).all()


def test_a_tower_of_lists_and_a_long_text_are_bounded() -> None:
    ending, numbers, *_ = outcome_of(tower(60))
    assert len(ending) < MAX_ENDING + 30
    assert numbers == []
    long, other = (outcome_of(["w" * 5_000 + end])[0] for end in "ab")
    assert len(long) == len(other) < MAX_ENDING + 30
    assert long != other


def test_equal_endings_have_equally_many_numbers() -> None:
    """For random values, whole or not, finite or not."""
    rng, widths = np.random.default_rng(0), dict[str, int]()
    for _ in range(300):
        values = np.where(rng.random(70) < 0.5, rng.integers(0, 3, 70), rng.random(70))
        values[rng.random(70) < 0.005] = np.nan
        words = rng.choice(["a", "b 1.5"], 3).tolist()
        ending, numbers, *_ = outcome_of({"v": values, "words": words, "n": 1 if rng.random() < 0.5 else 0.5})
        assert widths.setdefault(ending, len(numbers)) == len(numbers)
    assert 1 < len(widths) < 300


def test_equal_endings_of_tables_have_equally_many_numbers() -> None:
    """For tables of any length, also empty, with missing cells and words among numbers."""
    rng, widths = np.random.default_rng(0), dict[str, int]()
    for _ in range(300):
        rows = int(rng.integers(0, 40))
        mixed = [[None, math.nan, 0.5, 7, "w", -1][place] for place in rng.integers(0, rng.choice([1, 2, 4, 6]), rows)]
        ending, numbers, *_ = outcome_of(pd.DataFrame({"x": rng.random(rows), "m": pd.Series(mixed, dtype=object)}))
        assert widths.setdefault(ending, len(numbers)) == len(numbers)
    assert 1 < len(widths) < 15


def long_table(rows: int, seed: int, form: str = "frame") -> Any:
    rng = np.random.default_rng(seed)
    columns = {"sex": rng.choice(["f", "m"], rows), "age": rng.integers(0, 90, rows), "paid": rng.random(rows)}
    frame = pd.DataFrame(columns)
    records = frame.to_dict("records")
    return {
        "frame": frame,
        "by name": frame.set_index(np.char.add("p", rng.integers(0, 999, rows).astype(str))),
        "records": records,
        "tuples": [tuple(record.values()) for record in records],
        "arrow": pa.table(columns).to_pylist(),
        "of numpy": list(zip(*columns.values(), strict=True)),
    }[form]


@pytest.mark.parametrize("form", ["frame", "by name", "records", "tuples", "arrow", "of numpy"])
def test_tables_of_similar_length_have_equal_endings(form: str) -> None:
    """The number of rows may be random, so it is among the numbers."""
    outcomes = [outcome_of(long_table(rows, rows, form))[:2] for rows in (70, 99, 128)]
    assert len({ending for ending, _ in outcomes}) == 1
    assert len({len(numbers) for _, numbers in outcomes}) == 1
    assert [numbers[0] for _, numbers in outcomes] == [70, 99, 128]
    assert outcome_of(long_table(129, 0, form))[0] != outcomes[0][0]


def test_counts_of_a_long_table_do_not_depend_on_row_order() -> None:
    """Joint counts of values do not depend on the order of rows, but change with a single cell."""
    table = pd.DataFrame({"color": ["red"] * 20 + ["blue"] * 20, "sex": list("fm") * 20})
    before = 1 + 2 * 6 + 4 * 64  # rows, sums and quartiles, and counts by a value, by two, by all: then the rows
    numbers = [outcome_of(rows)[1] for rows in (table, table.sample(frac=1, random_state=0).reset_index(drop=True))]
    assert numbers[0][:before] == numbers[1][:before]
    assert numbers[0][before:] != numbers[1][before:]
    other = table.copy()
    other.loc[[0, 21], "sex"] = ["m", "f"]  # both columns have as many of each as before
    columns = slice(1 + 2 * 6, 1 + 2 * 6 + 2 * 64)
    assert outcome_of(other)[1][columns] == numbers[0][columns]
    assert outcome_of(other)[1][columns.stop : before] != numbers[0][columns.stop : before]


def test_short_tables_and_rows_of_objects_are_read_in_order() -> None:
    assert outcome_of(long_table(16, 0, "tuples"))[0].startswith("list of 16 rows of 3 (list of 16 words")
    assert outcome_of([(number, np.zeros(2)) for number in range(20)])[0].startswith("list of 20 rows of 2")
    missing = outcome_of(pd.DataFrame({"x": [1.5, math.nan] * 20, "y": [None, "a"] * 20}))
    assert missing[2] == ""
    assert all(map(math.isfinite, missing[1]))


def odd(rows: int) -> pd.DataFrame:
    """Return rows ordered by time, with very large, missing and infinite numbers."""
    dates = pd.date_range("2026-01-01", periods=rows)
    return pd.DataFrame(
        {"when": dates, "n": [10**400, 1, None, math.inf] * (rows // 4)}, index=list("ab" * (rows // 2))
    )


def test_unusual_tables_are_outcomes() -> None:
    """Names that occur twice, other numbers of columns, dates in their order, what is no number, and odd keys."""
    wide, slim = (outcome_of([(1,) * width] * 20) for width in (3, 2))
    assert wide[0] != slim[0]
    assert outcome_of([{"a: int64, b": 1}] * 20)[0] != outcome_of([{"a": 1, "b": 1}] * 20)[0]
    frame = pd.DataFrame({"age": [1] * 20}, index=pd.Index(["p"] * 20, name="age"))
    assert outcome_of(frame)[0] == "DataFrame {age: str, age: int64} of up to 32 rows of 2, floats in []"
    counts = (
        pd.DataFrame({"g": list("ab") * 20, "h": range(40), "x": range(40)}).groupby(["g", "h"])[["h", "x"]].count()
    )
    assert outcome_of(counts)[2] == ""
    numbers = outcome_of(odd(32))[1]
    assert all(map(math.isfinite, numbers))
    assert len({number for number in numbers if 1.7e9 < number < 1.8e9}) == 32
    sixteen, missing = (outcome_of(pd.DataFrame({"x": [value] * 20}))[1] for value in (16.0, math.nan))
    assert sixteen != missing
    endings = [outcome_of([{key: 1.0}] * 20)[0] for key in (0.25, 0.5)]
    assert endings[0] == endings[1], "a key may have been drawn"
    assert outcome_of([(Unhashable("a"), 1)] * 20)[0].startswith("list of 20 rows of 2")


def test_low_bits_reveal_naive_noise() -> None:
    """The lowest bit of each float, and how many there are; 64 floats are looked at."""
    naive = [outcome_of(0.5 + 2.0**-40 * k)[1][1] for k in (1, 2, 4)]
    assert naive == [-40, -39, -38]
    assert len(outcome_of(np.full(100, 0.1))[1]) == 100 + 2 * LOW_BIT_FLOATS
    assert outcome_of(5e-324)[1] == [5e-324, -1074, 1]
    assert outcome_of(0.1)[1] == [0.1, -55, 52]
    assert [outcome_of(value)[3] for value in (0.1, np.full(100, 0.1), 7, "w")] == [2, 2 * LOW_BIT_FLOATS, 0, 0]


def test_faults_are_described() -> None:
    assert outcome_of(1.5)[2] == ""
    assert outcome_of([math.nan, 1.0])[2] == "it gave numbers that are not finite"
    assert outcome_of(len)[2] == "it gave a function"
    (outcome,) = call_in_process(lambda rows, rng: raises(ValueError("7 rows")), NOTHING, [0], form="list")
    assert outcome.fault == "ValueError: 7 rows"
    assert outcome.numbers.tolist() == [7]


class Private:
    def __init__(self, total: float) -> None:
        self._total, self.__more = total, [total]


class PrivateSlots:
    __slots__ = ("__total",)

    def __init__(self, total: float) -> None:
        self.__total = total


class Bag:
    def __init__(self, total: float) -> None:
        self._make = lambda: iter([total])

    def __iter__(self) -> Iterator[float]:
        return self._make()


class Holder:
    """A public name, and an object that holds the value."""

    def __init__(self, total: float) -> None:
        self.name, self.inner = "sum", Private(total)


class Awaitable:
    def __init__(self, total: float) -> None:
        self._total = total

    def __await__(self) -> Iterator[Any]:
        return _later(self._total).__await__()


async def _later(total: float) -> float:
    await asyncio.sleep(0)
    return total


async def _one_by_one(total: float) -> AsyncIterator[float]:
    for part in (0.5, total):
        await asyncio.sleep(0)
        yield part


def _finished(total: float) -> Any:
    future: concurrent.futures.Future[float] = concurrent.futures.Future()
    future.set_result(total)
    return future


def _finished_asyncio(total: float) -> Any:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    future.set_result(total)
    loop.close()
    return future


def _pending_task(total: float) -> Any:
    return asyncio.new_event_loop().create_task(_later(total))


TOTALS: dict[str, Callable[[float], Any]] = {
    "coroutine": _later,
    "awaitable": Awaitable,
    "inside": lambda total: {"a": [_later(total)]},
    "concurrent future": _finished,
    "asyncio future": _finished_asyncio,
    "asyncio task": _pending_task,
    "generator": lambda total: (each for each in (0.5, total)),
    "async generator": _one_by_one,
    "private": Private,
    "private slots": PrivateSlots,
    "iterable": Bag,
    "holder": Holder,
    "values of a mapping": lambda total: {"a": total}.values(),
    "deque": lambda total: collections.deque([total]),
    "range": lambda total: range(int(total)),
    "partial": lambda total: functools.partial(print, total),
    "match": lambda total: re.search("x", f"x {total}"),
    "file": lambda total: io.StringIO(str(total)),
}
"""Results that hold a number, each in another way."""


def test_numbers_inside_results_are_found() -> None:
    with Cases() as cases:
        for what, make in TOTALS.items():
            with cases.case(what):
                first, same, other = (_called(functools.partial(make, total)) for total in (17.0, 17.0, 18.0))
                assert not is_unreadable(first.ending), first.ending
                assert (first.ending, first.numbers.tolist()) == (same.ending, same.numbers.tolist())
                assert (first.ending, first.numbers.tolist()) != (other.ending, other.numbers.tolist())


def test_a_coroutine_is_awaited_inside_a_running_event_loop() -> None:
    """As in a notebook."""

    async def cell() -> tuple[float, ...]:
        return tuple(outcome_of(_later(total))[1][0] for total in (17.0, 18.0))

    assert asyncio.run(cell()) == (17.0, 18.0)
    with pytest.raises(ValueError, match="late"):
        outcome_of(_late())


async def _late() -> None:
    raise ValueError("late")


async def _endless(rows: list[float], rng: np.random.Generator) -> None:
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return


def test_an_endless_coroutine_times_out() -> None:
    """Also where an event loop runs, so that another thread waits for it."""

    async def cell() -> str:
        return called()

    def called() -> str:
        limits = CallLimits(0.1, 1, time_limit, raised_externally)
        return call_in_process(_endless, NOTHING, [0], form="list", limits=limits)[0].ending

    assert called() == OUT_OF_TIME
    assert asyncio.run(cell()) == OUT_OF_TIME


def test_coroutine_functions_are_called() -> None:
    async def total(rows: list[float], rng: np.random.Generator) -> float:
        await asyncio.sleep(0)
        return sum(rows) + 3

    async def parts(rows: list[float], rng: np.random.Generator) -> AsyncIterator[float]:
        yield sum(rows) + 3

    for function in (total, parts):
        (outcome,) = call_in_process(function, NOTHING, [0], form="list")
        assert outcome.numbers[0] == 3


def test_unreadable_objects_are_named() -> None:
    def closure(total: float) -> Callable[[], float]:
        return lambda: total

    class Foo:
        pass

    words = "a Foo object without public attributes, slots or a `summary`"
    assert outcome_of(Foo())[0] == f"unreadable: {words}"
    assert outcome_of({"a": 1, "b": [Foo()]})[:3] == (
        f"unreadable: {words}; in dict{{'a': int, 'b': list of 1 (<{words}>)}}",
        [1.0],
        "",
    )
    assert worker.UNREADABLE == UNREADABLE  # a worker imports nothing of dpaudit
    assert is_unreadable(outcome_of(object())[0])
    assert outcome_of(closure(1.0))[0] == "unreadable: a function that cannot be imported by its name"
    assert outcome_of(closure(1.0))[2] == "it gave a function"
    assert not is_unreadable(outcome_of("unreadable: 3")[0])
    assert not is_unreadable(_called(lambda: raises(ValueError("unreadable: 3"))).ending)
    (warned,) = call_in_process(lambda rows, rng: _warned(Foo()), NOTHING, [0], form="list")
    assert is_unreadable(warned.ending)


def _warned(value: Any) -> Any:
    warnings.warn("careful", stacklevel=1)
    return value
