"""Plausible implementation defects, each with its honest twin, to evaluate `dpaudit check`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpaudit import Claim, Report, RunOptions, Verdict, check
from dpaudit.claims import Scope
from dpaudit.engine.games.functions.game import RowFunctionGame


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


@contextmanager
def claim_alone(**changed: Any) -> Iterator[None]:
    """Let checks of functions of rows test their claims alone, without low digits and rows beyond the schema.

    These have an error of their own, so the verdict on the claim is the same.

    Args:
        changed: Fields of the tests that differ.
    """
    usual = RowFunctionGame.traits
    alone = tuple(replace(test, **changed) for test in usual.check_tests if test.scope is Scope.CLAIM)
    with patch.object(RowFunctionGame, "traits", replace(usual, check_tests=alone)):
        yield
