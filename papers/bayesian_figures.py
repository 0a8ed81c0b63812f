"""Intervals of three methods against samples and error rates: Figures 4 and 5 of Zanella-Beguelin et al. (2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.registry import register
from papers.reproduction import Options, Reproduction

METHODS = ("clopper-pearson", "jeffreys", "bayesian")
COLOURS = dict(zip(METHODS, (palette.OTHER, palette.CLAIM, palette.MEMBER), strict=True))
CONFIDENCE, DELTA, ERROR_RATE, WITHIN = 0.9, 1e-5, 0.4, 0.15
SAMPLES = np.arange(40, 4001, 20)
SAMPLES_OF_FIGURE_5 = 1000


@dataclass(frozen=True)
class Region:
    """Error counts of an attack on 500 members and 500 non-members.

    Attributes:
        name: Its name in tables.
        false_alarms: Numbers of non-members that are called members.
        misses: Numbers of members that are not.
    """

    name: str
    false_alarms: range
    misses: range


SQUARE = Region("both rates 1 to 99 %", range(5, 500, 5), range(5, 500, 5))
BELOW_HALF = Region("both rates 1 to 49 %", range(5, 250, 5), range(5, 250, 5))
LOW = Region("both rates 0.2 to 2 %", range(1, 11), range(1, 11))
CORNER = Region("1 to 5 false alarms, 400 to 495 misses", range(1, 6), range(400, 496))
"""The paper calls low false-positive and high false-negative rates the target of recent attacks."""
REGIONS = (SQUARE, BELOW_HALF, LOW, CORNER)


@register("reproduction", "bayesian figure-4", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Figure 4")
def figure_4(options: Options) -> Reproduction:
    """Interval ends of three methods against the number of samples, for an attack with FPR = FNR = 40 %."""
    halves = SAMPLES // 2
    errors = np.rint(ERROR_RATE * halves).astype(np.int64)
    columns: dict[str, NDArray[np.float64]] = {"samples": SAMPLES.astype(np.float64)}
    needed = {}
    for method in METHODS:
        lower, upper = _interval(errors, errors, halves, method)
        columns |= {f"{method} lower": lower, f"{method} upper": upper}
        narrow_enough = (upper - lower) <= 2 * WITHIN
        needed[method] = int(SAMPLES[np.flatnonzero(~narrow_enough).max() + 1])
    table = pa.table(columns)
    lines = [
        f"Samples for a {CONFIDENCE:.0%} interval no wider than ±{WITHIN} at FPR = FNR = {ERROR_RATE:.0%}, "
        f"delta {DELTA:g} (the paper: about 1500 with Clopper-Pearson, just over 500 Bayesian):"
    ]
    lines += [f"  {method:<16} {needed[method]}" for method in METHODS]
    lines.append(
        f"  Clopper-Pearson needs {needed['clopper-pearson'] / needed['bayesian']:.2f} times the Bayesian samples"
    )
    lines.append(
        "  The Bayesian interval is credible, not confidence: how often it errs: docs/statistics/calibration.md."
    )
    return options.publish("figure-4", lines, table, figure=_draw_ends(table, needed))


@register("reproduction", "bayesian figure-5", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Figure 5")
def figure_5(options: Options) -> Reproduction:
    """Interval width of three methods against FPR and FNR, for 1,000 samples; below, the corner the paper names."""
    tables = {region.name: _widths(region) for region in REGIONS}
    rows = pa.concat_tables(
        [table.append_column("region", pa.array([name] * len(table))) for name, table in tables.items()]
    )
    lines = [
        f"The Bayesian {CONFIDENCE:.0%} interval of {SAMPLES_OF_FIGURE_5} samples is narrower by (the paper, on a "
        "range of rates it does not state: 20 to 32 % than Jeffreys', 36 to 52 % than Clopper-Pearson's)"
    ]
    for name, table in tables.items():
        for method in ("jeffreys", "clopper-pearson"):
            reduction = 1 - table["bayesian"].to_numpy() / table[method].to_numpy()
            lines.append(f"  {reduction.min():.0%} to {reduction.max():.0%} than {method}: {name}")
    return options.publish("figure-5", lines, rows, figure=_draw_widths(tables))


def _widths(region: Region) -> pa.Table:
    """Return false alarms, misses and each method's width at all pairs of counts of a region."""
    half = SAMPLES_OF_FIGURE_5 // 2
    fp, fn = (grid.ravel() for grid in np.meshgrid(region.false_alarms, region.misses, indexing="ij"))
    columns = {"false alarms": fp, "misses": fn}
    for method in METHODS:
        lower, upper = _interval(fp, fn, np.full_like(fp, half), method)
        columns[method] = upper - lower
    return pa.table(columns)


def _interval(
    fp: NDArray[np.int64], fn: NDArray[np.int64], half: NDArray[np.int64], method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    ends = epsilon_interval(half - fn, fp, half - fp, fn, delta=DELTA, confidence=CONFIDENCE, method=method)
    return np.asarray(ends.lower), np.asarray(ends.upper)


def _draw_ends(table: pa.Table, needed: dict[str, int]) -> Figure:
    figure, axes = style.canvas(7.2, 4.2)
    truth = math.log((1 - DELTA - ERROR_RATE) / ERROR_RATE)
    axes.axhspan(truth - WITHIN, truth + WITHIN, color="#d9dee4", alpha=0.6, label=f"±{WITHIN} about {truth:.3f}")
    for method in METHODS:
        axes.plot(table["samples"], table[f"{method} lower"], color=COLOURS[method], label=method)
        axes.plot(table["samples"], table[f"{method} upper"], color=COLOURS[method])
        axes.axvline(needed[method], color=COLOURS[method], linewidth=0.8, linestyle=":")
    axes.set_xlabel("samples (dotted: where the width reaches 0.3)")
    axes.set_ylabel("ends of the 90 % interval on ε, nats")
    axes.set_xlim(0, 4000)
    axes.set_ylim(0, 1.2)
    axes.legend(fontsize=8.5)
    return figure


def _draw_widths(tables: Mapping[str, pa.Table]) -> Figure:
    """Draw a row of panels, one for each method, of the square of both rates and of the corner of rare alarms."""
    figure = Figure(figsize=(10.5, 6.6), layout="constrained")
    places = figure.subplots(2, len(METHODS), sharex="row", sharey="row")
    for row, region in zip(places, (SQUARE, CORNER), strict=True):
        table = tables[region.name]
        widths = np.stack([table[method].to_numpy() for method in METHODS])
        highest = float(np.quantile(widths[np.isfinite(widths)], 0.98))
        shape = (len(region.false_alarms), len(region.misses))
        for panel, method, width in zip(row, METHODS, widths, strict=True):
            image = panel.pcolormesh(
                region.false_alarms, region.misses, width.reshape(shape).T, vmin=0, vmax=highest, shading="nearest"
            )
            panel.set_title(method, fontsize=10)
            panel.set_xlabel("false alarms of 500")
        row[0].set_ylabel("misses of 500")
        figure.colorbar(image, ax=list(row), label="width of the 90 % interval on ε, nats", shrink=0.85)
    return figure
