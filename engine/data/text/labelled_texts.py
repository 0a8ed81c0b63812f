"""What data sets of texts with a class share: fields, the numbers of words, and rows that are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.consent import PATH
from dpaudit.engine.data.delimited import Layout, line_of
from dpaudit.engine.data.files import fault
from dpaudit.engine.data.text.word_numbers import word_numbers
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
