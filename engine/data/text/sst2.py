"""SST-2: sentiment of phrases of film reviews, in the tab-separated files of GLUE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from dpaudit.engine.data import delimited
from dpaudit.engine.data.delimited import Layout, first_record
from dpaudit.engine.data.files import existing, fault, find
from dpaudit.engine.data.text.labelled_texts import LabelledTexts, require_texts
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

PARTS = ("train", "dev", "test")
COLUMNS = ("sentence", "label")
SENTIMENTS = ("negative", "positive")


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
    parts: ClassVar[Any] = PARTS

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line and column where there is one.
        """
        where = existing(self.path)
        path = find(where, f"{self.part}.tsv") if where.is_dir() else where
        layout = _layout(path)
        table = delimited.read(path, layout, rows=self.rows)
        known = pa.array(["0", "1"])
        require_texts(path, layout, table, text="sentence", label="label", known=known, must="must be 0 or 1")
        return self.examples(table["sentence"], table["label"], column="sentence", name="sst-2", classes=SENTIMENTS)


def _layout(path: Path) -> Layout:
    cells, end = first_record(path, delimiter="\t", quoted=False)
    if "sentence" in cells and tuple(cells) != COLUMNS:
        do = "GLUE's own test part has no labels; take train or dev"
        raise fault(path, f"must have the columns sentence and label, has {', '.join(cells)}", line=end, do=do)
    return Layout(COLUMNS, delimiter="\t", quoted=False, skip=end if tuple(cells) == COLUMNS else 0)
