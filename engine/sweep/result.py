"""What a sweep found, under the names that Ray Tune's `ResultGrid` has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import Report
from dpaudit.engine.reading.sweep_summary import SweepRow, SweepSummary
from dpaudit.errors import RunError, UnknownNameError, did_you_mean, printable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class SweepTrial:
    """One configuration and what was found of it."""

    config: dict[str, Any]  # from each field that is varied to its value
    metrics: dict[str, float]  # utility, `audited_epsilon`, `claimed_epsilon` and `ceiling_epsilon` of one record
    error: str  # why it failed, in one line; "" when it did not
    audit: AuditResult | None  # what its audit found; None where it was stopped or failed
    row: SweepRow  # the same beside the other configurations


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """The configurations of a sweep, each with its audit.

    Attributes:
        report: Of all audits, as `dpaudit.audit` would give it.
    """

    report: Report

    @property
    def summary(self) -> SweepSummary:
        """What may be said of all configurations together."""
        assert self.report.sweep is not None
        return self.report.sweep

    @property
    def experiment_path(self) -> str:
        """The sweep's folder."""
        return self.report.folder

    @property
    def errors(self) -> list[str]:
        """Why configurations failed."""
        return [trial.error for trial in self if trial.error]

    @property
    def num_errors(self) -> int:
        """How many failed."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """How many ended in order: audited, or stopped by a scheduler."""
        return len(self) - self.num_errors

    def get_best_result(self, metric: str | None = None, mode: str | None = None) -> SweepTrial:
        """The best configuration of those that meet the limits of the sweep.

        Args:
            metric: A metric; None takes the one that the sweep was for, with its mode. The bounds hold together, so any
                choice among them keeps its confidence.
            mode: "max" or "min".
        Raises: RunError when none meets the limits; UnknownNameError when there is no such metric.
        """
        if metric is None:
            best = self.summary.best
            found = [] if best is None else [trial for trial in self if trial.row.name == best.name]
        else:
            metric = metric.replace(" ", "_")
            fitting = [trial for trial in self if trial.row.is_audited and trial.row.meets]
            names = sorted({name for trial in fitting for name in trial.metrics})
            if fitting and metric not in names:
                raise UnknownNameError(
                    f"metric must be one of {', '.join(names)}, got {metric!r}{did_you_mean(metric, names)}"
                )
            wanted = metric
            sign = -1 if (mode or self.summary.sweep.mode) == "max" else 1
            known = [trial for trial in fitting if not math.isnan(trial.metrics[wanted])]
            found = sorted(known, key=lambda trial: sign * trial.metrics[wanted])
        if not found:
            raise RunError("no configuration that was audited meets the limits of the sweep")
        return found[0]

    def get_dataframe(self) -> pd.DataFrame:
        """One row a configuration: `config/<field>`, utility, epsilon, whether it is dominated."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.summary.rows])

    def __len__(self) -> int:
        return len(self.summary.rows)

    def __getitem__(self, place: int) -> SweepTrial:
        row = self.summary.rows[place]
        audits = {result.name: result for result in self.report.results}
        metrics = dict(row.metrics)
        if row.is_audited:
            metrics |= {
                "audited_epsilon": row.audited,
                "claimed_epsilon": row.claimed,
                "ceiling_epsilon": row.ceiling,
            }
        one = row.configuration
        return SweepTrial(dict(one.values), metrics, one.error, audits.get(row.name), row)

    def __iter__(self) -> Iterator[SweepTrial]:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        best = self.summary.best
        found = f"{len(self)} configurations, best {best.name if best else 'none'}"
        return printable(f"<SweepResult {self.report.name!r}: {found}>")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        return str(self.report)
