"""What Ray Tune decides of a sweep: a search algorithm proposes configurations, a scheduler leaves some out early.

Neither runs anything: they are asked, and told utility, in the order of the plan. So what they decide depends on no
worker, and is the same when a sweep is continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import SearchAlgorithm, Searcher

from dpaudit.engine.request.space import single_fields
from dpaudit.engine.request.sweep import Sweep
from dpaudit.errors import SpecError

RUNG = "rung"
"""Metric that a scheduler counts in: 1 at the first rung, then so many times more as configurations are left out."""
ANOTHER = "configurations are trained in the order of the plan: give an ASHAScheduler or a MedianStoppingRule"


@dataclass(frozen=True, eq=False)
class Asked:
    """A configuration as a scheduler of Ray Tune knows it."""

    trial_id: str


class Tuner:
    """Ray Tune's search algorithm and scheduler, asked and told.

    Raises: SpecError when they cannot be kept to, or would make the bounds invalid.
    """

    def __init__(self, sweep: Sweep, config: tune.TuneConfig) -> None:
        if config.num_samples < 1:
            raise SpecError("num_samples must be >= 1: the error is split over configurations whose number is fixed")
        self._sweep = sweep
        self._trials: dict[int, Asked] = {}
        self._searcher = _searcher(config)
        if self._searcher is not None:
            self._searcher.set_search_properties(sweep.metric, sweep.mode, _as_tune(sweep.space))
        elif config.max_concurrent_trials is not None:
            raise SpecError(
                "max_concurrent_trials is for search algorithms: of configurations that are known, the units run side "
                "by side; `workers` in `run:` says how many"
            )
        self._scheduler = _scheduler(sweep, config)
        if self._scheduler is not None:
            self._scheduler.set_search_properties(sweep.metric, sweep.mode)

    @property
    def searches(self) -> bool:
        """Whether a search algorithm chooses the configurations."""
        return self._searcher is not None

    def proposed(self, number: int) -> dict[str, Any] | None:
        """The values of a configuration, from its number; None where the search algorithm has no more for now."""
        assert self._searcher is not None
        found = self._searcher.suggest(_name(number))
        return None if found is None or found == Searcher.FINISHED else single_fields(found)

    def begin(self, number: int) -> None:
        """A configuration is trained at its first rung."""
        self._trials[number] = Asked(_name(number))
        if self._scheduler is not None:
            self._scheduler.on_trial_add(None, self._trials[number])

    def goes_on(self, number: int, rung: int, metrics: Mapping[str, float]) -> bool:
        """Whether a configuration goes on from a rung, counted from 0, where it had this utility."""
        if self._scheduler is None or self._sweep.rungs is None:
            return True
        told = {**metrics, RUNG: self._sweep.rungs.reduction_factor**rung, "training_iteration": rung + 1}
        return bool(self._scheduler.on_trial_result(None, self._trials[number], told) != TrialScheduler.STOP)

    def end(self, number: int, metrics: Mapping[str, float] | None) -> None:
        """What the search algorithm may learn of a configuration: its utility, or None where it failed."""
        if self._searcher is not None:
            told = None if metrics is None else dict(metrics)
            self._searcher.on_trial_complete(_name(number), told, error=metrics is None)


def _as_tune(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space in words as `ray.tune` has it, for a search algorithm."""
    made = {}
    for path, axis in space.items():
        (how, arguments), *_ = axis.items() if isinstance(axis, Mapping) else [("choice", axis)]
        made[path] = tune.choice(arguments) if how == "choice" else getattr(tune, how)(*arguments)
    return made


def _name(number: int) -> str:
    return f"{number:05d}"


def _searcher(config: tune.TuneConfig) -> Searcher | None:
    given = config.search_alg
    found = getattr(given, "searcher", given) if isinstance(given, SearchAlgorithm) else given
    if found is None or isinstance(found, Searcher):
        return found
    raise SpecError(f"search_alg must be a ray.tune.search.Searcher, got {type(given).__name__}")


def _scheduler(sweep: Sweep, config: tune.TuneConfig) -> Any:
    """The user's, or ASHA for the sweep's rungs; None where nothing is left out early."""
    given = config.scheduler
    if given is not None and type(given) is not FIFOScheduler:
        if not isinstance(given, AsyncHyperBandScheduler | MedianStoppingRule):
            raise SpecError(
                "a scheduler that changes configurations while they train, or has them wait, cannot be audited; "
                f"{ANOTHER}"
            )
        return given if sweep.rungs is not None else None
    if given is not None or sweep.rungs is None:
        return None
    factor = sweep.rungs.reduction_factor
    most = factor ** (len(sweep.rungs.values) - 1)
    return AsyncHyperBandScheduler(time_attr=RUNG, max_t=most, grace_period=1, reduction_factor=factor)
