"""The one place where charts become pictures, in one house style: PNG, SVG, and figures of Matplotlib."""

from __future__ import annotations

import io
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np

matplotlib.use("Agg")  # no screen is needed, wherever the driver runs

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from dpaudit.errors import printable_lines
from dpaudit.estimators.chart import INK, QUIET, Axis, Band, Bars, Chart, Heat, Line, Mark, Panel, Rule, Words
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
MAX_SHAPES = 300  # bars of one colour that are shapes; more are pixels: thousands of shapes would make the page slow
MOST_TICKS = 7  # steps between ticks of a linear axis: more of them, with long numbers, run into one another
MARKER_EDGES = {"|": 2.0, ".": 0.0}


def draw(chart: Chart) -> Figure:
    columns = max(map(len, chart.rows))
    ratios = {"sharex": chart.share_x, "height_ratios": chart.heights or None}
    figure, places = grid(len(chart.rows), columns, width=chart.width, height=chart.height, **ratios)
    for row, panels in zip(places, chart.rows, strict=True):
        for axes, panel in zip(row, panels, strict=True):
            axes.set_visible(panel is not None)
            if panel is not None:
                draw_panel(axes, panel)
    if chart.legend_columns:
        named = [axes.get_legend_handles_labels() for row in places for axes in row]
        first: dict[str, Any] = {}
        for handles, labels in named:
            for handle, label in zip(handles, labels, strict=True):
                first.setdefault(label, handle)
        look: dict[str, Any] = {"fontsize": 8, "ncols": chart.legend_columns, "frameon": False}
        figure.legend([*first.values()], [*first], loc="outside lower center", **look)
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    for mark in panel.marks:
        _draw(mark, axes)
    _set_side(axes, "x", panel.x)
    _set_side(axes, "y", panel.y)
    axes.set_title(panel.title, fontsize=10)
    if panel.legend and axes.get_legend_handles_labels()[1]:
        above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        place = above if panel.legend == "above" else {"loc": panel.legend}
        legend = axes.legend(fontsize=panel.legend_size, ncols=panel.legend_columns, **place)
        for handle in legend.legend_handles:
            if isinstance(handle, Line2D) and handle.get_marker() == ".":  # thousands of points are small and faint
                handle.set(alpha=1, markersize=7)


def _set_side(axes: Axes, name: Literal["x", "y"], axis: Axis) -> None:
    side = {"x": axes.xaxis, "y": axes.yaxis}[name]
    words: dict[str, Any] = {"fontsize": axis.size} if axis.size else {}
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
    elif axis.ticks is None:
        axes.locator_params(axis=name, nbins=MOST_TICKS)
    if axis.ticks is not None:
        side.set_ticks(axis.ticks, axis.words or [f"{tick:g}" for tick in axis.ticks], **words)
        side.minorticks_off()
    axes.set(**{f"{name}label": axis.label, f"{name}lim": (axis.low, axis.high)})
    if not axis.grid:
        axes.grid(visible=False, axis=name)


@singledispatch
def _draw(mark: Mark, axes: Axes) -> None:
    raise NotImplementedError(f"no mark of a chart: {type(mark).__name__}")


@_draw.register
def _(mark: Line, axes: Axes) -> None:
    style: dict[str, Any] = {
        "label": mark.label,
        "color": mark.colour,
        "linestyle": mark.dash or "none",
        "linewidth": mark.width,
        "marker": mark.marker or "none",
        "markersize": mark.size,
        "markerfacecolor": mark.face or mark.colour,
        "markeredgewidth": MARKER_EDGES.get(mark.marker, 1.0),
        "alpha": mark.alpha,
        "drawstyle": "steps-post" if mark.step else "default",
    }
    if mark.error is None:
        axes.plot(mark.x, mark.y, **style)
    else:
        axes.errorbar(mark.x, mark.y, yerr=mark.error, elinewidth=1, **style)


@_draw.register
def _(mark: Band, axes: Axes) -> None:
    step: Any = "post" if mark.step else None
    look: dict[str, Any] = {"label": mark.label, "color": mark.colour, "alpha": mark.alpha, "linewidth": 0}
    axes.fill_between(mark.x, mark.low, mark.high, step=step, **look)


@_draw.register
def _(mark: Bars, axes: Axes) -> None:
    place, end = np.asarray(mark.place, dtype=float), np.asarray(mark.end, dtype=float)
    start, half = np.broadcast_to(mark.start, end.shape), mark.thickness / 2
    across = np.stack([place - half, place - half, place + half, place + half], axis=1)
    along = np.stack([start, end, end, start], axis=1)
    corners = np.stack([across, along] if mark.upright else [along, across], axis=2)
    bars = PolyCollection(
        corners[np.isfinite(end)],
        label=mark.label,
        facecolors=mark.colour,
        edgecolors="white",
        linewidths=mark.edge,
        rasterized=place.size > MAX_SHAPES,
    )
    axes.add_collection(bars)
    axes.autoscale_view()
    for text, at, top in zip(mark.values, place, end, strict=False):
        point, gap = ((at, top), (0, 2)) if mark.upright else ((top, at), (6, 0))
        aligned: dict[str, Any] = {"ha": "center", "va": "bottom"} if mark.upright else {"va": "center"}
        axes.annotate(text, point, gap, textcoords="offset points", fontsize=mark.size, **aligned)


@_draw.register
def _(mark: Rule, axes: Axes) -> None:
    across = axes.axvline if mark.upright else axes.axhline
    across(mark.at, color=mark.colour, linestyle=mark.dash, linewidth=mark.width, label=mark.label)


@_draw.register
def _(mark: Words, axes: Axes) -> None:
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
    look: dict[str, Any] = {"fontsize": mark.size, "color": mark.colour, "va": "center", "bbox": behind}
    axes.annotate(mark.text, (mark.x, mark.y), (7, 0), textcoords="offset points", **look)


@_draw.register
def _(mark: Heat, axes: Axes) -> None:
    image = axes.imshow(mark.values, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label=mark.label)


def canvas(width: float = 6.4, height: float = 3.4) -> tuple[Figure, Axes]:
    """One pair of axes in the house style; sizes in inches."""
    figure, ((axes,),) = grid(1, 1, width=width, height=height)
    return figure, axes


def canvases(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Pairs of axes side by side that share their y-axis, in the house style; sizes in inches."""
    figure, (panels,) = grid(1, count, width=width, height=height, sharey=True)
    return figure, panels


def grid(rows: int, columns: int, *, width: float, height: float, **places: Any) -> tuple[Figure, list[list[Axes]]]:
    """Rows of axes in the house style; sizes in inches, and what `Figure.subplots` may be told besides."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **places).tolist()


def save(figure: Figure, folder: Path, name: str) -> str:
    """Writes `<name>.png` and `<name>.svg`; returns the SVG's text for a page that stands alone."""
    folder.mkdir(parents=True, exist_ok=True)
    _show_words(figure)
    write_atomically(folder / f"{name}.png", lambda file: figure.savefig(file, dpi=160, format="png"))
    figure.set_layout_engine("none")  # parts stay where the first file has them; finding places takes half the time
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    write_atomically(folder / f"{name}.svg", lambda file: file.write(text.encode()))
    return text[text.index("<svg") :]


def _show_words(figure: Figure) -> None:
    """Names in a figure are shown as they are written, and no dollar in them begins a formula."""
    for text in figure.findobj(Text):
        text.set_text(_words(text.get_text()))
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        shown = axis.get_major_formatter()
        if isinstance(shown, FuncFormatter):  # of ticks that were given words; others write numbers
            axis.set_major_formatter(FuncFormatter(lambda value, place, shown=shown: _words(shown(value, place))))


def _words(text: str) -> str:
    return printable_lines(text).replace("$", r"\$")
