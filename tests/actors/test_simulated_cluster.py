"""The simulated cluster: the real schedule and pool on nodes that are counted by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from unittest import mock

import pyarrow as pa
import pytest

from benchmarks.growing_cluster import START_S, grown, trainings_and_counts, until_share
from benchmarks.simulated_ray import STARTED_S, Cluster, Overheads, Played, Work, play
from dpaudit.actors.pool import RayPool
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.mechanisms.compute import Compute

FREE = Overheads((0.0, 0.0), (0.0, 0.0), 0.0, 0.0)
ON_GPU = Resources(1, 1.0)
HOUR_S = 3600.0


@dataclass(frozen=True)
class Numbered:
    """Task that never runs."""

    number: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        raise AssertionError("a simulated unit does not run")


def trainings(count: int, *, needs: tuple[Unit, ...] = (), first: int = 0) -> tuple[Unit, ...]:
    keys = tuple(unit.key for unit in needs)
    return tuple(
        Unit(Numbered(number), f"training {number}", needs=keys, resources=ON_GPU)
        for number in range(first, first + count)
    )


def work(units: tuple[Unit, ...], seconds: float = HOUR_S) -> Work:
    return Work(units, {unit.key: seconds for unit in units}, {unit.key: 1000 for unit in units}, {})


def test_equal_trainings_keep_every_gpu_busy() -> None:
    """64 trainings of one hour on 8 nodes: eight hours, and the start of the workers."""
    played = play(work(trainings(64)), Cluster(8), FREE)
    assert played.finished == 64
    assert played.makespan_s == pytest.approx(8 * HOUR_S + STARTED_S, abs=5)
    assert busy(played, gpus=8) > 0.99


class Long(Numbered):
    """Task of another kind of work."""


def test_the_kind_that_takes_longest_goes_first_once_it_is_timed() -> None:
    """24 units of one hour, then six of four hours, on four nodes: twelve hours at best, 14 in the plan's order.

    One of each kind starts first. After an hour, the kind that has not ended yet goes first.
    """
    short = trainings(24)
    long = tuple(Unit(Long(number), f"long {number}", resources=ON_GPU) for number in range(6))
    both = work((*short, *long))
    both = replace(both, seconds={**both.seconds, **{unit.key: 4 * HOUR_S for unit in long}})
    assert both.shortest_s(4) == 12 * HOUR_S
    assert play(both, Cluster(4), FREE).makespan_s == pytest.approx(12 * HOUR_S + STARTED_S, abs=5)


def test_no_order_is_quicker_than_what_waits_for_all_others() -> None:
    """Four hours of four GPUs, then one unit of an hour that needs all of them."""
    before = trainings(16)
    waits = trainings(1, needs=before, first=16)
    both = work((*before, *waits))
    assert both.shortest_s(4) == 5 * HOUR_S > both.longest_chain_s
    assert play(both, Cluster(4), FREE).makespan_s == pytest.approx(5 * HOUR_S + STARTED_S, abs=5)


def test_a_schedule_that_starts_one_unit_at_a_time_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted defect leaves seven of eight GPUs idle."""
    monkeypatch.setattr(RayPool, "capacity", lambda pool, *_: 0 if pool._flights or any(pool._waiting.values()) else 1)
    played = play(work(trainings(64)), Cluster(8), FREE)
    assert busy(played, gpus=8) == pytest.approx(1 / 8, abs=0.01)
    assert played.idle_gpus == 7


def test_a_student_waits_for_its_teachers() -> None:
    """32 teachers on 8 nodes take four hours; then one student trains alone for two."""
    teachers = trainings(32)
    (student,) = trainings(1, needs=teachers, first=32)
    chain = work((*teachers, student))
    chain = replace(chain, seconds={**chain.seconds, student.key: 2 * HOUR_S})
    assert chain.longest_chain_s == 3 * HOUR_S
    played = play(chain, Cluster(8), FREE)
    assert played.makespan_s == pytest.approx(6 * HOUR_S + STARTED_S, abs=10)
    assert busy(played, gpus=8) == pytest.approx(34 / 48, abs=0.01)


def test_a_dead_node_costs_what_ran_on_it() -> None:
    """A node dies half-way through its first training, which runs again in full, or from its last checkpoint.

    Fifteen trainings remain for three nodes. The lost one is found after Ray has noticed, so the makespan is five hours
    with or without a checkpoint, and the lost GPU time tells them apart.
    """
    cluster = Cluster(4, deaths={1: STARTED_S + HOUR_S / 2})
    without, checkpointed = (
        play(work(trainings(16)), cluster, FREE, checkpoint_s=seconds) for seconds in (math.inf, 300.0)
    )
    for played in (without, checkpointed):
        assert played.finished == 16
        assert played.reruns == 1
    assert without.lost_gpu_s == pytest.approx(HOUR_S / 2, abs=1)
    assert checkpointed.lost_gpu_s < 300
    assert without.busy_gpu_s == pytest.approx(16.5 * HOUR_S, abs=1)


def test_trainings_do_not_wait_behind_others_while_a_worker_is_free() -> None:
    """Eight trainings of ten hours on nine nodes, of which one dies after three; the ninth takes its training over."""
    played = play(work(trainings(8), 10 * HOUR_S), Cluster(9, deaths={2: 3 * HOUR_S}), FREE)
    assert played.reruns == 1
    assert played.makespan_s == pytest.approx(13 * HOUR_S, abs=60)


def test_a_unit_on_ever_dying_nodes_fails_after_four_losses() -> None:
    """The schedule takes the unit to be the cause; the units that need it do not run."""
    (first,) = trainings(1)
    units = (first, *trainings(1, needs=(first,), first=1))
    # A worker starts in 10 s and its node dies one second later; then the pool has to notice.
    cluster = Cluster(5, deaths={number: 11.0 + 200.0 * number for number in range(5)})
    played = play(work(units), cluster, FREE)
    assert played.finished == 0
    assert "4 workers died" in played.failed[first.key]


def test_an_input_travels_once_to_each_node() -> None:
    """Four nodes share an input of a megabyte; the results of eight units are recorded."""
    units = tuple(replace(unit, shared=("rows",), key="") for unit in trainings(8))
    played = play(replace(work(units), shared_bytes={"rows": 1_000_000}), Cluster(4), FREE)
    assert (played.put_bytes, played.fetched_bytes, played.result_bytes) == (1_000_000, 4_000_000, 8_000)


def busy(played: Played, *, gpus: int) -> float:
    return played.busy_gpu_s / (gpus * played.makespan_s)


# Nodes that join


def test_a_cluster_grows_to_all_nodes_within_two_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are requested at once. In steps, as for pending workers alone, it takes more than three starts."""
    hours = trainings_and_counts(30, ON_GPU)
    at_once, in_steps = grown(hours, nodes=30), grown(hours, nodes=30, in_steps=True)
    assert at_once.finished == in_steps.finished == 60
    assert until_share(at_once, 30) <= 2 * START_S[0]
    assert until_share(in_steps, 30) > 3 * START_S[0]
    assert at_once.makespan_s < in_steps.makespan_s


def test_no_more_nodes_start_than_trainings_can_use() -> None:
    """Counts take CPUs of the nodes with GPUs, and start no nodes themselves."""
    played = grown(trainings_and_counts(5, ON_GPU), nodes=60)
    assert len(played.joined_s) == 5
    assert played.given_back


def test_on_cpus_nodes_hold_as_many_trainings_as_they_have_cpus() -> None:
    played = grown(trainings_and_counts(16, Resources(2)), nodes=60)
    assert until_share(played, 4) <= 2 * START_S[0]
    assert len(played.joined_s) < 10


def test_a_request_is_given_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request stands until the next one, so that nodes would be paid for after the run."""
    requests: list[list[dict[str, float]]] = []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: requests.append(bundles))
    monkeypatch.setattr("dpaudit.actors.pool.lost_service", lambda: "")
    pool = object.__new__(RayPool)
    pool._wait_s, pool._requested, pool._slots, pool._store, pool._workers = 60.0, {}, {}, None, 3
    usable = pool._usable({ON_GPU: 9, Resources(): 500})
    for _ in range(2):
        pool._request_nodes(usable)
    assert requests == [[{"CPU": 1, "GPU": 1.0}] * 3], "a request is made once"
    pool.close()
    assert requests[-1] == []


def test_a_cluster_without_an_autoscaler_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda **_: pytest.fail("nothing is requested"))
    pool = object.__new__(RayPool)
    pool._wait_s, pool._requested = 0.0, {}
    pool._request_nodes({ON_GPU: 1})


def test_an_autoscaler_that_takes_no_request_is_named() -> None:
    from dpaudit.actors.events import Event, EventStream

    def fail(bundles: object) -> None:
        raise ConnectionError("no such service")

    stages: list[Event] = []
    pool = object.__new__(RayPool)
    pool._wait_s, pool._requested, pool._events = 60.0, {}, EventStream(stages.append)
    with mock.patch("ray.autoscaler.sdk.request_resources", fail):
        pool._request_nodes({ON_GPU: 1})
    assert stages[0].detail == "the cluster's autoscaler took no request for nodes: ConnectionError: no such service"
