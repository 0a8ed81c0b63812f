"""Many runs of one kind, started, resumed and written down in one way.

    python -m benchmarks.NAME [RUNS.jsonl] [--only TEXT ...] [--seeds N] [--seconds S] [--jobs N] [--write]

A run is a case with a seed. Each adds a line of JSON to RUNS.jsonl, and runs that the file has are skipped, so that the
same command resumes. The table of all lines is printed; `--write` makes it the file `NAME.csv` of `docs/data`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from tools.rows import Row, record, setting

Case = Mapping[str, Any]
"""The values that distinguish a run, by name; its seed is one of them."""
Line = dict[str, Any]
"""The values of a case and of its run."""
Groups = Callable[[Line], Iterable[tuple[Mapping[str, str], Any]]]
"""Returns the rows to which a line belongs: conditions, and what the line adds to them."""
Columns = Callable[[Sequence[Any]], Mapping[str, str | tuple[str, str]]]
"""Returns the values of a row by column, each with its interval if it has one, from what its lines add."""


def of_each(names: Iterable[str], seeds: int, *, by: str = "case") -> Iterator[Case]:
    """Yield a case for each name and seed; all names advance evenly."""
    named = list(names)
    yield from ({by: name, "seed": seed} for seed in range(seeds) for name in named)


def by_case(*names: str) -> Groups:
    """Return the groups that put a line into the one row of its values of these names."""
    return lambda line: [({name: str(line[name]) for name in names}, line)]


def campaign(
    cases: Callable[..., Iterable[Case]],
    run: Callable[..., Mapping[str, Any]],
    columns: Columns,
    *,
    groups: Groups,
    file: str = "",
    verb: str = "",
    seeds: int = 1,
    counted: bool = True,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> list[Line]:
    """Run what is missing, print the table of all runs, write it, and return the lines of the planned runs.

    Args:
        cases: Returns all cases, given the number of seeds and the settings.
        run: Returns plain values of a run, called with the values of its case and the settings. `seconds` of processor
            are added.
        columns: Values of a row.
        groups: Rows of a line.
        file: Name of the file in `docs/data`, if it is not that of the program.
        verb: Word of the command before all others.
        seeds: Number of seeds, unless the command states another.
        counted: State the number of a row's lines as its trials.
        settings: Further options of the command, each with its help; empty where the command has none.
        arguments: Words of the command; those of this process by default.
    """
    options = _parsed(seeds, settings or {}, arguments)
    stated = {name: getattr(options, name) for name in settings or {}}
    planned = [case for case in cases(options.seeds, **stated) if _is_wanted(case, options.only)]
    names = list(dict.fromkeys(name for case in planned for name in case))
    lines = finished(options.runs)
    keys = {tuple(map(line.get, names)) for line in lines}
    missing = [case for case in planned if tuple(map(case.get, names)) not in keys]
    for line in _played(
        partial(_line, partial(run, **stated)), missing, options.jobs, time.monotonic() + options.seconds
    ):
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.runs:
            with options.runs.open("a", encoding="utf-8") as out:
                out.write(f"\n{json.dumps(line)}")  # a new line first, in case the last one was cut short
    places = {tuple(map(case.get, names)): place for place, case in enumerate(planned)}
    lines.sort(key=lambda line: places.get(tuple(map(line.get, names)), len(places)))
    rows = list(rows_of(lines, groups, columns, counted=counted))
    print(*rows, sep="\n")
    if options.write:
        record(file or file_of(program()), rows, f"{command(verb)} RUNS.jsonl --seeds {options.seeds}")
    return [line for line in lines if tuple(map(line.get, names)) in places]


def measurement(rows: Callable[..., Iterable[Row]], *, file: str = "", number: int = 1, **settings: str) -> None:
    """Print rows as they are measured, and write them with `--write`.

    Args:
        rows: Returns the rows, given the number of repetitions and the settings.
        file: Name of the file in `docs/data`, if it is not that of the program.
        number: Repetitions, unless the command states another number by `--number`.
        settings: Further options of the command, each with its help; empty where the command has none.
    """
    parser = argparse.ArgumentParser(prog=command())
    parser.add_argument("--number", type=int, default=number, help="repetitions")
    parser.add_argument("--write", action="store_true", help="write docs/data")
    for name, meaning in settings.items():
        parser.add_argument(f"--{name}", default="", help=meaning)
    options = parser.parse_args()
    measured = []
    for row in rows(options.number, **{name: getattr(options, name) for name in settings}):
        print(f"{row.setting}: {row.what}: {row.value} {row.interval}", flush=True)
        measured.append(row)
    if options.write:
        record(file or file_of(program()), measured, f"{command()} --number {options.number}")


def program() -> str:
    """Return the module that `python -m` runs."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else "benchmarks"


def command(*verbs: str) -> str:
    """Return the words that start the program."""
    return " ".join(filter(None, ("python -m", program(), *verbs)))


def file_of(module: str) -> str:
    """Return the name of the data file of a program."""
    return f"{module.rpartition('.')[2].replace('_', '-')}.csv"


def _parsed(seeds: int, settings: Mapping[str, str], arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command())
    parser.add_argument("runs", type=Path, nargs="?", help="JSON lines, one for each run; left out: nothing is kept")
    parser.add_argument(
        "--only",
        nargs="+",
        action="append",
        default=[],
        metavar="TEXT",
        help="cases with a value that begins with one of these; given twice, both hold",
    )
    parser.add_argument("--seeds", type=int, default=seeds, help="runs of each case")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no run starts later")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="write docs/data")
    for name, meaning in settings.items():
        parser.add_argument(f"--{name}", default="", help=meaning)
    return parser.parse_args(arguments)


def _is_wanted(case: Case, only: Sequence[Sequence[str]]) -> bool:
    return all(any(str(value).startswith(tuple(texts)) for value in case.values()) for texts in only)


def finished(runs: Path | None) -> list[Line]:
    """Return the lines of a file; a line that was cut short does not count."""
    lines = []
    for text in runs.read_text(encoding="utf-8").splitlines() if runs and runs.exists() else ():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def _line(run: Callable[..., Mapping[str, Any]], case: Case) -> Line:
    began = time.process_time()
    measured = run(**case)
    return {**case, "seconds": round(time.process_time() - began, 3), **measured}


def _played(line_of: Callable[[Case], Line], cases: Sequence[Case], jobs: int, until: float) -> Iterator[Line]:
    if jobs == 1:
        for case in cases:
            if time.monotonic() > until:
                return
            yield line_of(case)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(line_of, case) for case in cases]):
            yield future.result()
            if time.monotonic() > until:
                pool.shutdown(cancel_futures=True)
                return


def rows_of(lines: Iterable[Line], groups: Groups, columns: Columns, *, counted: bool = True) -> Iterator[Row]:
    """Yield the rows of a data file, in the order of the lines; columns without a value are left out."""
    parts: dict[str, list[Any]] = {}
    for line in lines:
        for conditions, part in groups(line):
            parts.setdefault(setting(conditions), []).append(part)
    for conditions, of_row in parts.items():
        yield from rows_about(conditions, columns(of_row), len(of_row) if counted else None)


def rows_about(
    conditions: str | Mapping[str, str], values: Mapping[str, str | tuple[str, str]], trials: int | None = None
) -> Iterator[Row]:
    """Yield the rows of one subject from its values, each with its interval if it has one; empty ones are left out."""
    subject = conditions if isinstance(conditions, str) else setting(conditions)
    for what, value in values.items():
        number, interval = (value, "") if isinstance(value, str) else value
        if number or interval:
            yield Row(subject, what, number, interval, "" if trials is None else str(trials))
