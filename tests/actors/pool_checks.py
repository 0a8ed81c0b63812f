"""Checks of the pool on a cluster of several nodes; `test_pool` runs them in a separate process."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from dpaudit.actors import pool as pools
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.pool import RayPool
from dpaudit.actors.schedule import run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.cluster.session import ray_session
from tests.actors.tasks import Where

NODE = {"node_ip_address": "127.0.0.2", "object_store_memory": 100_000_000}
CPU, HALF = Resources(1), Resources(1, 0.5)


@dataclass
class Nodes:
    """A cluster, and a node that joins and leaves it while units come back."""

    cluster: Cluster
    gate: Path
    finished_units: int = 0
    on_gpu: bool = False
    killed: bool = False
    loss_details: list[str] = field(default_factory=list)
    second: Any = None

    def __call__(self, event: Event) -> None:
        """Add a node after three units; kill it once it has run the unit on a GPU and 14 units are done."""
        if event.kind is EventKind.WORKER_LOST:
            self.loss_details.append(event.detail)
        if event.kind is EventKind.WORKER_STARTED and event.count == 3:
            self.gate.touch()
        if event.kind is EventKind.UNIT_DONE:
            self.finished_units += 1
            if self.finished_units == 3:
                self.second = self.cluster.add_node(num_cpus=2, num_gpus=1, **NODE)
            self.on_gpu |= event.label == "on a GPU"
            if self.finished_units >= 14 and self.on_gpu and not self.killed:
                self.killed = True
                self.cluster.remove_node(self.second, allow_graceful=False)


def main() -> None:
    """Check that units run where they fit while a node joins and leaves."""
    pools.NODES_S = 1.0
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 1, "include_dashboard": False})
    with ray_session(cluster.address), tempfile.TemporaryDirectory() as folder:
        os.environ[pools.WAIT_FOR_NODES] = "100"  # the node with the GPU joins later
        gate = Path(folder) / "gate"
        nodes = Nodes(cluster, gate)
        units = [Unit(Where(number, 0.3, "/" if number < 3 else str(gate)), f"unit {number}") for number in range(30)]
        units.append(Unit(Where(-1), "on a GPU", resources=HALF))
        events, store = EventStream(nodes), UnitStore(Path(folder) / "units")
        backend = RayPool({}, demand=Counter(unit.resources for unit in units), workers=None, events=events)
        outcome = run_units(units, backend, store, events)
        backend.close()
        del os.environ[pools.WAIT_FOR_NODES]
        assert len(outcome.finished) == 31, outcome
        ran = Counter(store.read(unit.key)["node"][0].as_py() for unit in units)
        second = nodes.second.node_id
        assert ran[second] >= 4, (ran, "the node that joined is used")
        assert ran.total() - ran[second] >= 4, (ran, "the other nodes continue")
        assert store.read(units[-1].key)["node"][0].as_py() == second
        assert nodes.loss_details, "units of the node that left were lost with it"
    print("joined and left", dict(ran), nodes.loss_details, flush=True)
    cluster.add_node(num_cpus=2, num_gpus=1, **NODE)
    with ray_session(cluster.address), tempfile.TemporaryDirectory() as folder:
        units = [Unit(Where(number, 0.2), f"on a CPU {number}") for number in range(8)]
        units += [Unit(Where(number, 0.2), f"on a GPU {number}", resources=HALF) for number in range(8)]
        units += [Unit(Where(-1, 0.0), "after", needs=tuple(unit.key for unit in units))]
        store = UnitStore(Path(folder) / "units")
        backend = RayPool({}, demand=Counter(unit.resources for unit in units), workers=None, events=EventStream())
        outcome = run_units(units, backend, store, EventStream())
        backend.close()
        assert len(outcome.finished) == 17, outcome
        cards = {unit.label: store.read(unit.key)["cards"][0].as_py() for unit in units}
        processes = {unit.label: store.read(unit.key)["process"][0].as_py() for unit in units}
        assert all(card == ("0" if "GPU" in label else "") for label, card in cards.items()), cards
        halves = {process for label, process in processes.items() if "GPU" in label}
        others = {process for label, process in processes.items() if "CPU" in label}
        assert len(halves) == 2, processes  # two workers share the GPU
        assert not halves & others, processes
    print("side by side", flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # ends the nodes faster than Ray does
