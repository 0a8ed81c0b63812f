"""Number of workers of each kind that fit on the nodes of a cluster, and units that fit on no node."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpaudit.actors.pool import Nodes
from dpaudit.actors.unit import Resources
from dpaudit.errors import InputError, RunError

GB, H100 = 10**9, "accelerator_type:H100"
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
    assert Nodes(({"CPU": 16.0, "GPU": 5.0},)).worker_counts({Resources(1, 2.0): 9}) == {Resources(1, 2.0): 2}
    for gpus in (1.5, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match=r"gpus of a unit must be in \[0, 1\] or a whole number"):
            Resources(1, gpus)


def test_a_unit_must_fit_on_one_node() -> None:
    NODES.require_room([CPU, GPU, Resources(4, 1.0)])
    with pytest.raises(RunError, match="a unit needs 6 CPUs on one node, the largest has 4 CPUs: request less in"):
        NODES.require_room([Resources(6)])
    with pytest.raises(RunError, match="the cluster has no node"):
        Nodes(()).require_room([CPU])


def test_the_refusal_names_the_requested_resources_of_the_node_that_has_most_of_them() -> None:
    big = Resources(2, 1.0, 64 * GB, ((H100, 0.001),))
    nodes = Nodes(({"CPU": 64.0, "memory": 512.0 * GB}, {"CPU": 8.0, "GPU": 1.0, "memory": 32.0 * GB, H100: 1.0}))
    assert nodes.refusal(replace(big, memory=32 * GB)) == ""
    assert nodes.refusal(big).startswith(
        "a unit needs 2 CPUs, 1 GPU, 64 GB of memory and 0.001 accelerator_type:H100 on one node, the largest has "
        "8 CPUs, 1 GPU, 32 GB of memory and 1 accelerator_type:H100: request less in `resources`, of `run:` or of "
        "the audit, or add such a node"
    )
    assert "0 accelerator_type:H100" in Nodes(({"CPU": 64.0},)).refusal(big)


def test_nodes_are_described_by_what_units_may_request() -> None:
    small = {"CPU": 2.0, "memory": 4.0 * GB, "object_store_memory": 1.0 * GB, "node:10.0.0.1": 1.0}
    assert str(Nodes((small, {**small, "node:10.0.0.2": 1.0}, {"CPU": 8.0, "GPU": 1.0, H100: 1.0}))) == (
        "2 with 2 CPUs and 4 GB of memory; 1 with 8 CPUs, 1 GPU and 1 accelerator_type:H100"
    )


def test_memory_and_custom_resources_limit_the_workers_of_a_node() -> None:
    tall, placed = Resources(1, 0.0, 3 * GB), Resources(1, custom=((H100, 0.5),))
    nodes = Nodes(({"CPU": 8.0, "memory": 10.0 * GB, H100: 1.0}, {"CPU": 2.0, "memory": 4.0 * GB}))
    assert nodes.worker_counts({tall: 99}) == {tall: 4}
    assert nodes.worker_counts({placed: 99}) == {placed: 2}
    assert nodes.worker_counts({CPU: 3, placed: 2}) == {CPU: 3, placed: 2}
    crowded = Nodes(({"CPU": 2.0, H100: 1.0}, {"CPU": 2.0}))
    assert crowded.worker_counts({CPU: 99, placed: 99}) == {CPU: 2, placed: 2}, (
        "others leave the CPUs of rare nodes free"
    )


def test_a_worker_runs_units_with_equal_threads_and_no_larger_gpu_share() -> None:
    assert Resources(1, 0.5, 3 * GB, ((H100, 0.5),)).may_run(Resources(1, 0.5, GB))
    assert not Resources(1, 0.5, GB).may_run(Resources(1, 0.5, 3 * GB))
    assert not GPU.may_run(Resources(1, custom=((H100, 0.5),)))
    assert GPU.may_run(CPU)
    assert GPU.may_run(HALF)
    assert not CPU.may_run(GPU)
    assert not Resources(2).may_run(CPU), "the number of threads may change the last digits"
