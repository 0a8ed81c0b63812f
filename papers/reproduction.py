"""Options and results that all reproductions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa
from pyarrow import csv as pacsv

from dpaudit.actors.events import Listener
from dpaudit.engine.exits import tell
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.errors import require
from dpaudit.plain_files import write_atomically
from papers.needs import missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = TypeVar("Part")
Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Options:
    """Options to reproduce a paper's table or figure.

    Attributes:
        output: Folder for tables, figures and run folders; finished units in it are reused.
        data: Folder that holds every data set in a folder of its own, such as `adult` and `cifar10`.
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

    def data_set(self, name: str) -> Path | None:
        """Return the folder of a data set; None without --data or if --data does not hold it."""
        folder = None if self.data is None else self.data / name
        return folder if folder is not None and folder.is_dir() else None

    def needed(self, *names: str) -> Path:
        """Return the folder of the first of these data sets that is there.

        Raises: SpecError if none is there, with the names in --data that are nearest.
        """
        folder = next((folder for name in names if (folder := self.data_set(name)) is not None), None)
        if folder is None:
            raise missing(self.data, names)
        return folder

    def language_model(self) -> Path | None:
        """Return the first folder in --data that `save_pretrained` of a model wrote; None if there is none."""
        if self.data is None:
            return None
        return next((file.parent for file in sorted(self.data.glob("*/model*.safetensors"))), None)

    def publish(
        self,
        name: str,
        lines: Sequence[str],
        rows: pa.Table | Sequence[Mapping[str, Any]] | Mapping[str, Any],
        *more: str,
        **figures: Figure,
    ) -> Reproduction:
        """Write figures and table of an item into its folder, and return it with its summary.

        Args:
            name: Name of the item, of its folder and of its table.
            lines: Lines of the summary.
            rows: A table, its rows, or its values by column.
            more: Names of further files in the folder.
            figures: Figures by name, "figure" for that of the item.
        """
        from dpaudit.engine.figures.drawing import save

        folder = self.output / name
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(rows, pa.Table):
            table = rows
        else:
            table = pa.table(dict(rows)) if isinstance(rows, Mapping) else pa.Table.from_pylist(list(rows))
        write_atomically(folder / f"{name}.csv", lambda file: pacsv.write_csv(table, file))
        pictures = {name if stem == "figure" else stem: figure for stem, figure in figures.items()}
        for stem, figure in pictures.items():
            save(figure, folder, stem)
        names = (*(f"{stem}.png" for stem in pictures), f"{name}.csv", *more)
        return Reproduction("\n".join(lines), tuple(folder / file for file in names))

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
