"""AG News: topics of news articles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.engine.data import delimited
from dpaudit.engine.data.delimited import Layout
from dpaudit.engine.data.files import existing, find
from dpaudit.engine.data.text.labelled_texts import LabelledTexts, require_texts
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

PARTS = {"train": ("train.csv", "train_sample.tsv"), "test": ("test.csv",)}
TOPICS = ("World", "Sports", "Business", "Sci/Tech")


@register("data", "ag-news", source="Zhang, Zhao, LeCun (2015), arXiv:1509.01626, after the AG corpus of Gulli")
@dataclass(frozen=True)
class AgNews(LabelledTexts):
    """News articles by topic, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        path: The folder with `train.csv` and `test.csv` (class from 1, title, description), plain, .gz or .xz,
            or one of the files. A file .tsv (description, name of the class) is read too.
        part: "train" or "test"; a path that is a file is read whatever the part.
        raw: A table with the one text column `text` instead, for models with a tokenizer of their own.
        titles: Whether a text begins with the article's title; files .tsv have none.
    """

    titles: bool = False
    parts: ClassVar[Any] = PARTS

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
        must = f"must be one of {', '.join(known.to_pylist())}"
        require_texts(path, layout, table, text="description", label="class", known=known, must=must)
        texts = table["description"]
        if self.titles:
            texts = pc.binary_join_element_wise(pc.fill_null(table["title"], ""), texts, ". ")
        labels = pc.index_in(table["class"], value_set=known)
        return self.examples(texts, labels, column="text", name="ag-news", classes=TOPICS)
