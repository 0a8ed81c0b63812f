"""Log reports and estimates to MLflow, or to Weights & Biases."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.errors import shortened
from dpaudit.estimators.measures import pairs_above
from dpaudit.locations import imported

_ARTIFACTS = ("report.html", "bounds.json", "spec.yaml")


@dataclass(frozen=True)
class Entry:
    """Values of a run of a tracker.

    Attributes:
        name: Name of the run.
        verdict: Verdict, or several.
        params: Description of the audit.
        metrics: Its finite numbers.
    """

    name: str
    verdict: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, name: str, verdict: object, params: Mapping[str, Any], metrics: Mapping[str, float | None]) -> Entry:
        """Return an entry with names and values that every tracker accepts."""
        texts = {_key(key): shortened(value, 500) for key, value in params.items() if value != ""}
        numbers = {_key(key): float(value) for key, value in metrics.items() if value is not None}
        finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
        return cls(shortened(name), str(verdict), texts, finite)


class Tracker(Protocol):
    """A service to which runs are logged."""

    def run(self, entry: Entry) -> AbstractContextManager[str]:
        """Log an entry as a run, whose id a `with` block gets; runs within the block belong to it."""

    def attach(self, path: Path) -> None:
        """Add a file to the innermost open run."""


def log_to_mlflow(result: Report | Estimate, *, experiment: str | None = None, name: str | None = None) -> str:
    """Log a report or an estimate to the MLflow server of `MLFLOW_TRACKING_URI` or of the caller's settings.

    A report of one audit is one run. A report of several audits is a run with a nested run for each. If the caller has
    an active run, all are nested in it. Parameters describe the audit, metrics are its finite numbers, and the tag
    `verdict` is its verdict. The artifacts are `report.html`, `bounds.json` and `spec.yaml` of a local run folder.

    Args:
        result: Result of `audit`, `check` or `estimate`.
        experiment: MLflow experiment. Default: the active experiment.
        name: Name of the run. Default: the report's name, or "estimate".
    Returns: The id of the run.
    Raises: InputError if MLflow is not installed; errors of MLflow.
    """
    return _log(_MlFlow(experiment), result, name)


def log_to_wandb(result: Report | Estimate, *, project: str | None = None, name: str | None = None) -> str:
    """Log a report or an estimate to Weights & Biases; with `WANDB_MODE=offline`, to a folder on this machine.

    A report of several audits is a run for all of them, and a run for each in a group of its name. An active run of
    the caller stays open and is not written to. The configuration describes the audit, and the summary has its finite
    numbers and `verdict`. The files are `report.html`, `bounds.json` and `spec.yaml` of a local run folder.

    Args:
        result: Result of `audit`, `check` or `estimate`.
        project: Project. Default: that of the caller's settings.
        name: Name of the run. Default: the report's name, or "estimate".
    Returns: The id of the run.
    Raises: InputError if wandb is not installed; errors of wandb.
    """
    return _log(_WeightsAndBiases(project), result, name)


def _log(tracker: Tracker, result: Report | Estimate, name: str | None) -> str:
    first, *inner = _entries(result, name)
    with tracker.run(first) as number:
        for entry in inner:
            with tracker.run(entry):
                pass
        for file in _ARTIFACTS:
            if isinstance(result, Report) and result.folder and (path := Path(result.folder) / file).is_file():
                tracker.attach(path)
    return number


def _entries(result: Report | Estimate, name: str | None) -> list[Entry]:
    """Return the entry of the run, and those of its audits if there are several."""
    if isinstance(result, Estimate):
        claim = result.claim
        params = {"method": result.method, "selection": result.selection, "validity": result.validity.value}
        measured = {measure.name.replace("%", "percent"): measure.value for measure in result.measures}
        bound = {"epsilon_lower": result.lower, "delta": result.delta, "confidence": result.confidence}
        claimed = {} if claim is None else {"claimed": claim.epsilon}
        params |= {"claim": "none" if claim is None else str(claim)}
        return [Entry.of(name or "estimate", result.verdict, params, {**bound, **claimed, **measured})]
    title, seconds = name or result.name, {"seconds": result.seconds}
    common_params = {"seed": result.seed, "units": result.units}
    if len(result.results) == 1:
        params, metrics = _audit_values(result.results[0])
        return [Entry.of(title, result.results[0].verdict, params | common_params, metrics | seconds)]
    verdicts = ", ".join(dict.fromkeys(str(audited.verdict) for audited in result.results))
    verdict = verdicts if result.joint is None else result.joint.verdict
    each = [Entry.of(audited.name, audited.verdict, *_audit_values(audited)) for audited in result.results]
    return [Entry.of(title, verdict, common_params, seconds), *each]


class _MlFlow:
    def __init__(self, experiment: str | None) -> None:
        self._mlflow = imported("mlflow", "mlflow")
        if experiment is not None:
            self._mlflow.set_experiment(experiment)

    @contextlib.contextmanager
    def run(self, entry: Entry) -> Iterator[str]:
        is_nested = self._mlflow.active_run() is not None
        with self._mlflow.start_run(run_name=entry.name, nested=is_nested) as run:
            self._mlflow.set_tag("dpaudit.means", NOT_SHOWN[0])
            self._mlflow.set_tag("verdict", entry.verdict)
            self._mlflow.log_params(entry.params)
            self._mlflow.log_metrics(entry.metrics)
            yield str(run.info.run_id)

    def attach(self, path: Path) -> None:
        self._mlflow.log_artifact(str(path))


class _WeightsAndBiases:
    def __init__(self, project: str | None) -> None:
        self._wandb, self._project, self._open = imported("wandb", "wandb"), project, list[Any]()

    @contextlib.contextmanager
    def run(self, entry: Entry) -> Iterator[str]:
        run = self._wandb.init(
            project=self._project,
            name=entry.name,
            group=self._open[0].name if self._open else entry.name,
            job_type="audit" if self._open else "dpaudit",
            config=dict(entry.params),
            reinit="create_new",
        )
        run.summary.update({"verdict": entry.verdict, "dpaudit.means": NOT_SHOWN[0], **entry.metrics})
        self._open.append(run)
        try:
            yield str(run.id)
        finally:
            self._open.pop().finish()

    def attach(self, path: Path) -> None:
        self._open[-1].save(str(path), base_path=str(path.parent), policy="now")


def _key(name: str) -> str:
    """Return a name that every tracker accepts."""
    return re.sub(r"[^\w .-]", "_", name, flags=re.ASCII)[:250]


def _audit_values(result: AuditResult) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Return the parameters and metrics of an audit."""
    row = result.row()
    params = {name: row[name] for name in ("quantity", "where", "method", "selection", "validity")}
    params |= {"claim": result.claimed, "mechanism": result.mechanism, "game": result.game, "data": result.data}
    metrics = {name: row[name] for name in ("claimed", "observed", "ceiling", "detectable_factor", "confidence")}
    metrics |= {"epsilon_lower": result.epsilon, "units_finished": float(result.units[0]), "AUC": _auc(result)}
    return params, metrics | {f"utility {name}": value for name, value in result.metrics.items()}


def _auc(result: AuditResult) -> float | None:
    """Return the median AUC over replays; None if no scores of both worlds were kept."""
    if not result.evidence or not Path(result.evidence).is_dir():
        return None
    frame = result.scores()
    if not {"score", "truth", "replay"} <= set(frame.columns):
        return None
    areas = []
    for _, replay in frame.groupby("replay"):
        with contextlib.suppress(ZeroDivisionError):
            members, others = (np.sort(replay.score[replay.truth == bit].to_numpy(float)) for bit in (True, False))
            areas.append(pairs_above(members, others) / (members.size * others.size))
    return float(np.median(areas)) if areas else None
