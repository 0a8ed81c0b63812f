"""Which workers fit where: kinds of units, nodes, and how many workers of each kind the nodes hold side by side."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dpaudit.actors.unit import Resources
from dpaudit.errors import RunError


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster."""

    each: tuple[Mapping[str, float], ...]  # what it has in all, as Ray names it: `CPU`, `GPU`

    def hold(self, kind: Resources) -> bool:
        """Whether one of them could hold a worker of this kind if it were empty."""
        return any(node.get("CPU", 0) >= kind.cpus and node.get("GPU", 0) >= kind.gpus for node in self.each)

    def require_room(self, kinds: Collection[Resources]) -> None:
        """Refuses kinds that no node could ever hold."""
        for kind in kinds:
            if not self.hold(kind):
                held = {f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in self.each}
                raise RunError(
                    f"a unit needs {kind} on one node, the cluster's nodes have {', '.join(sorted(held)) or 'none'}; "
                    "ask for less in `run:`, or, where the cluster brings such a node when it is asked, state in "
                    "DPAUDIT_WAIT_FOR_NODES_S for how many seconds to wait for it"
                )

    def rooms(self, demand: Mapping[Resources, int]) -> dict[Resources, int]:
        """How many workers of each kind they hold at the same time, none more than there are units for.

        Kinds with a GPU are placed first, since they can stand on few nodes; what remains of those goes to the others.
        """
        # Nodes without a GPU first, so that workers that need none leave the CPUs beside GPUs to those that do.
        left = sorted((dict(node) for node in self.each), key=lambda node: node.get("GPU", 0))
        found = dict.fromkeys(demand, 0)
        for kind in sorted(demand, key=lambda kind: (-kind.gpus, -kind.cpus)):
            for node in left:
                count = min(_held(node, kind), demand[kind] - found[kind])
                found[kind] += count
                node["CPU"] = node.get("CPU", 0) - count * kind.cpus
                node["GPU"] = node.get("GPU", 0) - count * kind.gpus
        return found


def _held(node: Mapping[str, float], kind: Resources) -> int:
    by_cpu = int(node.get("CPU", 0) // kind.cpus)
    if not kind.gpus:
        return by_cpu
    gpus = node.get("GPU", 0) + 1e-9
    # a part of a GPU is taken from one card: two workers with 0.6 each need two.
    by_gpu = int(gpus // kind.gpus) if kind.gpus >= 1 else int(gpus) * int((1 + 1e-9) / kind.gpus)
    return min(by_cpu, by_gpu)
