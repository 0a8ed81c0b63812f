"""TREC: questions by the kind of their answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpaudit.engine.data.files import existing, find
from dpaudit.engine.data.text.labelled_texts import LabelledTexts, headed_lines
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

PARTS = {"train": ("train_5500.label", "train.txt"), "test": ("TREC_10.label", "test.txt")}
KINDS = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")


@register("data", "trec", source="Li and Roth (2002), Learning Question Classifiers")
@dataclass(frozen=True)
class Trec(LabelledTexts):
    """Questions by the kind of their answer, six kinds, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train_5500.label` and `TREC_10.label` (each line a kind, a colon, a finer kind that is
            not read, a blank, the question), plain, .gz or .xz, or one of the files.
        part: "train" or "test"; a path that is a file is read whatever the part.
        raw: A table with the one text column `text` instead, for models with a tokenizer of their own.
    """

    length: int = 32
    parts: ClassVar[Any] = PARTS

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line where there is one.
        """
        where = existing(self.path)
        path = find(where, *PARTS[self.part]) if where.is_dir() else where
        numbers = {kind: number for number, kind in enumerate(KINDS)}
        texts, labels = headed_lines(path, separator=":", numbers=numbers, rows=self.rows, after=" ")
        return self.examples(texts, labels, column="text", name="trec", classes=KINDS)
