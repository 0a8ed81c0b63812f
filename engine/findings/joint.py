"""One verdict on one claim from several looks that share the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpaudit.engine.findings.result import AuditResult
from dpaudit.engine.findings.verdict import Verdict
from dpaudit.engine.spec.together import Together


@dataclass(frozen=True, eq=False)
class JointVerdict:
    """What all looks together say of the claim.

    A look that takes a proxy for the truth refutes nothing by itself: unless a look that takes nothing on trust finds
    the claim exceeded too, it leaves the verdict UNDECIDED.

    Attributes:
        looks: What was found by each that was played, in order.
        confidence: Stated confidence of the verdict: with at most the rest of probability it is a VIOLATION though the
            claim holds.
        chosen: Why each game is among them.
        left_out: Which games are not, and why.
        not_played: Names of looks that were chosen and not played: nothing was left to find, or of the budget.
    """

    looks: tuple[AuditResult, ...]
    confidence: float
    chosen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    not_played: tuple[str, ...] = ()

    @property
    def deciding(self) -> AuditResult | None:
        """The look that the verdict rests on: the first that refutes the claim, else the one that could show most.

        What could be shown of a part of the claim is on another scale than what could be shown of all of it: a look at
        all of it comes before one at a part.
        """
        for verdict in (Verdict.VIOLATION, Verdict.UNDECIDED):
            found = [look for look in self.looks if look.verdict is verdict]
            if found:
                return next((look for look in found if refutes(look)), found[0])
        whole, parts = self._able
        return _best(whole) or _best(parts) or (self.looks[0] if self.looks else None)

    @property
    def _able(self) -> tuple[list[AuditResult], list[AuditResult]]:
        """Looks that found nothing though they could have, else those that could not: at all of it, and at a part."""
        for verdict in (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE):
            found = [look for look in self.looks if look.verdict is verdict]
            if found:
                return [look for look in found if not look.of_a_part], [look for look in found if look.of_a_part]
        return [], []

    @property
    def verdict(self) -> Verdict:
        """What they say of the claim."""
        found = {look.verdict for look in self.looks}
        if any(refutes(look) for look in self.looks):
            return Verdict.VIOLATION
        if found & {Verdict.VIOLATION, Verdict.UNDECIDED}:
            return Verdict.UNDECIDED
        order = (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE, Verdict.NO_CLAIM)
        return next((verdict for verdict in order if verdict in found), Verdict.FAILED)

    @property
    def headline(self) -> str:
        """For a reader who reads one line."""
        look = self.deciding
        if look is None:
            return "no look was played"
        error = f"all looks together wrong with probability <= {1 - self.confidence:.4g}"
        return f"{look.name}: {look.headline}; {error}"

    @property
    def lines(self) -> tuple[str, ...]:
        """What was looked with, what not, and what the best of the looks could have shown."""
        return (
            *self._ceilings,
            *(f"chosen: {reason}" for reason in self.chosen),
            *([f"not played: {', '.join(self.not_played)}: {self._why_not}"] if self.not_played else []),
            *(f"left out: {reason}" for reason in self.left_out),
        )

    @property
    def _ceilings(self) -> tuple[str, ...]:
        """The best ceiling of those that are on the scale of the deciding look, and that of the parts beside it."""
        look = self.deciding
        if look is None:
            return ()
        _, parts = self._able
        beside = _best(parts)
        shown = [look] if beside is None or beside is look else [look, beside]
        return tuple(_ceiling_line(one) for one in shown if one.ceiling is not None)

    @property
    def _why_not(self) -> str:
        return "the claim is refuted" if self.verdict is Verdict.VIOLATION else "the budget was spent"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict.value,
            "headline": self.headline,
            "rests_on": None if self.deciding is None else self.deciding.name,
            "confidence": self.confidence,
            "chosen": list(self.chosen),
            "left_out": list(self.left_out),
            "not_played": list(self.not_played),
        }


def refutes(look: AuditResult) -> bool:
    """Whether a look refutes the claim and takes nothing on trust."""
    return look.verdict is Verdict.VIOLATION and not look.conditional


def joint_verdict(
    together: Together, looks: Sequence[AuditResult], planned: Sequence[str], confidence: float
) -> JointVerdict:
    """The verdict of looks that were planned under these names."""
    played = {look.name for look in looks}
    not_played = tuple(name for name in planned if name not in played)
    return JointVerdict(tuple(looks), confidence, together.chosen, together.left_out, not_played)


def _best(looks: Sequence[AuditResult]) -> AuditResult | None:
    """The look that could show most beyond the claim."""
    return max(looks, key=_could_show, default=None)


def _ceiling_line(look: AuditResult) -> str:
    assert look.ceiling is not None
    part = f"best of a part alone ({look.name}), on a scale of its own:" if look.of_a_part else "best"
    return f"{part} {look.ceiling.line}"


def _could_show(look: AuditResult) -> float:
    if look.ceiling is None:
        return 0.0
    standing = look.ceiling.finding.standing(look.compared.claim.curve)
    return standing.observed - standing.claimed
