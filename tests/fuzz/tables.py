"""Cases for tables with odd cells, also of other types on two sides, and for functions with odd results."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pickle
import random
import shutil
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import scipy.sparse
import torch

import dpaudit
from tests.fuzz.outcome import Outcome, command, outcome

ROWS = 24
UTC = datetime.UTC
DAY = datetime.datetime(2021, 3, 4, 5, 6, 7)
CELLS: Mapping[str, Callable[[random.Random], Any]] = {
    "whole": lambda rng: rng.randrange(100),
    "huge": lambda rng: rng.randrange(2**60, 2**70),
    "float": lambda rng: rng.gauss(0, 1e3),
    "tiny": lambda rng: rng.random() * 1e-310,
    "extreme": lambda rng: rng.choice([1e308, -1e308, float("inf"), float("-inf"), float("nan"), 0.0, -0.0]),
    "decimal comma": lambda rng: f"{rng.random() * 99:.2f}".replace(".", ","),
    "thousands": lambda rng: f"{rng.randrange(10**7):,}{rng.choice(['', '.5', ',50'])}",
    "with a unit": lambda rng: f"{rng.randrange(99)} {rng.choice(['years', '%', '€', 'kg'])}",
    "missing words": lambda rng: rng.choice(["NA", "NULL", "-", "", "nan", "None", "?", "N/A", ".", str(rng.random())]),
    "country": lambda rng: rng.choice(["NA", "DE", "FR", "NO", "no", "None"]),
    "zip": lambda rng: f"{rng.randrange(99999):05}",
    "day": lambda rng: f"{rng.randrange(1, 32):02}.{rng.randrange(1, 14):02}.{rng.randrange(1900, 2100)}",
    "date": lambda rng: (DAY + datetime.timedelta(rng.randrange(9999))).date().isoformat(),
    "zone": lambda rng: (DAY + datetime.timedelta(rng.randrange(9999))).isoformat() + rng.choice(["Z", "+02:00", ""]),
    "datetime": lambda rng: DAY + datetime.timedelta(rng.randrange(9999)),
    "aware": lambda rng: (DAY + datetime.timedelta(rng.randrange(9999))).replace(tzinfo=UTC),
    "far date": lambda rng: datetime.date(rng.randrange(1, 9999), 1, 1),
    "duration": lambda rng: datetime.timedelta(seconds=rng.randrange(10**6)),
    "yes": lambda rng: rng.choice([True, False, "yes", "TRUE", 1, "0"]),
    "boolean": lambda rng: rng.random() < 0.5,
    "decimal": lambda rng: decimal.Decimal(rng.randrange(10**6)) / 100,
    "fraction": lambda rng: fractions.Fraction(rng.randrange(99), rng.randrange(1, 99)),
    "bytes": lambda rng: rng.randbytes(3),
    "complex": lambda rng: complex(rng.random(), rng.random()),
    "list": lambda rng: [rng.randrange(3)] * rng.randrange(3),
    "mapping": lambda rng: {"a": rng.randrange(3)},
    "controls": lambda rng: rng.choice(["a\x00b", "\u202e", "a\nb", " a", "a ", "\x1b[2J", "ａ", "'", '"', ";"]),
    "long": lambda rng: "x" * rng.choice([0, 1, 10_000]),
    "nothing": lambda rng: rng.choice([None, pd.NA, pd.NaT, np.nan]),
}
"""Makers of odd cells."""
RETYPED: Mapping[str, Callable[[pd.Series], Any]] = {
    "text": lambda column: column.astype(str),
    "float32": lambda column: column.astype("float32"),
    "float16": lambda column: column.astype("float16"),
    "nullable": lambda column: column.convert_dtypes(),
    "category": lambda column: column.astype("category"),
    "object": lambda column: column.astype(object),
    "sparse": lambda column: pd.arrays.SparseArray(column.to_numpy(float)),
    "rounded": lambda column: column.round(1),
    "arrow": lambda column: column.astype(pd.ArrowDtype(pa.string())),
    "dates": lambda column: pd.to_datetime(column),
    "zone": lambda column: pd.to_datetime(column).dt.tz_localize("Europe/Berlin"),
    "empty": lambda column: column.map(lambda _: None),
    "shifted": lambda column: column.map(lambda value: f"{value} "),
}
"""Ways in which one file of three may hold the same column."""


def written(frame: pd.DataFrame, path: Path, rng: random.Random) -> Path:
    """Write a frame in a random format and return the path of the file."""
    if (kind := rng.randrange(7)) == 0:
        frame.to_csv(path, index=rng.random() < 0.3, sep=rng.choice(",;\t|"), decimal=rng.choice(".,"))
    elif kind == 1:
        frame.to_csv(path, index=False, encoding=rng.choice(["utf-16", "utf-8-sig", "latin-1"]), errors="replace")
    elif kind == 2:
        path = path.with_suffix(rng.choice([".csv.gz", ".csv.xz", ".csv.bz2", ".csv.zip"]))
        frame.to_csv(path, index=False)
    elif kind == 3:
        frame.to_json(path, orient="records", lines=True, default_handler=str)
    elif kind == 4:
        pq.write_table(pa.Table.from_pandas(frame.astype(str)), path)
    elif kind == 5:
        feather.write_feather(frame.astype(str), str(path))
    else:
        frame.to_csv(path, index=False, quoting=1)
    if rng.random() < 0.5:
        path = path.rename(path.with_suffix(rng.choice([".csv", ".tsv", ".jsonl", ".pq", ".txt", ""])))
    return path


@dataclass(frozen=True)
class Cells:
    """Cases of three tables: each column of one odd kind, one side sometimes of another type or kind."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        kinds = rng.sample(list(CELLS), rng.randrange(1, 5))
        tables, words = [], []
        for side in ("train", "holdout", "synth"):
            frame = pd.DataFrame({f"c{n}": [CELLS[kind](rng) for _ in range(ROWS)] for n, kind in enumerate(kinds)})
            if rng.random() < 0.4:
                words.append(self._changed(frame, side, rng))
            tables.append(frame)
        names = rng.choice(["c0", "c0", "", "a\nb", "None", "Unnamed: 0", "c1"])
        tables = [table.rename(columns={"c0": names}) for table in tables]
        options: dict[str, Any] = {}
        if rng.random() < 0.4:
            options["claim"] = rng.choice([1, (1, 1e-5), "mu=1"])
        if rng.random() < 0.3:
            options[rng.choice(["groups", "strata", "target"])] = names
        description = f"{', '.join(kinds)}; {'; '.join(words)}; first column {names!r}; {options}"
        if rng.random() < 0.4:
            return f"frames: {description}", outcome(lambda: str(dpaudit.synthetic(*tables, **options)))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            files = [str(written(table, self.folder / f"{n}.csv", rng)) for n, table in enumerate(tables)]
        except (ValueError, TypeError, OverflowError, UnicodeError, pa.ArrowException):  # the format has no such cells
            return f"frames: {description}", outcome(lambda: str(dpaudit.synthetic(*tables, **options)))
        if rng.random() < 0.3:
            flags = [f"--claim={options['claim']}"] if isinstance(options.get("claim"), (int, str)) else []
            return f"command: {description}", command(["synthetic", *files, *flags])
        if rng.random() < 0.3:
            return f"estimate: {description}", command(["estimate", files[0]])
        return f"files: {description}", outcome(lambda: str(dpaudit.synthetic(*files, **options)))

    @staticmethod
    def _changed(frame: pd.DataFrame, side: str, rng: random.Random) -> str:
        name = str(rng.choice(list(frame.columns)))
        if rng.random() < 0.5:
            other = rng.choice(list(CELLS))
            frame[name] = pd.Series([CELLS[other](rng) for _ in range(ROWS)], dtype=object)
            return f"{side} {name} is {other}"
        kind = rng.choice(list(RETYPED))
        try:
            frame[name] = RETYPED[kind](frame[name])
        except Exception:  # pandas refuses in many ways
            return f"{side} {name} cannot be {kind}"
        return f"{side} {name} as {kind}"


class _Colour(enum.Enum):
    RED = 1


class _Slots:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class _Endless:
    """An object that refers to itself, and has itself as its state."""

    def __init__(self) -> None:
        self.me = self

    def __getstate__(self) -> dict[str, Any]:
        return {"me": self}


class _Raising:
    """An object whose state cannot be read."""

    def __getstate__(self) -> Any:
        raise RuntimeError("no\nstate")

    def __repr__(self) -> str:
        raise RuntimeError("no\nrepr")

    @property
    def value(self) -> Any:
        raise RuntimeError("no\nvalue")


def _endless() -> Iterator[int]:
    while True:
        yield 1


def _module(value: float) -> torch.nn.Module:
    module = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(module.weight, value)
    return module


RESULTS: Mapping[str, Callable[[float], Any]] = {
    "nothing": lambda _: None,
    "endless": lambda _: _endless(),
    "itself": lambda _: _Endless(),
    "unreadable": lambda _: _Raising(),
    "slots": _Slots,
    "enum": lambda _: _Colour.RED,
    "module": _module,
    "state": lambda value: _module(value).state_dict(),
    "optimizer": lambda value: torch.optim.SGD(_module(value).parameters(), lr=0.1),
    "whole": lambda value: int(value * 2**70),
    "decimal": decimal.Decimal,
    "fraction": fractions.Fraction,
    "complex": lambda value: complex(value, value),
    "sparse": lambda value: scipy.sparse.csr_matrix([[0, value]]),
    "frame": lambda value: pd.DataFrame({"a": [value, None]}),
    "table": lambda value: pa.table({"a": [[value]]}),
    "masked": lambda value: np.ma.masked_invalid([value, np.nan]),
    "record": lambda value: np.rec.array([(value, b"a")]),
    "objects": lambda value: np.array([value, None, "a"], dtype=object),
    "empty": lambda _: np.empty((0, 3)),
    "bytes": lambda value: pickle.dumps(value),
    "view": lambda value: memoryview(bytearray(str(value), "ascii")),
    "stream": lambda value: io.StringIO(str(value)),
    "closed": lambda _: io.BytesIO().close(),
    "closure": lambda value: lambda: value,
    "class": lambda _: _Slots,
    "error": lambda value: ValueError(value),
    "namespace": lambda value: types.SimpleNamespace(a=value, _b=[value] * 3),
    "queue": lambda value: collections.deque([value], maxlen=1),
    "deep": lambda value: [[[[[[[[[[[[[value]]]]]]]]]]]]],
    "data class": lambda value: dataclasses.make_dataclass("Made", ["value"])(value),
    "path": lambda _: Path("/nowhere/at/all"),
    "folder": lambda _: Path("/"),
    "text": lambda value: f"\x1b[2J{value}\x00\ud800",
    "date": lambda value: DAY + datetime.timedelta(seconds=value),
    "generic": lambda _: list[int],
    "module of Python": lambda _: io,
}
"""Makers of odd results from a number."""


@dataclass(frozen=True)
class Results:
    """Cases of `dpaudit.check` to its end: a function whose results are odd, or odd in some calls."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        kinds = rng.sample(list(RESULTS), rng.choice((1, 1, 2, 3)))
        noisy, printing, seed = rng.random() < 0.5, rng.random() < 0.2, rng.randrange(1000)

        def audited(rows: Any, rng: np.random.Generator) -> Any:
            value = float(len(rows)) + (float(rng.laplace()) if noisy else 0.0)
            if printing:
                print(value)
            return RESULTS[kinds[int(rng.integers(len(kinds)))]](value)

        def check() -> str:
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            options = dpaudit.RunOptions("in-process", figures=False)
            report = dpaudit.check(
                audited,
                schema={"age": (0, 100)},
                claim=1.0,
                budget="0.3s",
                seed=seed,
                output=self.folder / "run",
                quiet=True,
                run=options,
            )
            return str(report)

        return f"{', '.join(kinds)}{', noisy' if noisy else ''}{', printing' if printing else ''}", outcome(check)
