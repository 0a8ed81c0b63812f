"""What a run found as runs of MLflow: beside the trainings that are kept there, for whoever compares them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.engine.estimate.measures import pairs_above
from dpaudit.engine.reading.answer_words import NOT_SHOWN
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import Report
from dpaudit.errors import InputError, shortened

_ARTIFACTS = ("report.html", "bounds.json", "spec.yaml")


def log_to_mlflow(found: Report | Estimate, *, experiment: str | None = None, name: str | None = None) -> str:
    """Logs what was found to MLflow, where `MLFLOW_TRACKING_URI` or the caller's own settings say.

    A report of one audit is one run; one of several is a run with a nested one for each. Inside of an active run of the
    caller's it is nested in that one. Parameters say what was audited, metrics what was observed (numbers that are not
    finite are left out), the tag `verdict` what follows, and `report.html`, `bounds.json` and `spec.yaml` of a local
    run folder are its artifacts.

    Args:
        found: What `audit`, `check` or `estimate` gave.
        experiment: Its experiment; left out: the active one.
        name: Of the run; left out: the report's name, or "estimate".
    Returns: The id of the run.
    Raises: InputError where MLflow is not installed; what MLflow raises otherwise.
    """
    try:
        mlflow = import_module("mlflow")
    except ImportError as err:
        raise InputError("this needs the package mlflow; install it with `pip install dpaudit[mlflow]`") from err
    if experiment is not None:
        mlflow.set_experiment(experiment)
    title = name or (found.name if isinstance(found, Report) else "estimate")
    with mlflow.start_run(run_name=shortened(title), nested=mlflow.active_run() is not None) as run:
        mlflow.set_tag("dpaudit.means", NOT_SHOWN[0])
        if isinstance(found, Estimate):
            _log(mlflow, str(found.verdict), *_of_estimate(found))
        else:
            _log_report(mlflow, found)
        return str(run.info.run_id)


def _log_report(mlflow: Any, report: Report) -> None:
    about = {"seed": report.seed, "units": report.units}
    if len(report.results) == 1:
        params, metrics = _of_audit(report.results[0])
        _log(mlflow, str(report.results[0].verdict), params | about, metrics | {"seconds": report.seconds})
    else:
        verdicts = [str(result.verdict) for result in report.results]
        said = str(report.joint.verdict) if report.joint is not None else ", ".join(dict.fromkeys(verdicts))
        _log(mlflow, said, about, {"seconds": report.seconds})
        for result in report.results:
            with mlflow.start_run(run_name=shortened(result.name), nested=True):
                _log(mlflow, str(result.verdict), *_of_audit(result))
    for file in _ARTIFACTS:
        if report.folder and (path := Path(report.folder) / file).is_file():
            mlflow.log_artifact(str(path))


def _log(mlflow: Any, verdict: str, params: Mapping[str, Any], metrics: Mapping[str, float | None]) -> None:
    mlflow.set_tag("verdict", verdict)
    mlflow.log_params({_key(name): shortened(value, 500) for name, value in params.items() if value != ""})
    numbers = {_key(name): float(value) for name, value in metrics.items() if value is not None}
    mlflow.log_metrics({name: value for name, value in numbers.items() if math.isfinite(value)})


def _key(name: str) -> str:
    """A name that every store of MLflow takes."""
    return re.sub(r"[^\w .-]", "_", name, flags=re.ASCII)[:250]


def _of_audit(result: AuditResult) -> tuple[dict[str, Any], dict[str, float | None]]:
    """What was audited, and what was observed."""
    row = result.row()
    params = {name: row[name] for name in ("quantity", "where", "method", "selection", "validity")}
    params |= {"claim": result.claimed, "mechanism": result.mechanism, "game": result.game, "data": result.data}
    metrics = {name: row[name] for name in ("claimed", "observed", "ceiling", "detectable_factor", "confidence")}
    metrics |= {"epsilon_lower": result.epsilon, "units_finished": float(result.units[0]), "AUC": _auc(result)}
    return params, metrics | {f"utility {name}": value for name, value in result.metrics.items()}


def _auc(result: AuditResult) -> float | None:
    """That of the scores that were kept, the median over replays; None where there are none of both worlds."""
    if not result.evidence or not Path(result.evidence).is_dir():
        return None
    frame = result.scores()
    if not {"score", "truth", "replay"} <= set(frame.columns):
        return None
    found = []
    for _, replay in frame.groupby("replay"):
        with contextlib.suppress(ZeroDivisionError):
            members, others = (np.sort(replay.score[replay.truth == bit].to_numpy(float)) for bit in (True, False))
            found.append(pairs_above(members, others) / (members.size * others.size))
    return float(np.median(found)) if found else None


def _of_estimate(found: Estimate) -> tuple[dict[str, Any], dict[str, float | None]]:
    """How it was bounded, and what the scores show."""
    params = {"method": found.method, "selection": found.selection, "validity": found.validity.value}
    claim = found.claim
    measured = {one.name.replace("%", "percent"): one.value for one in found.measures}
    bound = {"epsilon_lower": found.lower, "delta": found.delta, "confidence": found.confidence}
    claimed = {} if claim is None else {"claimed": claim.epsilon}
    return params | {"claim": "none" if claim is None else claim}, {**bound, **claimed, **measured}
