"""What data sets of texts with a class share: fields, the numbers of words, and rows that are refused."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.delimited import Layout, line_of
from dpaudit.engine.data.files import fault, reading
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with a class each, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder of the parts' files, or one of the files.
        part: Which part; a path that is a file is read whatever the part.
        rows: At most this many rows, from the start; all when None.
        length: Words kept of a text, >= 1; shorter ones are padded with 0.
        vocabulary: Numbers there are, padding's 0 among them, in 2 .. 2^24; that of the model.
        raw: A table with one column of texts instead, for models with a tokenizer of their own.
    """

    path: str = field(metadata=PATH)
    part: str = "train"
    rows: int | None = None
    length: int = 64
    vocabulary: int = 16384
    raw: bool = False
    parts: ClassVar[Any]

    def __post_init__(self) -> None:
        *others, last = (repr(part) for part in self.parts)
        require(self.part in self.parts, f"part must be {', '.join(others)} or {last}", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(self.length >= 1, "length must be >= 1", length=self.length)
        require(2 <= self.vocabulary <= 2**24, "vocabulary must be in 2..2^24", vocabulary=self.vocabulary)

    def examples(
        self, texts: pa.ChunkedArray, labels: pa.ChunkedArray, *, column: str, name: str, classes: tuple[str, ...]
    ) -> Examples:
        """The texts in the form that was asked for.

        Args:
            texts: n texts.
            labels: Numbers of their classes, shape (n,).
            column: What a column of raw texts is called.
            name: Of the data set.
            classes: Their names.
        """
        features: Features
        if self.raw:
            features = pa.table({column: texts})
        else:
            features = word_numbers(texts.to_pylist(), length=self.length, vocabulary=self.vocabulary)
        numbers = labels.cast(pa.int64()).to_numpy()
        categorical = (column,) if self.raw else ()
        return Examples(features, numbers, len(classes), name, categorical=categorical, class_names=classes)


def require_texts(
    path: Path, layout: Layout, table: pa.Table, *, text: str, label: str, known: pa.Array, must: str
) -> None:
    """Refuses a row without a text, or of another class.

    Raises: DataError naming the line and the column.
    """
    for column, good, rule in (
        (text, pc.is_valid(table[text]), "must be a text, is empty"),
        (label, pc.is_in(table[label], value_set=known), must),
    ):
        odd = pc.index(good, False).as_py()
        if odd >= 0:
            got = "" if column == text else f", got {table[label][odd].as_py()!r}"
            raise fault(path, f"{rule}{got}", line=line_of(path, layout, odd), column=column, do="correct the row")


def word_numbers(texts: list[str], *, length: int, vocabulary: int) -> NDArray[np.float32]:
    """Hashed words of texts, 1 .. vocabulary - 1, and 0 behind their ends; shape (n, length).

    Words are what blanks separate, in lower case. A word's number is a hash of its letters, so it depends on no other
    text: nothing of the data is looked at beforehand. Two words may share one.
    """
    numbers = np.zeros((len(texts), length), np.float32)
    known: dict[str, int] = {}
    for row, text in enumerate(texts):
        for place, word in enumerate(text.lower().split()[:length]):
            number = known.get(word)
            if number is None:
                number = known[word] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
            numbers[row, place] = number
    return numbers


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
