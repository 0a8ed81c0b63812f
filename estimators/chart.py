"""A figure as a value: panels of marks, with their axes. Findings and reports make them, one renderer draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

INK, MEMBER, OTHER, CLAIM = "#1f2933", "#c2410c", "#2563a8", "#15803d"
QUIET = "#9aa5b1"
COLOURS = (OTHER, MEMBER, "#7c3aed", "#111827", "#0e7490", "#be185d", "#a16207", "#65a30d")
"""Of what has no colour by its meaning, in turn."""

LARGEST_CLAIM = 700.0
"""The largest claim in nats that is drawn, about the logarithm of the largest number.

Beyond it nothing is promised that could be seen, and an axis that reached so far would show nothing else.
"""

Numbers: TypeAlias = Sequence[float] | NDArray[Any]


def can_be_drawn(claimed: float) -> bool:
    """True if a claim of so many nats has a place on an axis beside what is observed."""
    return abs(claimed) <= LARGEST_CLAIM


@dataclass(frozen=True, eq=False)
class Line:
    """Points that are joined, or points alone."""

    x: Numbers  # shape (n,)
    y: Numbers  # shape (n,)
    label: str = ""  # for the legend; "" for none. So for every mark
    colour: str = INK  # in hexadecimal
    dash: str = "-"  # "-", "--", ":", or "" for points alone
    marker: str = ""  # "" for none
    step: bool = False  # whether y stays what it is until the next x
    width: float = 1.5  # of the line, in points
    size: float = 3.5  # of the markers, in points
    alpha: float = 1.0  # opacity, in (0, 1]
    face: str = ""  # colour inside the markers; "" for that of the line
    error: Numbers | None = None  # half the height of error bars, shape (n,) or (2, n) for those below and above


@dataclass(frozen=True, eq=False)
class Band:
    """What lies between two curves; with `step` each value holds until the next x."""

    x: Numbers
    low: Numbers
    high: Numbers
    label: str = ""
    colour: str = OTHER
    alpha: float = 0.2
    step: bool = False


@dataclass(frozen=True, eq=False)
class Bars:
    """Rectangles of one colour, standing or lying."""

    place: Numbers  # their middles across, shape (n,)
    end: Numbers  # where they end, shape (n,)
    label: str = ""
    colour: str = OTHER
    thickness: float = 0.8  # across
    upright: bool = True  # whether they stand
    values: Sequence[str] = ()  # what is written at their ends
    size: float = 7.5  # of these words, in points


@dataclass(frozen=True)
class Rule:
    """A line across the whole panel: at a height, or upright at a place."""

    at: float
    label: str = ""
    colour: str = INK
    dash: str = "-"
    upright: bool = False
    width: float = 1.6


@dataclass(frozen=True)
class Words:
    """A few words to the right of a point."""

    x: float
    y: float
    text: str
    colour: str = INK
    size: float = 7


@dataclass(frozen=True, eq=False)
class Heat:
    """Numbers as colours, from 0 up: a row each from the top, shape (rows, columns); the label is that of the scale."""

    values: NDArray[Any]
    label: str


Mark: TypeAlias = Line | Band | Bars | Rule | Words | Heat


@dataclass(frozen=True, eq=False)
class Axis:
    """One side of a panel."""

    label: str = ""  # what is measured, with its unit
    log: bool = False  # whether the scale is logarithmic
    low: float | None = None  # where it begins; None leaves it to the numbers
    high: float | None = None  # where it ends. Below `low` it runs downwards
    ticks: Numbers | None = None  # where it is marked; None leaves it to the numbers
    words: Sequence[str] | None = None  # at the ticks; None writes the numbers
    size: float | None = None  # of these words, in points; None for the usual size
    grid: bool = True  # whether lines run across the panel


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on a pair of axes."""

    marks: Sequence[Mark]  # in the order they are drawn and stand in the legend
    x: Axis  # the axis below
    y: Axis  # the axis at the left
    title: str = ""  # above it
    legend: str = "best"  # where in the panel: "best", "upper left", ... or "above" it; "" for none
    legend_size: float = 8.5  # of its words, in points
    legend_columns: int = 1  # how many labels stand side by side


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure."""

    stem: str  # its name, and that of its file after the audit's
    title: str  # what it shows, for the page
    rows: Sequence[Sequence[Panel | None]]  # its panels, row by row; None leaves a place empty
    width: float = 5.0  # in inches: half of a page on a screen, all of it on a phone
    height: float = 3.2  # in inches
    legend_columns: int = 0  # of a legend of all panels, below them; 0 for none
