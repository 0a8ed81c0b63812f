"""AG News: topics of news articles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.engine.data import delimited
from dpaudit.engine.data.delimited import Layout, line_of
from dpaudit.engine.data.files import existing, fault, find
from dpaudit.engine.data.word_numbers import word_numbers
from dpaudit.errors import DataError, require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

PARTS = {"train": ("train.csv", "train_sample.tsv"), "test": ("test.csv",)}
TOPICS = ("World", "Sports", "Business", "Sci/Tech")


@register("data", "ag-news", source="Zhang, Zhao, LeCun (2015), arXiv:1509.01626, after the AG corpus of Gulli")
@dataclass(frozen=True)
class AgNews:
    """News articles by topic, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, description), plain, .gz or .xz,
            or one of the files. A file .tsv (description, name of the class) is read too.
        part: "train" or "test"; a path that is a file is read whatever the part.
        rows: At most this many rows, from the start; all when None.
        titles: Whether a text begins with the article's title; files .tsv have none.
        length: Words kept of a text, >= 1; shorter ones are padded with 0.
        vocabulary: Numbers there are, padding's 0 among them, in 2 .. 2^24; that of the model.
        raw: A table with the one text column `text` instead, for models with a tokenizer of their own.
    """

    path: str
    part: str = "train"
    rows: int | None = None
    titles: bool = False
    length: int = 64
    vocabulary: int = 16384
    raw: bool = False

    def __post_init__(self) -> None:
        require(self.part in PARTS, "part must be 'train' or 'test'", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(self.length >= 1, "length must be >= 1", length=self.length)
        require(2 <= self.vocabulary <= 2**24, "vocabulary must be in 2..2^24", vocabulary=self.vocabulary)

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line and column where there is one.
        """
        where = existing(self.path)
        path = find(where, *PARTS[self.part]) if where.is_dir() else where
        tabbed = ".tsv" in path.suffixes
        require(not (tabbed and self.titles), "titles must be false for a file .tsv, which has none")
        columns = ("description", "class") if tabbed else ("class", "title", "description")
        layout = Layout(columns, "\t" if tabbed else ",")
        table = delimited.read(path, layout, rows=self.rows)
        known = pa.array(TOPICS if tabbed else [str(number) for number in range(1, len(TOPICS) + 1)])
        _require_values(path, layout, table, known)
        texts = table["description"]
        if self.titles:
            texts = pc.binary_join_element_wise(pc.fill_null(table["title"], ""), texts, ". ")
        features: Features
        if self.raw:
            features = pa.table({"text": texts})
        else:
            features = word_numbers(texts.to_pylist(), length=self.length, vocabulary=self.vocabulary)
        labels = pc.index_in(table["class"], value_set=known).cast(pa.int64()).to_numpy()
        categorical = ("text",) if self.raw else ()
        return Examples(features, labels, len(TOPICS), "ag-news", categorical=categorical, class_names=TOPICS)


def _require_values(path: Path, layout: Layout, table: pa.Table, known: pa.Array) -> None:
    for column, good, must in (
        ("description", pc.is_valid(table["description"]), "must be a text, is empty"),
        ("class", pc.is_in(table["class"], value_set=known), f"must be one of {', '.join(known.to_pylist())}"),
    ):
        odd = pc.index(good, False).as_py()
        if odd >= 0:
            raise _wrong(path, layout, table, odd, column, must)


def _wrong(path: Path, layout: Layout, table: pa.Table, row: int, column: str, must: str) -> DataError:
    got = "" if column == "description" else f", got {table[column][row].as_py()!r}"
    return fault(path, f"{must}{got}", line=line_of(path, layout, row), column=column, do="correct the row")
