"""Units run to the end, in order, once, whatever fails; in this process and on Ray actors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpaudit.actors.backend import Backend, InProcess
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, read_events
from dpaudit.actors.schedule import Outcome, run_units
from dpaudit.actors.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.errors import RunError
from tests.actors.tasks import Add, FailsFirst, GoesOn

MakeBackend = Callable[[dict[str, Any], EventStream], Any]


@contextmanager
def in_process(shared: dict[str, Any], events: EventStream) -> Iterator[Backend]:
    yield InProcess(shared)


@contextmanager
def on_ray(shared: dict[str, Any], events: EventStream) -> Iterator[Backend]:
    from dpaudit.actors.pool import RayPool

    pool = RayPool(shared, resources=Resources(), workers=2, events=events, most=8)
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(params=["in-process", pytest.param("ray", marks=pytest.mark.ray)])
def make_backend(request: pytest.FixtureRequest) -> MakeBackend:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return on_ray
    return in_process


def run(make: MakeBackend, units: list[Unit], folder: Path, **shared: Any) -> tuple[Outcome, UnitStore, list[Event]]:
    seen: list[Event] = []
    events = EventStream(seen.append)
    store = UnitStore(folder / "units")
    with make(shared, events) as backend:
        return run_units(units, backend, store, events), store, seen


def diamond() -> list[Unit]:
    first = Unit(Add(1), "first", shared=("ten",))
    left, right = (Unit(Add(number), f"side {number}", needs=(first.key,)) for number in (100, 200))
    last = Unit(Add(0), "last", needs=(left.key, right.key))
    return [first, left, right, last]


def test_results_flow_from_unit_to_unit_and_are_stored(make_backend: MakeBackend, tmp_path: Path) -> None:
    units = diamond()
    outcome, store, seen = run(make_backend, units, tmp_path, ten=10)
    assert [store.read(unit.key)["total"][0].as_py() for unit in units] == [11, 111, 211, 322]
    assert outcome.ran == 4
    assert [event.kind for event in seen].count(EventKind.UNIT_DONE) == 4


def test_finished_units_are_not_run_again(make_backend: MakeBackend, tmp_path: Path) -> None:
    units = diamond()
    run(in_process, units[:2], tmp_path, ten=10)
    outcome, store, seen = run(make_backend, units, tmp_path, ten=10)
    assert outcome.ran == 2
    assert store.read(units[3].key)["total"][0].as_py() == 322
    assert sum(event.kind is EventKind.UNIT_CACHED for event in seen) == 2


def test_a_failed_training_is_tried_again(make_backend: MakeBackend, tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "a", 1, "training"), "flaky")
    outcome, _, seen = run(make_backend, [unit], tmp_path)
    assert outcome.finished == {unit.key}
    retried = [event for event in seen if event.kind is EventKind.UNIT_RETRIED]
    assert len(retried) == 1
    assert "loss is NaN" in retried[0].detail


def test_a_failure_is_recorded_with_its_log_and_takes_its_dependents_along(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    bug = Unit(FailsFirst(str(tmp_path), "b", 9, "bug"), "buggy")
    after = Unit(Add(1), "after", needs=(bug.key,))
    beside = Unit(Add(5), "beside")
    outcome, store, _ = run(make_backend, [bug, after, beside], tmp_path)
    assert outcome.finished == {beside.key}
    assert "ValueError: a bug" in store.failures()[bug.key]
    assert "needs 'buggy'" in outcome.failed[after.key]
    assert len(list(tmp_path.glob("b.*"))) == 1, "a bug is not tried again: it would fail the same way"


def test_a_unit_that_failed_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "c", 1, "bug"), "buggy once")
    assert run(in_process, [unit], tmp_path)[0].failed
    outcome, store, _ = run(in_process, [unit], tmp_path)
    assert outcome.finished == {unit.key}
    assert store.failures() == {}


@pytest.mark.ray
def test_units_of_a_killed_worker_run_on_another_one(ray_cluster: None, tmp_path: Path) -> None:
    dying = Unit(FailsFirst(str(tmp_path), "d", 1, "die"), "dies once")
    others = [Unit(Add(number, 0.05), f"other {number}") for number in range(12)]
    outcome, store, seen = run(on_ray, [dying, *others], tmp_path)
    assert outcome.finished == {unit.key for unit in (dying, *others)}
    assert [store.read(unit.key)["total"][0].as_py() for unit in others] == list(range(12))
    assert any(event.kind is EventKind.WORKER_LOST for event in seen)


@pytest.mark.ray
def test_a_unit_that_always_kills_its_worker_is_given_up(ray_cluster: None, tmp_path: Path) -> None:
    deadly = Unit(FailsFirst(str(tmp_path), "e", 99, "die"), "deadly")
    outcome, _, _ = run(on_ray, [deadly], tmp_path)
    assert "workers died while they ran this unit" in outcome.failed[deadly.key]


@pytest.mark.ray
def test_a_worker_that_fits_on_no_node_is_refused_at_once(ray_cluster: None) -> None:
    from dpaudit.actors.pool import room_for

    assert room_for(Resources(1)) == 2
    with pytest.raises(RunError, match="a worker needs 64 CPUs and 0 GPUs on one node"):
        room_for(Resources(64))
    with pytest.raises(RunError, match=r"0\.5 GPUs"):
        room_for(Resources(1, gpus=0.5))


def test_a_second_attempt_finds_the_first_ones_checkpoints_and_leaves_none(tmp_path: Path) -> None:
    unit = Unit(GoesOn(), "long training")
    backend = InProcess({}, tmp_path / "checkpoints")
    outcome = run_units([unit], backend, UnitStore(tmp_path / "units"), EventStream())
    assert outcome.finished == {unit.key}
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_key_is_decided_by_everything_that_decides_the_result() -> None:
    same = Unit(Add(1), "one name", shared=("x",))
    assert same.key == Unit(Add(1), "another name", shared=("x",)).key, "a label decides nothing"
    others = [
        Unit(Add(2), "", shared=("x",)),
        Unit(Add(1), "", shared=("y",)),
        Unit(Add(1), "", shared=("x",), needs=("k",)),
        Unit(Add(1), "", shared=("x",), resources=Resources(2)),
    ]
    assert len({unit.key for unit in (same, *others)}) == 5


def test_a_log_cut_short_by_a_kill_is_read_up_to_there(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log(Event(EventKind.UNIT_DONE, "k", seconds=1.5))
    log.close()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "unit-do"})[:10])
    assert [(event.kind, event.seconds) for event in read_events(tmp_path / "events.jsonl")] == [
        (EventKind.UNIT_DONE, 1.5)
    ]
