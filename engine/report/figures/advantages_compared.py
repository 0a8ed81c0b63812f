"""Label mechanisms side by side: Figures 1, 2 and 3 of Busa-Fekete et al. (2024), drawn of any run.

One column a data set. What is drawn of each is the series that single findings offer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpaudit.engine.reading.comparison import LEVEL, RESPONSE, Compared, Study
from dpaudit.engine.report.figures.draw import Drawing
from dpaudit.engine.report.figures.prior_posterior import draw_beliefs, draw_spindle
from dpaudit.engine.report.figures.style import CLAIM, INK, MEMBER, OTHER, STYLE
from dpaudit.estimators.label_reconstruction.advantage_distribution import WORDS
from dpaudit.estimators.label_reconstruction.bags import MEASURES
from dpaudit.estimators.series import AdvantageQuantiles

COLOURS = ("#52606d", OTHER, MEMBER, CLAIM, "#a16207", "#7c3aed", "#0f766e", "#be185d")
WIDTH, HEIGHT = 3.5, 2.9
"""Of one panel, in inches."""


def comparisons(studies: Sequence[Study]) -> list[Drawing]:
    """The three figures, as far as there is something to compare."""
    several = [study for study in studies if len({one.mechanism for one in study.settings}) > 1]
    if not several:
        return []
    drawn = [
        Drawing("beliefs", "Beliefs before and after, mechanism by mechanism", draw_beliefs_grid(several)),
        Drawing("spread", "Settings of about the same utility: beliefs, and both advantages", draw_spread(several)),
    ]
    measured = [study for study in several if any(not math.isnan(one.auc) for one in study.settings)]
    if measured:
        drawn.append(
            Drawing("frontier", "What a model learns, beside what is told of single labels", frontier(measured))
        )
    return drawn


def draw_beliefs_grid(studies: Sequence[Study]) -> Figure:
    """Figure 1: priors and posteriors, a row for each family of mechanisms, a colour for each setting."""
    families = list(dict.fromkeys(one.family for study in studies for one in study.settings))
    figure, panels = _panels(len(families), len(studies))
    for column, study in enumerate(studies):
        for row, family in enumerate(families):
            axes = panels[row][column]
            own = [one for one in study.settings if one.family == family]
            for one, colour in zip(own, _colours(len(own)), strict=True):
                draw_beliefs(axes, one.beliefs, colour=colour, label=one.mechanism)
                if math.isfinite(one.claimed):  # no belief may leave this spindle
                    draw_spindle(axes, one.claimed, colour=colour)
            if own:
                _legend(axes, "upper left")
            axes.set_visible(bool(own))
            axes.set_title(study.data if row == 0 else "", fontsize=10)
    return figure


def draw_spread(studies: Sequence[Study]) -> Figure:
    """Figure 2: of one setting a family, beliefs, and the share of examples that stays within each advantage."""
    figure, panels = _panels(3, len(studies))
    for column, study in enumerate(studies):
        picked = _of_one_utility(study)
        for one, colour in zip(picked, COLOURS, strict=False):
            draw_beliefs(panels[0][column], one.beliefs, colour=colour, label=_with_auc(one))
            for row, kind in enumerate(MEASURES, start=1):
                if kind in one.spread:
                    _draw_cdf(panels[row][column], one.spread[kind], colour=colour)
        for row, kind in enumerate(MEASURES, start=1):
            panels[row][column].set_xlabel(WORDS[kind] + (", nats" if kind == "multiplicative" else ""))
            panels[row][column].set_ylabel("share of examples within")
            panels[row][column].set_ylim(0, 1.03)
        _legend(panels[0][column], "upper left")
        panels[0][column].set_title(study.data, fontsize=10)
    return figure


def frontier(studies: Sequence[Study]) -> Figure:
    """Figure 3: AUC against both advantages; settings that another one beats are hollow."""
    figure, panels = _panels(len(MEASURES), len(studies))
    for column, study in enumerate(studies):
        for row, kind in enumerate(MEASURES):
            _draw_frontier(panels[row][column], study, kind)
        panels[0][column].set_title(study.data, fontsize=10)
    return figure


def _draw_frontier(axes: Axes, study: Study, kind: str) -> None:
    measured = [one for one in study.settings if not math.isnan(one.auc) and kind in one.advantage]
    finite = [one.advantage[kind] for one in measured if math.isfinite(one.advantage[kind])]
    edge = 1.15 * max(finite, default=1.0)  # where infinite advantages are drawn
    dominated = study.dominated(kind)
    curves = list(dict.fromkeys(one.curve for one in measured))
    for curve, colour in zip(curves, _colours(len(curves)), strict=True):
        own = sorted((one for one in measured if one.curve == curve), key=lambda one: one.advantage[kind])
        place = [min(one.advantage[kind], edge) for one in own]
        auc, error = [one.auc for one in own], [np.nan_to_num(one.auc_error) for one in own]
        axes.errorbar(place, auc, yerr=error, color=colour, linewidth=1.0, elinewidth=0.7, label=curve)
        for one, x in zip(own, place, strict=True):
            filled = "white" if one in dominated else colour
            mark = ">" if math.isinf(one.advantage[kind]) else "o"
            axes.plot([x], [one.auc], mark, color=colour, markerfacecolor=filled, markersize=4.5)
    if any(math.isinf(one.advantage[kind]) for one in measured):
        axes.axvline(edge, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate("∞", (edge, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9)
    axes.set_xlabel(f"{LEVEL:.0%} {WORDS[kind]}, nats" if kind == "multiplicative" else f"mean {WORDS[kind]}")
    axes.set_ylabel("AUC on test examples")
    axes.set_xlim(left=0)
    _legend(axes, "lower right")


def _draw_cdf(axes: Axes, series: AdvantageQuantiles, *, colour: str) -> None:
    finite = np.isfinite(series.advantage)
    advantage, share = np.append(0.0, series.advantage[finite]), np.append(0.0, series.share[finite])
    axes.step(advantage, share, where="post", color=colour, linewidth=1.4)
    if not finite.all():  # what is missing at the top is infinite
        axes.plot(advantage[-1], share[-1], ">", color=colour, markersize=5)


def _of_one_utility(study: Study) -> list[Compared]:
    """One setting of each family: those whose AUC is nearest to that of the first setting that is no response."""
    families: dict[str, list[Compared]] = {}
    for one in study.settings:
        families.setdefault(one.family, []).append(one)
    anchor = next((one.auc for one in study.settings if one.family != RESPONSE and one.auc == one.auc), math.nan)
    if math.isnan(anchor):
        return [settings[0] for settings in families.values()]
    return [min(settings, key=lambda one: abs(np.nan_to_num(one.auc) - anchor)) for settings in families.values()]


def _with_auc(one: Compared) -> str:
    return one.mechanism if math.isnan(one.auc) else f"{one.mechanism}, AUC {one.auc:.3f}"


def _colours(count: int) -> list[str]:
    """One for each setting, in order."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](place)) for place in np.linspace(0, 0.95, count)]


def _legend(axes: Axes, where: Literal["upper left", "lower right"]) -> None:
    shown = axes.legend(loc=where, fontsize=6.5, markerscale=3, handlelength=1.2)
    for handle in shown.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _panels(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH * columns, 4.6), HEIGHT * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.ravel():
        axes.set_axisbelow(True)
    return figure, panels.tolist()
