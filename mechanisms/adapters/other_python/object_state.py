"""The content of an object as numbers: private attributes, slots, the state of compiled objects; from Python 3.8 on.

An object is taken apart as `pickle` does it, breadth first, by `__reduce_ex__`. A part that cannot be pickled is taken
apart by a method that exports it, by its attributes or by its elements. Like `worker`, which loads this file, it
imports only the standard library.
"""

from __future__ import annotations

import contextlib
import copyreg
import itertools
import math
import sys
import types
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

LIMB = 24  # bits of an integer in one number, which single precision holds exactly
MAX_NUMBERS = 1 << 16  # of a state; those of the arrays after them are added up
MAX_PARTS = 50_000  # of an object that are read
EXPORTS = ("state_dict", "save_raw", "model_to_string", "tobytes", "serialize", "to_bytes", "__getstate__")
"""Methods that export the content of an object that cannot be pickled, in the order in which they are tried."""
_WITHOUT_DATA = {"lock", "RLock", "ellipsis", "NotImplementedType", "code", "c_void_p", "_Pointer", "_CFuncPtr"}
_CLASS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_LARGEST = 3.0e38


class State:
    """The numbers in an object and in all objects that it refers to.

    Attributes:
        numbers: All numbers in the order in which they were found, texts as checksums; the last is a sum of the others.
        unread: Classes of the parts that cannot be read.
    """

    def __init__(self, value: Any, text_parts: Callable[[str], tuple[str, list[float]]]) -> None:
        """`text_parts` returns the words and the numbers in a text."""
        self.numbers: list[float] = []
        self.unread: list[str] = []
        self._text_parts, self._rest, self._words, self._content = text_parts, 0.0, 0, False
        self._queue: deque[Any] = deque([value])
        self._seen: dict[int, Any] = {}  # the values too, so that their addresses are not used again
        for _ in range(MAX_PARTS):
            if not self._queue:
                break
            self._read_value(self._queue.popleft())
        if self._queue:
            self.unread.append(f"more than {MAX_PARTS:,} parts")

    def padded(self, room: int) -> list[float]:
        """Return the number of numbers, words and sum, then the numbers padded to a power of two; [] for no content."""
        if not self._content or room < 20:
            return []
        numbers = [number for number in self.numbers if math.isfinite(number)]
        upto = min(max(16, 1 << (len(numbers) - 1).bit_length()), room - 3)
        total = _bounded(math.fsum(numbers) + self._rest)
        head = [float(len(numbers)), float(self._words % (1 << LIMB)), total]
        return head + [*map(_bounded, numbers[:upto])] + [0.0] * (upto - len(numbers))

    def _add(self, numbers: Iterable[float], words: str = "", *, content: bool = True) -> None:
        room = MAX_NUMBERS - len(self.numbers)
        if room > 0:
            self.numbers += itertools.islice(numbers, room)
        self._words = zlib.crc32(words.encode("utf-8", "backslashreplace"), self._words)
        self._content |= content

    def _read_value(self, value: Any) -> None:
        if value is None or isinstance(value, (bool, float, Fraction)):
            self._add([] if value is None else [float(value)], str(type(value)), content=value is not None)
        elif isinstance(value, int):
            self._add(integer_parts(int(value)))
        elif isinstance(value, str):
            words, numbers = self._text_parts(value)
            self._add([float(zlib.crc32(words.encode("utf-8", "backslashreplace")) % (1 << LIMB)), *numbers])
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            try:
                self._read_parts(value)
            except Exception:  # an object may raise anything
                self._unread(value)

    def _read_parts(self, value: Any) -> None:
        if isinstance(value, _CLASS):
            self._read_code(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            self._add(map(float, bytes(value[:MAX_NUMBERS])), str(len(value)))
            self._rest += zlib.crc32(bytes(value)) % (1 << LIMB)
        elif type(value) in (list, tuple):
            self._queue.extend(value)
        elif type(value) is dict or isinstance(value, types.MappingProxyType):
            self._queue.extend(itertools.chain.from_iterable(value.items()))
        elif isinstance(value, (set, frozenset)):
            self._queue.extend(sorted(value, key=str))
        elif not self._read_array(value):
            self._read_object(value)

    def _read_array(self, value: Any) -> bool:
        """Read an array of real numbers or a tensor; return False for other values."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
            value = dense(value)
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
            return False
        if value.dtype.kind not in "fiub":
            return False
        flat, room = numpy.ravel(value), max(0, MAX_NUMBERS - len(self.numbers))
        self._add(flat[:room].astype("float64").tolist(), f"{value.dtype} {value.shape}")
        self._rest += _bounded(float(flat[room:].astype("float64").sum()))
        return True

    def _read_code(self, value: Any) -> None:
        """Read a class, a function or a module: its name, and the values that it was made with."""
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
        self._add([], name, content=False)
        if isinstance(value, types.MethodType):
            self._queue.extend((value.__self__, value.__func__))
        elif isinstance(value, types.FunctionType) and "<l" in value.__qualname__:  # a local function or a lambda
            cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
            self._queue.extend((*cells, value.__defaults__, value.__kwdefaults__, vars(value)))
            self._queue.extend(const for const in value.__code__.co_consts if isinstance(const, (int, float, tuple)))
        elif isinstance(value, type) and "<l" in value.__qualname__:
            members = (member for key, member in vars(value).items() if not key.startswith("__"))
            self._queue.extend(getattr(each, "fget", getattr(each, "__func__", each)) for each in members)
        elif isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType):
            self._queue.append(value.__self__)

    def _read_object(self, value: Any) -> None:
        """Read an object as `pickle` does; if that fails, by its exports, its attributes or its elements."""
        names = {base.__name__ for base in type(value).__mro__}
        if isinstance(value, weakref.ReferenceType) or names & _WITHOUT_DATA:
            return
        try:
            self._read_reduced(value)
            return
        except Exception:
            exported = _exported(value)
        if exported is not None:
            self._queue.append(exported)
        elif attributes := attributes_of(value):
            self._queue.append(attributes)
        elif isinstance(value, Iterable):
            self._queue.append(list(itertools.islice(value, MAX_NUMBERS)))
        else:
            self._unread(value)

    def _read_reduced(self, value: Any) -> None:
        reduce = copyreg.dispatch_table.get(type(value))
        parts: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(parts, str):
            self._add([], parts, content=False)
            return
        make, arguments, state, elements, items = [*parts, None, None, None][:5]
        self._queue.extend((make, *arguments, state))
        self._queue.extend(itertools.islice(elements or (), MAX_NUMBERS))
        self._queue.extend(itertools.chain.from_iterable(itertools.islice(items or (), MAX_NUMBERS)))

    def _unread(self, value: Any) -> None:
        self._words = zlib.crc32(type(value).__name__.encode(), self._words)
        self.unread.append(f"a {type(value).__name__} object")


def _exported(value: Any) -> Any:
    for name in EXPORTS:
        with contextlib.suppress(Exception):  # there is no such method, or it needs arguments
            exported = getattr(value, name)()
            if exported is not None:
                return exported
    with contextlib.suppress(TypeError):
        return memoryview(value)
    return None


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the attributes and slots of an object that cannot be pickled."""
    names = {name for base in type(value).__mro__ for name in copyreg._slotnames(base)}  # type: ignore[attr-defined]
    slots = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
    return {**slots, **getattr(value, "__dict__", {})}


def integer_parts(number: int) -> list[float]:
    """Return an integer, or its parts of `LIMB` bits, lowest first, if double precision does not hold it exactly."""
    if number.bit_length() < 1_024 and int(float(number)) == number:
        return [float(number)]
    parts = 1 << (number.bit_length() // LIMB).bit_length()
    return [float((number >> (LIMB * part)) & ((1 << LIMB) - 1)) for part in range(parts)]


def dense(tensor: Any) -> Any:
    """Return the numbers of a tensor of torch as an array of NumPy."""
    tensor = tensor.detach().cpu()
    tensor = tensor.to_dense() if str(tensor.layout) != "torch.strided" else tensor
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    narrow = str(tensor.dtype).startswith(("torch.bfloat", "torch.float8"))  # NumPy lacks these
    return (tensor.float() if narrow else tensor).resolve_conj().numpy()


def _bounded(number: float) -> float:
    return max(-_LARGEST, min(number, _LARGEST)) if number == number else 0.0
