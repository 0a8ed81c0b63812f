"""Text files of one example a line: its class, a separator, and a text that is neither quoted nor cut any further."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pyarrow as pa

from dpaudit.engine.data.files import fault, reading


def headed_lines(
    path: Path, *, separator: str, numbers: Mapping[str, int], rows: int | None, after: str = ""
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The texts and the numbers of their classes, of the first `rows` lines or all; blank lines are passed over.

    A line that is not UTF-8 is read as Latin-1, as some of TREC's are.

    Raises: DataError with the line where one has no class that is known, or no text.
    """
    found = list(islice(_lines(path, separator, numbers, after), rows))
    if not found:
        raise fault(path, "has no rows")
    texts, labels = zip(*found, strict=True)
    return pa.chunked_array([pa.array(texts)]), pa.chunked_array([pa.array(labels)])


def _lines(path: Path, separator: str, numbers: Mapping[str, int], after: str) -> Iterator[tuple[str, int]]:
    with reading(path) as file:
        for number, raw in enumerate(file, start=1):
            line = _decoded(raw).strip()
            if not line:
                continue
            head, _, text = line.partition(separator)
            if head.strip() not in numbers:
                must = f"must begin with one of {', '.join(numbers)}, got {head[:40]!r}"
                raise fault(path, must, line=number, do="correct the line")
            text = text.partition(after)[2] if after else text
            if not text.strip():
                raise fault(path, "must be a text, is empty", line=number, do="correct the line")
            yield " ".join(text.split()), numbers[head.strip()]


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
