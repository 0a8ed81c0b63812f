"""Label mechanisms side by side: Figures 1, 2 and 3 of Busa-Fekete et al. (2024), drawn of any run.

One column a data set. What is drawn of each is the series that single findings offer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpaudit.engine.reading.label_comparison import QUANTILE, RANDOMIZED_RESPONSE, LabelStudy, MechanismSetting
from dpaudit.estimators.chart import CLAIM, INK, MEMBER, OTHER, Axis, Chart, Line, Mark, Panel, Rule
from dpaudit.estimators.finding_charts import beliefs_panel, scatter, spindle, spread
from dpaudit.estimators.label_reconstruction.bags import MEASURES, WORDS

COLOURS = ("#52606d", OTHER, MEMBER, CLAIM, "#a16207", "#7c3aed", "#0f766e", "#be185d")
VIRIDIS = ("#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26")
"""For more settings than colours."""
WIDTH, HEIGHT, SMALL = 3.5, 2.9, 7.5
"""Of one panel, in inches; of its legend's words, in points."""


def comparisons(studies: Sequence[LabelStudy]) -> list[Chart]:
    """The three charts, as far as there is something to compare."""
    several = [study for study in studies if len({one.mechanism for one in study.settings}) > 1]
    if not several:
        return []
    measured = [study for study in several if any(not math.isnan(one.auc) for one in study.settings)]
    return [beliefs(several), spreads(several), *([frontier(measured)] if measured else [])]


def beliefs(studies: Sequence[LabelStudy]) -> Chart:
    """Figure 1: priors and posteriors, a row for each family of mechanisms, a colour for each setting."""
    families = list(dict.fromkeys(one.family for study in studies for one in study.settings))
    rows = [[_family(study, family, top=family == families[0]) for study in studies] for family in families]
    return _chart("beliefs", "Beliefs before and after, mechanism by mechanism", rows)


def _family(study: LabelStudy, family: str, *, top: bool) -> Panel | None:
    own = [one for one in study.settings if one.family == family]
    marks: list[Mark] = []
    for one, colour in zip(own, _colours(len(own)), strict=True):
        marks += scatter(one.beliefs["prior"], one.beliefs["posterior"], one.mechanism, colour)
        if math.isfinite(one.claimed):  # no belief may leave this spindle
            marks += spindle(one.claimed, colour)
    return beliefs_panel(marks, title=study.data if top else "", legend_size=SMALL) if own else None


def spreads(studies: Sequence[LabelStudy]) -> Chart:
    """Figure 2: of one setting a family, beliefs, and the share of examples that stays within each advantage."""
    columns = [_spread(study) for study in studies]
    title = "Settings of about the same utility: beliefs, and both advantages"
    return _chart("spread", title, list(zip(*columns, strict=True)))


def _spread(study: LabelStudy) -> list[Panel]:
    picked = list(zip(_of_one_utility(study), COLOURS, strict=False))
    before_and_after = [
        mark
        for one, colour in picked
        for mark in scatter(one.beliefs["prior"], one.beliefs["posterior"], _with_auc(one), colour)
    ]
    panels = [beliefs_panel(before_and_after, title=study.data, legend_size=SMALL)]
    for kind in MEASURES:
        marks = [mark for one, colour in picked if kind in one.spread for mark in _within(one, kind, colour)]
        x = Axis(WORDS[kind] + (", nats" if kind == "multiplicative" else ""))
        panels.append(Panel(marks, x, Axis("share of examples within", low=0, high=1.03), legend=""))
    return panels


def _within(one: MechanismSetting, kind: str, colour: str) -> list[Mark]:
    """The share within each advantage; what is missing at the top is infinite, and an arrow says so."""
    series = one.spread[kind]
    line = spread(series["share"], series["advantage"], "", colour)
    if np.isfinite(series["advantage"]).all():
        return [line]
    return [line, Line(line.x[-1:], line.y[-1:], "", colour, "", ">", size=5)]


def frontier(studies: Sequence[LabelStudy]) -> Chart:
    """Figure 3: AUC against both advantages; settings that another one beats are hollow."""
    rows = [[_frontier(study, kind, top=kind == MEASURES[0]) for study in studies] for kind in MEASURES]
    return _chart("frontier", "What a model learns, beside what is told of single labels", rows)


def _frontier(study: LabelStudy, kind: str, *, top: bool) -> Panel:
    measured = [one for one in study.settings if not math.isnan(one.auc) and kind in one.advantage]
    finite = [one.advantage[kind] for one in measured if math.isfinite(one.advantage[kind])]
    edge = 1.15 * max(finite, default=1.0)  # where infinite advantages are drawn
    dominated = study.dominated(kind)
    curves = list(dict.fromkeys(one.curve for one in measured))
    marks: list[Mark] = []
    for curve, colour in zip(curves, _colours(len(curves)), strict=True):
        own = sorted((one for one in measured if one.curve == curve), key=lambda one: one.advantage[kind])
        place = [min(one.advantage[kind], edge) for one in own]
        error = np.nan_to_num([one.auc_error for one in own])
        marks.append(Line(place, [one.auc for one in own], curve, colour, width=1, error=error))
        for one, x in zip(own, place, strict=True):
            face, marker = "white" if one in dominated else "", ">" if math.isinf(one.advantage[kind]) else "o"
            marks.append(Line([x], [one.auc], "", colour, "", marker, size=4.5, face=face))
    if any(math.isinf(one.advantage[kind]) for one in measured):
        marks.append(Rule(edge, "infinite", INK, ":", upright=True, width=0.8))
    label = f"{QUANTILE:.0%} {WORDS[kind]}, nats" if kind == "multiplicative" else f"mean {WORDS[kind]}"
    auc = Axis("AUC on test examples")
    return Panel(marks, Axis(label, low=0), auc, study.data if top else "", legend="lower right", legend_size=SMALL)


def _of_one_utility(study: LabelStudy) -> list[MechanismSetting]:
    """One setting of each family: those whose AUC is nearest to that of the first setting that is no response."""
    families: dict[str, list[MechanismSetting]] = {}
    for one in study.settings:
        families.setdefault(one.family, []).append(one)
    anchor = next(
        (one.auc for one in study.settings if one.family != RANDOMIZED_RESPONSE and one.auc == one.auc), math.nan
    )
    if math.isnan(anchor):
        return [settings[0] for settings in families.values()]
    return [min(settings, key=lambda one: abs(np.nan_to_num(one.auc) - anchor)) for settings in families.values()]


def _with_auc(one: MechanismSetting) -> str:
    return one.mechanism if math.isnan(one.auc) else f"{one.mechanism}, AUC {one.auc:.3f}"


def _colours(count: int) -> list[str]:
    """One for each setting, in order."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [VIRIDIS[place * len(VIRIDIS) // count] for place in range(count)]


def _chart(stem: str, title: str, rows: Sequence[Sequence[Panel | None]]) -> Chart:
    return Chart(stem, title, rows, max(WIDTH * len(rows[0]), 4.6), HEIGHT * len(rows))
