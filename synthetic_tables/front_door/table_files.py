"""Tables of a synthetic audit from files or from the caller's memory, as data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dpaudit.engine.data.in_memory import frame, is_frame
from dpaudit.engine.data.table_files import FORMATS, read_cells
from dpaudit.errors import DataError
from dpaudit.variables import expand_path


def data_frame(source: object, role: str) -> pd.DataFrame:
    """Return a table as a data frame with a fresh index and texts as column names.

    Args:
        source: Path of a file, a pandas DataFrame, an Arrow table, a frame with the Arrow interface, or a mapping of
            columns.
        role: Name of the table in messages: "training".
    Raises: DataError, in one sentence, for anything else and for unreadable files.
    """
    if isinstance(source, str | Path):
        return _from_file(Path(source))
    if isinstance(source, pd.DataFrame):
        renamed = source.reset_index(drop=True)
        renamed.columns = pd.Index([_text(name) for name in source.columns])
        return renamed
    if is_frame(source) or isinstance(source, Mapping):
        return _as_pandas(frame(source))
    raise DataError(
        f"the {role} table must be a path ({FORMATS}), a data frame, an Arrow table or a mapping of columns, got "
        f"{type(source).__name__}"
    )


def synthetic_frames(source: object) -> list[pd.DataFrame]:
    """Return one or several synthetic tables of the same fit."""
    several = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not several:
        raise DataError("at least one synthetic table must be given, got none")
    return [data_frame(table, "synthetic") for table in several]


def _as_pandas(table: pa.Table) -> pd.DataFrame:
    converted: pd.DataFrame = table.to_pandas()
    return converted


def _text(name: Any) -> str:
    return "-".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _from_file(path: Path) -> pd.DataFrame:
    file = expand_path(str(path))
    if not file.exists():
        raise DataError(f"{path} must be a table ({FORMATS}), but it does not exist")
    if file.is_dir():
        raise DataError(f"{path} must be a file ({FORMATS}), got a folder; name one file")
    return _as_pandas(read_cells(file)[0])
