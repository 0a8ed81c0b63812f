"""A figure as a value: panels of marks, with their axes. Findings and reports make them, one renderer draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

INK, MEMBER, OTHER, CLAIM, GRID = "#1f2933", "#c2410c", "#2563a8", "#15803d", "#d9dee4"
QUIET = "#9aa5b1"
COLOURS = (OTHER, MEMBER, "#7c3aed", "#111827", "#0e7490", "#be185d", "#a16207", "#65a30d")
"""Of what has no colour by its meaning, in turn."""

Numbers: TypeAlias = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Line:
    """Points that are joined, or points alone.

    Attributes:
        x: Shape (n,).
        y: Shape (n,).
        label: For the legend; "" for none. So for every mark.
        colour: In hexadecimal.
        dash: "-", "--", ":", or "" for points alone.
        marker: "" for none.
        step: Whether y stays what it is until the next x.
        width: Of the line, in points.
        size: Of the markers, in points.
        alpha: Opacity, in (0, 1].
        face: Colour inside the markers; "" for that of the line.
        error: Half the height of error bars, shape (n,) or (2, n) for those below and above.
    """

    x: Numbers
    y: Numbers
    label: str = ""
    colour: str = INK
    dash: str = "-"
    marker: str = ""
    step: bool = False
    width: float = 1.5
    size: float = 3.5
    alpha: float = 1.0
    face: str = ""
    error: Numbers | None = None


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
    """Rectangles of one colour, standing or lying.

    Attributes:
        place: Their middles across, shape (n,).
        end: Where they end, shape (n,).
        start: Where they begin, shape (n,) or one number.
        thickness: Across.
        upright: Whether they stand.
        values: What is written at their ends.
        size: Of these words, in points.
        edge: Width of a white edge, in points.
    """

    place: Numbers
    end: Numbers
    label: str = ""
    colour: str = OTHER
    start: Numbers | float = 0.0
    thickness: float = 0.8
    upright: bool = True
    values: Sequence[str] = ()
    size: float = 7.5
    edge: float = 0.0


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
    """One side of a panel.

    Attributes:
        label: What is measured, with its unit.
        log: Whether the scale is logarithmic.
        low: Where it begins; None leaves it to the numbers.
        high: Where it ends. Below `low` it runs downwards.
        ticks: Where it is marked; None leaves it to the numbers.
        words: At the ticks; None writes the numbers.
        size: Of these words, in points; None for the usual size.
        grid: Whether lines run across the panel.
    """

    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Numbers | None = None
    words: Sequence[str] | None = None
    size: float | None = None
    grid: bool = True


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on a pair of axes.

    Attributes:
        marks: In the order they are drawn and stand in the legend.
        x: The axis below.
        y: The axis at the left.
        title: Above it.
        legend: Where in the panel: "best", "upper left", ... or "above" it; "" for none.
        legend_size: Of its words, in points.
        legend_columns: How many labels stand side by side.
    """

    marks: Sequence[Mark]
    x: Axis
    y: Axis
    title: str = ""
    legend: str = "best"
    legend_size: float = 8.5
    legend_columns: int = 1


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure.

    Attributes:
        stem: Its name, and that of its file after the audit's.
        title: What it shows, for the page.
        rows: Its panels, row by row; None leaves a place empty.
        width: In inches.
        height: In inches.
        heights: Of the rows, relative to one another; () for equal ones.
        share_x: Whether the panels of a column share their x-axis, labelled below the last one.
        legend_columns: Of a legend of all panels, below them; 0 for none.
    """

    stem: str
    title: str
    rows: Sequence[Sequence[Panel | None]]
    width: float = 6.4
    height: float = 3.4
    heights: Sequence[float] = ()
    share_x: bool = False
    legend_columns: int = 0
