"""How a series becomes a figure: the type of the series decides, one file a kind beside this one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from matplotlib.figure import Figure

from dpaudit.claims import Claim
from dpaudit.estimators.finding import Standing
from dpaudit.estimators.series import Series


@dataclass(frozen=True)
class Context:
    """What figures show beside a series.

    Attributes:
        claim: Under the game's relation.
        standing: What is reported beside what is claimed.
    """

    claim: Claim
    standing: Standing


@dataclass(frozen=True)
class Drawing:
    """A figure with its name.

    Attributes:
        stem: Of the file, after the audit's name.
        title: For the page.
        figure: What was drawn.
    """

    stem: str
    title: str
    figure: Figure


@singledispatch
def draw(series: Series, context: Context) -> Drawing | None:
    """The drawing of a series; None where there is nothing worth drawing."""
    raise NotImplementedError(f"no file in engine/report/figures draws a {type(series).__name__}")
