"""Tables of a synthetic audit from files or from the caller's memory, as data frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.engine.data.delimited import Layout, first_record, read_table
from dpaudit.engine.data.files import fault, reading
from dpaudit.engine.data.in_memory import frame, is_frame
from dpaudit.errors import DataError, shortened
from dpaudit.variables import expand_path

FORMATS = "CSV, TSV (plain, .gz or .xz) or Parquet"
DELIMITERS = (",", ";", "\t", "|")
_PARQUET = (".parquet", ".pq")


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
        return frame(source).to_pandas()
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


def _text(name: Any) -> str:
    return "-".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _from_file(path: Path) -> pd.DataFrame:
    file = expand_path(str(path))
    if not file.exists():
        raise DataError(f"{path} must be a table ({FORMATS}), but it does not exist")
    if file.is_dir():
        raise DataError(f"{path} must be a file ({FORMATS}), got a folder; name one file")
    if file.suffix.lower() in _PARQUET:
        return _from_parquet(file)
    return _from_text(file)


def _from_parquet(file: Path) -> pd.DataFrame:
    try:
        with reading(file) as content:
            return read_bounded(content, str(file)).to_pandas()
    except (pa.ArrowException, ValueError) as err:
        why = (str(err).splitlines() or [type(err).__name__])[0]
        raise fault(file, f"is not a whole Parquet file ({shortened(why)})") from err


def _from_text(file: Path) -> pd.DataFrame:
    """Return a text table with all cells as texts; their kinds are found in all tables together."""
    first_line = " ".join(first_record(file, delimiter="\n", quoted=False)[0])
    delimiter = max(DELIMITERS, key=first_line.count)
    names, lines = first_record(file, delimiter=delimiter, quoted=True)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise fault(file, f"must name each column once, got {shortened(repeated[0])!r} twice", do="rename one")
    return read_table(file, Layout(tuple(names), delimiter, skip=lines), rows=None).to_pandas()
