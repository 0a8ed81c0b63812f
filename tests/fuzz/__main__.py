"""`make fuzz`: try cases until a number or a time is reached; print wrong outcomes and a count of outcomes."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.fuzz.arguments import Arguments
from tests.fuzz.calls import Calls
from tests.fuzz.cases import Estimates, Loaders, RunFolders, Specs
from tests.fuzz.checks import Checks
from tests.fuzz.outcome import Outcome
from tests.fuzz.places import Checkpoints, Replies
from tests.fuzz.strangers import Beginnings, Readers, ScoreFiles
from tests.fuzz.tables import Cells, Results

SHARES = {
    Estimates: 23,
    ScoreFiles: 15,
    Specs: 12,
    Loaders: 13,
    RunFolders: 1,
    Readers: 8,
    Beginnings: 4,
    Calls: 20,
    Checks: 4,
    Arguments: 20,
    Replies: 10,
    Checkpoints: 10,
    Cells: 12,
    Results: 2,
}
"""Weights of the kinds; a case of a run folder takes a hundred times as long as a case of a table."""


def cases(seed: int, folder: Path, only: Collection[str] = ()) -> Iterator[tuple[str, str, Outcome]]:
    """Yield kind, description and outcome of each case; seed and number determine a case.

    Args:
        seed: Seed of all cases.
        folder: Folder for their files.
        only: Names of the kinds to try; empty for all.
    """
    kinds = {kind: kind(folder / kind.__name__) for kind in SHARES}
    for kind in kinds.values():
        kind.folder.mkdir(parents=True)
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
        number += 1
        if only and kind.__name__ not in only:
            continue
        description, result = kinds[kind].case(rng)
        yield f"{kind.__name__} {number - 1}", description, result


def main() -> None:
    """Run the cases and exit with 1 if an outcome is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--only", default="", help="Kinds of cases, split by commas; left out: all.")
    arguments = parser.parse_args()
    began, ends, wrong = time.monotonic(), Counter[tuple[str, str]](), 0
    with tempfile.TemporaryDirectory(prefix="dpaudit-fuzz-") as folder:
        only = frozenset(filter(None, arguments.only.split(",")))
        for count, (name, description, result) in enumerate(cases(arguments.seed, Path(folder), only), 1):
            ends[name.partition(" ")[0], result.end.value] += 1
            if result.end.wrong:
                wrong += 1
                print(f"{result.end.value}: {name}: {description}\n{result.text[-1500:]}\n", flush=True)
            if count >= arguments.cases or time.monotonic() - began > arguments.seconds:
                break
    for (kind, end), number in sorted(ends.items()):
        print(f"{kind:<12}{end:<30}{number:>8,}")
    print(f"{count:,} cases, seed {arguments.seed}, {time.monotonic() - began:.0f} s, {wrong} with a wrong outcome")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
