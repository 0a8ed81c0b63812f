"""Answers in a notebook: a badge, labelled lines, a bar for the bound, and folded details."""

from __future__ import annotations

import math
from html import escape

from dpaudit.engine.answer.verdict import COLOURS, Answer
from dpaudit.engine.figures.palette import can_be_drawn
from dpaudit.errors import printable
from dpaudit.estimators.finding import Comparison


def card(answer: Answer, rest: object) -> str:
    """Return the HTML of an answer with `rest` folded below it."""
    badge = f'<b style="background:{COLOURS[answer.verdict]};color:#fff;border-radius:9px;padding:2px 9px">'
    rows = "".join(
        f'<tr><th style="text-align:left;vertical-align:top;padding-right:12px">{escape(label)}</th>'
        f'<td style="text-align:left">{escape(printable(text))}</td></tr>'
        for label, text in answer.below_sentence
    )
    folded = f"<details><summary>more</summary><pre>{escape(str(rest))}</pre></details>"
    bar = _bar(None if answer.test is None else answer.test.comparison)
    title = f"{badge}{answer.verdict}</b> {escape(printable(answer.name))}"
    return f"<p>{title}</p><p>{escape(printable(answer.sentence))}</p>{bar}<table>{rows}</table>{folded}"


def _bar(compared: Comparison | None) -> str:
    """Return a bar for the observed value with a line at the claim, as SVG; "" if the value is infinite."""
    if compared is None or not math.isfinite(compared.observed):
        return ""
    claimed = compared.claimed if can_be_drawn(compared.claimed) else 0.0
    unit = 400 / max(compared.observed, claimed, 1e-9)
    line = f'<rect x="{claimed * unit - 1:.0f}" width="2" height="20" fill="#111"/>' if claimed else ""
    bar = f'<rect y="4" width="{max(compared.observed, 0) * unit:.0f}" height="12" fill="#94a3b8"/>'
    caption = f'<div style="font-size:85%">bar: lower bound{"; line: claim" if claimed else ""}</div>'
    return (
        f'<svg role="img" aria-label="{escape(compared.words)}" viewBox="0 0 404 20" width="404" '
        f'style="max-width:100%">{bar}{line}</svg>{caption}'
    )
