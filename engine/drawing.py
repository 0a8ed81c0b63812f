"""Draws every chart in one house style, as PNG and SVG. What has no plotting library until a figure is asked for."""

from __future__ import annotations

import io
from functools import singledispatch
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen is needed, wherever the driver runs

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

import numpy as np

from dpaudit.atomic_write import write_whole
from dpaudit.errors import printable_lines
from dpaudit.estimators.chart import GRID, INK, Axis, Band, Bars, Chart, Heat, Line, Mark, Panel, Rule, Words

STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
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
MOST_SHAPES = 300
"""Bars of one colour that are shapes; more are pixels, or the page would be slow."""
