"""Time and data of every reproduction, its list, and the errors for names and data sets that are not there.

Nothing heavy is imported here, so that `dpaudit reproduce` lists at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpaudit.errors import SpecError, UnknownNameError, nearest, shortened
from dpaudit.registry import Entry


@dataclass(frozen=True)
class Needs:
    """Time and data of a reproduction, for the list of `dpaudit reproduce`.

    Attributes:
        time: Time at the small scale, of one core.
        paper: Time at the paper's scale; "" if the scale changes nothing.
        data: Data sets that it cannot do without, alternatives joined by " or "; "none" if it needs none.
        adds: Data sets that it adds, or replaces generated data with, if --data holds them.
        parts: True if it accepts --only.
    """

    time: str
    paper: str = ""
    data: str = "none"
    adds: tuple[str, ...] = ()
    parts: bool = False

    def line(self) -> str:
        """Return time, scale and data in one line."""
        size = f"small {self.time}, paper's size {self.paper}" if self.paper else f"one size, {self.time}"
        more = f"; optional: {', '.join(self.adds)}" if self.adds else ""
        return f"{size}; data: {self.data}{more}"


PICTURES, TEXTS = ("mnist", "fashion_mnist", "cifar10"), ("sst2", "ag_news", "dbpedia", "trec")
TABLES = ("adult", "credit_german", "banknote", "thoracic", "credit_default (paper)")
DATA_SETS = (
    *("adult", "ag_news", "banknote", "cifar10", "credit_default", "credit_german", "criteo", "dbpedia"),
    *("fashion_mnist", "higgs", "mnist", "priors", "sst2", "thoracic", "trec"),
)
"""Names of folders in --data."""
A_MODEL = "a language model"
GPUS, UNKNOWN = "needs GPUs", "not measured"
NEEDS: Mapping[str, Needs] = {
    "bayesian figure-1": Needs("10 s", adds=("cifar10 or fashion_mnist (as table-2)",)),
    "bayesian figure-2": Needs("5 s"),
    "bayesian figure-3": Needs("3 s"),
    "bayesian figure-4": Needs("3 s"),
    "bayesian figure-5": Needs("4 s"),
    "bayesian figure-7": Needs("4 s"),
    "bayesian table-2": Needs("40 min", GPUS, adds=("cifar10 or fashion_mnist (6 min)", "sst2", A_MODEL), parts=True),
    "label-inference equivalence": Needs("9 s", UNKNOWN, adds=("priors",)),
    "label-inference figure-1": Needs("over 70 s", UNKNOWN, adds=("higgs", "adult", "criteo"), parts=True),
    "label-inference figure-2": Needs("65 s", UNKNOWN, adds=("higgs", "adult", "criteo"), parts=True),
    "label-inference figure-3": Needs("over 25 s", UNKNOWN, adds=("higgs", "adult", "criteo"), parts=True),
    "label-inference rates": Needs("10 s"),
    "ml-audit copies": Needs("28 s", UNKNOWN),
    "ml-audit coverage": Needs("4 s"),
    "ml-audit figure-2": Needs(UNKNOWN, "88 min", adds=TABLES, parts=True),
    "ml-audit figure-2-seeds": Needs(UNKNOWN, UNKNOWN, adds=TABLES, parts=True),
    "ml-audit figure-3": Needs("4 s", "6 s", adds=TABLES),
    "ml-audit figure-4": Needs("31 s", "2 min"),
    "ml-audit figure-4b": Needs("44 s", "2 min"),
    "ml-audit figure-8": Needs("9 min", UNKNOWN, data="fashion_mnist or cifar10", parts=True),
    "ml-audit forests": Needs("26 s", "3 min"),
    "observational-label factors": Needs("26 min", adds=("fashion_mnist and mnist",), parts=True),
    "observational-label figure-1": Needs("7 min", UNKNOWN, adds=("criteo", "cifar10 or fashion_mnist"), parts=True),
    "observational-label figure-2": Needs("10 min"),
    "observational-label figure-3": Needs("11 min"),
    "observational-label table-1": Needs("20 min", GPUS, adds=("cifar10 or fashion_mnist (14 min)",), parts=True),
    "observational-label table-2": Needs("12 min", "3 h", adds=("criteo",)),
    "observational-label table-4": Needs("as table-1", GPUS, adds=("cifar10 or fashion_mnist",), parts=True),
    "observational-label table-5": Needs("as table-2", "3 h", adds=("criteo",)),
    "private-prediction claims": Needs("2 s"),
    "private-prediction cuts": Needs("2 s"),
    "private-prediction figure-2": Needs("3 s"),
    "private-prediction figure-3": Needs("20 min", GPUS, adds=(*PICTURES, *TEXTS, A_MODEL), parts=True),
    "private-prediction figure-4": Needs("as figure-3", GPUS, adds=(*PICTURES, *TEXTS, A_MODEL), parts=True),
    "private-prediction figure-5": Needs("21 s (no data)", UNKNOWN, adds=(*PICTURES, *TEXTS, A_MODEL), parts=True),
    "private-prediction figure-6": Needs("3 s"),
    "private-prediction figures-7-to-31": Needs(
        "as figures 3 and 5", GPUS, adds=(*PICTURES, *TEXTS, A_MODEL), parts=True
    ),
    "private-prediction lenet-5": Needs("8 min", GPUS, data="mnist", parts=True),
}
"""Time and data of every reproduction; times are processor time of a core of a shared machine."""


def listed(entries: Iterable[Entry]) -> str:
    """Return the list of reproductions, two lines each."""
    lines = [
        "Time is that of one core. --data DATA is the folder that holds every data set in a folder of its own.",
        "--scale paper has the paper's size. --output FOLDER, by default `reproduced`, gets tables and pictures.",
    ]
    for entry in entries:
        lines += [f"  {entry.name:<36} {NEEDS[entry.name].line()}", f"  {'':<36} {entry.summary}"]
    return "\n".join(lines)


def chosen(names: Iterable[str], paper: str, item: str | None) -> list[str]:
    """Return the reproductions of a paper, or the one of an item.

    Raises: UnknownNameError with the three nearest names.
    """
    items: dict[str, list[str]] = {}
    for name in names:
        items.setdefault(name.partition(" ")[0], []).append(name.partition(" ")[2])
    if paper not in items:
        near, got = ", ".join(nearest(paper, items)), shortened(repr(paper))
        raise UnknownNameError(f"PAPER must be one of {', '.join(items)}, got {got}; its nearest are {near}")
    if item is not None and item not in items[paper]:
        near = ", ".join(nearest(item, items[paper]))
        raise UnknownNameError(
            f"{paper} has no {shortened(repr(item))}; its nearest are {near}. `dpaudit reproduce {paper}` lists all"
        )
    return [f"{paper} {name}" for name in items[paper] if item in (None, name)]


def require_data(name: str, data: Path) -> None:
    """Raise SpecError if the folder at --data holds none of the data sets that a reproduction uses."""
    if not data.is_dir():
        raise SpecError(f"--data must be the folder of all data sets, {data} is no folder; give its path")
    needs = NEEDS[name]
    names = [word for word in re.findall(r"\w+", " ".join((needs.data, *needs.adds))) if word in DATA_SETS]
    model = A_MODEL in needs.adds and any(data.glob("*/model*.safetensors"))
    if names and not model and not any((data / folder).is_dir() for folder in names):
        raise missing(data, names)


def missing(data: Path | None, names: Sequence[str]) -> SpecError:
    """Return the error that --data holds none of the data sets `names`."""
    wanted = " or ".join(names)
    if data is None:
        return SpecError(f"this needs the data set {wanted}: give --data DATA, the folder that holds {names[0]}/")
    present = sorted(entry.name for entry in data.iterdir() if entry.is_dir()) if data.is_dir() else []
    if not present:
        return SpecError(f"--data must be the folder of all data sets, with {wanted}/ in it; {data} holds no folder")
    near = ", ".join(nearest(names[0], present))
    return SpecError(
        f"--data must hold the folder {wanted}, {data} does not; its nearest names are {near}. Give the folder of all "
        f"data sets, and put {names[0]} into it"
    )
