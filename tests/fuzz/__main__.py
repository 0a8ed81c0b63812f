"""`make fuzz`: so many cases, or for so long; prints what ended wrongly, and how many cases ended how."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.calls import Calls
from tests.fuzz.cases import Estimates, Loaders, RunFolders, Specs
from tests.fuzz.outcome import Outcome

SHARES = {Estimates: 33, Specs: 15, Loaders: 17, RunFolders: 1, Calls: 34}
"""A case of a run folder takes a hundred times as long as one of a table."""


def cases(seed: int, folder: Path) -> Iterator[tuple[str, str, Outcome]]:
    """Kind, description and end of one case after another; each is decided by the seed and its number."""
    kinds = {kind: kind(folder / kind.__name__) for kind in SHARES}
    for kind in kinds.values():
        kind.folder.mkdir(parents=True)
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
        described, ended = kinds[kind].case(rng)
        yield f"{kind.__name__} {number}", described, ended
        number += 1


def main() -> None:
    """Ends with 1 when any case ended wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=3600.0)
    asked = parser.parse_args()
    began, ends, wrong = time.monotonic(), Counter[tuple[str, str]](), 0
    with tempfile.TemporaryDirectory(prefix="dpaudit-fuzz-") as folder:
        for count, (name, described, ended) in enumerate(cases(asked.seed, Path(folder)), 1):
            ends[name.partition(" ")[0], ended.end.value] += 1
            if ended.end.wrong:
                wrong += 1
                print(f"{ended.end.value}: {name}: {described}\n{ended.text[-1500:]}\n", flush=True)
            if count >= asked.cases or time.monotonic() - began > asked.seconds:
                break
    for (kind, end), number in sorted(ends.items()):
        print(f"{kind:<12}{end:<30}{number:>8,}")
    print(f"{count:,} cases, seed {asked.seed}, {time.monotonic() - began:.0f} s, {wrong} ended wrongly")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
