"""Ways to choose a threshold, guess fraction or candidate, and the cost of each choice.

A bound on the best of many candidates on the same samples has too large an error, unless the choice is made on other
samples or corrected for. Every type here is a valid way to choose, except `AsPublished`, which is uncorrected. `str`
describes the selection in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dpaudit.errors import InputError, require

PERCENTS = tuple(percent / 100 for percent in range(1, 101))
"""The sweep 1 %, 2 %, ..., 100 % of the papers."""


@dataclass(frozen=True)
class Fixed:
    """One threshold or guess fraction, fixed before any data was seen; costs nothing.

    Attributes:
        value: Guess fraction in (0, 1] for one-run scores; score threshold (member if score >= value) for two-sample
            scores.
    """

    value: float

    def __post_init__(self) -> None:
        require(self.value == self.value, "a fixed threshold or fraction must be a number", value=self.value)

    def __str__(self) -> str:
        return f"{self.value:g}, fixed beforehand"


@dataclass(frozen=True)
class Split:
    """Best candidate on one part of the samples, evaluated on the rest; costs the samples of the first part.

    Attributes:
        fraction: Share of the samples used to choose, in (0, 1).
        seed: Seed of the split, which never depends on the scores or their truth.
    """

    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 < self.fraction < 1, "the choosing fraction must be in (0, 1)", fraction=self.fraction)
        require(self.seed >= 0, "a seed must be >= 0", seed=self.seed)

    def __str__(self) -> str:
        return f"chosen on a separate {self.fraction:.4g} of the samples (seed {self.seed})"


@dataclass(frozen=True)
class Grid:
    """Best of a few candidates listed beforehand, which share the error equally (Bonferroni).

    Attributes:
        points: Increasing rates in (0, 1]: guess fractions for one-run scores; for two-sample scores the false positive
            rates and miss rates at which a threshold is set (two candidates for each rate below 1). Points that round
            to the same count, or to a count too small to show anything, are dropped before the error is shared.
    """

    points: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", _rates(self.points))

    def __str__(self) -> str:
        return f"best of at most {len(self.points)} points fixed beforehand, error shared"


@dataclass(frozen=True)
class Bonferroni:
    """Best of all candidates, which share the error equally."""

    def __str__(self) -> str:
        return "best of all, error shared over everything looked at"


@dataclass(frozen=True)
class SimultaneousBand:
    """Every threshold at once, inside exact simultaneous bands for both worlds' score distributions.

    Attributes:
        weight: How the band's error is spread over the ranks: a key of `dpaudit.estimators.two_world.bands.WEIGHTS`.
    """

    weight: str = "low"

    def __str__(self) -> str:
        return f"best of all thresholds inside simultaneous Berk-Jones bands ({self.weight})"


@dataclass(frozen=True)
class AsPublished:
    """Best of a sweep on the reporting samples, uncorrected, as papers print it: not a valid bound.

    Attributes:
        points: Guess fractions of the sweep; two-sample scores sweep every threshold.
    """

    points: tuple[float, ...] = PERCENTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", _rates(self.points))

    def __str__(self) -> str:
        return "best of a sweep on the same samples, uncorrected"


Selection: TypeAlias = Fixed | Split | Grid | Bonferroni | SimultaneousBand | AsPublished

SELECTION_NAMES: dict[str, Callable[..., Selection]] = {
    "fixed": Fixed,
    "split": Split,
    "grid": Grid,
    "bonferroni": Bonferroni,
    "band": SimultaneousBand,
    "as-published": AsPublished,
}
"""Names of the selections in a spec."""

_FIRST_FIELD = {"fixed": "value", "split": "fraction", "grid": "points", "band": "weight", "as-published": "points"}


def parse_selection(spec: Selection | Mapping[str, object] | str) -> Selection:
    """Return the selection that a spec describes.

    Args:
        spec: A selection; a mapping such as `{"name": "split", "fraction": 0.5}`; or a string, a name with its first
            field after a colon: "grid", "split:0.3", "fixed:0.01", "grid:0.01,0.1,1", "band:tails".
    Raises: InputError for an unknown name or field, or a value out of range.
    """
    if isinstance(spec, str):
        return _from_text(spec)
    if isinstance(spec, Mapping):
        fields = dict(spec)
        name = fields.pop("name", None)
        require(isinstance(name, str), "a selection needs a name", do=f"one of {', '.join(SELECTION_NAMES)}", name=name)
        return _build(str(name), fields)
    return spec


def _from_text(text: str) -> Selection:
    name, colon, argument = text.partition(":")
    if not colon:
        return _build(name, {})
    field = _FIRST_FIELD.get(name)
    require(field is not None, "this selection takes no argument" if name in SELECTION_NAMES else _UNKNOWN, spec=text)
    if field == "weight":
        return _build(name, {field: argument})
    try:
        numbers = tuple(float(word) for word in argument.split(","))
    except ValueError as err:
        raise InputError(f"a selection's argument must be numbers split by commas, got {text!r}") from err
    return _build(name, {str(field): numbers if field == "points" else numbers[0]})


_UNKNOWN = f"a selection must be one of {', '.join(SELECTION_NAMES)}"


def _build(name: str, fields: Mapping[str, object]) -> Selection:
    require(name in SELECTION_NAMES, _UNKNOWN, name=name)
    try:
        return SELECTION_NAMES[name](**fields)
    except TypeError as err:
        raise InputError(f"selection {name!r} does not fit the fields {dict(fields)}: {err}") from err


def _rates(points: Sequence[float]) -> tuple[float, ...]:
    rates = tuple(float(point) for point in points)
    ordered = all(low < high for low, high in itertools.pairwise(rates))
    require(
        len(rates) > 0 and ordered and rates[0] > 0 and rates[-1] <= 1,
        "points must be increasing rates in (0, 1]",
        points=rates,
    )
    return rates
