"""One verdict on one claim from several looks: what refutes it in a first pass counts once it is confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpaudit.engine.reading.result import INDENT, AuditResult
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.spec.error_budget import Together
from dpaudit.errors import printable


@dataclass(frozen=True, eq=False)
class JointVerdict:
    """What all looks together say of the claim.

    A look that refutes the claim in the first pass is played again, with other seeds and at a stricter confidence: the
    verdict is VIOLATION where that refutes the claim too. A look that takes a proxy for the truth is followed by
    planted labels instead, and leaves the verdict UNDECIDED where these do not refute the claim.

    Attributes:
        looks: What was found by each that was played, in order.
        confirmations: By the name of a look, what was found when it was confirmed.
        confidence: Stated confidence of the verdict: whatever the first pass was, with at most the rest of probability
            it is a VIOLATION though the claim holds.
        screening: Confidence of all bounds of the first pass together.
        chosen: Why each game is among them.
        left_out: Which games are not, and why.
        not_played: Names of looks that were chosen and not played: nothing was left to find, or of the budget.
    """

    looks: tuple[AuditResult, ...]
    confirmations: Mapping[str, AuditResult]
    confidence: float
    screening: float
    chosen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    not_played: tuple[str, ...] = ()

    @property
    def deciding(self) -> AuditResult | None:
        """The look that the verdict rests on: the one that is confirmed, else the one that could show most.

        What could be shown of a part of the claim is on another scale than what could be shown of all of it: a look at
        all of it comes before one at a part.
        """
        confirmed = next((look for look in self.looks if self._is_confirmed(look)), None)
        if confirmed is not None:
            return confirmed
        doubtful = [look for look in self.looks if look.verdict in _DOUBTFUL]
        if doubtful:
            return doubtful[0]
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
        if any(self._is_confirmed(look) for look in self.looks):
            return Verdict.VIOLATION
        if found & _DOUBTFUL:
            return Verdict.UNDECIDED
        order = (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE, Verdict.NO_CLAIM)
        return next((verdict for verdict in order if verdict in found), Verdict.FAILED)

    @property
    def headline(self) -> str:
        """For a reader who reads one line."""
        look = self.deciding
        if look is None:
            return "no test was run"
        found = self.confirmations[look.name] if self.verdict is Verdict.VIOLATION else look
        return f"{look.name}: {found.headline}"

    @property
    def how_sure(self) -> str:
        """The confidence of the verdict, and what was not confirmed."""
        look = self.deciding
        if self.verdict is Verdict.VIOLATION and look is not None:
            first = "" if look.standing is None else f"; the first pass found {look.standing.words}"
            return f"{100 * self.confidence:.5g} % confidence, from a confirmatory run on fresh randomness{first}"
        tests = f"{100 * self.screening:.5g} % confidence for the {len(self.looks)} tests together"
        assumed = "" if look is None or not look.open_question else look.open_question
        return "; ".join(filter(None, [tests, assumed, *self._not_confirmed]))

    def _is_confirmed(self, look: AuditResult) -> bool:
        return look.name in self.confirmations and refutes(self.confirmations[look.name])

    @property
    def _not_confirmed(self) -> list[str]:
        names = [name for name, again in self.confirmations.items() if not refutes(again)]
        return (
            [f"{', '.join(names)} exceeded the claim in the first pass, and not in the confirmatory run"]
            if names
            else []
        )

    @property
    def _pairs(self) -> list[tuple[AuditResult, AuditResult]]:
        """Each look that was followed by a confirmation, with it."""
        return [(look, self.confirmations[look.name]) for look in self.looks if look.name in self.confirmations]

    @property
    def lines(self) -> tuple[str, ...]:
        """Which tests were chosen, run again, not run, and left out."""
        return (
            *(
                f"confirmatory run: {look.name}: first {look.headline}; again {again.headline}: "
                + ("confirmed" if refutes(again) else "not confirmed")
                for look, again in self._pairs
            ),
            *(f"chosen: {reason}" for reason in self.chosen),
            *([f"not run: {', '.join(self.not_played)}: {self._why_not}"] if self.not_played else []),
            *(f"left out: {reason}" for reason in self.left_out),
        )

    @property
    def detectable(self) -> tuple[str, ...]:
        """What the best test on the scale of the deciding one could have detected, and the best of a part alone."""
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

    def text(self, name: str, *, verbose: bool = False) -> str:
        """The verdict of a run in three lines, in the form of `AuditResult.text`.

        Args:
            name: The run's.
            verbose: Whether it is followed by which tests were chosen, left out, not run, and run again.
        """
        lines = [f"{self.verdict:<{INDENT}}{name}: {self.headline}", self.how_sure, *self.detectable]
        return f"\n{'':{INDENT}}".join(printable(line) for line in [*lines, *(self.lines if verbose else ())] if line)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict.value,
            "headline": self.headline,
            "rests_on": None if self.deciding is None else self.deciding.name,
            "confidence": self.confidence,
            "screening": self.screening,
            "confirmations": [
                {
                    "look": look.name,
                    "first": look.headline,
                    "again": again.headline,
                    "verdict_again": again.verdict.value,
                    "confirmed": refutes(again),
                }
                for look, again in self._pairs
            ],
            "chosen": list(self.chosen),
            "left_out": list(self.left_out),
            "not_played": list(self.not_played),
        }


_DOUBTFUL = frozenset({Verdict.VIOLATION, Verdict.UNDECIDED})


def refutes(look: AuditResult) -> bool:
    """Whether a look refutes the claim and takes nothing on trust."""
    return look.verdict is Verdict.VIOLATION and not look.conditional


def joint_verdict(
    together: Together, results: Sequence[AuditResult], planned: Mapping[str, str], confidence: float
) -> JointVerdict:
    """The verdict of looks that were planned: from the name of each audit to that of the look it confirms, or ""."""
    looks = tuple(result for result in results if not planned[result.name])
    confirmations = {planned[result.name]: result for result in results if planned[result.name]}
    played = {look.name for look in looks}
    not_played = tuple(name for name, confirmed in planned.items() if not confirmed and name not in played)
    return JointVerdict(
        looks, confirmations, confidence, together.screening, together.chosen, together.left_out, not_played
    )


def _best(looks: Sequence[AuditResult]) -> AuditResult | None:
    """The look that could show most beyond the claim."""
    return max(looks, key=_could_show, default=None)


def _ceiling_line(look: AuditResult) -> str:
    assert look.ceiling is not None
    part = f"for a part alone ({look.name}), on a scale of its own: " if look.of_a_part else ""
    return f"{part}{look.ceiling.line}"


def _could_show(look: AuditResult) -> float:
    if look.ceiling is None:
        return 0.0
    standing = look.ceiling.finding.standing(look.compared.claim.curve)
    return standing.observed - standing.claimed
