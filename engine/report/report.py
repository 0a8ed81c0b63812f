"""What an audit found: verdicts first, then the evidence, then what was not shown."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.store import Made
from dpaudit.claims import Claim, ConvertedClaim
from dpaudit.engine.findings.shift import ShiftControl
from dpaudit.engine.findings.stopping import Stopped
from dpaudit.engine.findings.verdict import Verdict, caution, verdict
from dpaudit.estimators.bound import Bound, rounded_down

NOT_SHOWN = (
    "A low bound is no evidence of privacy: it speaks of this attack, this data set and this trained model only.",
    "An upper end, where one is printed, bounds what this attack shows, never the mechanism's privacy loss.",
)


CONTROL_LOST = "the control on held-out rows failed: a proxy that differs from the truth would not have been noticed"


@dataclass(frozen=True)
class Failure:
    """A unit that no attempt could finish.

    Attributes:
        label: What it was.
        key: Its key; `units/<key>.failed` holds the log.
        error: The last line of its error.
    """

    label: str
    key: str
    error: str


@dataclass(frozen=True, eq=False)
class AuditResult:
    """What one audit found.

    Attributes:
        name: The audit's name.
        mechanism: The mechanism in words.
        game: The game, the attack and the estimator in words.
        claimed: The claim as stated.
        compared: The claim as the game's relation sees it.
        bound: The bound; None when too much failed.
        metrics: Utility of the trained models, averaged over trainings.
        rows: Rows of each part of the data.
        data: What the data are.
        units: Units finished and planned.
        assumes: What must hold beside the arithmetic for the bound to hold.
        observational: Whether the training data were left as they are, found by comparing them.
        failures: What failed.
        curve: Columns for the figures, by name.
        control_lost: Whether a control was planned and failed, in whole or in part.
        control: What the same attack shows on rows the mechanism never saw; None where that was not played.
        stopped: How far a sequential audit went; None for one that runs all its trials.
    """

    name: str
    mechanism: str
    game: str
    claimed: Claim
    compared: ConvertedClaim
    bound: Bound | None
    metrics: Mapping[str, float]
    rows: Mapping[str, int]
    data: str
    units: tuple[int, int]
    observational: bool
    assumes: str
    failures: tuple[Failure, ...] = ()
    curve: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    control: ShiftControl | None = None
    control_lost: bool = False
    stopped: Stopped | None = None

    @property
    def verdict(self) -> Verdict:
        """What the bound says of the claim."""
        said = verdict(self.bound, self.compared.claim)
        if said is Verdict.VIOLATION and self.control is not None and self.control.visible:
            return Verdict.NOT_TRUSTWORTHY
        return said

    @property
    def sentence(self) -> str:
        """The verdict for a reader who reads one line."""
        claim = self.compared.claim
        if self.bound is None:
            return f"no bound: {len(self.failures)} of {self.units[1]} units failed or were not run"
        shown = f"epsilon >= {rounded_down(self.bound.lower)} at delta={self.bound.delta:g}"
        odds = f"wrong with probability <= {1 - self.bound.confidence:.4g}"
        if caution(self.bound):
            odds = str(self.bound.validity)
        if math.isinf(claim.epsilon):
            return f"no privacy claimed; observed {shown} ({odds})"
        return f"claimed epsilon {claim.epsilon:g}, observed {shown} ({odds})"

    def __str__(self) -> str:
        lines = [f"{self.verdict:<19}{self.name}: {self.sentence}", f"{'':19}{self.mechanism} on {self.data}"]
        if self.bound is not None:
            counts = ", ".join(f"{name} {value:,}" for name, value in self.bound.counts)
            lines.append(f"{'':19}{self.bound.method}, {self.bound.selection}; {counts}")
            lines += [f"{'':19}{note}" for note in (*self.bound.notes, caution(self.bound)) if note]
        if self.compared.note:
            lines.append(f"{'':19}{self.compared.note}")
        if self.stopped is not None:
            lines.append(f"{'':19}{self.stopped}")
        if self.control_lost:
            lines.append(f"{'':19}{CONTROL_LOST}")
        if self.control is not None:
            lines.append(f"{'':19}{self.control.lines[0]}")
        if self.metrics:
            lines.append(
                f"{'':19}" + ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in self.metrics.items())
            )
        first = [failure for failure in self.failures if not failure.error.startswith("not run")]
        lines += [f"{'':19}failed: {one.label}: {one.error} (units/{one.key}.failed)" for one in first]
        if len(first) < len(self.failures):
            lines.append(
                f"{'':19}{len(self.failures) - len(first)} units were not run, most because they need a failed one"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the curve's columns are lists, `inf` is a string."""
        plain: dict[str, Any] = _plain(
            {
                "name": self.name,
                "verdict": self.verdict.value,
                "sentence": self.sentence,
                "mechanism": self.mechanism,
                "game": self.game,
                "data": self.data,
                "observational": self.observational,
                "assumes": self.assumes,
                "rows": dict(self.rows),
                "claim": self.claimed.to_dict(),
                "compared_with": self.compared.claim.to_dict(),
                "conversion": self.compared.note,
                "bound": None
                if self.bound is None
                else {**dataclasses.asdict(self.bound), "counts": dict(self.bound.counts)},
                "metrics": dict(self.metrics),
                "units": {"finished": self.units[0], "planned": self.units[1]},
                "stopped": None if self.stopped is None else dataclasses.asdict(self.stopped),
                "control": None if self.control is None else self.control.to_dict(),
                "failures": [dataclasses.asdict(failure) for failure in self.failures],
                "curve": {name: np.asarray(column).tolist() for name, column in self.curve.items()},
            }
        )
        return plain


@dataclass(frozen=True, eq=False)
class Report:
    """What a run found.

    Attributes:
        name: The spec's name.
        results: One for each audit, in the order of the spec.
        seed: The spec's seed.
        confidence: Stated confidence of each bound on its own.
        seconds: Wall time of this run (units found finished cost nothing).
        ran: Units run now.
        units: Units planned; one that several audits share counts once.
        reused: When and by which code the results that were found finished were made.
        damaged: Unit files that failed their check and what is wrong with them.
        unseen: What of the user's code cannot be read; units that depend on it are never reused.
        folder: The run folder; "" when nothing was written.
        spec: The spec in YAML.
        versions: Packages and platform.
        events: How often each kind of event happened, over all runs in the folder.
    """

    name: str
    results: tuple[AuditResult, ...]
    seed: int
    confidence: float
    seconds: float
    ran: int
    units: int
    folder: str
    spec: str
    versions: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    reused: Made = Made()
    damaged: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def origin(self) -> tuple[str, ...]:
        """Where the results come from, as far as they were not made by this run with code that could be read."""
        again = "run again" if self.ran else "not used"
        return (
            *(
                [f"{self.reused.units} of {self.units} units were finished before ({self.reused})"]
                if self.reused.units
                else []
            ),
            *(f"damaged, {again}: {file}" for file in self.damaged),
            *(f"what depends on it is never reused: {why}" for why in self.unseen),
        )

    @property
    def violations(self) -> tuple[AuditResult, ...]:
        """The audits whose bound exceeds their claim."""
        return tuple(result for result in self.results if result.verdict is Verdict.VIOLATION)

    @property
    def failed(self) -> tuple[AuditResult, ...]:
        """The audits without a bound."""
        return tuple(result for result in self.results if result.verdict is Verdict.FAILED)

    @property
    def many(self) -> str:
        """What several bounds in one report mean together."""
        count = len(self.results)
        if count < 2:
            return ""
        return (
            f"Each of the {count} bounds holds with confidence {self.confidence:g} on its own; "
            f"all of them together with at least {max(0.0, 1 - count * (1 - self.confidence)):.4g}."
        )

    def __str__(self) -> str:
        blocks = [str(result) for result in self.results]
        tail = [
            f"{self.ran} of {self.units} units run now, {self.seconds:.1f} s; seed {self.seed}",
            *self.origin,
            self.many,
            NOT_SHOWN[0],
        ]
        if self.folder:
            tail.append(f"report: {self.folder}/report.html")
        return "\n".join([*blocks, *filter(None, tail)])

    def to_json(self) -> str:
        """`bounds.json`: everything that was found, for machines."""
        content = {
            "name": self.name,
            "seed": self.seed,
            "confidence": self.confidence,
            "seconds": round(self.seconds, 3),
            "results": [result.to_dict() for result in self.results],
            "reused": self.reused.to_dict(),
            "damaged": list(self.damaged),
            "unseen": list(self.unseen),
            "together": self.many,
            "not_shown": list(NOT_SHOWN),
            "versions": dict(self.versions),
            "events": dict(self.events),
        }
        return json.dumps(content, indent=1, allow_nan=False)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("dpaudit", "ray", "torch", "numpy", "scipy", "catboost", "scikit-learn", "pyarrow", "numba"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
