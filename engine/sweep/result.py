"""Result of a sweep, with the names of Ray Tune's `ResultGrid`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.sweep_summary import SweepRow, SweepSummary
from dpaudit.errors import RunError, UnknownNameError, did_you_mean, printable

if TYPE_CHECKING:
    import pandas as pd
    from ray.tune import Result, ResultGrid


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """The configurations of a sweep, each with its audit.

    Attributes:
        report: The report of all audits, as from `dpaudit.audit`.
    """

    report: Report

    @property
    def summary(self) -> SweepSummary:
        """Summary of all configurations."""
        assert self.report.sweep is not None
        return self.report.sweep

    @property
    def experiment_path(self) -> str:
        """Folder of the sweep."""
        return self.report.folder

    @property
    def errors(self) -> list[str]:
        """Errors of the failed configurations."""
        return [trial.error for trial in self if trial.error]

    @property
    def num_errors(self) -> int:
        """Number of failed configurations."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """Number of configurations that were audited, or stopped by a scheduler."""
        return len(self) - self.num_errors

    def get_best_result(self, metric: str | None = None, mode: str | None = None) -> SweepRow:
        """Return the best configuration among those that meet the limits of the sweep.

        All bounds hold together, so a choice by any metric keeps the confidence.

        Args:
            metric: A metric. Default: the metric and mode of the sweep.
            mode: "max" or "min". Default: the mode of the sweep.
        Raises: RunError if no configuration meets the limits; UnknownNameError if there is no such metric.
        """
        if metric is None:
            candidates = [self.summary.best] if self.summary.best is not None else []
        else:
            metric = metric.replace(" ", "_")
            fitting = [trial for trial in self if trial.is_audited and trial.meets]
            names = sorted({name for trial in fitting for name in trial.metrics})
            if fitting and metric not in names:
                raise UnknownNameError(
                    f"metric must be one of {', '.join(names)}, got {metric!r}{did_you_mean(metric, names)}"
                )
            wanted = metric
            sign = -1 if (mode or self.summary.sweep.mode) == "max" else 1
            measured = [trial for trial in fitting if not math.isnan(trial.metrics[wanted])]
            candidates = sorted(measured, key=lambda trial: sign * trial.metrics[wanted])
        if not candidates:
            raise RunError("no audited configuration meets the limits of the sweep")
        return candidates[0]

    def get_dataframe(self) -> pd.DataFrame:
        """Return one row for each configuration: `config/<field>`, utility, epsilon, and whether it is dominated."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.summary.rows])

    @property
    def result_grid(self) -> ResultGrid:
        """The configurations as the `ResultGrid` of Ray Tune."""
        return _result_grid(self)

    def __len__(self) -> int:
        return len(self.summary.rows)

    def __getitem__(self, index: int) -> SweepRow:
        return self.summary.rows[index]

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.summary.rows)

    def __repr__(self) -> str:
        best = self.summary.best
        summary = f"{len(self)} configurations, best {best.name if best else 'none'}"
        return printable(f"<SweepResult {self.report.name!r}: {summary}>")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        return str(self.report)


def _result_grid(result: SweepResult) -> ResultGrid:
    """Return the configurations of a sweep as the `ResultGrid` of Ray Tune, with the metric and mode of the sweep."""
    from ray.tune import Result, ResultGrid  # its import takes seconds

    def as_result(index: int) -> Result:
        row = result[index]
        metrics = {**row.metrics, "verdict": row.verdict, "config": row.config}
        error = RunError(row.error) if row.error else None
        return Result(metrics=metrics, checkpoint=None, error=error, path=result.experiment_path)

    class Grid(ResultGrid):  # type: ignore[misc]
        def __init__(self) -> None:
            self._results = [as_result(index) for index in range(len(result))]

        experiment_path = property(lambda self: result.experiment_path)
        num_errors = property(lambda self: result.num_errors)
        num_terminated = property(lambda self: result.num_terminated)

        def get_best_result(self, metric: str | None = None, mode: str | None = None, **_: Any) -> Result:
            names = [row.name for row in result]
            return self._results[names.index(result.get_best_result(metric, mode).name)]

        def get_dataframe(self, *_: Any, **__: Any) -> Any:
            return result.get_dataframe()

    return Grid()
