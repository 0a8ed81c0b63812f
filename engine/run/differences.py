"""Two runs of the same audits side by side: what got worse since the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
class _Claim:
    """A claim, as a report states it."""

    epsilon: float
    delta: float
    relation: str
    curve: str

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> _Claim:
        return cls(float(said["epsilon"]), float(said["delta"]), str(said["relation"]), str(said["curve"]))

    def as_strict_as(self, other: _Claim) -> bool:
        """Whether it promises no less, as far as one point of its curve can say."""
        lower = self.epsilon <= other.epsilon and self.delta <= other.delta
        same_point = (self.epsilon, self.delta) == (other.epsilon, other.delta)
        return self.relation == other.relation and lower and (not same_point or self.curve == other.curve)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:g} ({self.curve}, {self.relation})"


@dataclass(frozen=True)
class _Found:
    """What a run found of one audit, or of one claim by several."""

    verdict: Verdict
    observed: str  # the bound in words; "" where there is none
    claim: _Claim


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
    try:
        return _of(status.report), status.cautions
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise SpecError(
            f"{shortened(place)} must have a bounds.json of this version; `dpaudit report` writes it"
        ) from err


def _of(report: Mapping[str, Any]) -> dict[str, _Found]:
    """By name, each audit, or the one claim that all are tests of; that has no verdict where a test of it failed."""
    results, joint = report["results"], report["joint"]
    if not joint:
        return {
            one["name"]: _Found(
                Verdict(one["verdict"]), (one["comparison"] or {}).get("words", ""), _Claim.of(one["claim"])
            )
            for one in results
        }
    verdict = Verdict(joint["verdict"])
    if verdict is not Verdict.VIOLATION and any(one["verdict"] == Verdict.FAILED for one in results):
        verdict = Verdict.FAILED
    return {report["name"]: _Found(verdict, joint["headline"], _Claim.of(results[0]["claim"]))}


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
    if old is not None and not now.claim.as_strict_as(old.claim):
        why.append(f"claims {now.claim}, claimed {old.claim}")
    return why
