"""Summary of a sweep: all configurations, the privacy-utility frontier and the best configuration.

All bounds hold jointly, so the bound of a configuration selected by its bound is still valid. A lower bound below a
limit proves nothing: only the claim keeps a configuration below a limit, as long as no bound rejects the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpaudit.actors.events import read_events
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.stated_values import StatedValue, checksum_note, last_checksum_note
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.request.audit_spec import MAX_SEED
from dpaudit.engine.request.error_budget import ErrorBudget
from dpaudit.engine.request.sweep import AUDITED, FAILED, STOPPED, Configuration, Sweep
from dpaudit.errors import AuditError, printable
from dpaudit.estimators.bound import format_lower, format_upper
from dpaudit.plain_files import read_bytes

REAUDIT = "reaudit"
"""Folder, within that of the sweep, of the fresh audit of the best configuration."""


def epsilons(result: AuditResult) -> dict[str, float]:
    """Return `audited_epsilon` (a lower bound), `claimed_epsilon` and `ceiling_epsilon` (the maximum detectable one).

    All are for one record, in nats; NaN if unknown.
    """
    steps, claimed = result.compared.steps, result.claimed.epsilon
    audited = result.epsilon / steps
    if steps > 1 and getattr(result.finding, "delta", 0.0) > 0:
        # The delta of several steps depends on epsilon, so nothing above the claim follows.
        audited = min(audited, claimed)
    most = getattr(result.sensitivity.maximum, "lower", math.nan)
    return {"audited_epsilon": audited, "claimed_epsilon": claimed, "ceiling_epsilon": most / steps}


@dataclass(frozen=True)
class SweepRow:
    """A configuration with its result."""

    configuration: Configuration  # name, values and state: audited, stopped or failed
    utility: float  # metric of the sweep when it was audited or stopped; NaN if unknown
    metrics: dict[str, float] = field(default_factory=dict)  # all metrics of utility, and of an audit its epsilons
    audited: float = math.nan  # lower bound on the epsilon of one record; NaN if not audited
    claimed: float = math.nan  # claimed epsilon; inf if nothing is claimed, NaN if not audited
    ceiling: float = math.nan  # maximum detectable epsilon of this audit; NaN if unknown
    verdict: str = ""  # verdict of the audit; "" if not audited
    validity: str = ""  # validity of the bound; "" if not audited
    dominated_claim: bool = False  # True if another one has no larger claim, no less utility, and is better in one
    dominated_audit: bool = False  # the same comparison by `audited` instead of the claim
    meets: bool = False  # True if it meets the limits of the sweep, as far as is known
    why: str = ""  # reason for `meets` in words; "" without limits
    audit: AuditResult | None = None  # None if the configuration was stopped or failed

    @property
    def name(self) -> str:
        """Name of the configuration."""
        return self.configuration.name

    @property
    def config(self) -> dict[str, Any]:
        """Value of each varied field."""
        return dict(self.configuration.values)

    @property
    def error(self) -> str:
        """Reason of the failure in one line; "" if it did not fail."""
        return self.configuration.error

    @property
    def is_audited(self) -> bool:
        """True if there is a bound."""
        return self.configuration.state == AUDITED and not math.isnan(self.audited)

    @property
    def state(self) -> str:
        """State of the configuration, in words."""
        configuration = self.configuration
        if configuration.state == STOPPED:
            return f"stopped{'' if configuration.rung is None else f' at {configuration.rung}'}, not audited"
        if configuration.state == FAILED or not self.is_audited:
            return f"failed: {configuration.error}" if configuration.error else "failed"
        return {
            (False, False): "frontier",
            (False, True): "frontier by claim",
            (True, False): "frontier by audit",
            (True, True): "dominated",
        }[self.dominated_claim, self.dominated_audit]

    def epsilon_text(self, together: str) -> str:
        """Return bound, claim and maximum detectable epsilon, in words."""
        claim = f"at most {format_upper(self.claimed)} if its claim holds" if math.isfinite(self.claimed) else ""
        if self.audited > self.claimed:
            claim = f"more than the claimed {self.claimed:g}"
        bound = f"epsilon of one record at least {format_lower(self.audited)} ({together}; {self.validity})"
        most = f"; maximum detectable epsilon {format_upper(self.ceiling)}" if self.ceiling >= self.audited else ""
        return f"{bound}; {claim or 'nothing is claimed'}{most}"

    def to_dict(self) -> dict[str, Any]:
        """Return a table row: `config/<field>` for each field, then the result."""
        return {
            "configuration": self.name,
            **{f"config/{path}": value for path, value in self.config.items()},
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
    """Audit of the best configuration with a new seed after its selection."""

    headline: str  # claim and bound in one line
    verdict: str  # verdict on its claim
    seed: int  # seed of this audit
    confidence: float  # confidence of this bound alone
    utility: float  # utility of its trainings; NaN if unknown


@dataclass(frozen=True)
class SweepSummary:
    """Summary of all configurations of a sweep."""

    sweep: Sweep  # varied fields, metric and limits
    rows: tuple[SweepRow, ...]  # one for each configuration that started
    confidence: float  # joint confidence of all bounds
    reaudit: Reaudit | None = None  # fresh audit of the best one; None if not requested or not finished

    @property
    def metric(self) -> str:
        """Name of the metric in words."""
        return self.sweep.metric.replace("_", " ")

    def error(self, row: SweepRow) -> float:
        """Return the standard error of a row's utility; NaN if it was not measured."""
        return row.metrics.get(f"{self.sweep.metric}_error", math.nan)

    @property
    def majority(self) -> float:
        """Accuracy of always answering the most frequent label; NaN if unknown, or if the utility is no accuracy."""
        shares = {row.metrics.get("majority_accuracy", math.nan) for row in self.rows if row.metrics}
        return shares.pop() if len(shares) == 1 and self.sweep.metric == "test_accuracy" else math.nan

    @property
    def blind(self) -> tuple[SweepRow, ...]:
        """Audited configurations whose audit could not have rejected their claim."""
        return tuple(row for row in self.rows if row.is_audited and row.verdict == Verdict.INCONCLUSIVE)

    @property
    def is_blind(self) -> bool:
        """True if no audit of a claim could have rejected it: the sweep is inconclusive."""
        audited = [row for row in self.rows if row.is_audited and math.isfinite(row.claimed)]
        return bool(audited) and len(self.blind) == len(audited)

    @property
    def best(self) -> SweepRow | None:
        """The configuration with the best utility within the limits; ties go to the smaller claim, then bound."""
        fitting = [row for row in self.rows if row.is_audited and row.meets and not math.isnan(row.utility)]
        sign = 1 if self.sweep.mode == "min" else -1
        return min(fitting, key=lambda row: (sign * row.utility, row.claimed, row.audited), default=None)

    @property
    def together(self) -> str:
        """Joint confidence of the bounds, in words."""
        return f"confidence {self.confidence:g}, all {self.sweep.count} together"

    @property
    def confidence_line(self) -> str:
        """Sentence on the joint confidence of the bounds."""
        each = ErrorBudget(self.confidence, self.sweep.count).first_pass
        return (
            f"All {self.sweep.count} bounds hold together with confidence {self.confidence:g}, each alone with "
            f"{each:.6g}, within the validity of each. So a bound holds even if its configuration is chosen by it."
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences of the summary."""
        counts = {state: sum(row.configuration.state == state for row in self.rows) for state in (STOPPED, FAILED)}
        missing = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        audited = f"{len(self.rows)} configurations, {sum(row.is_audited for row in self.rows)} audited"
        return (
            f"{audited}{', ' + missing if missing else ''}.",
            *self._blind_lines(),
            self.confidence_line,
            *self._best_lines(),
            *self._utility_lines(),
        )

    def _blind_lines(self) -> list[str]:
        """Return a sentence on the audits that could not have rejected their claims."""
        blind = self.blind
        if not blind:
            return []
        most = max((row.ceiling for row in blind if not math.isnan(row.ceiling)), default=math.nan)
        would = "" if math.isnan(most) else f" Without privacy they would show epsilon {format_upper(most)} at most."
        first = (
            "INCONCLUSIVE: no audit could have rejected its claim."
            if self.is_blind
            else f"{len(blind)} of {len(self.rows)} audits could not have rejected their claims."
        )
        advice = "Such bounds say nothing about privacy: use another game or attack, or more canaries."
        return [f"{first}{would} {advice}"]

    def _utility_lines(self) -> list[str]:
        """Return sentences on differences of utility that the test part cannot tell from chance."""
        errors = 2.0  # standard errors below which a difference is attributed to chance
        measured = [row for row in self.rows if not (math.isnan(row.utility) or math.isnan(self.error(row)))]
        lines, best = [], self.best
        if best in measured and best is not None and len(measured) > 1:
            close = sum(
                abs(row.utility - best.utility) <= errors * math.hypot(self.error(row), self.error(best))
                for row in measured
                if row is not best
            )
            if close:
                lines.append(
                    f"The {self.metric} of {close} of the other {len(measured) - 1} configurations is within two "
                    "standard errors of the best: more test rows are needed to tell them apart."
                )
        if measured and not math.isnan(self.majority):
            low = sum(row.utility - self.majority <= errors * self.error(row) for row in measured)
            lines.append(
                f"Always answering the most frequent label: {self.metric} {self.majority:.4f}. {low} of "
                f"{len(measured)} configurations are not above it by two standard errors."
            )
        return lines

    def _best_lines(self) -> list[str]:
        best, limit = self.best, self.sweep.subject_to
        claims = "" if limit.epsilon is None else f"claim epsilon <= {limit.epsilon:g} and are not contradicted"
        audited_epsilon = limit.audited_epsilon
        not_shown = "" if audited_epsilon is None else f"were not shown to exceed epsilon = {audited_epsilon:g}"
        limits = " and ".join(filter(None, (claims, not_shown)))
        if best is None:
            return [f"No configuration {limits or 'was audited'}."]
        wanted = "largest" if self.sweep.mode == "max" else "smallest"
        of = f" of those that {limits}" if limits else ""
        lines = [
            f"Best: {best.name}: {self.metric} {best.utility:.4f}, the {wanted}{of}.",
            f"Measured: {best.epsilon_text(self.together)}.",
        ]
        if limits:
            lines.append(f"{best.why[0].upper()}{best.why[1:]}.")
        again = self.reaudit
        if again is None:
            chosen = (
                f"Its {self.metric} was chosen as the {wanted} of several on the same test rows: expect a little less."
            )
            return [*lines, chosen.replace("less", "more") if self.sweep.mode == "min" else chosen]
        both = max(0.0, self.confidence + again.confidence - 1)
        utility = "" if math.isnan(again.utility) else f"; {self.metric} {again.utility:.4f}"
        return [
            *lines,
            f"Audited afresh with seed {again.seed} after the selection: {again.headline}{utility}. This bound alone "
            f"holds with confidence {again.confidence:g}, together with those of the sweep with {both:.4g}.",
        ]

    @property
    def table(self) -> list[list[str]]:
        """Rows of the printed table: name, utility, bound, claim, maximum detectable epsilon, state."""
        header = ["configuration", self.metric, "audited >=", "claimed", "detectable", "", ""]
        best = self.best
        return [header, *([*self._cells(row), "best" if row is best else ""] for row in self.rows)]

    def _cells(self, row: SweepRow) -> list[str]:
        claimed = "nothing" if math.isinf(row.claimed) else "" if math.isnan(row.claimed) else f"{row.claimed:g}"
        utility, error = "" if math.isnan(row.utility) else f"{row.utility:.4f}", self.error(row)
        return [
            row.name,
            f"{utility} ± {error:.4f}" if utility and not math.isnan(error) else utility,
            format_lower(row.audited) if row.is_audited else "",
            claimed,
            "" if math.isnan(row.ceiling) else format_upper(row.ceiling),
            "; ".join(filter(None, [row.state, _STATE_OF_CLAIM.get(row.verdict, "")])),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        best = self.best
        return {
            "metric": self.sweep.metric,
            "mode": self.sweep.mode,
            "configurations": self.sweep.count,
            "confidence": self.confidence,
            "confidence_of_each": ErrorBudget(self.confidence, self.sweep.count).first_pass,
            "inconclusive": self.is_blind,
            "majority": self.majority,
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


_STATE_OF_CLAIM = {Verdict.VIOLATION.value: "claim rejected", Verdict.INCONCLUSIVE.value: "could not reject"}


def sweep_summary(
    sweep: Sweep, results: Sequence[AuditResult], confidence: float, folder: Path | None = None
) -> SweepSummary:
    """Return the summary of a sweep; its folder may hold the fresh audit of the best configuration."""
    by_name = {result.name: result for result in results}
    rows = [_row(sweep, configuration, by_name.get(configuration.name)) for configuration in sweep.configurations]
    summary = SweepSummary(sweep, _with_dominance(sweep, rows), confidence)
    return summary if folder is None else replace(summary, reaudit=_reaudit(summary, folder))


def _row(sweep: Sweep, configuration: Configuration, result: AuditResult | None) -> SweepRow:
    if result is None or result.finding is None:
        utility = configuration.metrics.get(sweep.metric, math.nan)
        return SweepRow(configuration, utility, dict(configuration.metrics), audit=result)
    measured = epsilons(result)
    audited, claimed, ceiling = measured.values()
    verdict, validity = result.verdict.value, result.finding.validity.value
    utility, metrics = result.metrics.get(sweep.metric, math.nan), dict(result.metrics)
    row = SweepRow(configuration, utility, metrics, audited, claimed, ceiling, verdict, validity, audit=result)
    meets, why = _meets_limits(sweep, row)
    return replace(row, meets=meets, why=why, metrics=metrics | (measured if row.is_audited else {}))


def _meets_limits(sweep: Sweep, row: SweepRow) -> tuple[bool, str]:
    """Return whether a configuration meets the limits, and the reason."""
    limit, shown_limit = sweep.subject_to.epsilon, sweep.subject_to.audited_epsilon
    bound_text = f"epsilon >= {format_lower(row.audited)}"
    if shown_limit is not None and row.audited > shown_limit:
        return False, f"{bound_text} was shown, which exceeds {shown_limit:g}"
    if limit is None and shown_limit is None:
        return True, ""
    if limit is None:
        return True, f"only {bound_text} was shown, which does not prove that it is below {shown_limit:g}"
    if row.audited > limit:
        return False, f"{bound_text} was shown, which exceeds {limit:g}"
    if row.verdict in (Verdict.VIOLATION, Verdict.UNDECIDED):
        return False, f"the bound exceeds its claim ({bound_text}), so the claim is no evidence"
    if not row.claimed <= limit:
        claims = f"{row.claimed:g}" if math.isfinite(row.claimed) else "nothing"
        return False, f"there is no evidence that it is below the limit: it claims {claims}"
    could = "" if row.verdict != Verdict.INCONCLUSIVE else ", and could not have contradicted"
    return True, (
        f"only its claim of {row.claimed:g} keeps it below {limit:g}. The audit did not contradict that claim{could}; "
        "a low bound proves nothing"
    )


def _with_dominance(sweep: Sweep, rows: list[SweepRow]) -> tuple[SweepRow, ...]:
    """Return the rows with `dominated_claim` and `dominated_audit` set."""
    audited = [row for row in rows if row.is_audited]

    def dominated(row: SweepRow, by: str) -> bool:
        value = getattr(row, by)
        return any(
            getattr(other, by) <= value
            and not sweep.is_better(row.utility, other.utility)
            and (getattr(other, by) < value or sweep.is_better(other.utility, row.utility))
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
    """Return the fresh audit of the best configuration from its run folder; None if missing or edited."""
    best = summary.best
    if best is None or not summary.sweep.reaudit:
        return None
    try:
        bounds = read_bytes(folder / REAUDIT / "bounds.json")
        if last_checksum_note(read_events(folder / REAUDIT / "events.jsonl")) not in ("", checksum_note(bounds)):
            return None
        stated = StatedValue.parse(bounds, "bounds.json")
        (result,) = stated["results"].items()
        if result["name"].name() != reaudit_name(best.name):
            return None
        utility = result["metrics"][summary.sweep.metric]
        return Reaudit(
            result["headline"].text(),
            result["verdict"].member(Verdict).value,
            stated["seed"].integer(0, MAX_SEED - 1),
            stated["confidence"].number(0, 1),
            math.nan if utility.value in (None, "nan") else utility.number(),
        )
    except (OSError, AuditError, ValueError):
        return None


def reaudit_name(name: str) -> str:
    """Return the name of the fresh audit of a configuration."""
    return f"{name}, audited afresh"
