"""Label mechanisms side by side, as in Figures 1, 2 and 3 of Busa-Fekete et al. (2024), for any run.

Each data set has a column, drawn from the series of the single findings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpaudit.engine.figures.drawing import Picture, finish, grid, legend_below
from dpaudit.engine.figures.finding_figures import plot_beliefs, plot_spindle, plot_spread, set_beliefs
from dpaudit.engine.figures.palette import CLAIM, INK, MEMBER, OTHER
from dpaudit.estimators.label_reconstruction.bags import MEASURES, WORDS
from papers.label_comparison import QUANTILE, RANDOMIZED_RESPONSE, LabelStudy, MechanismSetting

COLOURS = ("#52606d", OTHER, MEMBER, CLAIM, "#a16207", "#7c3aed", "#0f766e", "#be185d")
VIRIDIS = ("#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26")
"""For more settings than colours."""
WIDTH, HEIGHT, SMALL = 3.5, 2.9, 7.5
"""Width and height of a panel in inches, and the size of its legend's words in points."""


def comparisons(studies: Sequence[LabelStudy]) -> list[Picture]:
    """Return the three figures of the data sets on which several mechanisms were audited."""
    several = [study for study in studies if len({setting.mechanism for setting in study.settings}) > 1]
    if not several:
        return []
    measured = [study for study in several if any(not math.isnan(setting.auc) for setting in study.settings)]
    return [beliefs(several), spreads(several), *([frontier(measured)] if measured else [])]


def beliefs(studies: Sequence[LabelStudy]) -> Picture:
    """Draw Figure 1: priors and posteriors, a row for each family of mechanisms, a colour for each setting."""
    families = list(dict.fromkeys(setting.family for study in studies for setting in study.settings))
    figure = _figure_of_rows(studies, families, _draw_family)
    return Picture("beliefs", "Beliefs before and after, mechanism by mechanism", figure)


def _figure_of_rows(
    studies: Sequence[LabelStudy], rows: Sequence[str], draw: Callable[[Axes, LabelStudy, str], None]
) -> Figure:
    """Return a figure with a column for each study and a row for each text, whose panels `draw` fills."""
    figure, places = _panels(len(rows), len(studies))
    for text, panels in zip(rows, places, strict=True):
        for study, axes in zip(studies, panels, strict=True):
            draw(axes, study, text)
    for study, axes in zip(studies, places[0], strict=True):
        axes.set_title(study.data, fontsize=10)
    return figure


def _draw_family(axes: Axes, study: LabelStudy, family: str) -> None:
    settings = [setting for setting in study.settings if setting.family == family]
    axes.set_visible(bool(settings))
    for setting, colour in zip(settings, _colours(len(settings)), strict=True):
        plot_beliefs(axes, setting.beliefs["prior"], setting.beliefs["posterior"], setting.mechanism, colour)
        if math.isfinite(setting.claimed):  # the claim keeps beliefs inside this spindle
            plot_spindle(axes, setting.claimed, colour)
    set_beliefs(axes)
    finish(axes, "upper left", fontsize=SMALL)


def spreads(studies: Sequence[LabelStudy]) -> Picture:
    """Draw Figure 2: beliefs and both advantages of one setting a family."""
    figure, places = _panels(1 + len(MEASURES), len(studies))
    for column, study in enumerate(studies):
        settings = list(zip(_of_one_utility(study), COLOURS, strict=False))
        axes = places[0][column]
        axes.set_title(study.data, fontsize=10)
        for setting, colour in settings:
            plot_beliefs(axes, setting.beliefs["prior"], setting.beliefs["posterior"], _with_auc(setting), colour)
        set_beliefs(axes)
        finish(axes, "upper left", fontsize=SMALL)
        for kind, row in zip(MEASURES, places[1:], strict=True):
            for setting, colour in settings:
                if kind in setting.spread:
                    _draw_spread(row[column], setting, kind, colour)
            label = WORDS[kind] + (", nats" if kind == "multiplicative" else "")
            row[column].set(xlabel=label, ylabel="share of examples within", ylim=(0, 1.03))
            finish(row[column])
    return Picture("spread", "Settings of about the same utility: beliefs, and both advantages", figure)


def _draw_spread(axes: Axes, setting: MechanismSetting, kind: str, colour: str) -> None:
    """Plot the share of examples within each advantage; an arrow at its end stands for infinite advantages."""
    share, advantage = setting.spread[kind]["share"], setting.spread[kind]["advantage"]
    plot_spread(axes, share, advantage, "", colour)
    finite = np.isfinite(advantage)
    if not finite.all():
        x, y = (np.append(0, values[finite])[-1:] for values in (advantage, share))
        axes.plot(x, y, ">", color=colour, markersize=5)


def frontier(studies: Sequence[LabelStudy]) -> Picture:
    """Draw Figure 3: AUC against both advantages; dominated settings are hollow, one legend is below all panels."""
    curves = list(dict.fromkeys(setting.curve for study in studies for setting in study.settings))
    colours = dict(zip(curves, _colours(len(curves)), strict=True))
    figure = _figure_of_rows(studies, MEASURES, partial(_draw_frontier, colours))
    legend_below(figure, 2 if len(studies) == 1 else 4)
    return Picture("frontier", "Utility of a model against the leakage of single labels", figure)


def _draw_frontier(colours: Mapping[str, str], axes: Axes, study: LabelStudy, kind: str) -> None:
    measured = [setting for setting in study.settings if not math.isnan(setting.auc) and kind in setting.advantage]
    finite = [setting.advantage[kind] for setting in measured if math.isfinite(setting.advantage[kind])]
    edge = 1.15 * max(finite, default=1.0)  # position of infinite advantages
    dominated = study.dominated(kind)
    for curve in dict.fromkeys(setting.curve for setting in measured):
        colour, settings = colours[curve], [setting for setting in measured if setting.curve == curve]
        settings.sort(key=lambda setting: setting.advantage[kind])
        places = [min(setting.advantage[kind], edge) for setting in settings]
        errors = np.nan_to_num([setting.auc_error for setting in settings])
        style: dict[str, Any] = {"color": colour, "label": curve, "linewidth": 1, "elinewidth": 1}
        axes.errorbar(places, [setting.auc for setting in settings], yerr=errors, **style)
        for setting, x in zip(settings, places, strict=True):
            marker = ">" if math.isinf(setting.advantage[kind]) else "o"
            face = "white" if setting in dominated else colour
            axes.plot([x], [setting.auc], marker, color=colour, markersize=4.5, markerfacecolor=face)
    if any(math.isinf(setting.advantage[kind]) for setting in measured):
        axes.axvline(edge, color=INK, linestyle=":", linewidth=0.8, label="infinite")
    label = f"{QUANTILE:.0%} {WORDS[kind]}, nats" if kind == "multiplicative" else f"mean {WORDS[kind]}"
    axes.set(xlabel=label, ylabel="AUC on test examples", xlim=(0, None))
    finish(axes, "")


def _of_one_utility(study: LabelStudy) -> list[MechanismSetting]:
    """Return the setting of each family whose AUC is nearest to that of the first setting that is no response."""
    families: dict[str, list[MechanismSetting]] = {}
    for setting in study.settings:
        families.setdefault(setting.family, []).append(setting)
    others = (setting.auc for setting in study.settings if setting.family != RANDOMIZED_RESPONSE)
    anchor = next((auc for auc in others if not math.isnan(auc)), math.nan)
    if math.isnan(anchor):
        return [settings[0] for settings in families.values()]
    return [
        min(settings, key=lambda setting: abs(np.nan_to_num(setting.auc) - anchor)) for settings in families.values()
    ]


def _with_auc(setting: MechanismSetting) -> str:
    return setting.mechanism if math.isnan(setting.auc) else f"{setting.mechanism}, AUC {setting.auc:.3f}"


def _colours(count: int) -> list[str]:
    """Return a colour for each of `count` settings, in order."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [VIRIDIS[place * len(VIRIDIS) // count] for place in range(count)]


def _panels(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    return grid(rows, columns, width=max(WIDTH * columns, 4.6), height=HEIGHT * rows)
