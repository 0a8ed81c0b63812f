"""The house style of every figure: colours, axes, and files in PNG and SVG."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen is needed, wherever the driver runs

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from dpaudit.atomic_write import write_whole
from dpaudit.errors import printable_lines

INK, MEMBER, OTHER, CLAIM, GRID = "#1f2933", "#c2410c", "#2563a8", "#15803d", "#d9dee4"
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": "#52606d",
    "ytick.color": "#52606d",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "dpaudit",  # the same figure is the same file
    "svg.fonttype": "none",
}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Writes `<name>.png` and `<name>.svg`; returns the SVG's text for a page that stands alone."""
    folder.mkdir(parents=True, exist_ok=True)
    _show_words(figure)
    write_whole(folder / f"{name}.png", lambda file: figure.savefig(file, dpi=160, format="png"))
    figure.set_layout_engine("none")  # parts stay where the first file has them; finding places takes half the time
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    write_whole(folder / f"{name}.svg", lambda file: file.write(text.encode()))
    return text[text.index("<svg") :]


def _show_words(figure: Figure) -> None:
    """Names in a figure are shown as they are written, and no dollar in them begins a formula."""
    for text in figure.findobj(Text):
        text.set_text(_words(text.get_text()))
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        shown = axis.get_major_formatter()
        if isinstance(shown, FuncFormatter):  # of ticks that were given words; others write numbers
            axis.set_major_formatter(_in_words(shown))


def _in_words(shown: FuncFormatter) -> FuncFormatter:
    return FuncFormatter(lambda value, place: _words(shown(value, place)))


def _words(text: str) -> str:
    return printable_lines(text).replace("$", r"\$")


def canvas(width: float = 6.4, height: float = 3.4) -> tuple[Figure, Axes]:
    """One pair of axes in the house style; sizes in inches."""
    figure, (axes,) = canvases(1, width=width, height=height)
    return figure, axes


def canvases(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Pairs of axes side by side that share their y-axis, in the house style; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.set_axisbelow(True)
    return figure, panels


def grid(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Rows of axes in the house style, each with scales of its own; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = [list(row) for row in figure.subplots(rows, columns, squeeze=False)]
    for row in panels:
        for axes in row:
            axes.set_axisbelow(True)
    return figure, panels


def draw_claim(axes: Axes, claimed: float) -> None:
    """A line at the epsilon that is claimed; none where nothing is (inf)."""
    if math.isfinite(claimed):
        axes.axhline(claimed, color=CLAIM, linewidth=1.6, label=f"claimed ε = {claimed:g}")
