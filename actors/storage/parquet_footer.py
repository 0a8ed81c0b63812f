"""What the footer of a Parquet file says of its size, read here: pyarrow's own look at a damaged one ends the process.

The footer is a struct of Thrift's compact protocol. Nothing in it is believed but numbers that are compared with a
limit.

Source: parquet.thrift and FORMAT.md of apache/parquet-format; compact-protocol.md of apache/thrift.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

MOST_BYTES = 8 << 20
"""Of a footer."""

_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 8}
"""Bytes of a value in memory by its physical type: boolean, three integers, two floats, and where a text begins."""
_TEXT, _FIXED = 6, 7
_SCHEMA, _ROWS, _GROUPS = 2, 3, 4
"""Numbers of the fields of a file; those of its parts are beside where they are read."""


@dataclass(frozen=True)
class ColumnSize:
    """One column of one row group.

    Attributes:
        path: Its name, with those of what it lies in before it.
        values: How many it has.
        width: Bytes of each in memory, texts aside.
        unpacked: Bytes of its pages, unpacked.
        text: Whether it holds texts.
    """

    path: str
    values: int
    width: int
    unpacked: int
    text: bool


@dataclass(frozen=True)
class Footer:
    """The sizes that a Parquet file tells.

    Attributes:
        rows: Of the table.
        columns: Of all row groups.
    """

    rows: int
    columns: tuple[ColumnSize, ...]


def read_footer(file: IO[bytes]) -> Footer:
    """The footer of an open Parquet file.

    Raises: ValueError when it is none that can be read.
    """
    try:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        length, magic = struct.unpack("<I4s", file.read(8))
        if magic != b"PAR1" or not 0 < length <= min(MOST_BYTES, size - 8):
            raise ValueError("it has no footer, or one that is too long")
        file.seek(size - 8 - length)
        return _footer(_Thrift(file.read(length)).struct())
    except (IndexError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as err:
        raise ValueError("its footer is none") from err


def _footer(told: dict[int, Any]) -> Footer:
    leaves = [element for element in told[_SCHEMA] if not element.get(5)]  # elements without children
    columns = tuple(column for group in told[_GROUPS] for column in _columns(group, leaves))
    return Footer(_count(told[_ROWS]), columns)


def _columns(group: dict[int, Any], leaves: list[dict[int, Any]]) -> Iterator[ColumnSize]:
    for chunk, leaf in zip(group[1], leaves, strict=True):
        about = chunk[3]
        kind = about[1]
        width = _count(leaf.get(2, 0)) if kind == _FIXED else _WIDTHS[kind]
        path = b".".join(about[3]).decode()
        values = max(_count(about[5]), _count(group[3]))
        yield ColumnSize(path, values, width, _count(about[6]), kind == _TEXT)


def _count(number: int) -> int:
    if number < 0:
        raise ValueError("it counts below zero")
    return number


class _Thrift:
    """Values of the compact protocol, one after the other; structs are dictionaries from a field's number."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        self._readers: dict[int, Callable[[], Any]] = {
            3: self._byte,
            4: self._number,
            5: self._number,
            6: self._number,
            7: lambda: self._bytes(8),
            8: lambda: self._bytes(self._varint()),
            9: self._list,
            10: self._list,
            11: self._map,
            12: self.struct,
        }

    def struct(self) -> dict[int, Any]:
        """A struct up to its end."""
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            found[field] = kind == 1 if kind in (1, 2) else self._readers[kind]()
        return found

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._content):
            raise IndexError
        return self._content[self._at - count : self._at]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 128:
            number |= (byte & 127) << shift
            shift += 7
        if shift > 63:
            raise ValueError("it holds a number of more than 64 bits")
        return number | byte << shift

    def _number(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _list(self) -> list[Any]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        read = self._byte if head & 15 in (1, 2) else self._readers[head & 15]
        return [read() for _ in range(count)]

    def _map(self) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        for _ in range(count):
            for kind in (kinds >> 4, kinds & 15):
                self._byte() if kind in (1, 2) else self._readers[kind]()
