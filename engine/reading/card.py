"""Verdicts in a notebook: a badge, sentences, a bar for what was observed, and all else folded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from dpaudit.engine.reading.verdict import COLOURS, Verdict
from dpaudit.errors import printable
from dpaudit.estimators.chart import can_be_drawn
from dpaudit.estimators.finding import Comparison


def card(said: Verdict, lines: Iterable[str], rest: object, compared: Comparison | None = None) -> str:
    """The HTML of one verdict; `rest` is what stands folded below it."""
    badge = f'<b style="background:{COLOURS[said]};color:#fff;border-radius:9px;padding:2px 9px">{said}</b>'
    words = "<br>".join(escape(printable(line)) for line in lines if line)
    folded = f"<details><summary>more</summary><pre>{escape(str(rest))}</pre></details>"
    return f"<p>{badge} {words}</p>{_bar(compared)}{folded}"


def _bar(compared: Comparison | None) -> str:
    """What was observed, and a line at the claim."""
    if compared is None or not math.isfinite(compared.observed):
        return ""
    claimed = compared.claimed if can_be_drawn(compared.claimed) else 0.0
    unit = 400 / max(compared.observed, claimed, 1e-9)
    line = f'<rect x="{claimed * unit - 1:.0f}" width="2" height="20" fill="#111"/>' if claimed else ""
    bar = f'<rect y="4" width="{max(compared.observed, 0) * unit:.0f}" height="12" fill="#94a3b8"/>'
    return f'<svg role="img" aria-label="{escape(compared.words)}" width="404" height="20">{bar}{line}</svg>'
