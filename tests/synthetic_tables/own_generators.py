"""Generators of synthetic tables as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np


class Resampled:
    """Returns real rows, drawn with replacement, in several forms."""

    def __init__(self, form: str = "columns", rng: Any = None) -> None:
        self.form, self.rng = form, rng

    def fit(self, rows: Any) -> None:
        self.columns = {name: rows[name].tolist() for name in rows}

    def sample(self, count: int) -> Any:
        size = len(self.columns["age"])
        places = self.rng.integers(size, size=count if size else 0)
        columns = {name: [cells[place] for place in places] for name, cells in self.columns.items()}
        if self.form == "frame":
            import pandas as pd

            return pd.DataFrame(columns)
        if self.form == "arrow":
            import pyarrow as pa

            return pa.table(columns)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if self.form == "array":
            return np.array([list(row.values()) for row in rows], dtype=object)
        return rows if self.form == "records" else columns


class Measured:
    """Releases a noisy count too; takes seeds in all three places."""

    def __init__(self, scale: float = 1.0, *, seed: int) -> None:
        self.scale, self.seed = scale, seed

    def fit(self, rows: Any, random_state: int) -> None:
        self.states = [self.seed, random_state]
        self.count = len(rows) + self.scale * np.random.default_rng(random_state).laplace()

    def sample(self, count: int, rng: Any) -> Any:
        return {"age": rng.integers(101, size=count).tolist(), "city": ["a"] * count}

    def measurements(self) -> dict[str, Any]:
        return {"count": self.count, "states": self.states}


class OneStep:
    def fit_sample(self, rows: Any, count: int) -> Any:
        return {"age": [None, 150, "old"], "city": ["zz", None, "a"], "more": [1, 2, 3]}


class NoSample:
    def fit(self, rows: Any) -> None: ...


class ReturnsNumber(Resampled):
    def sample(self, count: int) -> int:
        return 3


class LosesColumn(Resampled):
    def sample(self, count: int) -> Any:
        return {"age": [1] * count}


ready_made = OneStep()
