"""Files of a table with a column of class labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dpaudit.consent import PATH
from dpaudit.engine.data.columns import Convert, NamedTable, detect, examples_of, fault, numbers, typed
from dpaudit.engine.data.delimited import Layout, Text, first_record, read_texts
from dpaudit.engine.data.files import PublishedParts, existing_file
from dpaudit.engine.data.table_files import read_parquet, read_table
from dpaudit.errors import DataError, RunError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@dataclass(frozen=True)
class LabelledFile:
    """Base of files with a column of class labels.

    Attributes:
        path: The file.
        label: Name of the label column.
        rows: Largest number of rows, from the start; None for all.
        categorical: Numeric columns that hold codes.
        drop: Columns to ignore, such as row numbers.
    """

    path: str = field(metadata=PATH)
    label: str
    rows: int | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def _examples(self, reader: Callable[[Path], NamedTable], convert: Convert) -> Examples:
        path = existing_file(self.path)
        table = reader(path)
        if not len(table.columns):
            raise fault(path, "has no rows")
        return examples_of(
            table.columns,
            convert,
            table.refuse,
            place=path,
            label=self.label,
            categorical=self.categorical,
            drop=self.drop,
            name=Path(self.path).name,
        )


@register("data", "csv", source="RFC 4180, any delimiter")
@dataclass(frozen=True)
class Csv(LabelledFile):
    """A CSV or TSV file with a column of class labels, or any other file of a table that `rows` reads.

    A column is numeric if all its cells in the whole file are numbers, otherwise categorical. A missing number becomes
    its column's mean, a missing category 'unknown'. This imputation uses the features of all rows that are read. If all
    features are numeric, they are a float32 array, unscaled; otherwise an Arrow table. Labels become 0 .. K - 1 in
    numeric or alphabetic order.

    Attributes:
        delimiter: Separator of the cells of a text; another usual one if the first line does not hold it.
        header: True if the first line names the columns; otherwise they are column-1, column-2, ...
        missing: Cells of a text that stand for a missing value, as for `rows`.
    """

    delimiter: str = ","
    header: bool = True
    missing: tuple[str, ...] = ("", "?")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.delimiter) == 1, "delimiter must be one character", delimiter=self.delimiter)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and, if known, the line and column.
        """
        text = Text(self.delimiter, self.header, self.missing)
        return self._examples(lambda path: read_table(path, text=text, rows=self.rows), detect)


@register("data", "parquet", source="Apache Parquet")
@dataclass(frozen=True)
class Parquet(LabelledFile):
    """A Parquet file with a column of class labels.

    Number columns are numeric; text, dictionary and boolean columns are categorical. Missing values, the type of the
    features and the order of classes are as for `csv`.
    """

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and, if known, the row and column.
        """
        try:
            return self._examples(lambda path: NamedTable(str(path), read_parquet(path, self.rows)), typed)
        except RunError as err:
            raise DataError(f"{err}; ask for fewer `rows`") from err


NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
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
        cells, end = first_record(path, delimiter=",", quoted=False)
        remark = cells[0].startswith("|")  # the first line of the official test part
        layout = Layout((*COLUMNS, "income"), quoted=False, skip=end if remark else 0, missing=("?",))
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
