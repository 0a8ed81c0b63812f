"""Tables of a synthetic audit from files or from the caller's memory, as data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpaudit.consent import expand_path
from dpaudit.engine.data.delimited import Text
from dpaudit.engine.data.frames import is_frame
from dpaudit.engine.data.table_files import FORMATS, read_table
from dpaudit.errors import DataError


def data_frame(source: object, role: str) -> pd.DataFrame:
    """Return a table as a data frame with a fresh index and texts as column names.

    Args:
        source: Path of a file, a pandas DataFrame, an Arrow table, a frame with the Arrow interface, or a mapping of
            columns.
        role: Name of the table in messages: "training".
    Raises: DataError, in one sentence, for anything else and for unreadable files.
    """
    if isinstance(source, pd.DataFrame):
        names: list[Any] = source.columns.tolist()  # tuples of levels too
        renamed = source.reset_index(drop=True)
        renamed.columns = pd.Index(
            ["-".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in names]
        )
        return renamed
    if isinstance(source, str | Path):
        source = expand_path(str(source))
        if source.is_dir():
            raise DataError(f"{source} must be a file ({FORMATS}), got a folder; name one file")
    elif not (is_frame(source) or isinstance(source, Mapping)):
        raise DataError(
            f"the {role} table must be a path ({FORMATS}), a data frame, an Arrow table or a mapping of columns, got "
            f"{type(source).__name__}"
        )
    frame: pd.DataFrame = read_table(source, text=Text()).columns.to_pandas()
    return frame


def synthetic_frames(source: object) -> list[pd.DataFrame]:
    """Return one or several synthetic tables of the same fit."""
    several = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not several:
        raise DataError("at least one synthetic table must be given, got none")
    return [data_frame(table, "synthetic") for table in several]
