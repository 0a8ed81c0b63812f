"""An audit of 2,000 units on a cluster of four nodes that loses workers, nodes, its driver and its head at random.

    python -m benchmarks.chaos_cluster --runs 20 --seed 0 --out chaos-cluster.jsonl

Each run draws after how many finished units three workers, a node (another one joins in its place) and the driver are
killed; in every fourth run the head goes with the driver, and a new cluster goes on. What must hold: every
unit of the plan is finished, none twice in the score table, and the scores and results are those of an undisturbed run,
bit by bit. The nodes are of this machine, one CPU each. Each run that is over is a line of `--out`; the same command
goes on behind the last one, as long as the code is the same.
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
    """How a run went.

    Attributes:
        run: Its number.
        struck: What was killed, after how many finished units.
        planned: Units of the plan.
        lost: Of them, without a result.
        twice: Rows of the score table that are there more than once.
        same: Whether scores and results are those of the undisturbed run.
        commands: How many commands it took, the first one included.
        seconds: How long all of it took.
        wrong: What should have been otherwise; "" when all is well.
        seed: Of the draws.
        digest: Of the code.
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
    """What the audit finds when nothing goes wrong, in one process."""
    with workplace() as place:
        (place / "spec.yaml").write_text(SPEC.format(runner="in-process", trainings=trainings))
        run = started(place, {}, "run", "spec.yaml", "-o", "disk/run")
        assert run.command.wait(ENDED_S) == 0, (place / "errors.txt").read_text()
        return content(run.folder)


def outcome(
    number: int, seed: int, expected: dict[str, str], trainings: int = TRAININGS, count: int = NODES
) -> Outcome:
    """Runs the audit on so many nodes, has it lose what was drawn, goes on with it, and compares."""
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
    """Rows of the score tables beyond the first with the same replay and canary."""
    files = sorted((run.folder / "scores").rglob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(path, columns=["replay", "canary"]) for path in files])
    return int(rows.num_rows - rows.group_by(["replay", "canary"]).aggregate([]).num_rows)


def main() -> None:
    """Prints a table of all runs; exit code 1 when one of them went wrong."""
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
