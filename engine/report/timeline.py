"""Who ran what when: a lane for each worker, and how many of them were busy; readable for thousands of units."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import NDArray

from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.drawing import WIDE, Picture, fill, finish, grid, legend_below, set_ticks
from dpaudit.engine.palette import CLAIM, INK, MEMBER, OTHER, QUIET

MAX_LANES = 24
"""Workers whose lanes are drawn; of more, those that were busy longest."""
MAX_KINDS = 5
"""Kinds of units with a colour of their own; all others share one."""
MAX_DRAWN = 20_000
"""Attempts that are drawn in lanes, the longest ones; the others are too narrow to be seen."""
MAX_SHAPES = 300
"""Units of one kind that are drawn as shapes; more are drawn as pixels."""
STEPS = 400
"""Of the curve of busy workers."""
COLOURS = (OTHER, MEMBER, CLAIM, "#7c3aed", "#a16207")
REST, FAILED = ("others", QUIET), ("failed", "#b91c1c")
"""What is said of them, and their colours."""
Style: TypeAlias = tuple[str, str]
_ENDED = {EventKind.UNIT_DONE, EventKind.UNIT_RETRIED, EventKind.UNIT_FAILED}


@dataclass(frozen=True)
class Attempt:
    """One attempt at a unit, on its worker."""

    worker: str  # "host:process", or "lost" for one that died
    kind: str  # of the unit, in words
    begin: float  # seconds since the first one began
    end: float  # the same
    failed: bool  # whether it came to nothing


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


def timeline(events: Iterable[Event]) -> Picture | None:
    """Draw the busy workers and their lanes; None if nothing ran."""
    attempts = attempts_in(events)
    if not attempts:
        return None
    spent: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    for attempt in attempts:
        spent[attempt.kind] += attempt.end - attempt.begin
        busy[attempt.worker] += attempt.end - attempt.begin
    styles = dict(zip(sorted(spent, key=lambda kind: -spent[kind])[:MAX_KINDS], COLOURS, strict=False))
    groups: dict[Style, list[Attempt]] = {style: [] for style in (*styles.items(), REST, FAILED)}
    for attempt in attempts:
        kind = (attempt.kind, styles[attempt.kind]) if attempt.kind in styles else REST
        groups[FAILED if attempt.failed else kind].append(attempt)
    lost = busy.pop("lost", None)
    lanes = sorted(sorted(busy, key=lambda worker: -busy[worker])[:MAX_LANES]) + ["lost"] * (lost is not None)
    end = max(max(attempt.end for attempt in attempts), 1e-9)
    idle = 1 - sum(busy.values()) / max(len(busy) * end, 1e-9)
    failed = len(groups[FAILED])
    title = (
        f"{len(attempts):,} attempts on {len(busy):,} workers, {failed:,} failed; workers idle "
        f"{max(idle, 0):.0%} of the time"
    )
    tall = 0.16 * len(lanes)
    heights = (1.3, 0.4 + tall)
    figure, ((over,), (below,)) = grid(2, 1, width=WIDE[0], height=2.4 + tall, sharex=True, height_ratios=heights)
    _draw_busy_workers(over, groups, end)
    over.axhline(len(busy), color=INK, linestyle=":", linewidth=0.8)
    over.set(ylabel="busy workers", ylim=(0, max(1, len(busy)) * 1.08))
    over.set_title(title, fontsize=10)
    _draw_lanes(below, groups, lanes)
    set_ticks(below.yaxis, range(len(lanes)), _names(lanes), fontsize=7.5)
    below.grid(visible=False, axis="y")
    label = "worker" if len(lanes) - (lost is not None) >= len(busy) else "the busiest workers"
    below.set(ylabel=label, ylim=(len(lanes) - 0.4, -0.6), xlabel="seconds since the first unit began", xlim=(0, end))
    for axes in (over, below):
        finish(axes, "")
    legend_below(figure)
    return Picture("timeline", "Worker timeline", figure)


def _names(lanes: Sequence[str]) -> list[str]:
    """Workers by their process alone where all are of one host."""
    one_host = len({worker.rpartition(":")[0] for worker in lanes} - {""}) < 2
    return [worker.rpartition(":")[2] if one_host else worker for worker in lanes]


def _draw_busy_workers(axes: Axes, groups: Mapping[Style, Sequence[Attempt]], end: float) -> None:
    """Stack the mean number of busy workers in each time step by the kind of unit they ran."""
    edges = np.linspace(0, end, STEPS + 1)
    below = np.zeros(STEPS + 1)
    for (name, colour), attempts in groups.items():
        mean = _busy([attempt for attempt in attempts if attempt.worker != "lost"], edges)
        above = below + np.append(mean, mean[-1])
        if mean.any():
            fill(axes, edges, below, above, name, color=colour, alpha=1, step="post")
        below = above


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


def _draw_lanes(axes: Axes, groups: Mapping[Style, Sequence[Attempt]], lanes: Sequence[str]) -> None:
    drawn = [attempt for attempts in groups.values() for attempt in attempts if attempt.worker in lanes]
    shortest = sorted((attempt.end - attempt.begin for attempt in drawn), reverse=True)[:MAX_DRAWN][-1]
    edge = 0.25 if len(drawn) < 1000 else 0.0  # a white edge separates units
    for (name, colour), attempts in groups.items():
        long = [unit for unit in attempts if unit.worker in lanes and unit.end - unit.begin >= shortest]
        if long:
            row = np.array([lanes.index(unit.worker) for unit in long], dtype=float)
            begin, end = np.array([(unit.begin, unit.end) for unit in long]).T
            across = np.stack([begin, end, end, begin], axis=1)
            along = np.stack([row - 0.4, row - 0.4, row + 0.4, row + 0.4], axis=1)
            look: dict[str, Any] = {"facecolors": colour, "edgecolors": "white", "linewidths": edge}
            # Thousands of shapes would make the page slow: pixels instead.
            shapes: Any = np.stack([across, along], axis=2)
            bars = PolyCollection(shapes, rasterized=len(long) > MAX_SHAPES, **look)
            bars.set_label(name)
            axes.add_collection(bars)
