"""Run an audit of 2,000 units on a four-node cluster that loses workers, nodes, driver and head at random.

    python -m benchmarks.chaos_cluster --runs 20 --seed 0 --out chaos-cluster.jsonl

In each run, three workers, a node and the driver are killed after random numbers of finished units. Another node
replaces the killed one. In every fourth run the head dies with the driver, and a new cluster resumes. In the end every
unit of the plan must be finished, no row may occur twice in the score table, and scores and results must equal those of
an undisturbed run bit by bit. All nodes are on this machine, with one CPU each. Each finished run is a line of `--out`;
with unchanged code, the same command resumes after the last line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.chaos import ENDED_S, Run, content, digest, started, workplace
from benchmarks.nodes import cluster, kill

NODES = 4
TRAININGS = 667
SPEC = """
name: chaos
seed: 3
data: {{name: gaussian-mixture, rows: 400}}
split: {{target: 0.5, reference: 0.3, test: 0.2}}
mechanism: {{name: gaussian-naive-bayes, epsilon: 1.0}}
game: {{name: membership, trainings: {trainings}, replays: 1}}
run: {{runner: {runner}, time_limit_s: 30, figures: false}}
"""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        run: Number of the run.
        struck: Killed processes, with the number of finished units.
        planned: Number of planned units.
        lost: Number of planned units without a result.
        twice: Number of repeated rows in the score table.
        same: True if scores and results equal those of the undisturbed run.
        commands: Number of commands, including the first.
        seconds: Total duration.
        wrong: Violated requirements; "" if there are none.
        seed: Seed of the random draws.
        digest: Digest of the code.
    """

    run: int
    struck: str
    planned: int
    lost: int
    twice: int
    same: bool
    commands: int
    seconds: float
    wrong: str
    seed: int
    digest: str


def reference(trainings: int) -> dict[str, str]:
    """Return the content of the undisturbed audit, run in one process."""
    with workplace() as place:
        (place / "spec.yaml").write_text(SPEC.format(runner="in-process", trainings=trainings))
        run = started(place, {}, "run", "spec.yaml", "-o", "disk/run")
        assert run.command.wait(ENDED_S) == 0, (place / "errors.txt").read_text()
        return content(run.folder)


def outcome(
    number: int, seed: int, expected: dict[str, str], trainings: int = TRAININGS, count: int = NODES
) -> Outcome:
    """Run the audit on a cluster, kill the drawn processes, resume, and compare."""
    rng, began, struck = random.Random(f"{seed} {number}"), time.monotonic(), []
    units = 1 + 3 * trainings
    with workplace() as place, contextlib.ExitStack() as stack:
        (place / "spec.yaml").write_text(SPEC.format(runner="ray", trainings=trainings))
        nodes = stack.enter_context(cluster(place / "a", count))
        run = started(place, nodes.environment, "run", "spec.yaml", "-o", "disk/run", rng=rng)
        commands = 1
        strikes = ["worker", "worker", "worker", "node", "head" if number % 4 == 3 else "driver"]
        marks = sorted(rng.sample(range(1, units * 9 // 10), len(strikes)))
        rng.shuffle(strikes)
        for after, strike in zip(marks, strikes, strict=True):
            while run.command.poll() is None and run.finished() < after:
                time.sleep(0.02)
            hit = run.command.poll() is None
            if strike == "worker":
                hit = hit and kill(nodes.workers()[:1])
            elif strike == "node":
                hit = hit and kill(nodes.node(rng))
                nodes.add()
            else:
                if strike == "head":
                    nodes.end()
                    nodes = stack.enter_context(cluster(place / "b", count))
                kill([pid for pid in run.processes() if pid != os.getpid()])
                run.command.wait(ENDED_S)
                run = started(place, nodes.environment, "resume", "disk/run", rng=rng)
                commands += 1
            struck.append(f"{strike} {after}" if hit else f"{strike} missed")
        code = run.command.wait(ENDED_S)
        errors = (place / "errors.txt").read_text()
        planned = pq.read_table(run.folder / "plan.parquet")["key"].to_pylist()
        lost_units = [key for key in planned if not (run.folder / "units" / f"{key}.parquet").exists()]
        twice = code == 0 and duplicates(run)
        same = code == 0 and content(run.folder) == expected
        wrong = [
            *([f"exit code {code}: {errors[-2000:]}"] if code else []),
            *(["nothing was struck"] if all("missed" in strike for strike in struck) else []),
            *([] if not lost_units else [f"{len(lost_units)} units lost"]),
            *([] if not twice else [f"{twice} rows twice"]),
            *([] if same else ["other bytes"]),
        ]
        seconds = time.monotonic() - began
        facts = len(planned), len(lost_units), int(twice), same, commands, seconds, "; ".join(wrong), seed, digest()
    return Outcome(number, ", ".join(struck), *facts)


def duplicates(run: Run) -> int:
    """Return the number of score rows that repeat a replay and canary."""
    files = sorted((run.folder / "scores").rglob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(path, columns=["replay", "canary"]) for path in files])
    return int(rows.num_rows - rows.group_by(["replay", "canary"]).aggregate([]).num_rows)


def main() -> None:
    """Print a table of all runs; exit with code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trainings", type=int, default=TRAININGS, help="three units each")
    parser.add_argument("--out", type=Path, default=Path("chaos-cluster.jsonl"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    before = [Outcome(**json.loads(line)) for line in lines]
    units = 1 + 3 * options.trainings
    ended = {
        outcome.run: outcome
        for outcome in before
        if (outcome.seed, outcome.digest, outcome.planned) == (options.seed, digest(), units)
    }
    expected = reference(options.trainings) if set(range(options.runs)) - ended.keys() else {}
    for number in range(options.runs):
        if number not in ended:
            ended[number] = outcome(number, options.seed, expected, options.trainings)
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(ended[number])) + "\n")
            print(f"run {number}: {ended[number].wrong or 'as it should'}", file=sys.stderr)
    outcomes = [ended[number] for number in range(options.runs)]
    print("| run | killed, after units | units | lost | twice | same bytes | commands | s |")
    print(f"|{' --- |' * 8}")
    for result in outcomes:
        row = (
            result.run,
            result.struck,
            result.planned,
            result.lost,
            result.twice,
            "yes" if result.same else "no",
            result.commands,
        )
        print(f"| {' | '.join(map(str, row))} | {result.seconds:.0f} |")
    right = sum(not result.wrong for result in outcomes)
    print(f"{right} of {len(outcomes)} runs went as they should")
    sys.exit(right < len(outcomes))


if __name__ == "__main__":
    main()
