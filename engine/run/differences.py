"""Two runs of the same audits side by side: what got worse since the first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpaudit.engine.run.watching import WORSE, Found, run_status
from dpaudit.errors import printable, shortened


@dataclass(frozen=True)
class Differences:
    """How a run differs from an earlier one.

    Attributes:
        lines: One for each audit of either run.
        worse: What got worse, in sentences; a bound that rose and refutes nothing is not among them, since bounds vary
            from seed to seed.
        cautions: What a reader must know before believing the rest.
    """

    lines: tuple[str, ...]
    worse: tuple[str, ...]
    cautions: tuple[str, ...]

    def __str__(self) -> str:
        told = self.worse or ("nothing got worse",)
        return "\n".join(map(printable, [*self.lines, *told, *dict.fromkeys(self.cautions)]))


def run_differences(baseline: str | Path, new: str | Path) -> Differences:
    """Compares the reports of two run folders, paths or URIs; nothing runs.

    Raises: SpecError for one without a report; RunError where one cannot be read.
    """
    was, is_now = run_status(baseline), run_status(new)
    before, now = was.found, is_now.found
    lines: list[str] = []
    worse: list[str] = []
    for name in dict.fromkeys((*before, *now)):
        old, found = before.get(name), now.get(name)
        lines.append(f"{shortened(name)}: {_told(old)} -> {_told(found)}")
        worse += [f"worse: {shortened(name)} {why}" for why in _worse(old, found)]
    return Differences(tuple(lines), tuple(worse), (*was.cautions, *is_now.cautions))


def _told(found: Found | None) -> str:
    if found is None:
        return "not audited"
    return f"{found.verdict} ({found.observed})" if found.observed else str(found.verdict)


def _worse(old: Found | None, now: Found | None) -> list[str]:
    """In what an audit got worse."""
    if now is None:
        return ["is not audited any more"]
    why = []
    if old is None and now.verdict not in WORSE[:2]:
        why.append(f"is {now.verdict}, and was not audited before")
    elif old is not None and WORSE.index(now.verdict) > WORSE.index(old.verdict):
        why.append(f"is {now.verdict}, was {old.verdict}")
    if old is not None and not now.claim.as_strict_as(old.claim):
        why.append(f"claims {now.claim}, claimed {old.claim}")
    return why
