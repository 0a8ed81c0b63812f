"""A cluster that grows from no node to a hundred, simulated: with nodes requested at once, and in steps.

    python -m benchmarks.growing_cluster [--write]

The real schedule and pool run 400 trainings of an hour, and a count after each, on simulated nodes with one GPU and 8
CPUs (`benchmarks/simulated_ray.py`). A node joins 180 to 300 seconds after its start. "in steps" is the pool without
its request: 16 pending workers more than there are nodes, for which Ray's autoscaler starts nodes in steps. Written to
`docs/data/growing-cluster.csv`.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa

from benchmarks.campaign import rows_about
from benchmarks.simulated_ray import Cluster, Overheads, Played, Work, play
from dpaudit.actors.pool import RayPool
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.mechanisms.compute import Compute
from tools.rows import record

NODES, TRAININGS, TRAINING_S, COUNT_S = 100, 400, 3600.0, 1.0
START_S = (180.0, 300.0)
FREE = Overheads((0.0, 0.0), (0.0, 0.0), 0.0, 0.0)


@dataclass(frozen=True)
class Numbered:
    """Task that never runs."""

    number: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Raise an error: a simulated unit does not run."""
        raise AssertionError(self.number)


def trainings_and_counts(count: int, resources: Resources) -> Work:
    """Return trainings, each with a unit that counts its result on CPUs."""
    units = list[Unit]()
    for number in range(count):
        training = Unit(Numbered(number), f"training {number}", resources=resources)
        counting = Unit(Numbered(-1 - number), f"count {number}", needs=(training.key,), resources=Resources())
        units += [training, counting]
    seconds = {unit.key: COUNT_S if unit.needs else TRAINING_S for unit in units}
    return Work(tuple(units), seconds, dict.fromkeys(seconds, 1000), {})


def grown(work: Work, *, in_steps: bool = False, nodes: int = NODES) -> Played:
    """Play the work on a cluster that starts without a node."""
    cluster = Cluster(nodes, start_s=START_S)
    with mock.patch.object(RayPool, "_usable", return_value={}) if in_steps else contextlib.nullcontext():
        return play(work, cluster, FREE, time_limit_s=1e9)


def until_share(played: Played, nodes: int, share: float = 0.9) -> float:
    """Return the seconds until a share of the nodes has joined."""
    return played.joined_s[round(share * nodes) - 1]


def main() -> None:
    """Play, print and write."""
    work, rows = trainings_and_counts(TRAININGS, Resources(1, 1.0)), []
    for name, in_steps in (("at once, as requested", False), ("in steps, for pending workers", True)):
        played = grown(work, in_steps=in_steps)
        measured = {
            "90 % of the nodes after, s": f"{until_share(played, NODES):.0f}",
            "makespan, hours": f"{played.makespan_s / 3600:.2f}",
            "GPUs busy": f"{100 * played.busy_gpu_s / (NODES * played.makespan_s):.1f} %",
            "request given back": "yes" if played.given_back else "no",
        }
        print(name, measured, flush=True)
        rows += rows_about({"nodes start": name}, measured)
    if "--write" in sys.argv:
        record("growing-cluster.csv", rows, "python -m benchmarks.growing_cluster --write")


if __name__ == "__main__":
    main()
