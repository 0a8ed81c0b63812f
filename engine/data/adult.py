"""The UCI census-income data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.engine.data.columns import examples_of, numbers
from dpaudit.engine.data.delimited import Layout, first_record, read_texts
from dpaudit.engine.data.files import PublishedParts
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)


@register("data", "adult", source="UCI Adult, Kohavi and Becker (1996)")
@dataclass(frozen=True)
class Adult(PublishedParts):
    """Census records of 1994 in UCI's files `adult.data` and `adult.test`, plain, .gz or .xz; classes by income.

    There are six numeric and eight categorical columns. The sign `?` means missing and becomes 'unknown'.

    Attributes:
        path: The folder, or one of the files.
    """

    parts: ClassVar[Any] = {"train": ("adult.data",), "test": ("adult.test",)}

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and, if known, the line and column.
        """
        path = self.file()
        layout = _layout(path)
        adults = read_texts(path, layout, rows=self.rows)
        table = adults.columns
        # The labels of the official test part end in a full stop.
        income = pc.utf8_rtrim(table["income"], characters=".")
        odd = pc.index(pc.is_in(income, value_set=pa.array(["<=50K", ">50K"])), False).as_py()
        if odd >= 0:
            raise adults.refuse(
                odd, "income", f"must be '<=50K' or '>50K', got {income[odd].as_py()!r}", "correct the cell"
            )
        table = table.set_column(len(COLUMNS), "income", income)
        words = set(COLUMNS) - set(NUMERIC)
        return examples_of(table, numbers, adults.refuse, place=path, label="income", categorical=words, name="adult")


def _layout(path: Path) -> Layout:
    cells, end = first_record(path, delimiter=",", quoted=False)
    remark = cells[0].startswith("|")  # the first line of the official test part
    return Layout((*COLUMNS, "income"), quoted=False, skip=end if remark else 0, missing=("?",))
