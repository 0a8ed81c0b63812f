"""The UCI census-income data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.consent import PATH
from dpaudit.engine.data import delimited
from dpaudit.engine.data.columns import Column, examples_of, numbers
from dpaudit.engine.data.delimited import Layout, first_record, line_of
from dpaudit.engine.data.files import existing, fault, find
from dpaudit.errors import DataError, require
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
FILES = {"train": "adult.data", "test": "adult.test"}


@register("data", "adult", source="UCI Adult, Kohavi and Becker (1996)")
@dataclass(frozen=True)
class Adult:
    """Census records of 1994: is the income above 50K? Six numeric columns, eight categorical ones (sex, race, ...).

    Read from UCI's `adult.data` and `adult.test`, plain, .gz or .xz. The sign `?` means missing and becomes 'unknown'.

    Attributes:
        path: The folder, or one of the files.
        part: "train" or "test"; a path that is a file is read whatever the part.
        rows: At most this many rows, from the start; all when None.
    """

    path: str = field(metadata=PATH)
    part: str = "train"
    rows: int | None = None

    def __post_init__(self) -> None:
        require(self.part in FILES, "part must be 'train' or 'test'", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the file; `seed` is not used.

        Raises: DataError naming the file, and the line and column where there is one.
        """
        where = existing(self.path)
        path = find(where, FILES[self.part]) if where.is_dir() else where
        layout = _layout(path)
        table = delimited.read(path, layout, rows=self.rows)
        # The labels of the official test part end in a full stop.
        income = pc.utf8_rtrim(table["income"], characters=".")

        def refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
            line = None if row is None else line_of(path, layout, row)
            return fault(path, problem, line=line, column=column, do=do)

        def typed(column: pa.ChunkedArray, name: str) -> Column:
            return numbers(column, name, refuse) if name in NUMERIC else column.combine_chunks()

        odd = pc.index(pc.is_in(income, value_set=pa.array(["<=50K", ">50K"])), False).as_py()
        if odd >= 0:
            raise refuse(odd, "income", f"must be '<=50K' or '>50K', got {income[odd].as_py()!r}", "correct the cell")
        table = table.set_column(len(COLUMNS), "income", income)
        return examples_of(table, typed, refuse, label="income", drop=(), name="adult")


def _layout(path: Path) -> Layout:
    cells, end = first_record(path, delimiter=",", quoted=False)
    remark = cells[0].startswith("|")  # the official test part opens with one
    return Layout((*COLUMNS, "income"), quoted=False, skip=end if remark else 0, missing=("?",))
