"""Defects that a developer would plausibly write, each beside its honest twin: what `dpaudit check` is measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpaudit import Claim, Verdict


@dataclass(frozen=True)
class Case:
    """A defect and its honest twin.

    Attributes:
        defect: Makes the mechanism with the defect.
        twin: Makes the same mechanism without it; None where another case of the bank has the same twin.
        claim: What both are held to; None: what they state themselves.
        data: As in a spec; None has them made.
        schema: What the columns of rows may hold, of functions of rows; None: the case is no such function.
        true: Epsilon that the defect really spends, infinite where nothing is hidden; None where nobody knows.
        budget: Of one check.
        missed: Why `check` does not find it; "" where it does.
        expects: What `check` should say of `defect`: UNDECIDED of code that remembers.
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
