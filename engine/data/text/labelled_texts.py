"""Texts with a class, as they are published: AG News, DBpedia, SST-2 and TREC."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.engine.data import delimited
from dpaudit.engine.data.delimited import Layout, first_record, line_of
from dpaudit.engine.data.files import PublishedParts, fault, reading
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register


@dataclass(frozen=True)
class LabelledTexts(PublishedParts, ABC):
    """Texts with a class each, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        length: Words kept of a text, >= 1; shorter ones are padded with 0.
        vocabulary: Numbers there are, padding's 0 among them, in 2 .. 2^24; that of the model.
        raw: A table with the one text column `text` instead, for models with a tokenizer of their own.
    """

    length: int = 64
    vocabulary: int = 16384
    raw: bool = False
    title: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    column: ClassVar[str] = "text"  # of raw texts

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= 1, "length must be >= 1", length=self.length)
        require(2 <= self.vocabulary <= 2**24, "vocabulary must be in 2..2^24", vocabulary=self.vocabulary)

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line and column where there is one.
        """
        texts, labels = self._read(self.file())
        features: Features
        if self.raw:
            features = pa.table({self.column: texts})
        else:
            features = word_numbers(texts.to_pylist(), length=self.length, vocabulary=self.vocabulary)
        numbers = labels.cast(pa.int64()).to_numpy()
        categorical = (self.column,) if self.raw else ()
        return Examples(features, numbers, len(self.classes), self.title, categorical, self.classes)

    @abstractmethod
    def _read(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """The texts and the numbers of their classes."""

    def _table(
        self, path: Path, layout: Layout, text: str, label: str, known: Sequence[str], must: str
    ) -> tuple[pa.Table, pa.ChunkedArray]:
        """The rows, each with a text, and the numbers of their classes: places in what is known."""
        table, names = delimited.read(path, layout, rows=self.rows), pa.array(known)
        for column, good, rule in (
            (text, pc.is_valid(table[text]), "must be a text, is empty"),
            (label, pc.is_in(table[label], value_set=names), must),
        ):
            odd = pc.index(good, False).as_py()
            if odd >= 0:
                got = "" if column == text else f", got {table[label][odd].as_py()!r}"
                raise fault(path, f"{rule}{got}", line=line_of(path, layout, odd), column=column, do="correct the row")
        return table, pc.index_in(table[label], value_set=names)

    def _headed_lines(
        self, path: Path, *, separator: str, numbers: Mapping[str, int], after: str = ""
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """The texts of lines that begin with a class, and its number; blank lines are passed over.

        A line that is not UTF-8 is read as Latin-1, as some of TREC's are.
        """
        found = list(islice(_lines(path, separator, numbers, after), self.rows))
        if not found:
            raise fault(path, "has no rows")
        texts, labels = zip(*found, strict=True)
        return pa.chunked_array([pa.array(texts)]), pa.chunked_array([pa.array(labels)])


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


@register("data", "ag-news", source="Zhang, Zhao, LeCun (2015), arXiv:1509.01626, after the AG corpus of Gulli")
@dataclass(frozen=True)
class AgNews(LabelledTexts):
    """News articles by topic, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, description), plain, .gz or .xz,
            or one of the files. A file .tsv (description, name of the class) is read too.
        titles: Whether a text begins with the article's title; files .tsv have none.
    """

    titles: bool = False
    parts: ClassVar[Any] = {"train": ("train.csv", "train_sample.tsv"), "test": ("test.csv",)}
    title: ClassVar[str] = "ag-news"
    classes: ClassVar[tuple[str, ...]] = ("World", "Sports", "Business", "Sci/Tech")

    def _read(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        tabbed = ".tsv" in path.suffixes
        require(not (tabbed and self.titles), "titles must be false for a file .tsv, which has none")
        columns = ("description", "class") if tabbed else ("class", "title", "description")
        known = self.classes if tabbed else [str(number) for number in range(1, len(self.classes) + 1)]
        must = f"must be one of {', '.join(known)}"
        table, labels = self._table(path, Layout(columns, "\t" if tabbed else ","), "description", "class", known, must)
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


@register("data", "dbpedia", source="Zhang, Zhao, LeCun (2015), arXiv:1509.01626, after DBpedia's ontology")
@dataclass(frozen=True)
class DBpedia(LabelledTexts):
    """Abstracts of encyclopedia articles by the kind of thing, 14 kinds, as word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, abstract, both in quotes), or one of the
            files, plain, .gz or .xz. Two other forms are read too: a .csv without quotes, where a line is a class from
            0, a comma, an abstract; and a .tsv with a heading, where it is "title | abstract", a tab, a class from 0.
        part: "train", "dev" or "test"; a path that is a file is read whatever the part.
        titles: Whether a text begins with the article's title; files without quotes have none.
    """

    titles: bool = False
    parts: ClassVar[Any] = {
        "train": ("train.csv", "train_14k.csv", "titled_train.tsv"),
        "dev": ("titled_dev.tsv",),
        "test": ("test.csv", "titled_test.tsv"),
    }
    title: ClassVar[str] = "dbpedia"
    classes: ClassVar[tuple[str, ...]] = _THINGS

    def _read(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
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
        return self._headed_lines(path, separator=",", numbers=numbers)

    def _numbered(self, path: Path, layout: Layout, *, first: int) -> tuple[pa.Table, pa.ChunkedArray]:
        known = [str(number) for number in range(first, first + len(self.classes))]
        return self._table(path, layout, "text", "class", known, f"must be one of {known[0]} to {known[-1]}")


def _quoted(path: Path) -> bool:
    """Whether the first line's text is in quotes, as in the official files."""
    with reading(path) as file:
        return file.readline(200).partition(b",")[2].lstrip().startswith(b'"')


def _after_titles(table: pa.Table, column: str) -> pa.ChunkedArray:
    """The texts of a column, each after its title."""
    return pc.binary_join_element_wise(pc.fill_null(table["title"], ""), table[column], ". ")


@register("data", "sst-2", source="Socher et al. (2013); the form of GLUE")
@dataclass(frozen=True)
class Sst2(LabelledTexts):
    """Phrases of film reviews, positive or negative, as rows of word numbers (n, length).

    Words are what blanks separate, in lower case. A word's number is a hash of its letters, so it depends on no other
    text: nothing of the data is looked at beforehand, which DP-SGD's claim would not cover. Two words may share one.

    Attributes:
        path: The folder with `train.tsv`, `dev.tsv` or `test.tsv`, plain, .gz or .xz, or one of the files. A heading
            `sentence, label` is optional; quotes are letters like any other.
        part: "train", "dev" or "test" (with labels, which GLUE's own test part lacks); a path that is a file is read
            whatever the part.
        raw: A table with the one text column `sentence` instead, for models with a tokenizer of their own.
    """

    length: int = 32
    vocabulary: int = 4096
    parts: ClassVar[Any] = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
    title: ClassVar[str] = "sst-2"
    classes: ClassVar[tuple[str, ...]] = ("negative", "positive")
    column: ClassVar[str] = "sentence"

    def _read(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        columns = ("sentence", "label")
        cells, end = first_record(path, delimiter="\t", quoted=False)
        headed = tuple(cells) == columns
        if "sentence" in cells and not headed:
            do = "GLUE's own test part has no labels; take train or dev"
            raise fault(path, f"must have the columns sentence and label, has {', '.join(cells)}", line=end, do=do)
        layout = Layout(columns, delimiter="\t", quoted=False, skip=end if headed else 0)
        table, labels = self._table(path, layout, *columns, ("0", "1"), "must be 0 or 1")
        return table["sentence"], labels


@register("data", "trec", source="Li and Roth (2002), Learning Question Classifiers")
@dataclass(frozen=True)
class Trec(LabelledTexts):
    """Questions by the kind of their answer, six kinds, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train_5500.label` and `TREC_10.label` (each line a kind, a colon, a finer kind that is
            not read, a blank, the question), plain, .gz or .xz, or one of the files.
    """

    length: int = 32
    parts: ClassVar[Any] = {"train": ("train_5500.label", "train.txt"), "test": ("TREC_10.label", "test.txt")}
    title: ClassVar[str] = "trec"
    classes: ClassVar[tuple[str, ...]] = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")

    def _read(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        numbers = {kind: number for number, kind in enumerate(self.classes)}
        return self._headed_lines(path, separator=":", numbers=numbers, after=" ")
