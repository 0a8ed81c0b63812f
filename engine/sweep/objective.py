"""Audits as trials of Ray Tune: a trainable for a `Tuner` with any search algorithm and scheduler.

Trials draw from seeds of their own, and each bound has the confidence 1 - error / trials. A bound fails with at most
this probability given all earlier trials, so all bounds hold together, even if a search chooses configurations by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.loading import single_fields
from dpaudit.engine.run.driver import run_plan
from dpaudit.engine.sweep.request import read_request
from dpaudit.engine.sweep.result import SweepResult
from dpaudit.errors import InputError, RunError, require
from dpaudit.plain_files import join_place


def objective(
    spec: Audit | AuditSpec | str | Path | Mapping[str, Any], *, trials: int, output: str | Path | None = None
) -> Callable[[dict[str, Any]], None]:
    """Return a function for `ray.tune.Tuner` that audits a spec with the fields of its config.

    It reports `audited_epsilon` (the bound), `claimed_epsilon`, `ceiling_epsilon`, `verdict`, `confidence` and the
    metrics of utility, such as `test_accuracy`. Units run inside the trial unless the spec states another `runner`.

    Args:
        spec: One audit, as for `dpaudit.sweep`, without `grid` and `sweep`.
        trials: Number of trials that share the error of the spec, >= 1; further ones fail.
        output: Folder or URI below which each trial has a run folder. Default: the folder of the trial.
    Raises: SpecError for a wrong spec; InputError for `trials` below 1.
    """
    require(trials >= 1, "trials must be >= 1", trials=trials)
    request = read_request(spec)
    if request.run.runner == "auto":
        request = replace(request, run=replace(request.run, runner="in-process"))
    request = replace(request, sweep=replace(request.sweep, samples=trials, adaptive=True, count=trials))

    def trial(config: dict[str, Any]) -> None:
        from ray import tune

        number = _number(tune.get_context())
        if number >= trials:
            raise InputError(f"the error is shared by {trials} trials, this is number {number + 1}. Raise `trials`")
        configuration = request.configuration(single_fields(config))
        spec = replace(request, seed=request.derived_seed(f"trial {number}")).spec([configuration])
        (row,) = SweepResult(run_plan(make_plan(spec), _place(output, number)))
        if row.audit is None or row.audit.finding is None:
            failures = () if row.audit is None else row.audit.tried_failures
            raise RunError(next((failure.error for failure in failures), "the audit has no bound"))
        tune.report({**row.metrics, "verdict": row.verdict, "confidence": row.audit.finding.confidence})

    return trial


def _number(context: Any) -> int:
    """Return the number of a trial in its experiment, from 0.

    A trial of a grid has it in its id, "ab12c_00003". That of a search algorithm has it, from 1, in the name of its
    folder: "trial_38d8b22f_4_epochs=2".
    """
    trial_id, folder = context.get_trial_id(), Path(context.get_trial_dir()).name
    if "_" in trial_id:
        return int(trial_id.rpartition("_")[2])
    match = re.match(rf".*{trial_id}_(\d+)(_|$)", folder)
    if match is None:
        raise InputError("the names of trial folders must be those of Ray Tune. Leave `trial_dirname_creator` out")
    return int(match[1]) - 1


def _place(output: str | Path | None, number: int) -> str | Path:
    """Return the run folder of a trial; a trial that is restored finds its finished units there."""
    from pyarrow import fs
    from ray import tune

    if output is not None:
        return join_place(output, f"trial-{number:05d}")
    storage = tune.get_context().get_storage()
    filesystem = getattr(storage.storage_filesystem, "base_fs", storage.storage_filesystem)
    if not isinstance(filesystem, fs.LocalFileSystem):
        raise InputError("the trials are stored at a URI. Give `output`, a URI for their run folders")
    return Path(storage.trial_fs_path) / "audit"
