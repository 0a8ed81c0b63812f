"""DBpedia: abstracts of encyclopedia articles by the kind of thing they are about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.engine.data import delimited
from dpaudit.engine.data.delimited import Layout
from dpaudit.engine.data.files import existing, find, reading
from dpaudit.engine.data.text.labelled_texts import LabelledTexts, headed_lines, require_texts
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

PARTS = {
    "train": ("train.csv", "train_14k.csv", "titled_train.tsv"),
    "dev": ("titled_dev.tsv",),
    "test": ("test.csv", "titled_test.tsv"),
}
KINDS = (
    "Company",
    "EducationalInstitution",
    "Artist",
    "Athlete",
    "OfficeHolder",
    "MeanOfTransportation",
    "Building",
    "NaturalPlace",
    "Village",
    "Animal",
    "Plant",
    "Album",
    "Film",
    "WrittenWork",
)
BAR = " | "


@register("data", "dbpedia", source="Zhang, Zhao, LeCun (2015), arXiv:1509.01626, after DBpedia's ontology")
@dataclass(frozen=True)
class DBpedia(LabelledTexts):
    """Abstracts of encyclopedia articles by the kind of thing, 14 kinds, as word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, abstract, both in quotes), or one of the
            files, plain, .gz or .xz. Two other forms are read too: a .csv without quotes, where a line is a class from
            0, a comma, an abstract; and a .tsv with a heading, where it is "title | abstract", a tab, a class from 0.
        part: "train", "dev" or "test"; a path that is a file is read whatever the part.
        raw: A table with the one text column `text` instead, for models with a tokenizer of their own.
        titles: Whether a text begins with the article's title; files without quotes have none.
    """

    titles: bool = False
    parts: ClassVar[Any] = PARTS

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line and column where there is one.
        """
        where = existing(self.path)
        path = find(where, *PARTS[self.part]) if where.is_dir() else where
        if ".tsv" in path.suffixes:
            texts, labels = self._titled(path)
        elif _quoted(path):
            texts, labels = self._official(path)
        else:
            require(not self.titles, "titles must be false for a file without quotes, which has none")
            numbers = {str(number): number for number in range(len(KINDS))}
            texts, labels = headed_lines(path, separator=",", numbers=numbers, rows=self.rows)
        return self.examples(texts, labels, column="text", name="dbpedia", classes=KINDS)

    def _official(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        table, labels = self._read(path, Layout(("class", "title", "text")), first=1)
        texts = table["text"]
        if self.titles:
            texts = pc.binary_join_element_wise(pc.fill_null(table["title"], ""), texts, ". ")
        return texts, labels

    def _titled(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        table, labels = self._read(path, Layout(("text", "class"), "\t", quoted=False, skip=1), first=0)
        parts = [text.partition(BAR) for text in table["text"].to_pylist()]
        texts = [f"{title}. {abstract}" if self.titles else abstract or title for title, _, abstract in parts]
        return pa.chunked_array([pa.array(texts)]), labels

    def _read(self, path: Path, layout: Layout, *, first: int) -> tuple[pa.Table, pa.ChunkedArray]:
        table = delimited.read(path, layout, rows=self.rows)
        known = pa.array([str(number) for number in range(first, first + len(KINDS))])
        must = f"must be one of {known[0]} to {known[-1]}"
        require_texts(path, layout, table, text="text", label="class", known=known, must=must)
        return table, pc.index_in(table["class"], value_set=known)


def _quoted(path: Path) -> bool:
    """Whether the first line's text is in quotes, as in the official files."""
    with reading(path) as file:
        return file.readline(200).partition(b",")[2].lstrip().startswith(b'"')
