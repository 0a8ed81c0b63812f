"""Plausible implementation defects, each with its honest twin, to evaluate `dpaudit check`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit import Claim, Report, RunOptions, Verdict, check


@dataclass(frozen=True)
class Case:
    """A defect and its honest twin.

    Attributes:
        defect: Function that returns the mechanism with the defect.
        twin: Function that returns the mechanism without it; None if another case of the bank has the same twin.
        claim: Claim for both; None for the claims they state.
        data: Data, as in a spec; None for generated data.
        schema: Schema of the table, for functions of rows; None for other mechanisms.
        true: True epsilon of the defect, infinite without any privacy; None if unknown.
        budget: Budget of one check.
        missed: Reason that `check` misses the defect; "" if it detects it.
        expects: Correct verdict on `defect`: UNDECIDED for code that keeps state between calls.
    """

    defect: Callable[[], Any]
    twin: Callable[[], Any] | None = None
    claim: Claim | None = None
    data: Any = None
    schema: Mapping[str, Any] | None = None
    true: float | None = None
    budget: str = "5m"
    missed: str = ""
    expects: Verdict = Verdict.VIOLATION


HERE = RunOptions(runner="in-process", figures=False, repeats=0)


def checked_here(mechanism: Any, data: Any, **options: Any) -> Report:
    """Return the report of a check in this process, without a run folder."""
    with tempfile.TemporaryDirectory() as folder:
        return check(mechanism, data, output=Path(folder) / "run", quiet=True, **{"run": HERE, **options})
