"""What every reproduction shares: its options, and the folder of tables and figures it leaves."""

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
    "ml-audit figure-2",
    "ml-audit figure-2-seeds",
    "ml-audit figure-8",
    "observational-label factors",
    "private-prediction figure-3",
    "private-prediction figure-4",
    "private-prediction figure-5",
    "private-prediction figures-7-to-31",
)
"""Those that can be made a part at a time."""


@dataclass(frozen=True)
class Options:
    """How a paper's table or figure is made anew.

    Attributes:
        output: Folder for tables, figures and run folders; finished units in it are not run again.
        data: Path of the real data, where some are needed.
        scale: "small" runs on two cores; "paper" is the paper's own size.
        run: Where the work runs.
        listeners: Told of every event.
        seed: Everything random follows from it.
        say: Is told the cost before anything starts.
        only: Parts whose name contains one of these are made; () makes all.
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
        """The path of the real data.

        Raises: SpecError when none was given.
        """
        if self.data is None:
            raise SpecError(f"this needs {needed}: give --data PATH")
        return str(self.data)

    def folder_with(self, pattern: str) -> Path | None:
        """The data's folder or the first folder in it with such a file; None without, or without a folder."""
        if self.data is None or not self.data.is_dir():
            return None
        inside = sorted(entry for entry in self.data.iterdir() if entry.is_dir())
        return next((folder for folder in (self.data, *inside) if any(folder.glob(pattern))), None)

    def chosen_parts(self, parts: Iterable[Part], name: Callable[[Part], str], *, must: str) -> list[Part]:
        """The parts whose name contains a text of `only`; all where none is given.

        Raises: InputError when there is none; `must` says what names have.
        """
        chosen = [part for part in parts if not self.only or any(text in name(part) for text in self.only)]
        require(bool(chosen), f"--only must name {must}", only=self.only)
        return chosen


@dataclass(frozen=True)
class Reproduction:
    """What a reproduction leaves.

    Attributes:
        text: What was found, for the terminal.
        files: The files a reader opens.
    """

    text: str
    files: tuple[Path, ...]
