"""Calls a function on rows repeatedly and summarises the results; runs in any Python from 3.8 on.

    python worker.py REQUESTS ANSWERS ALIVE

The arguments are numbers of pipe descriptors. This process reads REQUESTS and writes ANSWERS. ALIVE is only held open:
the system ends this process when the parent, which holds its other end, is gone. A message is a head (`HEAD`), a JSON
header and a body of float64 or int64 numbers. No message holds pickles.

The first request names the function. Each further one holds a table and a list of seeds. A request is answered by
`ready` or `refused`, and each call by one message as soon as it ends, so that the parent knows which call ended this
process.

This file imports only the standard library, so that the other Python needs only the function's libraries, and NumPy,
pandas or pyarrow if the form of the rows requires them. dpaudit imports it for calls in its own process.
"""

from __future__ import annotations

import copy
import copyreg
import fcntl
import hashlib
import heapq
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import pickle
import random
import re
import resource
import signal
import struct
import sys
import time
import types
import warnings
import zlib
from array import array
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

FORMS = ("frame", "arrow", "array", "records", "list")
"""A pandas DataFrame; a pyarrow Table; a float64 array (n, d); a list of dicts; the values of the only column."""
HEAD = struct.Struct("<4sIQI")
"""Mark, bytes of the header, bytes of the body, checksum of both."""
MARK = b"dpa1"
MAX_NUMBERS = 1 << 16  # of an outcome; further ones are dropped
MAX_PARTS = 100_000  # of a value that are read
MAX_DEPTH = 20  # of nested values
MAX_ENDING = 1_500  # characters; a longer ending is cut and its hash appended
MAX_TEXT = 20_000  # characters of a text that are read
MAX_WARNINGS = 50  # different ones
NAMED = 8  # positions of non-finite numbers that an ending lists
LOW_BIT_FLOATS = 64  # floats whose lowest bits are recorded
FEW_ROWS = 16  # lists up to this length are read in order; the length of longer ones, and of tables, may be random
CODES = 16  # whole numbers from 0 on that are counted separately
BUCKETS = 64  # hash buckets that count rows by one or several columns
PAIRED = 5  # columns that are counted in pairs
GENERATOR = ", a generator of tables"  # end of the identity of code that generates tables
FEW_BYTES = 64  # longer bytes may have a random length
WIDE = 1 << 53  # largest integer up to which double precision holds all integers
UNKNOWN = "?"  # checksum of what cannot be read
UNREADABLE = "unreadable: "  # prefix of the ending of a call whose result holds an unreadable object


class Refused(Exception):
    """A request that cannot be carried out; its text is a sentence for the user."""


# Messages


def message(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    words = json.dumps(header).encode()
    return HEAD.pack(MARK, len(words), len(body), zlib.crc32(body, zlib.crc32(words))) + words + body


def plain(value: Any) -> Any:
    """Encode a setting for JSON, with tuples and dicts of any keys; the inverse is `unplain`."""
    if isinstance(value, tuple):
        return {"tuple": [plain(each) for each in value]}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(each)] for key, each in value.items()]}
    return value


def unplain(value: Any) -> Any:
    """Decode a setting from JSON."""
    if isinstance(value, list):
        return [unplain(each) for each in value]
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(unplain(each) for each in value["tuple"])
        return {unplain(key): unplain(each) for key, each in value["dict"]}
    return value


# Rows


class Column:
    """A column of a table: its words, or its numbers and the positions of missing ones."""

    def __init__(self, name: str, words: list[Any], numbers: Any = None, missing: Sequence[int] = ()) -> None:
        self.name, self._words, self.numbers, self.missing = name, words, numbers, list(missing)

    def values(self) -> list[Any]:
        """Return Python numbers or words, None for missing ones."""
        if self.numbers is None:
            return self._words
        values: list[Any] = self.numbers.tolist()
        for place in self.missing:
            values[place] = None
        return values

    def floats(self) -> Any:
        """Return a NumPy array of float64, NaN for missing numbers."""
        import numpy

        if self.numbers is None:
            raise Refused(
                f"rows in the form `array` must be numbers: column {self.name!r} holds words; "
                "choose the form `frame`, `arrow` or `records`"
            )
        floats = numpy.array(self.numbers, dtype=numpy.float64)
        floats[self.missing] = math.nan
        return floats

    def natural(self) -> Any:
        """Return pandas's input: an array of numbers (float64 if some are missing), or a list of words."""
        import numpy

        if self.numbers is None:
            return self.values()
        return self.floats() if self.missing else numpy.array(self.numbers)


def columns_of(header: Mapping[str, Any], body: bytes) -> list[Column]:
    """Decode the columns of a table."""
    columns, start = [], 0
    for column in header["columns"]:
        if column["kind"] == "words":
            columns.append(Column(column["name"], column["words"]))
            continue
        end = start + 8 * header["rows"]
        numbers = array("d" if column["kind"] == "float" else "q", body[start:end])
        columns.append(Column(column["name"], [], numbers, column["missing"]))
        start = end
    return columns


def _frame(columns: list[Column]) -> Callable[[], Any]:
    import pandas

    frame = pandas.DataFrame({column.name: column.natural() for column in columns})
    return frame.copy


def _arrow(columns: list[Column]) -> Callable[[], Any]:
    import pyarrow

    kinds = {"d": pyarrow.float64(), "q": pyarrow.int64()}
    arrays = {
        column.name: pyarrow.array(
            column.values(), pyarrow.string() if column.numbers is None else kinds[column.numbers.typecode]
        )
        for column in columns
    }
    table = pyarrow.table(arrays)
    return lambda: table  # tables are immutable


def _array(columns: list[Column]) -> Callable[[], Any]:
    import numpy

    rows = numpy.ascontiguousarray(numpy.stack([column.floats() for column in columns], axis=1))
    return rows.copy


def _records(columns: list[Column]) -> Callable[[], Any]:
    names = [column.name for column in columns]
    rows = [dict(zip(names, row)) for row in zip(*(column.values() for column in columns))]  # noqa: B905
    return lambda: [row.copy() for row in rows]


def _list(columns: list[Column]) -> Callable[[], Any]:
    if len(columns) != 1:
        names = ", ".join(column.name for column in columns)
        raise Refused(f"rows in the form `list` must be of one column, got {len(columns)}: {names}")
    return columns[0].values().copy


_ROWS: dict[str, Callable[[list[Column]], Callable[[], Any]]] = {
    "frame": _frame,
    "arrow": _arrow,
    "array": _array,
    "records": _records,
    "list": _list,
}


# Calls


_FOR_DEVELOPERS: list[Any] = [
    ("ignore", None, kind, None, 0)
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
]
"""Warnings that Python hides from users; some depend on when memory is freed."""


class AuditedFunction:
    """A function with its settings and the form of its rows.

    Each call gets separate copies of rows and settings, and a seeded generator: NumPy's, or `random.Random` if NumPy
    is missing. The global generators of Python, NumPy and torch are seeded as well.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        form: str,
        settings: Mapping[str, Any],
        timed: bool = False,
        generator: Mapping[str, Any] | None = None,
    ) -> None:
        """With `timed`, the duration of a call in seconds is added to its numbers.

        `generator` holds columns and count of the table of a generator (`GeneratorCalls`); it is None for a function.
        """
        self._outcome_reader: Callable[[Any], Any] = outcome_of
        if generator is not None:
            function = _next_to_this("generator_calls").GeneratorCalls(function, **generator)
            self._outcome_reader = lambda release: release.outcome(outcome_of)
        self._function, self._form, self._settings, self._timed = function, form, dict(settings), timed
        self._mutable_settings = not all(
            isinstance(value, (int, float, str, type(None))) for value in settings.values()
        )
        try:
            import numpy
        except ImportError:
            self._numpy: Any = None
        else:
            self._numpy = numpy

    def rows(self, columns: list[Column]) -> Callable[[], Any]:
        """Return a function that creates the rows of each call.

        Raises: Refused if the form cannot hold the rows, or its library is missing.
        """
        try:
            return _ROWS[self._form](columns)
        except ImportError as err:
            raise Refused(f"rows in the form `{self._form}` need a library that this Python lacks: {err}") from err
        except (MemoryError, OverflowError, ValueError) as err:  # not caused by the audited code
            raise Refused(f"rows in the form `{self._form}` cannot be made: {type(err).__name__}: {err}") from err

    def call(
        self, rows: Callable[[], Any], seed: int, passes: Callable[[BaseException], bool] = lambda err: False
    ) -> Summarised:
        """Call the function once; return what `outcome_of` returns, and what the call printed and wrote as unread.

        Low-bit numbers are last, after the duration and the numbers in warnings. An exception is an outcome too, unless
        `passes` is true for it, because the function did not raise it.
        """
        rng = self._seeded(seed)
        warned: dict[str, list[float]] = {}
        unread: list[list[str]] = []
        outputs = _side_outputs()
        with warnings.catch_warnings(), outputs.recorded(self._function):
            warnings.filters[:0] = _FOR_DEVELOPERS  # type: ignore[index]
            warnings.simplefilter("always", append=True)  # filters of the audited code come first

            def note(message: Any, category: Any, *others: Any, **more: Any) -> None:
                if len(warned) < MAX_WARNINGS:
                    words, numbers = without_numbers(_text_of(message))
                    warned.setdefault(f"{category.__name__}: {words}", numbers)

            warnings.showwarning = note
            began = time.perf_counter()
            try:
                settings = copy.deepcopy(self._settings) if self._mutable_settings else self._settings
                call_rows = rows()
                began = time.perf_counter()
                value = awaited(self._function(call_rows, rng, **settings))
                took = time.perf_counter() - began
                ending, numbers, fault, low_bits, unread = self._outcome_reader(value)
                ending = _bounded(ending)
                unread = unread + outputs.checksums(scan=value is None or isinstance(value, (bool, str, os.PathLike)))
            except BaseException as err:
                if passes(err):
                    raise
                took = time.perf_counter() - began
                ending, numbers, fault = outcome_of_exception(err)
                low_bits = 0
        numbers, last = numbers[: len(numbers) - low_bits], numbers[len(numbers) - low_bits :]
        if self._timed:
            numbers = [*numbers, took]
        if warned:
            ending = _bounded("; warns ".join([ending, *sorted(warned)]))
            for name in sorted(warned):
                numbers = numbers + warned[name]
        return Summarised(_writable(ending), numbers + last, _writable(fault), low_bits, unread)

    def _seeded(self, seed: int) -> Any:
        random.seed(seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(seed)
        if self._numpy is None:
            return random.Random(seed)
        self._numpy.random.seed(seed & 0xFFFFFFFF)
        return self._numpy.random.default_rng(seed)


# What came back


class Summarised(NamedTuple):
    """A result in words and numbers."""

    ending: str
    numbers: list[float]
    fault: str
    low_bits: int  # number of the last numbers that are low bits
    unread: list[list[str]]  # pairs of a description and a checksum


def outcome_of(value: Any) -> Summarised:
    """Return the ending of a call, its numbers, a fault, the number of low-bit numbers, and the unread parts.

    The ending holds the discrete part of the value and determines how many numbers there are. Numbers are flattened in
    a fixed order: a dict by sorted keys (and their positions in the dict unless it is sorted), a table as in `_rows`,
    an object by its `summary` (called if possible), else its public attributes, else its elements if it is iterable,
    else its private attributes, and by its state (`object_state`) if that left something out. Coroutines and futures
    are awaited, iterators are read, and so is a file that the call wrote and whose path it returned. Words in a
    sequence are numbered alphabetically and counted. Integers that double precision does not hold have parts of 24
    bits. Two low-bit numbers for each of the first 64 finite floats are the exponent of the lowest set bit, and its
    distance from the highest one; two for each decimal number or fraction are the digits that a float does not hold.
    Unread parts have a checksum, or UNKNOWN. It shows that results differ, not how.

    The ending begins with `UNREADABLE` if the value is or contains an unreadable object.

    Raises: exceptions of the value's methods and attributes.
    """
    return _Summary().outcome(value)


def awaited(value: Any) -> Any:
    """Return the result of a coroutine, future or other awaitable, or any other value unchanged.

    A pending future runs its event loop. If an event loop is running in this thread, as in a notebook, a coroutine
    runs in a loop of another thread.

    Raises: exceptions of the awaitable.
    """
    for _ in range(MAX_DEPTH):
        if isinstance(value, type):
            break
        if _is(value, "concurrent.futures", "Future"):
            value = value.result()
        elif _is(value, "asyncio", "Future"):
            pending = not value.done() and not value.get_loop().is_running()
            value = value.get_loop().run_until_complete(value) if pending else value.result()
        elif isinstance(value, Awaitable):
            value = _run(_result_of(value))
        else:
            break
    return value


async def _result_of(value: Awaitable[Any]) -> Any:
    return await value


async def _first_of(values: AsyncIterator[Any]) -> list[Any]:
    """Return the first elements of an asynchronous iterator, at most one more than `MAX_NUMBERS`."""
    elements: list[Any] = []
    async for element in values:
        elements.append(element)
        if len(elements) > MAX_NUMBERS:
            break
    return elements


def _run(coroutine: Any) -> Any:
    """Run a coroutine to its end in a new event loop and return its result."""
    import asyncio
    import concurrent.futures
    import threading

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(coroutine))
        except BaseException as err:
            outcome.set_exception(err)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result()


def outcome_of_exception(err: BaseException) -> tuple[str, list[float], str]:
    """Return ending, numbers and fault of a call that raised."""
    try:
        name, text = type(err).__name__, _text_of(err)
        words, numbers = without_numbers(text)
        return _bounded(f"raises {name}: {words}" if text else f"raises {name}"), numbers, f"{name}: {text}"[:500]
    except BaseException:  # such as a MemoryError again
        return "raises an exception that cannot be read", [], "it raised an exception that cannot be read"


_LARGEST = sys.float_info.max
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|(?:(?<!\w)[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def without_numbers(text: str) -> tuple[str, list[float]]:
    """Replace the numbers in a text by #, and return text and numbers; memory addresses are dropped, as they vary."""
    numbers: list[float] = []

    def replaced(match: re.Match[str]) -> str:
        if match.group().startswith("0x"):
            return "0x"
        numbers.append(_bounded_float(float(match.group())))
        return "#"

    return _NUMBER.sub(replaced, text[:MAX_TEXT]), numbers


def _text_of(thing: Any) -> str:
    try:
        return str(thing)[:MAX_TEXT]
    except Exception:
        return f"an object of {type(thing).__name__} that cannot be printed"


def _writable(text: str) -> str:
    """Escape surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _bounded(ending: str) -> str:
    if len(ending) <= MAX_ENDING:
        return ending
    return f"{ending[:MAX_ENDING]}... {hashlib.sha256(ending.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"


_TEXTS = (
    ("datetime", "date", "time", "timedelta"),
    ("enum", "Enum"),
    ("pathlib", "PurePath"),
    ("uuid", "UUID"),
    ("collections", "UserString"),
)


def _is(value: Any, library: str, *names: str) -> bool:
    """True if `value` is an instance of a class of a library; False if the library is not imported."""
    module = sys.modules.get(library)
    kinds = tuple(kind for kind in (getattr(module, name, None) for name in names) if isinstance(kind, type))
    return isinstance(value, kinds)


class _Summary:
    """Traverses a value, describes it in words and collects its numbers."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.floats: list[float] = []  # the first finite floats
        self._parts = MAX_PARTS
        self._inside: set[int] = set()
        self._unreadable: list[str] = []  # descriptions of unreadable objects
        self._digits: list[float] = []  # what floats leave out of decimal numbers and fractions
        self._wide: list[int] = []  # the first integers that double precision does not hold
        # descriptions of unread parts: UNKNOWN if they cannot be read at all, else ""
        self._unread: dict[str, str] = {}

    def outcome(self, value: Any) -> Summarised:
        ending = self.of(value)
        fault = f"it gave a {_kind_of_code(value)}" if isinstance(value, _CODE) else ""
        if self._unreadable:
            first = self._unreadable[0]
            ending = f"{UNREADABLE}{first}" if ending == f"<{first}>" else f"{UNREADABLE}{first}; in {ending}"
        if not math.isfinite(sum(self.numbers)):  # a cheap first check; large finite numbers may overflow
            words = self._not_finite()
            ending, fault = ending + words, "it gave numbers that are not finite" if words else fault
        if self._wide:
            parts = [_next_to_this("object_state").integer_parts(number) for number in self._wide]
            upto = max(map(len, parts))
            ending += f"; {len(parts)} integers above 2^53 of up to {upto} parts"
            for number, part in zip(self._wide, parts):  # noqa: B905
                self.numbers += part + [part[-1] if number < 0 else 0.0] * (upto - len(part))
        low_bits: list[float] = []
        for each in self.floats:
            above, below = each.as_integer_ratio()  # at least one of the two is odd
            above = abs(above)
            low = (above & -above).bit_length() - 1 if above else 0
            low_bits += (float(low + 1 - below.bit_length()), float(above.bit_length() - low))
        low_bits += self._digits
        unread = self._what_was_not_read(value)
        return Summarised(_bounded(ending), self.numbers + low_bits, fault, len(low_bits), unread)

    def _what_was_not_read(self, value: Any) -> list[list[str]]:
        """Return descriptions of the unread parts with the checksum of the pickled value, or of its text."""
        if value is None:
            return [["what a call that returns None does instead", UNKNOWN]]
        if len(self.numbers) >= MAX_NUMBERS or self._parts < 0:
            self._unread[f"what comes after the first {MAX_NUMBERS:,} numbers"] = ""
        if "" in self._unread.values():
            try:
                content = pickle.dumps(value, 4)
            except Exception:  # an object may raise anything
                content = without_numbers(repr(value))[0].encode("utf-8", "backslashreplace")
            checksum = f"{zlib.crc32(content):x}"
        return [[what, unknown or checksum] for what, unknown in self._unread.items()]

    def _not_finite(self) -> str:
        words = ""
        for name, is_so in (("nan", math.isnan), ("inf", lambda x: x == math.inf), ("-inf", lambda x: x == -math.inf)):
            places = [place for place, number in enumerate(self.numbers) if is_so(number)]
            if places:
                more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
                words += f"; {name} at {', '.join(map(str, places[:NAMED]))}{more}"
        self.numbers = [number for number in self.numbers if math.isfinite(number)]
        return words

    def _add(self, values: list[float], floats: bool) -> None:
        room = MAX_NUMBERS - len(self.numbers)
        values = values if len(values) <= room else values[:room]
        self.numbers += values
        room = LOW_BIT_FLOATS - len(self.floats)
        if floats and room > 0:
            self.floats += list(itertools.islice((value for value in values if math.isfinite(value)), room))

    def _add_integers(self, values: list[int]) -> None:
        self._add(list(map(_as_float, values)), False)
        wide = (value for value in values if not -WIDE <= value <= WIDE and not _is_exact_in_double(value))
        self._wide += itertools.islice(wide, LOW_BIT_FLOATS - len(self._wide))

    def of(self, value: Any) -> str:
        """Describe a value in words and collect its numbers."""
        kind = type(value)
        if kind is float:
            self._add([value], True)
            return "float"
        if kind is int or kind is bool:
            self._add_integers([value])
            return kind.__name__
        if value is None:
            return "None"
        self._parts -= 1
        if len(self._inside) >= MAX_DEPTH or self._parts < 0:
            return "..."
        if id(value) in self._inside:
            return "itself"
        self._inside.add(id(value))
        try:
            words = self._of_other(value, kind)
            kinds = (Mapping, Set, list, tuple, str, int, float, BaseException)
            attributes = getattr(value, "__dict__", None) if isinstance(value, kinds) else None
            return words + self._state(attributes, kind.__name__) if attributes else words
        finally:
            self._inside.discard(id(value))

    def _of_other(self, value: Any, kind: type) -> str:
        name = kind.__name__
        if isinstance(value, (str, os.PathLike)):
            content = _side_outputs().written(os.fsdecode(value))
            if content is not None:
                try:
                    return f"{name} of a file {self.of(content.decode())}"
                except UnicodeDecodeError:
                    return f"{name} of a file {self.of(content)}"
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                self._unread[f"what comes after the first {MAX_TEXT:,} characters"] = ""
            words, numbers = without_numbers(value)
            self._add(numbers, False)
            return f"{name} {words!r}"
        numpy_scalar = _is(value, "numpy", "generic") and not _is(value, "numpy", "void")
        if numpy_scalar or isinstance(value, (int, float, complex)):
            return self._scalar(value, name)
        if _is(value, "numpy", "ndarray"):
            return self._array(value, "" if name == "ndarray" else f"{name} ")
        if isinstance(value, (bytes, bytearray, memoryview)):
            return f"{name} {self._bytes(bytes(value))}"
        if isinstance(value, Mapping):
            return f"{name}{self._mapping(value)}"
        if isinstance(value, (list, tuple)):
            fields = getattr(value, "_fields", None)
            return f"{name}{f' {fields}' if fields else ''} {self._sequence(value, len(value))}"
        if isinstance(value, Set):
            return f"{name} {self._sequence(sorted(value, key=_key)[:MAX_NUMBERS], len(value))}"
        if _is(value, "pandas", "DataFrame"):
            return self._frame(value, name)
        if _is(value, "pandas", "Series"):
            return f"{name} {_text_of(value.name)} {self._index(value.index)}{self._series(value)}"
        if _is(value, "pandas", "Index"):
            return f"{name} {self._array(value.to_numpy(), '')}"
        return self._of_library(value, kind, name)

    def _of_library(self, value: Any, kind: type, name: str) -> str:
        if _is(value, "pyarrow", "Table", "RecordBatch"):
            columns = (f"{column}: {self._sequence(value.column(column).to_pylist())}" for column in value.column_names)
            return f"{name}{{{', '.join(columns)}}}"
        if _is(value, "pyarrow", "Array", "ChunkedArray"):
            return f"{name} {value.type} {self._sequence(value[:MAX_NUMBERS].to_pylist(), len(value))}"
        if _is(value, "pyarrow", "Scalar"):
            return f"{name} {self.of(value.as_py())}"
        if _is(value, "polars", "DataFrame"):
            return f"{name}{self._mapping(value.to_dict(as_series=False))}"
        if _is(value, "polars", "LazyFrame"):
            return f"{name}{self._mapping(value.collect().to_dict(as_series=False))}"
        if _is(value, "torch", "Tensor"):
            dense, kind_of_numbers = _next_to_this("object_state").dense(value), str(value.dtype)
            other = kind_of_numbers != f"torch.{dense.dtype}"
            return f"{kind_of_numbers + ' ' if other else ''}{self._array(dense, f'{name} ')}"
        if _is(value, "scipy.sparse", "spmatrix", "sparray"):
            sparse = value.tocoo()
            return f"{name} {value.shape} {self.of((sparse.row, sparse.col, sparse.data))}"
        if isinstance(value, _CODE):
            words, where = _kind_of_code(value), _import_name(value)
            if where:
                return f"{words} {where}"
            return self._unreadable_object(f"a {words} that cannot be imported by its name")
        if _is(value, "ctypes", "c_void_p", "_Pointer", "_CFuncPtr"):
            return name  # an address
        if isinstance(value, BaseException):
            return f"{name} {self.of(_text_of(value))}"
        result = awaited(value)
        if result is not value:
            return self.of(result)
        if isinstance(value, AsyncIterator):
            return f"{name} {self._sequence(_run(_first_of(value)))}"
        if isinstance(value, io.IOBase):
            return self._file(value, name)
        if isinstance(value, Iterator):
            sparse = list(itertools.islice(value, MAX_NUMBERS + 1))
            return f"{name} {self._sequence(sparse)}"
        if _is(value, "decimal", "Decimal") or _is(value, "fractions", "Fraction"):
            return f"{name}{self._exact(value)}"
        if _is(value, "enum", "Enum") and not _import_name(kind):
            return f"{name} {self.of(_text_of(value))} {self.of(value.value)}"
        if any(_is(value, library, *names) for library, *names in _TEXTS):
            return f"{name} {self.of(_text_of(value))}"
        if "numpy" in sys.modules and hasattr(kind, "__array__"):
            return self._array(sys.modules["numpy"].asarray(value), f"{name} ")
        if isinstance(value, (Sequence, ValuesView, ItemsView, array)):
            return f"{name} {self._sequence(list(itertools.islice(value, MAX_NUMBERS + 1)), len(value))}"
        return self._object(value, kind, name)

    def _scalar(self, value: Any, name: str) -> str:
        """Describe a NumPy number, or an instance of a subclass of a number."""
        python = value.item() if hasattr(value, "item") else value
        if isinstance(python, complex):
            self._add([python.real, python.imag], True)
        elif isinstance(python, int):
            self._add_integers([int(python)])
        elif isinstance(python, float) or _is(value, "numpy", "floating"):
            self._add([float(python)], True)
        else:
            return f"{name} {self.of(_text_of(python))}"
        return name

    def _exact(self, value: Any) -> str:
        """Collect a decimal number or a fraction; the digits that a float does not hold are low bits of it."""
        nearest = _as_float(value)
        self._add([nearest], True)
        rest: Any = 0
        if math.isfinite(nearest) and (nearest or not value):
            above, below = value.as_integer_ratio()
            if below == 1 and not _is_exact_in_double(above):
                self._add_integers([above])
                return " of a wide integer"
            rest = Fraction(above, below)
        for _ in range(2 if len(self._digits) < LOW_BIT_FLOATS else 0):
            rest = (rest - Fraction(float(rest))) * WIDE
            self._digits.append(_bounded_float(_as_float(rest)))
        return ""

    def _bytes(self, value: bytes) -> str:
        """Describe bytes; the length of many bytes may be random, so it is among the numbers, and the end is padded."""
        if len(value) <= FEW_BYTES:
            self._add(list(map(float, value)), False)
            return f"of {len(value)}"
        upto = min(1 << (len(value) - 1).bit_length(), MAX_NUMBERS - 1)
        self._add([float(len(value)), *map(float, value[:upto])] + [0.0] * (upto - len(value)), False)
        return f"of up to {upto}"

    def _array(self, value: Any, name: str) -> str:
        kind, words = value.dtype.kind, f"{name}{value.dtype} {tuple(value.shape)}"
        if kind == "V" and value.dtype.names:
            return f"{words}{{{', '.join(f'{field}: {self.of(value[field])}' for field in value.dtype.names)}}}"
        if hasattr(value, "mask"):  # masked values were not released
            return f"{words} {self._sequence(value.ravel()[:MAX_NUMBERS].tolist())}"
        flat = (value.A1 if name.startswith("matrix") else value.ravel())[:MAX_NUMBERS]
        if kind in "fiub":
            if kind in "iu" and value.dtype.itemsize == 8:
                self._add_integers(flat.tolist())
            else:
                self._add(flat.astype("float64").tolist(), kind == "f")
        elif kind == "c":
            self._add([part for each in flat.tolist() for part in (each.real, each.imag)], True)
        elif kind in "mM":
            self._add(flat.view("int64").astype("float64").tolist(), False)
        elif kind in "OUST":
            width = f"{name}words {tuple(value.shape)}" if kind == "U" else words
            return f"{width} {self._sequence(flat.tolist())}"
        return words

    def _frame(self, value: Any, name: str) -> str:
        unnamed = _is(value.index, "pandas", "RangeIndex")
        if unnamed or len(value) > FEW_ROWS:
            head = value.iloc[:MAX_NUMBERS, :MAX_NUMBERS]
            levels = [] if unnamed else [head.index.get_level_values(level) for level in range(head.index.nlevels)]
            columns_read = [*levels, *(head.iloc[:, place] for place in range(head.shape[1]))]
            if (many := self._rows([column.tolist() for column in columns_read], len(value))) is not None:
                kinds = ", ".join(f"{_text_of(column.name)}: {self._dtype(column)}" for column in columns_read)
                return f"{name} {{{kinds}}} {many}"
        columns = ", ".join(
            f"{_text_of(column)}: {self._series(value.iloc[:, place])}"
            for place, column in enumerate(value.columns[:MAX_NUMBERS])
        )
        return f"{name} {self._index(value.index)}{{{columns}}}"

    def _series(self, value: Any) -> str:
        return f"{self._dtype(value)} {self._array(value.to_numpy(), '')}"

    def _dtype(self, value: Any) -> str:
        categories = getattr(value.dtype, "categories", None)  # including unused ones
        return str(value.dtype) if categories is None else f"categories {self.of(list(categories))}"

    def _index(self, index: Any) -> str:
        return "" if _is(index, "pandas", "RangeIndex") else f"by {self._array(index.to_numpy(), '')} "

    def _mapping(self, value: Any) -> str:
        keys = sorted(value, key=_key) if len(value) <= MAX_NUMBERS else heapq.nsmallest(MAX_NUMBERS, value, key=_key)
        parts = []
        for key in keys:
            # A float key may be random. As a word it would make every ending different.
            words = self.of(key) if isinstance(key, float) or not isinstance(key, (str, int, tuple)) else repr(key)
            parts.append(f"{words}: {self.of(value[key])}")
        return f"{{{', '.join(parts)}}}{self._order(keys, value)}"

    def _order(self, keys: Sequence[Any], key_order: Iterable[Any]) -> str:
        """Collect the position of each of the sorted keys in another order, unless that order is sorted too."""
        places = {key: place for place, key in enumerate(key_order)}
        if len(places) != len(keys) or list(places) == keys:
            return ""
        self._add([float(places[key]) for key in keys], False)
        return " in another order"

    def _sequence(self, values: Any, length: int | None = None) -> str:
        """Describe the beginning of a list: words by their alphabetical positions, rows column by column."""
        length = len(values) if length is None else length
        values = values[:MAX_NUMBERS] if len(values) > MAX_NUMBERS else values
        kinds = set(map(type, values))
        if kinds == {float}:
            self._add(list(values), True)
            return f"of {length} float"
        if kinds == {int}:
            self._add_integers(list(values))
            return f"of {length} int"
        if len(values) > 1 and kinds == {bool}:
            return self._answers(values, length)
        if len(values) > 1 and str in kinds and kinds <= {str, type(None)}:
            return f"of {length} words {self._words(['None' if each is None else each for each in values])}"
        if len(values) > 1 and kinds == {dict} and all(list(row) == list(values[0]) for row in values):
            keys = sorted(values[0], key=_key)
            turned = [[row[key] for row in values] for key in keys]
            many = self._rows(turned, length) if length > FEW_ROWS else None
            if many is not None:
                words = [key if isinstance(key, str) else self.of(key) for key in keys]
                return f"{words} {many}{self._order(keys, values[0])}"
            in_order = {key: [row[key] for row in values] for key in values[0]}
            return f"of {length} rows {self._mapping(in_order)}"
        if len(values) > 1 and kinds == {tuple} and len({*map(len, values)}) == 1:
            turned = list(map(list, zip(*values)))  # noqa: B905
            many = self._rows(turned, length) if length > FEW_ROWS else None
            return many or f"of {length} rows {self._sequence(turned)}"
        runs = itertools.groupby(map(self.of, values))
        parts = ((words, sum(1 for _ in run)) for words, run in runs)
        return f"of {length} ({', '.join(words if count == 1 else f'{count} {words}' for words, count in parts)})"

    def _answers(self, values: list[bool], length: int) -> str:
        """Describe a list of booleans, whose length may be random: it is among the numbers, and the end is padded."""
        upto = max(FEW_ROWS, 1 << (length - 1).bit_length())
        room = min(upto, MAX_NUMBERS) - len(values)
        self._add([float(length), *map(float, values), *[0.0] * room], False)
        return f"of up to {upto} bool"

    def _rows(self, columns: list[list[Any]], length: int) -> str | None:
        """Describe rows in random number and order, so that tables of similar length give equally many numbers.

        The numbers are the number of rows, then sum and quartiles of each column, then how often values occur in single
        columns, pairs of columns and whole rows, then the rows, padded to the next power of two. Return None if a cell
        is no number, word or date.
        """
        if not columns:
            return None
        scalar = getattr(sys.modules.get("numpy"), "generic", ())
        numbers: list[list[float]] = []
        codes: list[list[int]] = []
        with_floats: list[int] = []
        for place, column in enumerate(columns):
            column = [each.item() if isinstance(each, scalar) else each for each in column]
            kinds = set(map(type, column))
            if not all(issubclass(kind, (int, float, str, type(None))) or hasattr(kind, "isoformat") for kind in kinds):
                return None
            if any(issubclass(kind, float) for kind in kinds):
                with_floats.append(place)  # one NaN object for all, because NaN is not equal to itself
                column = [math.nan if isinstance(each, float) and each != each else each for each in column]
            try:
                code = {each: _code(each) for each in set(column)}
            except TypeError:  # unhashable
                return None
            number = {each: _number(each, code[each]) for each in code}
            codes.append([code[each] for each in column])
            numbers.append([number[each] for each in column])
        self._add([float(length)], False)
        for column in numbers:
            ordered = sorted(column) or [0.0]
            self._add(
                [_bounded_float(sum(column)), *(ordered[(len(ordered) - 1) * part // 4] for part in range(5))], False
            )
        groups = [*((column,) for column in codes), *itertools.combinations(codes[:PAIRED], 2), codes]
        for salt, group in enumerate(groups):
            self._add(_in_buckets(group, salt), False)
        upto = max(FEW_ROWS, 1 << (length - 1).bit_length())
        for place, column in enumerate(numbers):
            self._add(column + [0.0] * (min(upto, MAX_NUMBERS) - len(column)), place in with_floats)
        return f"of up to {upto} rows of {len(columns)}, floats in {with_floats}"

    def _words(self, values: list[str]) -> list[str]:
        """Return the different words, sorted; collect the position of each value among them, and their counts."""
        words = sorted(set(values))
        places = {word: place for place, word in enumerate(words)}
        counts = Counter(values)
        self._add([float(places[each]) for each in values] + [float(counts[word]) for word in words], False)
        return words

    def _object(self, value: Any, kind: type, name: str) -> str:
        """Describe an object by its summary, or by its attributes or elements."""
        try:
            summary = getattr(value, "summary", None)
            summary = summary() if callable(summary) else summary
        except Exception:
            summary = None  # for example, it needs arguments
        if summary is not None:
            self._unread[f"the {name} objects outside of their `summary`"] = ""
            return f"{name} summary {self.of(summary)}"
        public, private = _attributes(value, kind)
        words, whole = self._attribute_words(value, kind, public)
        whole = whole and not private and _is_plain_class(kind)
        if words is None and isinstance(value, Iterable) and not _is(value, "torch.nn", "Module"):
            self._unread[f"the {name} objects besides their elements"] = ""
            return f"object {name} {self._sequence(list(itertools.islice(value, MAX_NUMBERS + 1)))}"
        if words is None:
            words, whole = self._attribute_words(value, kind, private)
        state = "" if whole else self._state(value, name)
        if words is None and not state:
            return self._unreadable_object(f"a {name} object without public attributes, slots or a `summary`")
        return f"object {name}{{{words or ''}}}{state}"

    def _state(self, value: Any, name: str) -> str:
        """Collect the numbers of an object's state; those of a network are its `state_dict`."""
        network = _is(value, "torch.nn", "Module")
        if network:  # hooks and caches of a network are not released with its weights
            self._unread[f"the {name} objects outside of their `state_dict`"] = ""
        state = _next_to_this("object_state").State(value.state_dict() if network else value, without_numbers)
        for what in dict.fromkeys(state.unread[:NAMED]):
            self._unread[f"{what} in the {name} objects"] = UNKNOWN
        numbers = state.padded(MAX_NUMBERS - len(self.numbers))
        self._add(numbers, False)
        return f" with a state of up to {len(numbers)} numbers" if numbers else ""

    def _attribute_words(self, value: Any, kind: type, attributes: Sequence[str]) -> tuple[str | None, bool]:
        """Describe the attributes of an object; None if all of them are unreadable. True if all of them were read.

        Attributes that are objects of another library are skipped, unless there is nothing else to read.
        """
        readable_values: dict[str, Any] = {}
        raised: dict[str, str] = {}
        for attribute in attributes:
            try:
                readable_values[attribute] = getattr(value, attribute)
            except Exception as err:
                raised[attribute] = f"raises {type(err).__name__}"
        any_plain = any(_is_plain(content) for content in readable_values.values())
        package = str(kind.__module__).partition(".")[0]
        words = dict(raised)
        readable = False
        for attribute, content in readable_values.items():
            if _is_plain(content):
                words[attribute] = self.of(content)
                readable = True
            elif not any_plain or package == str(type(content).__module__).partition(".")[0] != "builtins":
                unreadable, numbers = len(self._unreadable), len(self.numbers)
                try:
                    inner = self.of(content)
                except Exception:  # such as handles of compiled libraries
                    del self.numbers[numbers:]
                    continue
                if len(self._unreadable) == unreadable:
                    words[attribute] = inner
                    readable = True
                del self._unreadable[unreadable:]  # an object is unreadable only if all of its attributes are
        parts = [f"{attribute}: {words[attribute]}" for attribute in attributes if attribute in words]
        return ", ".join(parts) if readable else None, readable and len(words) == len(attributes)

    def _file(self, value: Any, name: str) -> str:
        """Describe the content of a file in memory or on disk."""
        if hasattr(value, "getvalue"):
            return f"{name} {self.of(value.getvalue())}"
        if value.closed or not value.readable() or not value.seekable():  # reading a pipe might never end
            return self._unreadable_object(f"a {name} that is closed, or not a file to read from")
        value.seek(0)
        content = value.read(MAX_TEXT)
        if len(content) == MAX_TEXT:
            self._unread["what comes after the beginning of files"] = ""
        return f"{name} {self.of(content)}"

    def _unreadable_object(self, description: str) -> str:
        """Record an unreadable object and return its description."""
        self._unreadable.append(description)
        return f"<{description}>"


def _is_plain_class(kind: type) -> bool:
    """True if a class was written in Python and leaves the pickled state of its objects to Python."""
    methods = ("__reduce_ex__", "__reduce__", "__getstate__")
    in_python = all(base.__flags__ & 1 << 9 for base in kind.__mro__[:-1])
    return in_python and all(getattr(kind, name, None) is getattr(object, name, None) for name in methods)


_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def _kind_of_code(value: Any) -> str:
    return "class" if isinstance(value, type) else "module" if isinstance(value, types.ModuleType) else "function"


def _import_name(value: Any) -> str:
    """Return the import path of code; "" for code defined at run time, which may hold any data."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    imported = sys.modules.get(module) if isinstance(module, str) else None
    for part in name.split("."):
        imported = getattr(imported, part, None)
    return f"{module}.{name}" if imported is value else ""


def _code(value: Any) -> int:
    """Return a code: small whole numbers themselves, `CODES` for other numbers, one more for NaN, a hash for words."""
    if isinstance(value, (int, float)):
        if value != value:
            return CODES + 1
        whole = value == value // 1 and value >= 0
        return int(min(value, CODES)) if whole else CODES
    return CODES + 2 + zlib.crc32(_text_of(value).encode("utf-8", "backslashreplace")) % (1 << 20)


def _number(value: Any, code: int) -> float:
    """Return numbers unchanged, dates as seconds or days, words by their code."""
    if isinstance(value, (int, float)):
        return _bounded_float(_as_float(value)) if value == value else float(code)
    for name in ("timestamp", "total_seconds", "toordinal"):
        try:
            seconds = float(getattr(value, name)())
        except Exception:  # not a date, or not a time
            continue
        if seconds == seconds:
            return _bounded_float(seconds)
    return float(code)


def _bounded_float(number: float) -> float:
    return max(-_LARGEST, min(number, _LARGEST))


def _in_buckets(columns: Sequence[list[int]], salt: int) -> list[float]:
    """Return the number of rows in each of `BUCKETS` hash buckets of their codes; `salt` changes the hash."""
    counts = [0.0] * BUCKETS
    for row, count in Counter(zip(*columns)).items():  # noqa: B905
        small = len(row) == 1 and row[0] <= CODES + 1
        place = row[0] if small else hash((salt, *row)) % BUCKETS  # hashes of integers are equal in all processes
        counts[place] += count
    return counts


_DESCRIPTORS = (property, types.GetSetDescriptorType, types.MemberDescriptorType)


def _attributes(value: Any, kind: type) -> tuple[list[str], list[str]]:
    """Return the names of an object's public attributes (or of its class's properties), and of its private ones."""
    try:
        names = {name for name in vars(value) if isinstance(name, str)}
    except Exception:
        names = set()
    names.update(copyreg._slotnames(kind))  # type: ignore[attr-defined]
    public = {name for name in names if _public(name)}
    if not public:
        public = {
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if _public(name) and isinstance(member, _DESCRIPTORS)
        }
    private = {name for name in names if not _public(name) and not name.startswith("__")}
    return sorted(public)[:MAX_NUMBERS], sorted(private)[:MAX_NUMBERS]


def _public(name: Any) -> bool:
    return isinstance(name, str) and not name.startswith("_")


def _is_plain(value: Any) -> bool:
    """True for numbers, arrays, text, containers and dataclasses."""
    plain_kinds = (int, float, complex, str, bytes, type(None), list, tuple, Mapping, Set)
    return isinstance(value, plain_kinds) or hasattr(type(value), "__array__") or hasattr(value, "__dataclass_fields__")


def _is_exact_in_double(number: int) -> bool:
    return bool(_as_float(number) == number)


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except ValueError:  # a signalling NaN of decimal
        return math.nan


def _key(thing: Any) -> tuple[str, Any]:
    """Return a sort key for values of mixed types: numbers by size, others by type and text."""
    if isinstance(thing, (int, float)):
        return "", thing
    return type(thing).__name__, thing if isinstance(thing, str) else _text_of(thing)


# The process


class _Pipes:
    """The pipes of requests and answers; the output of the audited code does not pass through them."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers, self._owner = requests, answers, os.getpid()

    def received(self) -> tuple[Mapping[str, Any], bytes]:
        mark, header_bytes, body_bytes, checksum = HEAD.unpack(self._read_bytes(HEAD.size))
        header, body = self._read_bytes(header_bytes), self._read_bytes(body_bytes)
        if mark != MARK or checksum != zlib.crc32(body, zlib.crc32(header)):
            raise SystemExit("a request is damaged: other code read from its pipe")
        return json.loads(header), body

    def _read_bytes(self, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            more = os.read(self._requests, min(count - len(content), 1 << 20))
            if not more:
                raise SystemExit(0)
            content += more
        return bytes(content)

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        if os.getpid() != self._owner:  # a process that the audited code forked returned from the call
            os._exit(0)
        unsent = memoryview(message(header, body))
        while unsent:
            unsent = unsent[os.write(self._answers, unsent) :]


def main(requests: int, answers: int, alive: int) -> None:
    """Serve requests until the pipe is closed."""
    for number in (requests, answers, alive):
        os.set_inheritable(number, False)
    # The system ends this process when the other end of the pipe is closed.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | fcntl.FASYNC)
    worker_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != worker_folder]
    line = _Pipes(requests, answers)
    request, _ = line.received()
    try:
        loaded, called = _load_function(request)
    except Refused as err:
        line.send({"refused": str(err)})
        return
    line.send({"ready": _identity(request["function"], loaded) if request["identity"] else ""})
    while True:
        request, body = line.received()
        try:
            rows = called.rows(columns_of(request, body))
        except Refused as err:
            line.send({"refused": str(err)})
            continue
        line.send({"ready": ""})
        for seed in request["seeds"]:
            ending, numbers, fault, low_bits, unread = called.call(rows, seed)
            header = {"ending": ending, "fault": fault, "low_bits": low_bits, "unread": unread}
            line.send(header, array("d", numbers).tobytes())


def _load_function(request: Mapping[str, Any]) -> tuple[Any, AuditedFunction]:
    """Return the imported code, and the function that calls it."""
    sys.path[:0] = request["path"]
    module, _, name = request["function"].partition(":")
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except BaseException as err:  # a module may raise anything during its import
        raise Refused(f"{request['function']} cannot be imported: {type(err).__name__}: {_text_of(err)[:300]}") from err
    if request["generator"] is None and not callable(function) and not request["identity"]:
        raise Refused(f"{request['function']} must be a function, got an object of {type(function).__name__}")
    settings = unplain(request["settings"])
    called = AuditedFunction(function, request["form"], settings, request["timed"], request["generator"])
    called.rows([Column("x", [], array("d", [0.0]))])  # imports the form's library, or raises Refused
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if request["memory_bytes"] is not None:
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                loaded = int(file.read().split()[0]) * resource.getpagesize()  # libraries too
        except OSError:  # not Linux
            loaded = 0
        most = loaded + request["memory_bytes"]
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    return function, called


def _next_to_this(file: str) -> Any:
    """Return a module next to this file, without a folder of ours in the search path."""
    name = f"dpaudit_{file}"
    if name not in sys.modules:
        place = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{file}.py")
        location = importlib.util.spec_from_file_location(name, place)
        assert location is not None
        assert location.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(location)
        location.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@lru_cache(maxsize=1)
def _side_outputs() -> Any:
    """Return the record of printed text and files, one for each process."""
    return _next_to_this("side_outputs").SideOutputs()


def _identity(function: str, code: Any) -> str:
    """Return this Python's version, the SHA-256 of the function's file, and its distribution with version.

    The last word is `GENERATOR` for code that generates tables.
    """
    from importlib import metadata

    name = function.partition(":")[0]
    words = f"Python {sys.version.split()[0]}"
    file = getattr(sys.modules[name], "__file__", None)
    if file and os.path.exists(file):
        with open(file, "rb") as content:
            words += f", {name} {hashlib.sha256(content.read()).hexdigest()}"
    top = name.partition(".")[0]
    by_package: Mapping[str, list[str]] = getattr(metadata, "packages_distributions", dict)()
    for distribution in sorted(set(by_package.get(top, [top]))):
        try:
            words += f", {distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return words + (GENERATOR if _next_to_this("generator_calls").is_generator(code) else "")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
