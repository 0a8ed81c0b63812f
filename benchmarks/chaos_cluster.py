"""Run an audit of 2,000 units on a four-node cluster that loses workers, nodes, driver and head at random.

    python -m benchmarks.chaos_cluster RUNS.jsonl [--seeds 20] [--seed 0] [--write]

In each run, three workers, a node and the driver are killed after random numbers of finished units. Another node
replaces the killed one. In every fourth run the head dies with the driver, and a new cluster resumes. In the end every
unit of the plan must be finished, no row may occur twice in the score table, and scores and results must equal those of
an undisturbed run bit by bit. All nodes are on this machine, with one CPU each. With unchanged code, the same command
resumes after the last line of RUNS.jsonl.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.campaign import by_case
from benchmarks.chaos import ENDED_S, Run, content, digest, played, started, workplace, yes
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


@cache
def reference(trainings: int) -> dict[str, str]:
    """Return the content of the undisturbed audit, run in one process."""
    with workplace() as place:
        (place / "spec.yaml").write_text(SPEC.format(runner="in-process", trainings=trainings))
        run = started(place, {}, "run", "spec.yaml", "-o", "disk/run")
        assert run.command.wait(ENDED_S) == 0, (place / "errors.txt").read_text()
        return content(run.folder)


def outcome(run: int, seed: int, trainings: int = TRAININGS, count: int = NODES, **_: Any) -> dict[str, Any]:
    """Run the audit on a cluster, kill the drawn processes, resume, and compare.

    Returns the killed processes with the number of finished units (`struck`), the numbers of planned units, of those
    without a result (`lost`), of repeated rows in the score table (`twice`) and of commands, if scores and results
    equal those of the undisturbed run (`same`), the duration, and violated requirements (`wrong`).
    """
    rng, began = random.Random(f"{seed} {run}"), time.monotonic()
    return disturbed(run, rng, reference(trainings), trainings, count) | {"seconds": time.monotonic() - began}


def disturbed(number: int, rng: random.Random, expected: dict[str, str], trainings: int, count: int) -> dict[str, Any]:
    """Return the outcome of a run; in every fourth one the head dies with the driver."""
    units, struck = 1 + 3 * trainings, []
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
    return {
        "struck": ", ".join(struck),
        "planned": len(planned),
        "lost": len(lost_units),
        "twice": int(twice),
        "same": same,
        "commands": commands,
        "wrong": "; ".join(wrong),
    }


def duplicates(run: Run) -> int:
    """Return the number of score rows that repeat a replay and canary."""
    files = sorted((run.folder / "scores").rglob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(path, columns=["replay", "canary"]) for path in files])
    return int(rows.num_rows - rows.group_by(["replay", "canary"]).aggregate([]).num_rows)


def cases(seeds: int, seed: str) -> Iterator[dict[str, Any]]:
    """Yield the runs; those of other code do not count."""
    yield from ({"run": run, "seed": int(seed or 0), "digest": digest()} for run in range(seeds))


def columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the numbers of a run."""
    (line,) = lines
    return {
        "killed, after units": line["struck"],
        "units": str(line["planned"]),
        "lost": str(line["lost"]),
        "twice": str(line["twice"]),
        "same bytes": yes(line["same"]),
        "commands": str(line["commands"]),
        "s": f"{line['seconds']:.0f}",
        "wrong": line["wrong"],
    }


if __name__ == "__main__":
    played(cases, outcome, columns, groups=by_case("run"), seeds=20, settings={"seed": "of the random draws"})
