"""Progress display on the terminal, from the event stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from dpaudit.actors.events import BUFFERED_KINDS, Event, EventKind, last_line
from dpaudit.engine.exits import original_stream
from dpaudit.errors import printable, printable_lines


class Terminal(Console):
    """Console that escapes terminal control sequences in all text, including prints of audited code next to a bar."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render text without foreign control characters and links; only Rich's own cursor movements pass."""
        for part in super().render(renderable, options):
            style = None if part.style is None else part.style.update_link(None)
            yield part if part.control else Segment(printable_lines(part.text), style)


def terminal(stream: IO[str] | None = None) -> Console:
    """Return a console on standard error or another stream, which escapes untrusted text."""
    return Terminal(file=original_stream(sys.stderr) if stream is None else stream)


class TerminalProgress:
    """Progress bar of finished, running and failed units, with rate and time left; lines if there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("planning", total=None, state="")
        self._total = self._done = self._failed = self._running = self._cached = 0
        self._workers = 1  # in process, or until the first worker reports their number
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        match event.kind:
            case EventKind.STAGE:
                self._bar.update(self._task, description=printable(event.detail))
                if not self._console.is_terminal:
                    self._print(event.detail)
            case EventKind.UNITS_PLANNED:
                self._total, self._began = event.count, time.monotonic()
                self._done = self._failed = self._running = self._cached = 0
            case EventKind.UNITS_SPARED:
                self._total -= event.count
            case EventKind.WORKER_STARTED:
                self._workers = event.count
            case EventKind.UNITS_CACHED:
                self._cached = event.count
            case EventKind.UNIT_STARTED:
                self._running += 1
            case EventKind.UNIT_DONE:
                self._running -= 1
                self._done += 1
            case EventKind.UNIT_FAILED | EventKind.UNIT_SKIPPED:
                self._running -= event.kind is EventKind.UNIT_FAILED
                self._failed += 1
                self._print(f"failed: {event.label}: {last_line(event.detail)}", style="red")
            case EventKind.UNIT_RETRIED | EventKind.WORKER_LOST:
                self._running -= 1
                problem = "worker lost during" if event.kind is EventKind.WORKER_LOST else "retrying"
                self._print(f"{problem} {event.label} (attempt {event.attempt})", style="yellow")
            case EventKind.UNIT_RUNNING:
                self._print(
                    "; ".join(filter(None, [f"still running, {event.seconds:.0f} s: {event.label}", event.detail]))
                )
            case EventKind.UNIT_REMARKED:
                self._print(f"{event.label} changed its process: {event.detail}", style="yellow")
            case EventKind.UNIT_REPEATED:
                self._running -= 1
            case EventKind.UNIT_DAMAGED:
                self._print(f"running {event.label} again: {event.detail}", style="yellow")
            case _:
                pass
        if event.kind not in BUFFERED_KINDS:
            self.flush()

    def flush(self) -> None:
        """Update the display."""
        finished = self._done + self._cached + self._failed
        self._bar.update(self._task, total=self._total or None, completed=finished, state=self._state())
        if self._total and not self._console.is_terminal and time.monotonic() - self._last_line > 15:
            self._last_line = time.monotonic()
            self._print(f"{finished} of {self._total} units, {self._state()}")

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(printable(line), style=style, markup=False, emoji=False)

    def _state(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = self._done / seconds
        remaining = self._total - self._done - self._cached - self._failed
        # Each worker also holds a next unit that is started but not running yet.
        parts = [f"{min(self._running, self._workers)} running", f"{self._failed} failed"]
        if self._done:
            parts.append(f"{rate:.2g}/s, {remaining / rate:.0f} s left")
        return ", ".join(parts)
