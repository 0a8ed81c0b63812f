"""Scheduling of units on all backends: order, retries, failures, lost workers, repeats and time limits."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.actors.backend import Backend, Deadlines, InProcess
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, read_events
from dpaudit.actors.schedule import Defer, RunOutcome, run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.engine.run.run_status import _status
from dpaudit.errors import RunError
from tests import warm_children
from tests.actors.tasks import (
    Add,
    AssignedResources,
    Draws,
    Exits,
    FailsFirst,
    HangsFirst,
    LongError,
    Resumes,
    WritesToItsInput,
)

pytestmark = pytest.mark.usefixtures("code_read_once")

MakeBackend = Callable[[dict[str, Any], EventStream], Any]


@contextmanager
def in_process(shared: dict[str, Any], events: EventStream) -> Iterator[Backend]:
    yield InProcess(shared)


@contextmanager
def on_ray(
    shared: dict[str, Any], events: EventStream, deadlines: Deadlines | None = None, workers: int = 1
) -> Iterator[Backend]:
    from dpaudit.actors.pool import RayPool

    pool = RayPool(shared, demand={Resources(): 8}, workers=workers, events=events, deadlines=deadlines)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def in_children(
    shared: dict[str, Any], events: EventStream, deadlines: Deadlines | None = None, count: int = 2
) -> Iterator[Backend]:
    backend = ChildProcesses(shared, None, events, deadlines or Deadlines(), count)
    with closing(backend):
        yield backend


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start children by fork, for tests that do not depend on their start."""
    monkeypatch.setattr("dpaudit.actors.children._Child.start", warm_children.start_child)


def run(
    make: MakeBackend, units: list[Unit], folder: Path, *, repeats: int = 0, defer: Defer | None = None, **shared: Any
) -> tuple[RunOutcome, UnitStore, list[Event]]:
    emitted: list[Event] = []
    events = EventStream(emitted.append)
    store = UnitStore(folder / "units")
    with make(shared, events) as backend:
        return run_units(units, backend, store, events, repeats=repeats, defer=defer), store, emitted


def of_kind(events: list[Event], kind: EventKind) -> list[Event]:
    return [event for event in events if event.kind is kind]


def totals(store: UnitStore, units: list[Unit]) -> list[int]:
    return [store.read(unit.key)["total"][0].as_py() for unit in units]


def diamond() -> list[Unit]:
    first = Unit(Add(1), "first", shared=("ten",))
    first_side, second_side = (Unit(Add(number), f"side {number}", needs=(first.key,)) for number in (100, 200))
    last = Unit(Add(0), "last", needs=(first_side.key, second_side.key))
    return [first, first_side, second_side, last]


def test_results_flow_from_unit_to_unit_and_are_stored(tmp_path: Path) -> None:
    units = diamond()
    outcome, store, emitted = run(in_process, units, tmp_path, ten=10)
    assert totals(store, units) == [11, 111, 211, 322]
    assert outcome.ran == 4
    assert len(of_kind(emitted, EventKind.UNIT_DONE)) == 4


def test_units_that_a_longer_chain_of_gpu_units_waits_for_go_first(tmp_path: Path) -> None:
    """The teacher goes before single trainings; without a GPU the order of the plan stays."""

    def labels(resources: Resources, folder: Path) -> list[str]:
        alone = [Unit(Add(number), f"alone {number}", resources=resources) for number in range(2)]
        teacher = Unit(Add(10), "teacher", resources=resources)
        answers = Unit(Add(11), "answers", needs=(teacher.key,))
        student = Unit(Add(12), "student", needs=(answers.key,), resources=resources)
        _, _, emitted = run(in_process, [*alone, teacher, answers, student], folder)
        return [event.label for event in of_kind(emitted, EventKind.UNIT_STARTED)]

    assert labels(Resources(gpus=1.0), tmp_path / "gpu")[:2] == ["teacher", "alone 0"]
    assert labels(Resources(), tmp_path / "cpu") == ["alone 0", "alone 1", "teacher", "answers", "student"]


def test_finished_units_are_not_run_again(tmp_path: Path) -> None:
    units = diamond()
    run(in_process, units[:2], tmp_path, ten=10)
    outcome, store, emitted = run(in_process, units, tmp_path, ten=10)
    assert outcome.ran == 2
    assert totals(store, [units[3]]) == [322]
    assert [event.count for event in of_kind(emitted, EventKind.UNITS_CACHED)] == [2]


def test_a_failed_training_is_retried(tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "a", 1, "training"), "flaky")
    outcome, _, emitted = run(in_process, [unit], tmp_path)
    assert outcome.finished == {unit.key}
    (retried,) = of_kind(emitted, EventKind.UNIT_RETRIED)
    assert "loss is NaN" in retried.detail


def test_a_failure_is_recorded_and_its_dependents_are_skipped(tmp_path: Path) -> None:
    bug = Unit(FailsFirst(str(tmp_path), "b", 9, "bug"), "buggy")
    after = Unit(Add(1), "after", needs=(bug.key,))
    independent = Unit(Add(5), "independent")
    outcome, store, _ = run(in_process, [bug, after, independent], tmp_path)
    assert outcome.finished == {independent.key}
    assert "ValueError: a bug" in store.failures()[bug.key]
    assert "needs 'buggy'" in outcome.failed[after.key]
    assert len(list(tmp_path.glob("b.*"))) == 1, "a bug is not retried: it would fail the same way"


def test_a_training_that_always_fails_has_two_attempts(tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "f", 9, "training"), "fails")
    outcome, _, emitted = run(in_process, [unit], tmp_path)
    assert "loss is NaN" in outcome.failed[unit.key]
    assert len(list(tmp_path.glob("f.*"))) == 2
    assert len(of_kind(emitted, EventKind.UNIT_RETRIED)) == 1


def test_results_kept_in_memory_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five results with 8 bytes each may stay in memory; the others are read from disk when needed."""
    monkeypatch.setattr("dpaudit.actors.schedule.MAX_HELD_BYTES", 16)

    class Counting(InProcess):
        loads = 0

        def hold(self, table: Any) -> Any:
            self.loads += 1
            return super().hold(table)

    first = [Unit(Add(number), "") for number in range(5)]
    last = Unit(Add(100), "", needs=tuple(unit.key for unit in first))
    backend, store = Counting({}), UnitStore(tmp_path)
    run_units([*first, last], backend, store, EventStream())
    assert totals(store, [last]) == [110]
    assert backend.loads == 3


def test_a_failed_unit_runs_again_in_the_next_run(tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "c", 1, "bug"), "buggy once")
    assert run(in_process, [unit], tmp_path)[0].failed
    outcome, store, _ = run(in_process, [unit], tmp_path)
    assert outcome.finished == {unit.key}
    assert store.failures() == {}


@pytest.mark.parametrize("where", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_two_workers_run_all_units_despite_losses_and_failures(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Flow of results, a killed worker, a failed training, a bug, code that exits or writes into its input.

    All in one pool, to save time; the other tests run in this process.
    """
    if where == "ray":
        request.getfixturevalue("ray_cluster")
    make = in_children if where == "processes" else partial(on_ray, workers=2)
    chain = diamond()
    dying = Unit(FailsFirst(str(tmp_path), "d", 1, "die"), "dies once")
    flaky = Unit(FailsFirst(str(tmp_path), "a", 1, "training"), "flaky")
    bug = Unit(FailsFirst(str(tmp_path), "b", 9, "bug"), "buggy")
    after = Unit(Add(1), "after", needs=(bug.key,))
    exiting, writing = Unit(Exits("exit"), "exits"), Unit(WritesToItsInput(), "writes", shared=("array",))
    others = [Unit(Add(number, 0.05), f"other {number}") for number in range(12)]
    units, array = [*chain, dying, flaky, bug, after, exiting, writing, *others], np.ones(1000)
    outcome, store, emitted = run(make, units, tmp_path, ten=10, array=array)
    assert outcome.failed.keys() == {bug.key, after.key, exiting.key, writing.key}
    assert outcome.finished == {unit.key for unit in units} - outcome.failed.keys()
    assert totals(store, chain) == [11, 111, 211, 322]
    assert totals(store, others) == list(range(12))
    assert "ValueError: a bug" in store.failures()[bug.key]
    assert "needs 'buggy'" in outcome.failed[after.key]
    assert "SystemExit" in outcome.failed[exiting.key]
    assert "ValueError" in outcome.failed[writing.key]
    assert [event.label for event in of_kind(emitted, EventKind.UNIT_RETRIED)] == ["flaky"]
    assert of_kind(emitted, EventKind.WORKER_LOST)
    assert array.sum() == 1000


@pytest.mark.usefixtures("forked")
def test_a_dying_child_fails_only_its_unit(tmp_path: Path) -> None:
    """One unit kills its process once, another every time; two processes share the rest."""
    dying = Unit(FailsFirst(str(tmp_path), "d", 1, "die"), "dies once")
    deadly = Unit(FailsFirst(str(tmp_path), "e", 99, "die"), "deadly")
    others = [Unit(Add(number), f"other {number}") for number in range(6)]
    outcome, store, emitted = run(in_children, [dying, deadly, *others], tmp_path)
    assert outcome.finished == {unit.key for unit in (dying, *others)}
    assert totals(store, others) == list(range(6))
    assert "workers died while they ran this unit" in outcome.failed[deadly.key]
    assert of_kind(emitted, EventKind.WORKER_LOST)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("number", "reason"),
    [("SIGINT", "ended by SIGINT (EOFError)"), ("SIGKILL", "unless a user killed it, memory ran out")],
)
def test_a_child_ended_by_a_signal_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: str, reason: str
) -> None:
    result = Unit(FailsFirst(str(tmp_path), "i", 99, number), "ended")
    outcome, _, _ = run(in_children, [result], tmp_path)
    assert reason in outcome.failed[result.key]
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("forked")
def test_a_unit_that_cannot_be_pickled_fails_alone(tmp_path: Path) -> None:
    locked = Unit(Add(threading.Lock()), "locked", key="0" * 32)  # type: ignore[arg-type]
    other = Unit(Add(3), "other")
    outcome, _, _ = run(in_children, [locked, other], tmp_path)
    assert outcome.finished == {other.key}
    assert "TypeError" in outcome.failed[locked.key]


@pytest.mark.usefixtures("forked")
def test_a_hanging_child_is_ended_while_another_works(tmp_path: Path) -> None:
    others = [Unit(Add(number), f"other {number}") for number in range(3)]
    outcome, emitted = run_hanging(
        lambda events: in_children({}, events, Deadlines(4.0)), tmp_path, HangsFirst(str(tmp_path), "stop"), others
    )
    assert len(outcome.finished) == 4
    retried = of_kind(emitted, EventKind.UNIT_RETRIED)[0]
    assert retried.label == "hangs"
    assert "the stated `time_limit_s`" in retried.detail


@pytest.mark.ray
def test_a_unit_that_fits_on_no_node_is_refused_before_anything_runs(ray_cluster: None) -> None:
    from dpaudit.actors.pool import RayPool

    for kind, needed in ((Resources(64), "64 CPUs"), (Resources(1, 0.5), r"1 CPU and 0\.5 GPUs")):
        with pytest.raises(RunError, match=f"a unit needs {needed} on one node, the largest has 2 CPUs"):
            RayPool({}, demand={Resources(): 1, kind: 1}, workers=None, events=EventStream())


@pytest.mark.ray
def test_memory_and_custom_resources_are_asked_of_ray(ray_cluster: None, tmp_path: Path) -> None:
    """A unit of a kind that fails alone and fits on no node fails, with those that need it; the others run."""
    from dpaudit.actors.pool import RayPool

    big, rare = Resources(1, memory=10**6), Resources(1, custom=(("made_up_gpu", 0.5),))
    present, absent = Unit(AssignedResources(), "present", resources=big), Unit(Add(1), "absent", resources=rare)
    after = Unit(Add(2), "after", needs=(absent.key,), resources=big)
    events, store = EventStream(), UnitStore(tmp_path)
    pool = RayPool({}, demand={big: 2, rare: 1}, workers=1, events=events, fail_alone=[rare])
    try:
        outcome = run_units([absent, after, present], pool, store, events)
    finally:
        pool.close()
    assert outcome.finished == {present.key}
    assert outcome.failed[absent.key].startswith(
        "a unit needs 1 CPU and 0.5 made_up_gpu on one node, the largest has 2 CPUs and 0 made_up_gpu"
    )
    assert "it needs 'absent'" in outcome.failed[after.key]
    assert json.loads(store.read(present.key)["resources"][0].as_py()) == {"CPU": 1.0, "memory": 1e6}


@pytest.mark.nightly
@pytest.mark.ray
def test_a_missing_node_is_not_awaited_forever(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that fit on another node run first. Then the error names the missing node and what to do."""
    from dpaudit.actors import pool as pools
    from dpaudit.actors.pool import Nodes

    node_lists = iter([Nodes(({"CPU": 2.0, "GPU": 1.0},))])
    monkeypatch.setattr(Nodes, "of_session", lambda: next(node_lists, Nodes(({"CPU": 2.0},))))
    monkeypatch.setattr(pools, "NODES_S", 0.1)
    present, unplaceable = Unit(Add(1), "present"), Unit(Add(2), "gone", resources=Resources(1, 0.5))
    emitted: list[Event] = []

    def note(event: Event) -> None:
        emitted.append(event)
        if event.kind is EventKind.UNIT_DONE:  # a worker may start slowly, a missing node never joins
            monkeypatch.setattr(pools, "START_TIMEOUT_S", 1.0)

    events, store = EventStream(note), UnitStore(tmp_path)
    pool = pools.RayPool({}, demand={Resources(): 1, unplaceable.resources: 1}, workers=1, events=events)
    try:
        with pytest.raises(RunError, match=r"holds a unit of 1 CPU and 0\.5 GPUs must join within 1 s, none did"):
            run_units([unplaceable, present], pool, store, events)
    finally:
        pool.close()
    assert store.finished([present.key, unplaceable.key]) == {present.key}
    assert [event.detail for event in of_kind(emitted, EventKind.STAGE)] == [
        "no node of the cluster holds a unit of 1 CPU and 0.5 GPUs; waiting for one, at most 300 s if nothing else runs"
    ]


@pytest.mark.nightly
@pytest.mark.ray
def test_idle_workers_end_for_a_worker_with_other_resources(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle workers hold both CPUs, and the last unit needs both."""
    from dpaudit.actors import pool as pools

    monkeypatch.setattr(pools.Nodes, "worker_counts", lambda nodes, demand: dict.fromkeys(demand, 2))
    monkeypatch.setattr(pools, "IDLE_S", 0.5)
    monkeypatch.setattr(pools, "START_TIMEOUT_S", 20.0)
    first = Unit(Add(1), "first")
    last = Unit(Add(2), "last", needs=(first.key,), resources=Resources(2))
    events, store = EventStream(), UnitStore(tmp_path)
    pool = pools.RayPool({}, demand={Resources(): 1, Resources(2): 1}, workers=2, events=events)
    try:
        outcome = run_units([first, last], pool, store, events)
    finally:
        pool.close()
    assert totals(store, [last]) == [3]
    assert outcome.failed == {}


def test_a_second_attempt_resumes_from_checkpoints_and_deletes_them(tmp_path: Path) -> None:
    unit = Unit(Resumes(), "long training")
    backend = InProcess({}, tmp_path / "checkpoints")
    outcome = run_units([unit], backend, UnitStore(tmp_path / "units"), EventStream())
    assert outcome.finished == {unit.key}
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_key_depends_on_everything_that_determines_the_result() -> None:
    same = Unit(Add(1), "one name", shared=("x",))
    assert same.key == Unit(Add(1), "another name", shared=("x",)).key, "a label is not part of the key"
    others = [
        Unit(Add(2), "", shared=("x",)),
        Unit(Add(1), "", shared=("y",)),
        Unit(Add(1), "", shared=("x",), needs=("k",)),
        Unit(Add(1), "", shared=("x",), resources=Resources(2)),
    ]
    assert len({unit.key for unit in (same, *others)}) == 5


def test_units_cannot_write_to_shared_inputs(tmp_path: Path) -> None:
    array = np.ones(1000)
    writing, reading = Unit(WritesToItsInput(), "writes", shared=("array",)), Unit(Add(0), "reads", shared=("one",))
    outcome, _, _ = run(in_process, [writing, reading], tmp_path, array=array, one=1)
    assert "ValueError" in outcome.failed[writing.key]
    assert outcome.finished == {reading.key}
    assert array.sum() == 1000


def test_code_that_exits_fails_only_its_unit(tmp_path: Path) -> None:
    exiting = {
        error: Unit(Exits(how), how)
        for how, error in {"exit": "SystemExit", "generator": "GeneratorExit", "interrupt": "KeyboardInterrupt"}.items()
    }
    other = Unit(Add(5), "")
    outcome, _, _ = run(in_process, [*exiting.values(), other], tmp_path)
    assert outcome.finished == {other.key}
    assert all(error in outcome.failed[unit.key] for error, unit in exiting.items())


def test_a_long_error_is_shortened_and_escaped(tmp_path: Path) -> None:
    unit = Unit(LongError(50), "verbose")
    outcome, store, _ = run(in_process, [unit], tmp_path)
    recorded = store.failures()[unit.key]
    assert recorded == outcome.failed[unit.key].strip()
    assert len(recorded) < 21_000
    assert "ValueError: beginning \\udc80" in recorded
    assert recorded.rstrip().endswith("end")
    assert "\n... 49,98" in recorded


@pytest.mark.parametrize("seeded", [True, False])
def test_units_are_repeated_and_compared(tmp_path: Path, seeded: bool) -> None:
    units = [Unit(Draws(seed, seeded), f"draws {seed}") for seed in range(4)]
    outcome, _, emitted = run(in_process, units, tmp_path, repeats=2)
    assert outcome.ran == 4
    repeated = of_kind(emitted, EventKind.UNIT_REPEATED)
    assert [event.unit for event in sorted(repeated, key=lambda event: event.label)] == [unit.key for unit in units[:2]]
    assert {event.detail == "" for event in repeated} == {seeded}


class TwoWorkers(InProcess):
    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        return 4 - len(self._queue)


@contextmanager
def on_two_workers(shared: dict[str, Any], events: EventStream) -> Iterator[Backend]:
    yield TwoWorkers(shared)


@pytest.mark.parametrize("user_code", [True, False])
def test_without_user_code_one_unit_is_repeated(tmp_path: Path, user_code: bool) -> None:
    units = [Unit(Add(number), f"unit {number}") for number in range(5)]
    assert all(unit.user_code for unit in units)
    units = units if user_code else [replace(unit, user_code=()) for unit in units]
    emitted = run(on_two_workers, units, tmp_path, repeats=2)[2]
    assert len(of_kind(emitted, EventKind.UNIT_REPEATED)) == 1 + user_code


def test_a_unit_is_repeated_on_an_idle_worker(tmp_path: Path) -> None:
    first = Unit(Add(1), "first")
    last = Unit(Add(2), "last", needs=(first.key,))
    emitted = run(on_two_workers, [first, last], tmp_path, repeats=1)[2]
    kinds = {EventKind.UNIT_STARTED, EventKind.UNIT_DONE, EventKind.UNIT_REPEATED}
    assert [f"{event.kind} {event.label}" for event in emitted if event.kind in kinds] == [
        "unit-started first",
        "unit-done first",
        "unit-started last",
        "unit-started first",
        "unit-done last",
        "unit-repeated first",
    ]


def test_slow_units_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = [Unit(Add(number, 0.02), f"sleeps {number}") for number in range(3)]
    monkeypatch.setattr("dpaudit.actors.schedule.REPEAT_BUDGET_S", 0.01)
    monkeypatch.setattr("dpaudit.actors.schedule.REPEAT_BUDGET_SHARE", 0.0)
    emitted = run(in_process, units, tmp_path, repeats=2)[2]
    assert not of_kind(emitted, EventKind.UNIT_REPEATED)


def run_hanging(make: Any, folder: Path, task: HangsFirst, others: list[Unit]) -> tuple[RunOutcome, list[Event]]:
    emitted: list[Event] = []
    events, store = EventStream(emitted.append), UnitStore(folder / "units")
    with make(events) as backend:
        return run_units([Unit(task, "hangs"), *others], backend, store, events), emitted


def test_a_unit_that_hangs_in_this_process_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.actors.backend.REMIND_S", 0.01)

    @contextmanager
    def limited(events: EventStream) -> Iterator[Backend]:
        yield InProcess({}, events=events, deadlines=Deadlines(0.5))

    outcome, emitted = run_hanging(limited, tmp_path, HangsFirst(str(tmp_path)), [])
    assert len(outcome.finished) == 1
    retried = of_kind(emitted, EventKind.UNIT_RETRIED)[0]
    assert "still running after 0.5 s" in retried.detail
    assert of_kind(emitted, EventKind.UNIT_RUNNING)


def test_a_stopped_child_is_reported_in_events_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.actors.children.REMIND_S", 0.1)

    def make(events: EventStream) -> AbstractContextManager[Backend]:
        return in_children({}, EventStream(events.emit, continued), Deadlines(20.0))

    def continued(event: Event) -> None:
        if event.detail and event.kind is EventKind.UNIT_RUNNING:
            os.kill(int(event.worker.rpartition(":")[2]), signal.SIGCONT)

    outcome, emitted = run_hanging(make, tmp_path, HangsFirst(str(tmp_path), "stop", 0.5), [])
    assert len(outcome.finished) == 1
    stopped = next(event for event in of_kind(emitted, EventKind.UNIT_RUNNING) if event.detail)
    assert re.fullmatch(r"process \d+ on .* is stopped; `kill -CONT \d+` continues it", stopped.detail)
    until_stopped = emitted[: emitted.index(stopped) + 1]
    status = _status("run", 1, until_stopped, None)
    assert status.stopped == (f"hangs: {stopped.detail}",)
    assert f"\nstopped: hangs: {stopped.detail}" in str(status)
    assert _status("run", 1, [*until_stopped, replace(stopped, detail="")], None).stopped == ()
    assert _status("run", 1, emitted, None).stopped == ()


def test_a_silent_driver_is_reported_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    started = Event(EventKind.UNIT_STARTED, "key", "slow", time=800.0)
    recent = Event(EventKind.UNIT_RUNNING, "key", "slow", time=980.0)
    assert "no event for 200 s while units run" in str(_status("run", 1, [started], None))
    assert "no event" not in str(_status("run", 1, [started, recent], None))
    assert "no event" not in str(_status("run", 1, [started, replace(started, kind=EventKind.INTERRUPTED)], None))


def test_an_earlier_alarm_is_restored(tmp_path: Path) -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 300)
    try:
        backend = InProcess({}, deadlines=Deadlines(5.0))
        run_units([Unit(Add(1), "")], backend, UnitStore(tmp_path), EventStream())
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 300
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_unit_queued_behind_a_hanging_one_is_not_blamed(ray_cluster: None, tmp_path: Path) -> None:
    outcome, emitted = run_hanging(
        lambda events: on_ray({}, events, Deadlines(8.0)), tmp_path, HangsFirst(str(tmp_path)), [Unit(Add(1), "b")]
    )
    assert len(outcome.finished) == 2
    retried = of_kind(emitted, EventKind.UNIT_RETRIED)[0]
    assert retried.label == "hangs"
    assert "the stated `time_limit_s`" in retried.detail
    assert not of_kind(emitted, EventKind.WORKER_LOST)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_worker_that_dies_while_it_starts_is_replaced(ray_cluster: None, tmp_path: Path) -> None:
    from dpaudit.actors import pool as pools

    emitted: list[Event] = []
    with on_ray({}, EventStream(emitted.append)) as backend:
        assert isinstance(backend, pools.RayPool)
        (slot,) = backend._slots
        pools.ray.kill(slot.actor)
        outcome = run_units([Unit(Add(4), "")], backend, UnitStore(tmp_path), EventStream(emitted.append))
    assert len(outcome.finished) == 1
    assert not of_kind(emitted, EventKind.WORKER_LOST)


def test_limits_are_derived_from_units_of_the_same_function() -> None:
    deadlines, unit = Deadlines(), Unit(Add(1), "")
    assert deadlines.limit_s(unit) is None
    deadlines.learn(unit, 100.0)
    deadlines.learn(unit, 40.0)
    assert deadlines.limit_s(Unit(Add(2), "")) == 3000.0
    assert deadlines.limit_s(Unit(Draws(1), "")) is None
    assert Deadlines(5.0).limit_s(unit) == 5.0


def test_the_truncated_last_line_of_a_log_is_ignored(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log(Event(EventKind.UNIT_DONE, "k", seconds=1.5))
    log.close()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "unit-do"})[:10])
    assert [(event.kind, event.seconds) for event in read_events(tmp_path / "events.jsonl")] == [
        (EventKind.UNIT_DONE, 1.5)
    ]


def test_deferred_units_wait_and_those_left_at_the_end_do_not_run(tmp_path: Path) -> None:
    first, waits, never = Unit(Add(1), "first"), Unit(Add(2), "waits"), Unit(Add(3), "never")

    def defer(finished: Set[str], failed: Set[str]) -> Set[str]:
        return {never.key} if first.key in finished else {waits.key, never.key}

    outcome, _, emitted = run(in_process, [waits, never, first], tmp_path, defer=defer)
    assert [event.label for event in of_kind(emitted, EventKind.UNIT_STARTED)] == ["first", "waits"]
    assert outcome.skipped == {never.key}
    assert outcome.failed == {}
