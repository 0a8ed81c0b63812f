"""Log reports and estimates to MLflow."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.errors import shortened
from dpaudit.estimators.measures import pairs_above
from dpaudit.locations import imported

_ARTIFACTS = ("report.html", "bounds.json", "spec.yaml")


def log_to_mlflow(found: Report | Estimate, *, experiment: str | None = None, name: str | None = None) -> str:
    """Log a report or an estimate to the MLflow server of `MLFLOW_TRACKING_URI` or of the caller's settings.

    A report of one audit is one run. A report of several audits is a run with a nested run for each. If the caller has
    an active run, all are nested in it. Parameters describe the audit, metrics are its finite numbers, and the tag
    `verdict` is its verdict. The artifacts are `report.html`, `bounds.json` and `spec.yaml` of a local run folder.

    Args:
        found: Result of `audit`, `check` or `estimate`.
        experiment: MLflow experiment. Default: the active experiment.
        name: Name of the run. Default: the report's name, or "estimate".
    Returns: The id of the run.
    Raises: InputError if MLflow is not installed; errors of MLflow.
    """
    mlflow = imported("mlflow", "mlflow")
    if experiment is not None:
        mlflow.set_experiment(experiment)
    title = name or (found.name if isinstance(found, Report) else "estimate")
    with mlflow.start_run(run_name=shortened(title), nested=mlflow.active_run() is not None) as run:
        mlflow.set_tag("dpaudit.means", NOT_SHOWN[0])
        if isinstance(found, Estimate):
            claim = found.claim
            params = {"method": found.method, "selection": found.selection, "validity": found.validity.value}
            measured = {measure.name.replace("%", "percent"): measure.value for measure in found.measures}
            bound = {"epsilon_lower": found.lower, "delta": found.delta, "confidence": found.confidence}
            claimed = {} if claim is None else {"claimed": claim.epsilon}
            params |= {"claim": "none" if claim is None else str(claim)}
            _log(mlflow, str(found.verdict), params, {**bound, **claimed, **measured})
        else:
            _log_report(mlflow, found)
        return str(run.info.run_id)


def _log_report(mlflow: Any, report: Report) -> None:
    common_params = {"seed": report.seed, "units": report.units}
    if len(report.results) == 1:
        params, metrics = _audit_values(report.results[0])
        _log(mlflow, str(report.results[0].verdict), params | common_params, metrics | {"seconds": report.seconds})
    else:
        verdicts = [str(result.verdict) for result in report.results]
        verdict = str(report.joint.verdict) if report.joint is not None else ", ".join(dict.fromkeys(verdicts))
        _log(mlflow, verdict, common_params, {"seconds": report.seconds})
        for result in report.results:
            with mlflow.start_run(run_name=shortened(result.name), nested=True):
                _log(mlflow, str(result.verdict), *_audit_values(result))
    for file in _ARTIFACTS:
        if report.folder and (path := Path(report.folder) / file).is_file():
            mlflow.log_artifact(str(path))


def _log(mlflow: Any, verdict: str, params: Mapping[str, Any], metrics: Mapping[str, float | None]) -> None:
    mlflow.set_tag("verdict", verdict)
    mlflow.log_params({_key(name): shortened(value, 500) for name, value in params.items() if value != ""})
    numbers = {_key(name): float(value) for name, value in metrics.items() if value is not None}
    mlflow.log_metrics({name: value for name, value in numbers.items() if math.isfinite(value)})


def _key(name: str) -> str:
    """Return a name that every MLflow store accepts."""
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
