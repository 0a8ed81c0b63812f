"""Style shared by all figures, common marks, and figure files (PNG and SVG)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
from numpy.typing import NDArray

matplotlib.use("Agg")  # needs no display

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dpaudit.engine.figures.palette import INK, OTHER, QUIET
from dpaudit.errors import printable_lines
from dpaudit.plain_files import write_atomically

STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9dee4",
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": "#52606d",
    "ytick.color": "#52606d",
}
WIDE, SQUARE = (5.0, 3.2), (4.2, 4.0)
"""Width and height of a figure in inches: half of a page on a screen, all of it on a phone."""
MAX_TICKS = 7  # intervals between ticks of a linear axis; with more, long numbers overlap
Numbers: TypeAlias = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its name and title."""

    stem: str  # end of its file's name
    title: str  # title on the page
    figure: Figure


def canvas(width: float = 6.4, height: float = 3.4) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes in the shared style; sizes in inches."""
    figure, ((axes,),) = grid(1, 1, width=width, height=height)
    return figure, axes


def canvases(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` pairs of axes side by side that share their y-axis; sizes in inches."""
    figure, (panels,) = grid(1, count, width=width, height=height, sharey=True)
    return figure, panels


def grid(rows: int, columns: int, *, width: float, height: float, **places: Any) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with rows of axes; sizes in inches, `places` are further arguments of `Figure.subplots`."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **places).tolist()


def fill(axes: Axes, x: Numbers, low: Numbers, high: Numbers, label: str = "", **options: Any) -> None:
    """Fill the band between two curves."""
    style: dict[str, Any] = {"color": OTHER, "alpha": 0.2, "linewidth": 0} | options
    axes.fill_between(x, low, high, label=label, **style)


def set_ticks(side: Axis, ticks: Numbers, words: Sequence[str] | None = None, **label_style: Any) -> None:
    """Set exactly these ticks, labelled by `words` or by their numbers."""
    side.set_ticks(ticks, words or [f"{tick:g}" for tick in ticks], **label_style)
    side.minorticks_off()


def annotate_right(
    axes: Axes, x: float, y: float, text: str, colour: str = INK, size: float = 9, shift: float = 7
) -> Text:
    """Write text `shift` points to the right of a point, or to its left if `shift` is negative."""
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
    style: dict[str, Any] = {"fontsize": size, "color": colour, "va": "center", "bbox": behind}
    style["ha"] = "left" if shift > 0 else "right"
    return axes.annotate(text, (x, y), (shift, 0), textcoords="offset points", **style)


def finish(axes: Axes, legend: str = "best", **legend_options: Any) -> None:
    """Limit the ticks of linear axes, and add a legend if a mark has a label.

    Args:
        axes: Axes with all marks, scales, limits and ticks.
        legend: Matplotlib's place of the legend, "above" the axes, or "" for none.
        legend_options: Further arguments of `Axes.legend`.
    """
    for side in (axes.xaxis, axes.yaxis):
        if isinstance(locator := side.get_major_locator(), MaxNLocator):
            locator.set_params(nbins=MAX_TICKS)
    if legend and axes.get_legend_handles_labels()[1]:
        above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        place = above if legend == "above" else {"loc": legend}
        drawn_legend = axes.legend(**({"fontsize": 8.5} | place | legend_options))
        for handle in drawn_legend.legend_handles:
            if (
                isinstance(handle, Line2D) and handle.get_marker() == "."
            ):  # points of a scatter plot are small and faint
                handle.set(alpha=1, markersize=7)


def legend_below(figure: Figure, columns: int = 2) -> None:
    """Add one legend of all axes below the figure, each label once."""
    first: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            first.setdefault(label, handle)
    legend_options: dict[str, Any] = {"fontsize": 8, "ncols": columns, "frameon": False}
    figure.legend([*first.values()], [*first], loc="outside lower center", **legend_options)


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write `<name>.png` and `<name>.svg`; return the SVG element for a self-contained page."""
    folder.mkdir(parents=True, exist_ok=True)
    _escape_words(figure)
    write_atomically(folder / f"{name}.png", lambda file: figure.savefig(file, dpi=160, format="png"))
    figure.set_layout_engine("none")  # reuse the layout of the PNG, whose computation takes half the time
    text = _svg(figure)
    write_atomically(folder / f"{name}.svg", lambda file: file.write(text.encode()))
    return text[text.index("<svg") :]


def svg_element(figure: Figure) -> str:
    """Return the SVG element of a figure for a self-contained page."""
    _escape_words(figure)
    text = _svg(figure)
    return text[text.index("<svg") :]


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _escape_words(figure: Figure) -> None:
    """Escape dollar signs, which would start a formula, in all texts of a figure."""
    for text in figure.findobj(Text):
        text.set_text(_escaped(text.get_text()))
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        words = axis.get_major_formatter()
        if isinstance(words, FuncFormatter):  # ticks with words; others are numbers
            axis.set_major_formatter(FuncFormatter(lambda value, place, words=words: _escaped(words(value, place))))


def _escaped(text: str) -> str:
    return printable_lines(text).replace("$", r"\$")
