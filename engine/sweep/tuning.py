"""A sweep's trials by Ray Tune: one trial a configuration, its files in the sweep's folder, its noise kept back."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from dpaudit.actors.events import Event, EventKind, EventStream, last_line
from dpaudit.actors.storage.mirror import reached
from dpaudit.engine.run.place import TUNE
from dpaudit.engine.spec.sweep import AUDITED, FAILED, STOPPED, Configuration
from dpaudit.engine.sweep.request import Request
from dpaudit.engine.sweep.space import as_tune, single_fields
from dpaudit.engine.sweep.trial import RUNG, Trials
from dpaudit.errors import SpecError
from dpaudit.estimators.bound import format_lower

NUMBER = "configuration"
"""What a trial is given where all configurations are known: the number of its own."""

_EVENTS: ContextVar[EventStream | None] = ContextVar("events of a sweep", default=None)
"""Told of trials: what Tune keeps of a callback must not hold a terminal."""


def tried(
    trials: Trials, known: Sequence[Configuration], events: EventStream, config: tune.TuneConfig
) -> list[Configuration]:
    """Carries out the trials that are not finished, in a Ray session that is there.

    What Tune has written in the sweep's folder before is not read: it is pickled, and others may write there. Trials
    begin anew, and find what they finished.

    Args:
        trials: What they have in common.
        known: All configurations; empty where a search algorithm chooses them.
        events: Told of each trial that begins and ends.
        config: How many at a time, which scheduler, which search algorithm.
    Returns: Every configuration and what became of it.
    Raises: SpecError when the scheduler changes configurations.
    """
    request = trials.request
    if isinstance(config.scheduler, PopulationBasedTraining):
        raise SpecError("a scheduler that changes configurations while they train cannot be audited; use another one")
    filesystem, root = reached(trials.place)
    folder, name = f"{root}/{TUNE}", f"{request.digest}-{time.time_ns()}"
    trainable = tune.with_resources(
        tune.with_parameters(_configuration, trials=trials, known=[one.values for one in known]), _resources(request)
    )
    token = _EVENTS.set(events)
    try:
        with _quiet():
            space = {NUMBER: tune.grid_search(list(range(len(known))))} if known else as_tune(request.sweep.space)
            tuner = tune.Tuner(
                trainable,
                param_space=space,
                tune_config=config,
                run_config=tune.RunConfig(
                    name=name,
                    storage_path=folder,
                    storage_filesystem=filesystem,
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=1),  # a worker that is lost is no failure yet
                    callbacks=[_Progress(request, known)],
                ),
            )
            return [_outcome(request, known, result) for result in tuner.fit()]
    finally:
        _EVENTS.reset(token)


def tune_config(request: Request, given: tune.TuneConfig | None) -> tune.TuneConfig:
    """What Tune is told, beside the space: the user's own settings, and the sweep's where those are silent.

    Raises: SpecError when the number of configurations is not fixed beforehand.
    """
    sweep, config = request.sweep, given or tune.TuneConfig()
    if config.num_samples < 1:
        raise SpecError("num_samples must be >= 1: the error is split over configurations whose number is fixed")
    scheduler = config.scheduler
    if scheduler is None and sweep.rungs is not None:
        factor = sweep.rungs.reduction_factor
        most = factor ** (len(sweep.rungs.values) - 1)
        scheduler = ASHAScheduler(time_attr=RUNG, max_t=most, grace_period=1, reduction_factor=factor)
    at_a_time = config.max_concurrent_trials
    if at_a_time is None and request.run.workers is not None:
        at_a_time = max(1, request.run.workers // sweep.trial_workers)
    return replace(
        config,
        metric=sweep.metric,
        mode=sweep.mode,
        scheduler=scheduler,
        num_samples=sweep.count if sweep.adaptive else 1,
        max_concurrent_trials=at_a_time,
        reuse_actors=True,
    )


def _configuration(config: dict[str, Any], *, trials: Trials, known: Sequence[dict[str, Any]]) -> None:
    """One trial, as Tune calls it."""
    trials.run(_values(config, known), tune.report)


def _values(config: dict[str, Any], known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return known[config[NUMBER]] if known else single_fields(config)


def _resources(request: Request) -> Any:
    run, workers = request.run, request.sweep.trial_workers
    one = {"CPU": run.cpus_per_worker, "GPU": run.gpus_per_worker}
    # A trial with workers of its own only waits for them.
    return one if workers == 1 else tune.PlacementGroupFactory([{}] + [one] * workers)


def _outcome(request: Request, known: Sequence[Configuration], result: Any) -> Configuration:
    """What became of a trial."""
    one = request.configuration(_values(_config(result), [each.values for each in known]))
    metrics = result.metrics or {}
    if result.error is not None:
        return replace(one, state=FAILED, error=_cause(result.error))
    rungs = request.sweep.rungs
    last = 1.0 if rungs is None else rungs.reduction_factor ** (len(rungs.values) - 1)
    if metrics.get(RUNG) == last:
        return replace(one, state=AUDITED)
    utility = {name: float(metrics[name]) for name in (request.sweep.metric,) if name in metrics}
    place = 0 if rungs is None or RUNG not in metrics else _place(metrics[RUNG], rungs.reduction_factor)
    return replace(one, state=STOPPED, metrics=utility, rung=None if rungs is None else rungs.values[place])


def _config(result: Any) -> dict[str, Any]:
    """What Tune gave a trial; it is no part of the result of one that failed before it said anything."""
    config: dict[str, Any] | None = result.config
    if config is None:
        with result.filesystem.open_input_stream(f"{result.path}/params.json") as stream:
            config = json.loads(stream.read())
    assert config is not None
    return config


def _place(at: float, factor: float) -> int:
    place = 0
    while factor**place < at:
        place += 1
    return place


def _cause(error: BaseException) -> str:
    """What went wrong in a trial, in one line."""
    inner = getattr(error, "cause", None)
    return last_line(str(inner if isinstance(inner, BaseException) and str(inner) else error))


class _Progress(tune.Callback):  # type: ignore[misc]
    """Tells of trials in our own words."""

    def __init__(self, request: Request, known: Sequence[Configuration]) -> None:
        self._request, self._known = request, tuple(known)
        self._done = 0
        self._began: dict[str, float] = {}

    def _name(self, trial: Any) -> str:
        return self._request.configuration(_values(trial.config, [one.values for one in self._known])).name

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial begins, or goes on."""
        self._began[trial.trial_id] = time.monotonic()
        self._emit(Event(EventKind.UNIT_STARTED, label=self._name(trial)))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial is audited, or was stopped."""
        self._done += 1
        seconds = time.monotonic() - self._began.get(trial.trial_id, time.monotonic())
        self._emit(Event(EventKind.UNIT_DONE, label=self._name(trial), seconds=seconds))
        found, metric = trial.last_result or {}, self._request.sweep.metric
        words = [f"{metric.replace('_', ' ')} {found[metric]:.4f}"] if metric in found else []
        if "audited_epsilon" in found:
            words.append(f"audited epsilon >= {format_lower(found['audited_epsilon'])}")
        of = f"{self._done} of {self._request.sweep.count}"
        self._emit(Event(EventKind.STAGE, detail=f"{of}: {self._name(trial)}: {', '.join(words) or 'done'}"))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed for good."""
        self._done += 1
        why = trial.get_error()
        self._emit(Event(EventKind.UNIT_FAILED, label=self._name(trial), detail=_cause(why) if why else ""))

    def _emit(self, event: Event) -> None:
        if events := _EVENTS.get():
            events.emit(event)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tune without its tables, tips and handlers of signals: what it has to say, the sweep says."""
    switches = {
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_WARN_THRESHOLD_S": "3600",
        "TUNE_GLOBAL_CHECKPOINT_S": "5",
    }
    before = {name: os.environ.get(name) for name in switches}
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    os.environ.update(switches)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
