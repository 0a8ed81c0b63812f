"""Two runs of the same audits side by side: what got worse since the first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.run.watching import run_status
from dpaudit.errors import SpecError, printable, shortened

_WORSE = (
    Verdict.NO_VIOLATION,
    Verdict.NO_CLAIM,
    Verdict.INCONCLUSIVE,
    Verdict.FAILED,
    Verdict.UNDECIDED,
    Verdict.VIOLATION,
)
"""Each verdict is worse news than those before it."""


@dataclass(frozen=True)
class _Found:
    """What a run found of one audit, or of one claim by several."""

    verdict: Verdict
    observed: str  # the bound in words; "" where there is none
    claimed: float | None  # epsilon; None where another quantity is claimed, or nothing


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
    (before, cautions), (now, more) = _found(baseline), _found(new)
    lines: list[str] = []
    worse: list[str] = []
    for name in dict.fromkeys((*before, *now)):
        old, found = before.get(name), now.get(name)
        lines.append(f"{shortened(name)}: {_told(old)} -> {_told(found)}")
        worse += [f"worse: {shortened(name)} {why}" for why in _worse(old, found)]
    return Differences(tuple(lines), tuple(worse), (*cautions, *more))


def _found(place: str | Path) -> tuple[Mapping[str, _Found], tuple[str, ...]]:
    status = run_status(place)
    if not status.verdicts:
        why = "; ".join(status.cautions) or f"it is {status.stage}"
        raise SpecError(f"{shortened(place)} must be a run folder with a report: {why}")
    report = json.loads(FileStore.at(place).content("bounds.json") or b"{}")
    try:
        if joint := report["joint"]:
            return {report["name"]: _of(joint, joint["headline"], report["results"][0]["claim"])}, status.cautions
        found = {
            one["name"]: _of(one, (one["comparison"] or {}).get("words", ""), one["claim"]) for one in report["results"]
        }
        return found, status.cautions
    except (KeyError, IndexError, TypeError, ValueError) as err:
        raise SpecError(
            f"{shortened(place)} must have a bounds.json of this version; `dpaudit report` writes it"
        ) from err


def _of(said: Mapping[str, Any], observed: str, claim: Mapping[str, Any] | None) -> _Found:
    epsilon = claim["epsilon"] if claim else None
    return _Found(Verdict(said["verdict"]), observed, float(epsilon) if isinstance(epsilon, int | float) else None)


def _told(found: _Found | None) -> str:
    if found is None:
        return "not audited"
    return f"{found.verdict} ({found.observed})" if found.observed else str(found.verdict)


def _worse(old: _Found | None, now: _Found | None) -> list[str]:
    """In what an audit got worse."""
    if now is None:
        return ["is not audited any more"]
    why = []
    if old is None and now.verdict not in _WORSE[:2]:
        why.append(f"is {now.verdict}, and was not audited before")
    elif old is not None and _WORSE.index(now.verdict) > _WORSE.index(old.verdict):
        why.append(f"is {now.verdict}, was {old.verdict}")
    if old is not None and old.claimed is not None and now.claimed is not None and now.claimed > old.claimed:
        why.append(f"claims epsilon {now.claimed:g}, claimed {old.claimed:g}")
    return why
