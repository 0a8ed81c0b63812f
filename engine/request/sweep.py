"""Settings and configurations of a sweep: search space, objective, constraints and early stopping."""

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
    """Constraints on the best configuration; epsilon is the privacy loss of one record, in nats.

    Attributes:
        epsilon: Maximum claimed epsilon, > 0. Claims that the audit rejects do not count. None has no limit.
        audited_epsilon: Maximum lower bound found by the audit, >= 0. It only excludes configurations that are known to
            leak more: a low bound is not evidence of privacy. None has no limit.
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
    """Early stopping by utility (ASHA): all configurations train a little, only the best continue.

    Attributes:
        field: Field that grows from rung to rung, such as mechanism.model.epochs.
        values: At least two values, in increasing order; the last one is audited.
        reduction_factor: One of `reduction_factor` configurations continues from a rung, > 1.
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
    """One configuration of a finished sweep.

    Attributes:
        name: Name of its audit: "epsilon=0.5, hidden=[32]".
        values: Values by field.
        state: "audited", "stopped" (by a scheduler, before its audit) or "failed".
        metrics: Utility at which it was stopped.
        rung: Value of `rungs.field` at which it was stopped.
        error: Reason of a failure, in one line.
    """

    name: str
    values: dict[str, Any]
    state: Literal["audited", "stopped", "failed"] = AUDITED
    metrics: dict[str, float] = field(default_factory=dict)
    rung: Any = None
    error: str = ""


@dataclass(frozen=True)
class Sweep:
    """A search space, an objective and the settings of a sweep.

    Attributes:
        space: From a field, such as mechanism.epsilon, to a list of its values or their distribution:
            `{choice: [...]}`, `{uniform: [low, high]}`, `{loguniform: [low, high]}`, `{randint: [low, high]}` (low <= x
            < high), `{lograndint: [low, high]}`. Fields separated by commas are paired. A `grid` in the same spec is
            part of the space.
        samples: Number of samples for each point of the grid, >= 1.
        maximise: Metric to maximise, as named in reports.
        minimise: Metric to minimise instead.
        subject_to: Constraints on the best configuration.
        reaudit: Audit the best configuration again, with a new seed and at full confidence.
        rungs: Early stopping by utility; None audits every configuration.
        count: Number of planned configurations, which share the error. Set by dpaudit.
        adaptive: True if a search algorithm chose configurations by the utility of others. Set by dpaudit.
        configurations: Configurations that were run. Set by dpaudit.
    """

    space: dict[str, Any] = field(default_factory=dict)
    samples: int = 1
    maximise: str = ""
    minimise: str = ""
    subject_to: SubjectTo = SubjectTo()
    reaudit: bool = False
    rungs: Rungs | None = None
    count: int = 0
    adaptive: bool = False
    configurations: tuple[Configuration, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.samples >= 1, "samples must be >= 1", samples=self.samples)
        if self.maximise and self.minimise:
            raise InputError("set either `maximise` or `minimise`, not both; `subject_to` limits epsilon")
        if self.configurations:
            require(self.count >= len(self.configurations), "count must include all planned configurations")

    @property
    def metric(self) -> str:
        """Name of the optimised metric in results of units: "test_accuracy"."""
        return (self.minimise or self.maximise or "test accuracy").replace(" ", "_")

    @property
    def mode(self) -> Literal["max", "min"]:
        """Direction of the optimisation."""
        return "min" if self.minimise else "max"

    def is_better(self, value: float, other: float) -> bool:
        """True if `value` is better than `other`; False if one of them is NaN."""
        if math.isnan(value) or math.isnan(other):
            return False
        return value < other if self.mode == "min" else value > other

    def audited(self) -> tuple[Configuration, ...]:
        """Return the audited configurations."""
        return tuple(configuration for configuration in self.configurations if configuration.state == AUDITED)


def configuration_name(values: Mapping[str, Any]) -> str:
    """Return the name of a configuration: "epsilon=0.5, hidden=[32]", with whole paths if last parts are ambiguous."""
    last = [path.rpartition(".")[2] for path in values]
    parts = []
    for path, value in values.items():
        short = path.rpartition(".")[2]
        text = str(value.get("name", dict(value)) if isinstance(value, Mapping) else value)
        if isinstance(value, float) and len(text) > 8:
            text = f"{value:.6g}"
        parts.append(f"{short if last.count(short) == 1 else path}={text}")
    return ", ".join(parts)
