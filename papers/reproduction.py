"""Options and results that all reproductions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from dpaudit.actors.events import Listener
from dpaudit.engine.exits import tell
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.errors import SpecError, require

Part = TypeVar("Part")
Scale = Literal["small", "paper"]
IN_PARTS = (
    "label-inference figure-1",
    "label-inference figure-2",
    "label-inference figure-3",
    "ml-audit figure-2",
    "ml-audit figure-2-seeds",
    "ml-audit figure-8",
    "observational-label factors",
    "private-prediction figure-3",
    "private-prediction figure-4",
    "private-prediction figure-5",
    "private-prediction figures-7-to-31",
)
"""Reproductions that accept --only."""


@dataclass(frozen=True)
class Options:
    """Options to reproduce a paper's table or figure.

    Attributes:
        output: Folder for tables, figures and run folders; finished units in it are reused.
        data: Path of real data, for reproductions that need it.
        scale: "small" runs on two cores; "paper" has the paper's size.
        run: Runner and workers.
        listeners: Callbacks for every event.
        seed: Seed of all randomness.
        say: Callback for the cost, before the run starts.
        only: Texts that select parts by name; () selects all parts.
    """

    output: Path
    data: Path | None = None
    scale: Scale = "small"
    run: RunOptions = RunOptions()
    listeners: Sequence[Listener] = ()
    seed: int = 0
    say: Callable[[str], None] = tell
    only: tuple[str, ...] = ()

    def data_path(self, needed: str) -> str:
        """Return the path of the real data.

        Raises: SpecError without --data.
        """
        if self.data is None:
            raise SpecError(f"this needs {needed}: give --data PATH")
        return str(self.data)

    def folder_with(self, pattern: str) -> Path | None:
        """Return the data folder or its first subfolder with a file that matches `pattern`; None if there is none."""
        if self.data is None or not self.data.is_dir():
            return None
        inside = sorted(entry for entry in self.data.iterdir() if entry.is_dir())
        return next((folder for folder in (self.data, *inside) if any(folder.glob(pattern))), None)

    def chosen_parts(self, parts: Iterable[Part], name: Callable[[Part], str], *, must: str) -> list[Part]:
        """Return the parts whose name contains a text of `only`, or all parts if `only` is empty.

        Raises: InputError if no part matches; `must` describes the valid names.
        """
        chosen = [part for part in parts if not self.only or any(text in name(part) for text in self.only)]
        require(bool(chosen), f"--only must name {must}", only=self.only)
        return chosen


@dataclass(frozen=True)
class Reproduction:
    """Result of a reproduction.

    Attributes:
        text: Summary for the terminal.
        files: Tables, figures and reports.
    """

    text: str
    files: tuple[Path, ...]
