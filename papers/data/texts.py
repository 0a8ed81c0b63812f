"""Texts with a class, as published: AG News, DBpedia (Zhang, Zhao, LeCun, 2015) and TREC (Li and Roth, 2002)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.engine.data.columns import fault
from dpaudit.engine.data.delimited import Layout
from dpaudit.engine.data.files import reading
from dpaudit.engine.data.texts import LabelledTexts
from dpaudit.errors import require


@dataclass(frozen=True)
class AgNews(LabelledTexts):
    """News articles by topic, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, description), plain, .gz or .xz,
            or one of the files. A .tsv file (description, name of the class) is accepted too.
        titles: True to start each text with the article's title; .tsv files have none.
    """

    titles: bool = False
    parts: ClassVar[Any] = {"train": ("train.csv", "train_sample.tsv"), "test": ("test.csv",)}
    title: ClassVar[str] = "ag-news"
    classes: ClassVar[tuple[str, ...]] = ("World", "Sports", "Business", "Sci/Tech")

    def _texts_and_labels(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        tabbed = ".tsv" in path.suffixes
        require(not (tabbed and self.titles), "titles must be false for a file .tsv, which has none")
        columns = ("description", "class") if tabbed else ("class", "title", "description")
        class_names = self.classes if tabbed else [str(number) for number in range(1, len(self.classes) + 1)]
        must = f"must be one of {', '.join(class_names)}"
        table, labels = self._table(
            path, Layout(columns, "\t" if tabbed else ","), "description", "class", class_names, must
        )
        return _after_titles(table, "description") if self.titles else table["description"], labels


_THINGS = (
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


@dataclass(frozen=True)
class DBpedia(LabelledTexts):
    """Abstracts of encyclopedia articles by the kind of thing, 14 kinds, as word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, abstract, both in quotes), or one of the
            files, plain, .gz or .xz. Two other forms are accepted too. A line of a .csv without quotes is a class from
            0, a comma, an abstract. A line of a .tsv with a heading is "title | abstract", a tab, a class from 0.
        part: "train", "dev" or "test"; ignored if the path is a file.
        titles: True to start each text with the article's title; files without quotes have none.
    """

    titles: bool = False
    parts: ClassVar[Any] = {
        "train": ("train.csv", "train_14k.csv", "titled_train.tsv"),
        "dev": ("titled_dev.tsv",),
        "test": ("test.csv", "titled_test.tsv"),
    }
    title: ClassVar[str] = "dbpedia"
    classes: ClassVar[tuple[str, ...]] = _THINGS

    def _texts_and_labels(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        if ".tsv" in path.suffixes:
            table, labels = self._numbered(path, Layout(("text", "class"), "\t", quoted=False, skip=1), first=0)
            parts = [text.partition(" | ") for text in table["text"].to_pylist()]
            texts = [f"{title}. {abstract}" if self.titles else abstract or title for title, _, abstract in parts]
            return pa.chunked_array([pa.array(texts)]), labels
        if _quoted(path):
            table, labels = self._numbered(path, Layout(("class", "title", "text")), first=1)
            return _after_titles(table, "text") if self.titles else table["text"], labels
        require(not self.titles, "titles must be false for a file without quotes, which has none")
        numbers = {str(number): number for number in range(len(self.classes))}
        return _headed_lines(path, self.rows, separator=",", numbers=numbers)

    def _numbered(self, path: Path, layout: Layout, *, first: int) -> tuple[pa.Table, pa.ChunkedArray]:
        class_numbers = [str(number) for number in range(first, first + len(self.classes))]
        return self._table(
            path, layout, "text", "class", class_numbers, f"must be one of {class_numbers[0]} to {class_numbers[-1]}"
        )


def _quoted(path: Path) -> bool:
    """True if the text of the first line is in quotes, as in the official files."""
    with reading(path) as file:
        return file.readline(200).partition(b",")[2].lstrip().startswith(b'"')


def _after_titles(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return the texts of a column, each after its title."""
    return pc.binary_join_element_wise(pc.fill_null(table["title"], ""), table[column], ". ")


@dataclass(frozen=True)
class Trec(LabelledTexts):
    """Questions by the kind of their answer, six kinds, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train_5500.label` and `TREC_10.label`, plain, .gz or .xz, or one of the files. A line is
            a kind, a colon, a finer kind that is ignored, a blank, the question.
    """

    length: int = 32
    parts: ClassVar[Any] = {"train": ("train_5500.label", "train.txt"), "test": ("TREC_10.label", "test.txt")}
    title: ClassVar[str] = "trec"
    classes: ClassVar[tuple[str, ...]] = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")

    def _texts_and_labels(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        numbers = {kind: number for number, kind in enumerate(self.classes)}
        return _headed_lines(path, self.rows, separator=":", numbers=numbers, after=" ")


def _headed_lines(
    path: Path, rows: int | None, *, separator: str, numbers: Mapping[str, int], after: str = ""
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the texts of lines that begin with a class, and the number of the class; skip blank lines.

    A line that is not UTF-8 is read as Latin-1, as some of TREC's are.
    """
    pairs = list(islice(_lines(path, separator, numbers, after), rows))
    if not pairs:
        raise fault(path, "has no rows")
    texts, labels = zip(*pairs, strict=True)
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
