"""A sweep: what is varied, what is wanted, and over how many configurations the error is split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dpaudit.errors import InputError, require
from dpaudit.field_checks import check_fields

AUDITED: Final = "audited"
STOPPED: Final = "stopped"
FAILED: Final = "failed"


@dataclass(frozen=True)
class SubjectTo:
    """What the best configuration must meet; epsilon is that of one record, in nats.

    Attributes:
        epsilon: The most it may claim, > 0; a claim that the audit refutes does not count. None has no limit.
        audited_epsilon: The most that may have been shown of it, >= 0: that no more was shown proves nothing, it only
            leaves out what is known to leak more. None has no limit.
    """

    epsilon: float | None = None
    audited_epsilon: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.epsilon is None or self.epsilon > 0, "subject_to.epsilon must be > 0", epsilon=self.epsilon)
        require(
            self.audited_epsilon is None or self.audited_epsilon >= 0,
            "subject_to.audited_epsilon must be >= 0",
            audited_epsilon=self.audited_epsilon,
        )


@dataclass(frozen=True)
class Rungs:
    """Early stopping by utility (ASHA): trained with little first, and only the most useful go on.

    Attributes:
        field: What is raised from rung to rung, such as mechanism.model.epochs.
        values: At least two, from little to much; the last one is what is audited.
        reduction_factor: One in so many goes on from a rung, > 1.
    """

    field: str
    values: tuple[Any, ...]
    reduction_factor: float = 3.0

    def __post_init__(self) -> None:
        check_fields(self)
        require(len(self.values) >= 2, "rungs.values must hold at least two values", values=self.values)
        require(self.reduction_factor > 1, "rungs.reduction_factor must be > 1", reduction_factor=self.reduction_factor)


@dataclass(frozen=True)
class Configuration:
    """One configuration of a sweep that was carried out.

    Attributes:
        name: That of its audit: "epsilon=0.5, hidden=[32]".
        values: From each field that is varied to its value.
        state: "audited"; "stopped", by a scheduler before it was audited; or "failed".
        metrics: Utility where it was stopped.
        rung: The value of `rungs.field` it was stopped at.
        error: Why it failed, in one line.
    """

    name: str
    values: dict[str, Any]
    state: Literal["audited", "stopped", "failed"] = AUDITED
    metrics: dict[str, float] = field(default_factory=dict)
    rung: Any = None
    error: str = ""


@dataclass(frozen=True)
class Sweep:
    """What is varied, and what for.

    Attributes:
        space: From a field, such as mechanism.epsilon, to a list of its values, or to how they are drawn:
            `{choice: [...]}`, `{uniform: [low, high]}`, `{loguniform: [low, high]}`, `{randint: [low, high]}` (low <= x
            < high), `{lograndint: [low, high]}`. Fields separated by commas go together. `grid` beside `sweep` is
            varied as well.
        samples: How often each point of the grid is drawn, >= 1.
        maximise: The metric that is wanted large, as a report names it.
        minimise: The metric that is wanted small, instead.
        subject_to: What the best configuration must meet.
        reaudit: Whether the best configuration is audited once more with another seed, at full confidence.
        rungs: Early stopping by utility; None audits every configuration.
        trial_workers: Nothing but 1: every worker runs units of whichever configuration.
        count: Over how many configurations the error is split: as many as are planned. Filled in.
        adaptive: Whether a search algorithm chose configurations by the utility of others. Filled in.
        configurations: Those that were carried out. Filled in.
    """

    space: dict[str, Any] = field(default_factory=dict)
    samples: int = 1
    maximise: str = ""
    minimise: str = ""
    subject_to: SubjectTo = SubjectTo()
    reaudit: bool = False
    rungs: Rungs | None = None
    trial_workers: int = 1
    count: int = 0
    adaptive: bool = False
    configurations: tuple[Configuration, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.samples >= 1, "samples must be >= 1", samples=self.samples)
        require(
            self.trial_workers == 1,
            "trial_workers must be left out: workers run units of whichever configuration; `run.workers` says how many",
            trial_workers=self.trial_workers,
        )
        if self.maximise and self.minimise:
            raise InputError("a sweep has one of maximise and minimise, got both; `subject_to` limits epsilon")
        if self.configurations:
            require(self.count >= len(self.configurations), "count must be that of all configurations planned")

    @property
    def metric(self) -> str:
        """The utility that is wanted, as units store it: "test_accuracy"."""
        return (self.minimise or self.maximise or "test accuracy").replace(" ", "_")

    @property
    def mode(self) -> Literal["max", "min"]:
        """Whether it is wanted large or small."""
        return "min" if self.minimise else "max"

    def is_better(self, value: float, other: float) -> bool:
        """Whether a utility is better than another one; NaN is better than none."""
        if math.isnan(value) or math.isnan(other):
            return False
        return value < other if self.mode == "min" else value > other

    def audited(self) -> tuple[Configuration, ...]:
        """The configurations that were audited."""
        return tuple(configuration for configuration in self.configurations if configuration.state == AUDITED)


def configuration_name(values: Mapping[str, Any]) -> str:
    """A configuration in words: "epsilon=0.5, hidden=[32]"; whole paths where last parts are the same."""
    last = [path.rpartition(".")[2] for path in values]
    words = []
    for path, value in values.items():
        short = path.rpartition(".")[2]
        words.append(f"{short if last.count(short) == 1 else path}={_value_text(value)}")
    return ", ".join(words)


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", dict(value)))
    exact = str(value)
    return f"{value:.6g}" if isinstance(value, float) and len(exact) > 8 else exact
