"""Who ran what when: a lane for each worker, and how many of them were busy; readable for thousands of units."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.report.figures import style

MOST_LANES = 24
"""Workers whose lanes are drawn; of more, those that were busy longest."""
MOST_KINDS = 5
"""Kinds of units with a colour of their own; all others share one."""
MOST_DRAWN = 20_000
"""Attempts that are drawn in lanes, the longest ones; the others are too narrow to be seen."""
STEPS = 400
"""Of the curve of busy workers."""
COLOURS = (style.OTHER, style.MEMBER, style.CLAIM, "#7c3aed", "#a16207")
REST, FAILED = "#9aa5b1", "#b91c1c"
_ENDED = {EventKind.UNIT_DONE, EventKind.UNIT_RETRIED, EventKind.UNIT_FAILED}


@dataclass(frozen=True)
class Attempt:
    """One attempt at a unit, on its worker.

    Attributes:
        worker: "host:process", or "lost" for one that died.
        kind: Of the unit, in words.
        begin: Seconds since the first one began.
        end: The same.
        failed: Whether it came to nothing.
    """

    worker: str
    kind: str
    begin: float
    end: float
    failed: bool


def attempts_in(events: Iterable[Event]) -> list[Attempt]:
    """The attempts of the last driver that ran any, in the order they ended."""
    last: list[Attempt] = []
    found: list[Attempt] = []
    started: dict[str, float] = {}
    for event in events:
        if event.kind is EventKind.UNITS_PLANNED:
            last, found, started = found or last, [], {}
        elif event.kind is EventKind.UNIT_STARTED:
            started[event.unit] = event.time
        elif event.kind in _ENDED and event.seconds:
            done = event.kind is EventKind.UNIT_DONE
            found.append(Attempt(event.worker, kind_of(event.label), event.time - event.seconds, event.time, not done))
        elif event.kind is EventKind.WORKER_LOST and event.unit in started:
            found.append(Attempt("lost", kind_of(event.label), started[event.unit], event.time, failed=True))
    found = found or last
    first = min((attempt.begin for attempt in found), default=0.0)
    return [Attempt(each.worker, each.kind, each.begin - first, each.end - first, each.failed) for each in found]


def kind_of(label: str) -> str:
    """A unit's label without its numbers: "training trials", "replays"."""
    words = re.sub(r"\bof \d[\d,]*\b|[\d,./-]*\d[\d,./-]*", " ", label.split(",")[0].split(":")[0])
    return " ".join(words.split()) or "unit"


def timeline(events: Iterable[Event]) -> Figure | None:
    """The figure; None where nothing ran."""
    attempts = attempts_in(events)
    if not attempts:
        return None
    spent: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    for attempt in attempts:
        spent[attempt.kind] += attempt.end - attempt.begin
        busy[attempt.worker] += attempt.end - attempt.begin
    kinds = sorted(spent, key=lambda kind: -spent[kind])[:MOST_KINDS]
    colours = dict(zip(kinds, COLOURS, strict=False))
    workers = sorted(busy, key=lambda worker: (worker == "lost", -busy[worker]))
    shown = [*[worker for worker in workers if worker != "lost"][:MOST_LANES], *[w for w in workers if w == "lost"]]
    lanes = {worker: lane for lane, worker in enumerate(sorted(shown, key=lambda name: (name == "lost", name)))}
    end = max(attempt.end for attempt in attempts)

    with rc_context(style.STYLE):
        figure = Figure(figsize=(7.6, 2.4 + 0.16 * len(lanes)), layout="constrained")
        heights = [1.3, 0.4 + 0.16 * len(lanes)]
        over, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    running = len([worker for worker in workers if worker != "lost"])
    _draw_busy(over, attempts, colours, end, running)
    _draw_lanes(below, attempts, colours, lanes, running)
    below.set_xlim(0, max(end, 1e-9))
    below.set_xlabel("seconds since the first unit began")
    failed = sum(attempt.failed for attempt in attempts)
    idle = 1 - sum(busy[worker] for worker in workers if worker != "lost") / max(running * end, 1e-9)
    over.set_title(
        f"{len(attempts):,} attempts on {running:,} workers, {failed:,} came to nothing; workers idle "
        f"{max(idle, 0):.0%} of the time",
        fontsize=10,
    )
    handles = [Patch(color=colour, label=kind) for kind, colour in colours.items()]
    if len(spent) > len(kinds):
        handles.append(Patch(color=REST, label="others"))
    if failed:
        handles.append(Patch(color=FAILED, label="came to nothing"))
    figure.legend(handles=handles, loc="outside lower center", fontsize=8, ncols=3, frameon=False)
    return figure


def _draw_busy(axes: Axes, attempts: Sequence[Attempt], colours: dict[str, str], end: float, running: int) -> None:
    """Workers busy in each step of the time, by what they ran; a mean over the step."""
    edges = np.linspace(0, max(end, 1e-9), STEPS + 1)
    stacked = [
        _busy([one for one in attempts if not one.failed and colours.get(one.kind, REST) == colour], edges)
        for colour in (*colours.values(), REST)
    ]
    stacked.append(_busy([one for one in attempts if one.failed and one.worker != "lost"], edges))
    middles = (edges[1:] + edges[:-1]) / 2
    layers = [
        (layer, colour) for layer, colour in zip(stacked, [*colours.values(), REST, FAILED], strict=True) if layer.any()
    ]
    axes.stackplot(
        middles, [layer for layer, _ in layers], colors=[colour for _, colour in layers], linewidth=0, step="mid"
    )
    axes.axhline(running, color=style.INK, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.set_ylim(0, running * 1.08)
    axes.set_ylabel("busy workers")


def _busy(attempts: Sequence[Attempt], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many attempts run at once, on average over each step, shape (steps,)."""
    begins, ends = (np.sort([getattr(one, side) for one in attempts]) for side in ("begin", "end"))

    def worked(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds that have passed, at each edge, since all of these."""
        passed = np.concatenate([[0.0], np.cumsum(ordered)])
        count = np.searchsorted(ordered, edges)
        seconds: NDArray[np.float64] = count * edges - passed[count]
        return seconds

    return np.diff(worked(begins) - worked(ends)) / np.diff(edges)


def _draw_lanes(
    axes: Axes, attempts: Sequence[Attempt], colours: dict[str, str], lanes: dict[str, int], running: int
) -> None:
    drawn = [attempt for attempt in attempts if attempt.worker in lanes]
    drawn = sorted(drawn, key=lambda attempt: attempt.begin - attempt.end)[:MOST_DRAWN]
    bars: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for attempt in drawn:
        colour = FAILED if attempt.failed else colours.get(attempt.kind, REST)
        bars[lanes[attempt.worker], colour].append((attempt.begin, attempt.end - attempt.begin))
    for (lane, colour), spans in bars.items():
        # As pixels: thousands of shapes would make the page slow. The edge tells one unit from the next.
        width = 0.25 if len(drawn) < 1000 else 0.0
        axes.broken_barh(
            spans,
            (lane - 0.4, 0.8),
            facecolors=colour,
            edgecolors="white",
            linewidth=width,
            rasterized=len(drawn) > 300,
        )
    names = {
        lane: worker.rpartition(":")[2] if len({name.rpartition(":")[0] for name in lanes} - {""}) < 2 else worker
        for worker, lane in lanes.items()
    }
    axes.set_yticks(list(names), [names[lane] for lane in names], fontsize=6.5)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_ylabel("worker" if len(lanes) - ("lost" in lanes) >= running else "the busiest workers")
    axes.grid(visible=False, axis="y")
