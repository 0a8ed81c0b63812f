"""SmartNoise SQL, tested with 1.0.0 and 1.0.10. Rows: "frame" with `key` and `value`; cannot be seeded."""

from __future__ import annotations

from typing import Any

import snsql
from snsql.sql._mechanisms.approx_bounds import approx_bounds

TABLE = {
    "row_privacy": True,
    "rows": 50,
    "key": {"type": "string"},
    "value": {"type": "float", "lower": 0.0, "upper": 1.0},
}


def query(
    rows: Any, rng: Any, epsilon: float = 1.0, delta: float = 1e-5, columns: str = "COUNT(*) AS n, SUM(value) AS s"
) -> Any:
    """One query; epsilon is for each column of the answer."""
    reader = snsql.from_connection(
        rows,
        engine="pandas",
        privacy=snsql.Privacy(epsilon=epsilon, delta=delta),
        metadata={"": {"T": {"rows": TABLE}}},
    )
    return reader.execute(f"SELECT {columns} FROM T.rows")[1:]


def found_bounds(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """Lower and upper ends of the values, found privately: what its synthesizers take as the range."""
    return approx_bounds([float(value) for value in rows["value"]], epsilon)
