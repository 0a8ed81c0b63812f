"""SST-2: sentiment of phrases of film reviews, in the tab-separated files of GLUE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.engine.data import delimited
from dpaudit.engine.data.delimited import Layout, first_record, line_of
from dpaudit.engine.data.files import existing, fault, find
from dpaudit.engine.data.word_numbers import word_numbers
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

PARTS = ("train", "dev", "test")
COLUMNS = ("sentence", "label")
SENTIMENTS = ("negative", "positive")


@register("data", "sst-2", source="Socher et al. (2013); the form of GLUE")
@dataclass(frozen=True)
class Sst2:
    """Phrases of film reviews, positive or negative, as rows of word numbers (n, length).

    Words are what blanks separate, in lower case. A word's number is a hash of its letters, so it depends on no other
    text: nothing of the data is looked at beforehand, which DP-SGD's claim would not cover. Two words may share one.

    Attributes:
        path: The folder with `train.tsv`, `dev.tsv` or `test.tsv`, plain, .gz or .xz, or one of the files. A heading
            `sentence, label` is optional; quotes are letters like any other.
        part: "train", "dev" or "test" (with labels, which GLUE's own test part lacks); a path that is a file is read
            whatever the part.
        rows: At most this many rows, from the start; all when None.
        length: Words kept of a text, >= 1; shorter ones are padded with 0.
        vocabulary: Numbers there are, padding's 0 among them, in 2 .. 2^24; that of the model.
        raw: A table with the one text column `sentence` instead, for models with a tokenizer of their own.
    """

    path: str
    part: str = "train"
    rows: int | None = None
    length: int = 32
    vocabulary: int = 4096
    raw: bool = False

    def __post_init__(self) -> None:
        require(self.part in PARTS, "part must be 'train', 'dev' or 'test'", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(self.length >= 1, "length must be >= 1", length=self.length)
        require(2 <= self.vocabulary <= 2**24, "vocabulary must be in 2..2^24", vocabulary=self.vocabulary)

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line and column where there is one.
        """
        where = existing(self.path)
        path = find(where, f"{self.part}.tsv") if where.is_dir() else where
        layout = _layout(path)
        table = delimited.read(path, layout, rows=self.rows)
        _require_values(path, layout, table)
        features: Features
        if self.raw:
            features = table.select(["sentence"])
        else:
            features = word_numbers(table["sentence"].to_pylist(), length=self.length, vocabulary=self.vocabulary)
        labels = table["label"].cast(pa.int64()).to_numpy()
        categorical = ("sentence",) if self.raw else ()
        return Examples(features, labels, 2, "sst-2", categorical=categorical, class_names=SENTIMENTS)


def _layout(path: Path) -> Layout:
    cells, end = first_record(path, delimiter="\t", quoted=False)
    if "sentence" in cells and tuple(cells) != COLUMNS:
        do = "GLUE's own test part has no labels; take train or dev"
        raise fault(path, f"must have the columns sentence and label, has {', '.join(cells)}", line=end, do=do)
    return Layout(COLUMNS, delimiter="\t", quoted=False, skip=end if tuple(cells) == COLUMNS else 0)


def _require_values(path: Path, layout: Layout, table: pa.Table) -> None:
    known = pc.is_in(table["label"], value_set=pa.array(["0", "1"]))
    for column, good, must in (
        ("sentence", pc.is_valid(table["sentence"]), "must be a text, is empty"),
        ("label", known, "must be 0 or 1"),
    ):
        odd = pc.index(good, False).as_py()
        if odd >= 0:
            got = "" if column == "sentence" else f", got {table['label'][odd].as_py()!r}"
            raise fault(path, f"{must}{got}", line=line_of(path, layout, odd), column=column, do="correct the row")
