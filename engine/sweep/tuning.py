"""Ray Tune in a sweep: its search algorithm proposes configurations, its scheduler stops some early.

Ray Tune runs nothing. It gets the utility of configurations in the order of the plan, so its decisions do not depend on
workers and are the same when a sweep is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import SearchAlgorithm, Searcher

from dpaudit.engine.request.loading import single_fields
from dpaudit.engine.request.sweep import Sweep
from dpaudit.errors import SpecError

RUNG = "rung"
"""Time attribute of the scheduler: 1 at the first rung, multiplied by the reduction factor at each further rung."""


@dataclass(frozen=True, eq=False)
class TunerTrial:
    """The attributes of a trial that a scheduler of Ray Tune needs."""

    trial_id: str


class Tuner:
    """Ray Tune's search algorithm and scheduler.

    Raises: SpecError if they cannot be used, or would make the bounds invalid.
    """

    def __init__(self, sweep: Sweep, config: tune.TuneConfig | None) -> None:
        config = config or tune.TuneConfig()
        if config.num_samples < 1:
            raise SpecError("num_samples must be >= 1: the error is split over a fixed number of configurations")
        self._sweep = sweep
        self._trials: dict[int, TunerTrial] = {}
        self._searcher = _searcher(config)
        if self._searcher is not None:
            self._searcher.set_search_properties(sweep.metric, sweep.mode, _as_tune(sweep.space))
        elif config.max_concurrent_trials is not None:
            raise SpecError(
                "max_concurrent_trials needs a search algorithm. Otherwise the units of all configurations run in "
                "parallel; set `workers` in `run:`"
            )
        self._scheduler = _scheduler(sweep, config)
        if self._scheduler is not None:
            self._scheduler.set_search_properties(sweep.metric, sweep.mode)

    @property
    def searches(self) -> bool:
        """True if a search algorithm chooses the configurations."""
        return self._searcher is not None

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return the values of the configuration `number`; None if the search algorithm has no more for now."""
        assert self._searcher is not None
        values = self._searcher.suggest(_name(number))
        return None if values is None or values == Searcher.FINISHED else single_fields(values)

    def begin(self, number: int) -> None:
        """Register a configuration with the scheduler before its first rung."""
        self._trials[number] = TunerTrial(_name(number))
        if self._scheduler is not None:
            self._scheduler.on_trial_add(None, self._trials[number])

    def continues(self, number: int, rung: int, metrics: Mapping[str, float]) -> bool:
        """True if a configuration with these metrics at a rung, counted from 0, continues to the next rung."""
        if self._scheduler is None or self._sweep.rungs is None:
            return True
        result = {**metrics, RUNG: self._sweep.rungs.reduction_factor**rung, "training_iteration": rung + 1}
        return bool(self._scheduler.on_trial_result(None, self._trials[number], result) != TrialScheduler.STOP)

    def end(self, number: int, metrics: Mapping[str, float] | None) -> None:
        """Give the search algorithm the metrics of a configuration, or None if it failed."""
        if self._searcher is not None:
            result = None if metrics is None else dict(metrics)
            self._searcher.on_trial_complete(_name(number), result, error=metrics is None)


def _as_tune(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space as objects of `ray.tune`, for a search algorithm."""
    tune_space = {}
    for path, axis in space.items():
        (how, arguments), *_ = axis.items() if isinstance(axis, Mapping) else [("choice", axis)]
        tune_space[path] = tune.choice(arguments) if how == "choice" else getattr(tune, how)(*arguments)
    return tune_space


def _name(number: int) -> str:
    return f"{number:05d}"


def _searcher(config: tune.TuneConfig) -> Searcher | None:
    algorithm = config.search_alg
    searcher = getattr(algorithm, "searcher", algorithm) if isinstance(algorithm, SearchAlgorithm) else algorithm
    if searcher is None or isinstance(searcher, Searcher):
        return searcher
    raise SpecError(f"search_alg must be a ray.tune.search.Searcher, got {type(algorithm).__name__}")


def _scheduler(sweep: Sweep, config: tune.TuneConfig) -> Any:
    """Return the user's scheduler, or ASHA for the sweep's rungs; None without early stopping."""
    scheduler = config.scheduler
    if scheduler is not None and type(scheduler) is not FIFOScheduler:
        if not isinstance(scheduler, AsyncHyperBandScheduler | MedianStoppingRule):
            raise SpecError(
                "a scheduler must not change or pause configurations: they are trained in the order of the plan. Give "
                "an ASHAScheduler or a MedianStoppingRule"
            )
        return scheduler if sweep.rungs is not None else None
    if scheduler is not None or sweep.rungs is None:
        return None
    factor = sweep.rungs.reduction_factor
    max_t = factor ** (len(sweep.rungs.values) - 1)
    return AsyncHyperBandScheduler(time_attr=RUNG, max_t=max_t, grace_period=1, reduction_factor=factor)
