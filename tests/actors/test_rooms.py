"""Number of workers of each kind that fit on the nodes of a cluster, and units that fit on no node."""

from __future__ import annotations

import pytest

from dpaudit.actors.pool import Nodes
from dpaudit.actors.unit import Resources
from dpaudit.errors import InputError, RunError

CPU, GPU, HALF = Resources(1), Resources(1, 1.0), Resources(1, 0.5)
SMALL, WITH_GPUS = {"CPU": 2.0}, {"CPU": 4.0, "GPU": 2.0}
NODES = Nodes((SMALL, WITH_GPUS))


def test_each_kind_has_the_capacity_left_by_the_others() -> None:
    assert NODES.worker_counts({CPU: 99}) == {CPU: 6}
    assert NODES.worker_counts({CPU: 99, GPU: 99}) == {CPU: 4, GPU: 2}
    assert NODES.worker_counts({CPU: 99, HALF: 99}) == {CPU: 2, HALF: 4}
    assert NODES.worker_counts({CPU: 3, HALF: 1}) == {CPU: 3, HALF: 1}
    assert Nodes((SMALL, SMALL)).worker_counts({Resources(2): 9, GPU: 1}) == {Resources(2): 2, GPU: 0}
    assert Nodes(()).worker_counts({CPU: 1}) == {CPU: 0}


def test_a_share_of_a_gpu_is_on_one_gpu() -> None:
    assert Nodes(({"CPU": 16.0, "GPU": 2.0},)).worker_counts({Resources(1, 0.6): 9}) == {Resources(1, 0.6): 2}
    assert Nodes(({"CPU": 16.0, "GPU": 1.0},)).worker_counts({Resources(1, 0.1): 99}) == {Resources(1, 0.1): 10}
    assert Nodes(({"CPU": 16.0, "GPU": 3.0},)).worker_counts({Resources(1, 2.0): 9}) == {Resources(1, 2.0): 1}
    with pytest.raises(InputError, match=r"in \[0, 1\] or a whole number"):
        Resources(1, 1.5)


def test_a_unit_must_fit_on_one_node() -> None:
    NODES.require_room([CPU, GPU, Resources(4, 2.0)])
    with pytest.raises(
        RunError, match="a unit needs 6 CPUs on one node, the cluster's nodes have 2 CPUs and 0 GPUs, 4"
    ):
        NODES.require_room([Resources(6)])
    with pytest.raises(RunError, match="nodes have none"):
        Nodes(()).require_room([CPU])


def test_a_worker_runs_units_with_equal_threads_and_no_larger_gpu_share() -> None:
    assert GPU.may_run(CPU)
    assert GPU.may_run(HALF)
    assert not CPU.may_run(GPU)
    assert not Resources(2).may_run(CPU), "the number of threads may change the last digits"
