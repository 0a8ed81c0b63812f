"""What a sweep found: its configurations side by side, the frontier, and the best one with what is known of it.

All bounds hold together, so whatever was picked because of them holds too. A lower bound below a limit proves nothing:
what keeps a configuration below a limit is its claim, as long as no bound refutes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpaudit.actors.events import read_events
from dpaudit.engine.reading.noted import last_note, note_of
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.stated_values import StatedValue
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.request.audit_spec import MAX_SEED
from dpaudit.engine.request.error_budget import ErrorBudget
from dpaudit.engine.request.sweep import AUDITED, FAILED, STOPPED, Configuration, Sweep
from dpaudit.errors import AuditError, printable
from dpaudit.estimators.bound import format_lower, format_upper
from dpaudit.plain_files import read_bytes

REAUDIT = "reaudit"
"""Folder, in the sweep's, of the run that audits the best configuration afresh."""


def epsilons(result: AuditResult) -> dict[str, float]:
    """`audited_epsilon`, a lower bound, `claimed_epsilon`, and `ceiling_epsilon`, the most that could have been shown.

    Each is that of one record, in nats; NaN where it is not known.
    """
    steps, claimed = result.compared.steps, result.claimed.epsilon
    audited = result.epsilon / steps
    if steps > 1 and getattr(result.finding, "delta", 0.0) > 0:
        # Several steps cost a delta that depends on epsilon: above the claim, no more than that follows.
        audited = min(audited, claimed)
    most = getattr(result.ceiling.finding, "lower", math.nan) if result.ceiling else math.nan
    return {"audited_epsilon": audited, "claimed_epsilon": claimed, "ceiling_epsilon": most / steps}


@dataclass(frozen=True)
class SweepRow:
    """One configuration."""

    configuration: Configuration  # its name and values, and whether it was audited, stopped or failed
    utility: float  # what is wanted large or small, where it was audited, or where it was stopped; NaN when not known
    metrics: dict[str, float] = field(default_factory=dict)  # all metrics of utility
    audited: float = math.nan  # lower bound on the epsilon of one record; NaN where it was not audited
    claimed: float = math.nan  # what is claimed; inf where nothing is, NaN where it was not audited
    ceiling: float = math.nan  # the most that this audit could have shown; NaN where that is not known
    verdict: str = ""  # of the audit; "" without one
    validity: str = ""  # in what sense the bound holds; "" without one
    # Whether another one claims no more epsilon and is no less useful, and better in one of both
    dominated_claim: bool = False
    dominated_audit: bool = False  # the same by what was shown
    meets: bool = False  # whether it meets the limits of the sweep, as far as is known
    why: str = ""  # how it stands to the limits, in words; "" without limits

    @property
    def name(self) -> str:
        """Of the configuration."""
        return self.configuration.name

    @property
    def is_audited(self) -> bool:
        """Whether there is a bound."""
        return self.configuration.state == AUDITED and not math.isnan(self.audited)

    @property
    def state(self) -> str:
        """For people: what became of it."""
        one = self.configuration
        if one.state == STOPPED:
            return f"stopped at {one.rung}, not audited" if one.rung is not None else "stopped, not audited"
        if one.state == FAILED or not self.is_audited:
            return f"failed: {one.error}" if one.error else "failed"
        return {
            (False, False): "frontier",
            (False, True): "frontier by claim",
            (True, False): "frontier by audit",
            (True, True): "dominated",
        }[self.dominated_claim, self.dominated_audit]

    def known(self, together: str) -> str:
        """What is known of its epsilon, in words."""
        claim = f"at most {format_upper(self.claimed)} if its claim is true" if math.isfinite(self.claimed) else ""
        if self.audited > self.claimed:
            claim = f"more than the {self.claimed:g} that it claims"
        most = f"the most that its audit could have shown is {format_upper(self.ceiling)}"
        return "; ".join(
            part
            for part in (
                f"epsilon of one record at least {format_lower(self.audited)} ({together}; {self.validity})",
                claim or "nothing is claimed",
                most if self.ceiling >= self.audited else "",
            )
            if part
        )

    def to_dict(self) -> dict[str, Any]:
        """One row of a table: `config/<field>` for each field, then what was found."""
        return {
            "configuration": self.name,
            **{f"config/{path}": value for path, value in self.configuration.values.items()},
            "state": self.configuration.state,
            **self.metrics,
            "audited_epsilon": self.audited,
            "claimed_epsilon": self.claimed,
            "ceiling_epsilon": self.ceiling,
            "verdict": self.verdict,
            "validity": self.validity,
            "dominated_claim": self.dominated_claim,
            "dominated_audit": self.dominated_audit,
            "meets": self.meets,
            "why": self.why,
            "error": self.configuration.error,
        }


@dataclass(frozen=True)
class Reaudit:
    """The best configuration, audited once more with another seed after it was chosen."""

    headline: str  # what was found
    verdict: str  # on its claim
    seed: int  # of the fresh audit
    confidence: float  # of its bound, on its own
    utility: float  # of its fresh trainings; NaN when not known


@dataclass(frozen=True)
class SweepSummary:
    """A sweep's configurations, and what may be said of them together."""

    sweep: Sweep  # what was varied, and what for
    rows: tuple[SweepRow, ...]  # one for each configuration that was carried out
    confidence: float  # of all bounds together
    reaudit: Reaudit | None = None  # the best one audited afresh; None where that was not asked for or is not there yet

    @property
    def metric(self) -> str:
        """The utility in words."""
        return self.sweep.metric.replace("_", " ")

    def error(self, row: SweepRow) -> float:
        """Return the standard error of a row's utility; NaN if it was not measured."""
        return row.metrics.get(f"{self.sweep.metric}_error", math.nan)

    @property
    def majority(self) -> float:
        """Accuracy of always answering the most frequent label; NaN if unknown, or if the utility is no accuracy."""
        known = {row.metrics.get("majority_accuracy", math.nan) for row in self.rows if row.metrics}
        return known.pop() if len(known) == 1 and self.sweep.metric == "test_accuracy" else math.nan

    @property
    def best(self) -> SweepRow | None:
        """The most useful one of those that meet the limits; among equals, the one that claims and then shows least."""
        fitting = [row for row in self.rows if row.is_audited and row.meets and not math.isnan(row.utility)]
        sign = 1 if self.sweep.mode == "min" else -1
        return min(fitting, key=lambda row: (sign * row.utility, row.claimed, row.audited), default=None)

    @property
    def together(self) -> str:
        """The confidence of the bounds, in half a sentence."""
        return f"confidence {self.confidence:g}, all {self.sweep.count} together"

    @property
    def confidence_line(self) -> str:
        """What the bounds mean together."""
        each = ErrorBudget(self.confidence, self.sweep.count).first_pass
        return (
            f"All {self.sweep.count} bounds hold together with confidence {self.confidence:g}, each alone with "
            f"{each:.6g}, as far as each is valid: whichever is picked after seeing them, its bound holds."
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """For a reader, sentence by sentence."""
        counts = {state: sum(row.configuration.state == state for row in self.rows) for state in (STOPPED, FAILED)}
        left = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        made = f"{len(self.rows)} configurations, {sum(row.is_audited for row in self.rows)} audited"
        return (f"{made}{', ' + left if left else ''}.", self.confidence_line, *self._best_lines())

    def _best_lines(self) -> list[str]:
        best, limits = self.best, self._limits()
        if best is None:
            return [f"No configuration {limits or 'was audited'}." if limits else "No configuration was audited."]
        wanted = "largest" if self.sweep.mode == "max" else "smallest"
        of = f" of those that {limits}" if limits else ""
        lines = [
            f"Best: {best.name}: {self.metric} {best.utility:.4f}, the {wanted}{of}.",
            f"Measured: {best.known(self.together)}.",
        ]
        if self.sweep.subject_to.epsilon is not None or self.sweep.subject_to.audited_epsilon is not None:
            lines.append(f"{best.why[0].upper()}{best.why[1:]}.")
        again = self.reaudit
        if again is None:
            chosen = (
                f"Its {self.metric} was chosen as the {wanted} of several on the same test rows: expect a little less."
            )
            return [*lines, chosen.replace("less", "more") if self.sweep.mode == "min" else chosen]
        both = max(0.0, self.confidence + again.confidence - 1)
        return [
            *lines,
            f"Audited afresh with seed {again.seed} after it was chosen: {again.headline}; {self.metric} "
            f"{again.utility:.4f}. This bound holds with confidence {again.confidence:g} on its own, together with "
            f"those of the sweep with {both:.4g}.",
        ]

    def _limits(self) -> str:
        """What the best one had to meet, in words."""
        limits = self.sweep.subject_to
        parts = []
        if limits.epsilon is not None:
            parts.append(f"claim epsilon <= {limits.epsilon:g} and are not contradicted")
        if limits.audited_epsilon is not None:
            parts.append(f"were not shown to exceed epsilon = {limits.audited_epsilon:g}")
        return " and ".join(parts)

    @property
    def table(self) -> list[list[str]]:
        """Rows for people: name, utility, shown, claimed, could have been shown, what became of it."""
        header = ["configuration", self.metric, "audited >=", "claimed", "detectable", "", ""]
        best = self.best
        return [header, *([*self._cells(row), "best" if row is best else ""] for row in self.rows)]

    def _cells(self, row: SweepRow) -> list[str]:
        claimed = "nothing" if math.isinf(row.claimed) else "" if math.isnan(row.claimed) else f"{row.claimed:g}"
        return [
            row.name,
            self._utility(row),
            format_lower(row.audited) if row.is_audited else "",
            claimed,
            "" if math.isnan(row.ceiling) else format_upper(row.ceiling),
            f"{row.state}; claim rejected" if row.verdict == Verdict.VIOLATION else row.state,
        ]

    def _utility(self, row: SweepRow) -> str:
        error = self.error(row)
        known = "" if math.isnan(row.utility) else f"{row.utility:.4f}"
        return f"{known} ± {error:.4f}" if known and not math.isnan(error) else known

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        best = self.best
        return {
            "metric": self.sweep.metric,
            "mode": self.sweep.mode,
            "configurations": self.sweep.count,
            "confidence": self.confidence,
            "confidence_of_each": ErrorBudget(self.confidence, self.sweep.count).first_pass,
            "says": self.lines,
            "best": None if best is None else best.name,
            "reaudit": self.reaudit,
            "rows": self.rows,
        }

    def __str__(self) -> str:
        cells = [list(map(printable, row)) for row in self.table]
        widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
        rows = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
        return "\n".join([*rows, "", *map(printable, self.lines)])


def sweep_summary(
    sweep: Sweep, results: Sequence[AuditResult], confidence: float, folder: Path | None = None
) -> SweepSummary:
    """The configurations of a sweep side by side; in its folder the best one's fresh audit is looked for."""
    found = {result.name: result for result in results}
    rows = [_row(sweep, one, found.get(one.name)) for one in sweep.configurations]
    summary = SweepSummary(sweep, _marked(sweep, rows), confidence)
    return summary if folder is None else replace(summary, reaudit=_reaudit(summary, folder))


def _row(sweep: Sweep, one: Configuration, result: AuditResult | None) -> SweepRow:
    if result is None or result.finding is None:
        return SweepRow(one, one.metrics.get(sweep.metric, math.nan), dict(one.metrics))
    epsilon = epsilons(result)
    row = SweepRow(
        one,
        result.metrics.get(sweep.metric, math.nan),
        dict(result.metrics),
        epsilon["audited_epsilon"],
        epsilon["claimed_epsilon"],
        epsilon["ceiling_epsilon"],
        result.verdict.value,
        result.finding.validity.value,
    )
    meets, why = _standing(sweep, row)
    return replace(row, meets=meets, why=why)


def _standing(sweep: Sweep, row: SweepRow) -> tuple[bool, str]:
    """Whether a configuration meets the limits, and why."""
    limit, shown_limit = sweep.subject_to.epsilon, sweep.subject_to.audited_epsilon
    shown = f"epsilon >= {format_lower(row.audited)}"
    if shown_limit is not None and row.audited > shown_limit:
        return False, f"{shown} was shown, more than {shown_limit:g}"
    if limit is None and shown_limit is None:
        return True, ""
    if limit is None:
        words = f"no more than {shown} was shown, which does not prove that it is below {shown_limit:g}"
        return True, words
    if row.audited > limit:
        return False, f"{shown} was shown, more than {limit:g}"
    if row.verdict in (Verdict.VIOLATION, Verdict.UNDECIDED):
        return False, f"more than it claims was seen ({shown}), so its claim keeps it below nothing"
    if not row.claimed <= limit:
        return False, "nothing says that it is below: " + (
            f"it claims {row.claimed:g}" if math.isfinite(row.claimed) else "it claims nothing"
        )
    could = "" if row.verdict != Verdict.INCONCLUSIVE else ", and could not have"
    return True, (
        f"that it is below {limit:g} rests on its claim of {row.claimed:g}, which the audit did not contradict{could}: "
        "a low bound proves nothing"
    )


def _marked(sweep: Sweep, rows: list[SweepRow]) -> tuple[SweepRow, ...]:
    """The rows with those marked that another one dominates."""
    audited = [row for row in rows if row.is_audited]

    def dominated(row: SweepRow, by: str) -> bool:
        own = getattr(row, by)
        return any(
            getattr(other, by) <= own
            and not sweep.better(row.utility, other.utility)
            and (getattr(other, by) < own or sweep.better(other.utility, row.utility))
            for other in audited
            if not math.isnan(other.utility)
        )

    return tuple(
        replace(row, dominated_claim=dominated(row, "claimed"), dominated_audit=dominated(row, "audited"))
        if row.is_audited
        else row
        for row in rows
    )


def _reaudit(summary: SweepSummary, folder: Path) -> Reaudit | None:
    """The fresh audit of the best configuration, as its run folder tells it; None where that was edited."""
    best = summary.best
    if best is None or not summary.sweep.reaudit:
        return None
    try:
        bounds = read_bytes(folder / REAUDIT / "bounds.json")
        if last_note(read_events(folder / REAUDIT / "events.jsonl")) not in ("", note_of(bounds)):
            return None
        told = StatedValue.read(bounds, "bounds.json")
        (result,) = told["results"].items()
        if result["name"].name() != fresh_name(best.name):
            return None
        utility = result["metrics"][summary.sweep.metric]
        return Reaudit(
            result["headline"].text(),
            result["verdict"].one_of(Verdict).value,
            told["seed"].whole(0, MAX_SEED - 1),
            told["confidence"].number(0, 1),
            math.nan if utility.value in (None, "nan") else utility.number(),
        )
    except (OSError, AuditError, ValueError):
        return None


def fresh_name(name: str) -> str:
    """What the fresh audit of a configuration is called."""
    return f"{name}, audited afresh"
