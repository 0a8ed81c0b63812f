"""Units run to the end, in order, once, whatever fails; in this process and on Ray actors."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.actors.backend import Backend, Deadlines, InProcess
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, read_events
from dpaudit.actors.schedule import RunOutcome, run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.errors import RunError
from tests import warm_children
from tests.actors.tasks import Add, Draws, FailsFirst, GoesOn, HangsFirst, Leaves, Says, WritesToItsInput

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


@pytest.fixture(
    params=[
        "in-process",
        pytest.param("processes", marks=pytest.mark.nightly),
        pytest.param("ray", marks=(pytest.mark.ray, pytest.mark.nightly)),
    ]
)
def make_backend(request: pytest.FixtureRequest) -> MakeBackend:
    if request.param == "processes":
        return in_children
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return on_ray
    return in_process


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what becomes of a child, not of its start."""
    monkeypatch.setattr("dpaudit.actors.children._Child.start", warm_children.begun)


def run(make: MakeBackend, units: list[Unit], folder: Path, **shared: Any) -> tuple[RunOutcome, UnitStore, list[Event]]:
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
    assert [event.count for event in seen if event.kind is EventKind.UNITS_CACHED] == [2]


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


def test_a_training_that_always_fails_has_two_attempts(tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "f", 9, "training"), "fails")
    outcome, _, seen = run(in_process, [unit], tmp_path)
    assert "loss is NaN" in outcome.failed[unit.key]
    assert len(list(tmp_path.glob("f.*"))) == 2
    assert [event.kind for event in seen].count(EventKind.UNIT_RETRIED) == 1


def test_results_that_wait_take_no_more_memory_than_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five results of 8 bytes each, of which two may wait in memory: the others are read from disk when needed."""
    monkeypatch.setattr("dpaudit.actors.schedule.MAX_HELD_BYTES", 16)

    class Counting(InProcess):
        read = 0

        def hold(self, table: Any) -> Any:
            self.read += 1
            return super().hold(table)

    first = [Unit(Add(number), "") for number in range(5)]
    last = Unit(Add(100), "", needs=tuple(unit.key for unit in first))
    backend, store = Counting({}), UnitStore(tmp_path)
    run_units([*first, last], backend, store, EventStream())
    assert store.read(last.key)["total"][0].as_py() == 110
    assert backend.read == 3


def test_a_unit_that_failed_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    unit = Unit(FailsFirst(str(tmp_path), "c", 1, "bug"), "buggy once")
    assert run(in_process, [unit], tmp_path)[0].failed
    outcome, store, _ = run(in_process, [unit], tmp_path)
    assert outcome.finished == {unit.key}
    assert store.failures() == {}


@pytest.mark.parametrize("where", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_two_workers_run_all_that_can_run_whatever_is_lost_and_fails(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The one pool of its kind by day: results that flow from unit to unit, a killed worker, a failed training, a bug,
    code that leaves, and some that writes into its input. By night each has a pool of its own.
    """
    if where == "ray":
        request.getfixturevalue("ray_cluster")
    make = in_children if where == "processes" else partial(on_ray, workers=2)
    chain = diamond()
    dying = Unit(FailsFirst(str(tmp_path), "d", 1, "die"), "dies once")
    flaky = Unit(FailsFirst(str(tmp_path), "a", 1, "training"), "flaky")
    bug = Unit(FailsFirst(str(tmp_path), "b", 9, "bug"), "buggy")
    after = Unit(Add(1), "after", needs=(bug.key,))
    leaving, writing = Unit(Leaves("exit"), "leaves"), Unit(WritesToItsInput(), "writes", shared=("array",))
    others = [Unit(Add(number, 0.05), f"other {number}") for number in range(12)]
    units, array = [*chain, dying, flaky, bug, after, leaving, writing, *others], np.ones(1000)
    outcome, store, seen = run(make, units, tmp_path, ten=10, array=array)
    assert outcome.failed.keys() == {bug.key, after.key, leaving.key, writing.key}
    assert outcome.finished == {unit.key for unit in units} - outcome.failed.keys()
    assert [store.read(unit.key)["total"][0].as_py() for unit in chain] == [11, 111, 211, 322]
    assert [store.read(unit.key)["total"][0].as_py() for unit in others] == list(range(12))
    assert "ValueError: a bug" in store.failures()[bug.key]
    assert "needs 'buggy'" in outcome.failed[after.key]
    assert "SystemExit" in outcome.failed[leaving.key]
    assert "ValueError" in outcome.failed[writing.key]
    assert [event.label for event in seen if event.kind is EventKind.UNIT_RETRIED] == ["flaky"]
    assert any(event.kind is EventKind.WORKER_LOST for event in seen)
    assert array.sum() == 1000


@pytest.mark.nightly
@pytest.mark.ray
def test_units_of_a_killed_worker_run_on_another_one(ray_cluster: None, tmp_path: Path) -> None:
    dying = Unit(FailsFirst(str(tmp_path), "d", 1, "die"), "dies once")
    others = [Unit(Add(number, 0.05), f"other {number}") for number in range(12)]
    outcome, store, seen = run(partial(on_ray, workers=2), [dying, *others], tmp_path)
    assert outcome.finished == {unit.key for unit in (dying, *others)}
    assert [store.read(unit.key)["total"][0].as_py() for unit in others] == list(range(12))
    assert any(event.kind is EventKind.WORKER_LOST for event in seen)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_unit_that_always_kills_its_worker_is_given_up(ray_cluster: None, tmp_path: Path) -> None:
    deadly = Unit(FailsFirst(str(tmp_path), "e", 99, "die"), "deadly")
    outcome, _, _ = run(on_ray, [deadly], tmp_path)
    assert "workers died while they ran this unit" in outcome.failed[deadly.key]


@pytest.mark.usefixtures("forked")
def test_a_child_that_dies_costs_its_own_unit_alone(tmp_path: Path) -> None:
    """One unit kills its process once, another every time; two processes share the rest."""
    dying = Unit(FailsFirst(str(tmp_path), "d", 1, "die"), "dies once")
    deadly = Unit(FailsFirst(str(tmp_path), "e", 99, "die"), "deadly")
    others = [Unit(Add(number), f"other {number}") for number in range(6)]
    outcome, store, seen = run(in_children, [dying, deadly, *others], tmp_path)
    assert outcome.finished == {unit.key for unit in (dying, *others)}
    assert [store.read(unit.key)["total"][0].as_py() for unit in others] == list(range(6))
    assert "workers died while they ran this unit" in outcome.failed[deadly.key]
    assert any(event.kind is EventKind.WORKER_LOST for event in seen)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("number", "why"),
    [("SIGINT", "ended by SIGINT (EOFError)"), ("SIGKILL", "unless a user killed it, memory ran out")],
)
def test_a_child_that_a_signal_ends_says_nothing_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: str, why: str
) -> None:
    ended = Unit(FailsFirst(str(tmp_path), "i", 99, number), "ended")
    outcome, _, _ = run(in_children, [ended], tmp_path)
    assert why in outcome.failed[ended.key]
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("forked")
def test_a_unit_that_cannot_be_sent_to_a_child_costs_itself_alone(tmp_path: Path) -> None:
    locked = Unit(Add(threading.Lock()), "locked", key="0" * 32)  # type: ignore[arg-type]
    beside = Unit(Add(3), "beside")
    outcome, _, _ = run(in_children, [locked, beside], tmp_path)
    assert outcome.finished == {beside.key}
    assert "TypeError" in outcome.failed[locked.key]


@pytest.mark.usefixtures("forked")
def test_a_child_that_hangs_is_ended_while_another_one_works(tmp_path: Path) -> None:
    beside = [Unit(Add(number), f"other {number}") for number in range(3)]
    outcome, seen = run_hanging(
        lambda events: in_children({}, events, Deadlines(4.0)), tmp_path, HangsFirst(str(tmp_path), "stop"), beside
    )
    assert len(outcome.finished) == 4
    retried = next(event for event in seen if event.kind is EventKind.UNIT_RETRIED)
    assert retried.label == "hangs"
    assert "the stated `time_limit_s`" in retried.detail


@pytest.mark.ray
def test_a_unit_that_fits_on_no_node_is_refused_before_anything_runs(ray_cluster: None) -> None:
    from dpaudit.actors.pool import RayPool

    for kind, said in ((Resources(64), "64 CPUs"), (Resources(1, 0.5), r"1 CPU and 0\.5 GPUs")):
        with pytest.raises(RunError, match=f"a unit needs {said} on one node, the cluster's nodes have 2 CPUs and 0"):
            RayPool({}, demand={Resources(): 1, kind: 1}, workers=None, events=EventStream())


@pytest.mark.nightly
@pytest.mark.ray
def test_a_node_that_is_gone_for_good_is_not_waited_for_for_ever(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can run elsewhere does first; then it is said which node is missing, and what to do."""
    from dpaudit.actors import pool as pools
    from dpaudit.actors.pool import Nodes

    looks = iter([Nodes(({"CPU": 2.0, "GPU": 1.0},))])
    monkeypatch.setattr(pools, "_nodes", lambda: next(looks, Nodes(({"CPU": 2.0},))))
    monkeypatch.setattr(pools, "COUNT_S", 0.1)
    here, gone = Unit(Add(1), "here"), Unit(Add(2), "gone", resources=Resources(1, 0.5))
    seen: list[Event] = []

    def note(event: Event) -> None:
        seen.append(event)
        if event.kind is EventKind.UNIT_DONE:  # a worker may take long to come up, a node that is gone never comes
            monkeypatch.setattr(pools, "START_TIMEOUT_S", 1.0)

    events, store = EventStream(note), UnitStore(tmp_path)
    pool = pools.RayPool({}, demand={Resources(): 1, gone.resources: 1}, workers=1, events=events)
    try:
        with pytest.raises(RunError, match=r"holds a unit of 1 CPU and 0\.5 GPUs must join within 1 s, none did"):
            run_units([gone, here], pool, store, events)
    finally:
        pool.close()
    assert store.finished([here.key, gone.key]) == {here.key}
    said = [event.detail for event in seen if event.kind is EventKind.STAGE]
    assert said == [
        "no node of the cluster holds a unit of 1 CPU and 0.5 GPUs; one is waited for, 300 s when nothing else runs"
    ]


@pytest.mark.nightly
@pytest.mark.ray
def test_idle_workers_make_room_for_one_of_another_kind(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both CPUs are held by workers with nothing to do, and the unit that is left needs both."""
    from dpaudit.actors import pool as pools

    monkeypatch.setattr(pools.Nodes, "rooms", lambda nodes, demand: dict.fromkeys(demand, 2))
    monkeypatch.setattr(pools, "YIELD_S", 0.5)
    monkeypatch.setattr(pools, "START_TIMEOUT_S", 20.0)
    first = Unit(Add(1), "first")
    last = Unit(Add(2), "last", needs=(first.key,), resources=Resources(2))
    events, store = EventStream(), UnitStore(tmp_path)
    pool = pools.RayPool({}, demand={Resources(): 1, Resources(2): 1}, workers=2, events=events)
    try:
        outcome = run_units([first, last], pool, store, events)
    finally:
        pool.close()
    assert store.read(last.key)["total"][0].as_py() == 3
    assert outcome.failed == {}


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


def test_no_unit_writes_to_what_another_one_is_given(make_backend: MakeBackend, tmp_path: Path) -> None:
    array = np.ones(1000)
    writing, reading = Unit(WritesToItsInput(), "writes", shared=("array",)), Unit(Add(0), "reads", shared=("one",))
    outcome, _, _ = run(make_backend, [writing, reading], tmp_path, array=array, one=1)
    assert "ValueError" in outcome.failed[writing.key]
    assert outcome.finished == {reading.key}
    assert array.sum() == 1000


def test_code_that_leaves_fails_its_own_unit_alone(make_backend: MakeBackend, tmp_path: Path) -> None:
    leaving = {
        error: Unit(Leaves(how), how)
        for how, error in {"exit": "SystemExit", "generator": "GeneratorExit", "interrupt": "KeyboardInterrupt"}.items()
    }
    beside = Unit(Add(5), "")
    outcome, _, _ = run(make_backend, [*leaving.values(), beside], tmp_path)
    assert outcome.finished == {beside.key}
    assert all(error in outcome.failed[unit.key] for error, unit in leaving.items())


def test_an_error_is_kept_in_a_length_and_in_characters_that_can_be_read(tmp_path: Path) -> None:
    unit = Unit(Says(50), "verbose")
    outcome, store, _ = run(in_process, [unit], tmp_path)
    recorded = store.failures()[unit.key]
    assert recorded == outcome.failed[unit.key].strip()
    assert len(recorded) < 21_000
    assert "ValueError: beginning \\udc80" in recorded
    assert recorded.rstrip().endswith("end")
    assert "\n... 49,98" in recorded


@pytest.mark.parametrize("own", [True, False])
def test_units_are_run_twice_and_compared(tmp_path: Path, own: bool) -> None:
    units = [Unit(Draws(seed, own), f"draws {seed}") for seed in range(4)]
    seen: list[Event] = []
    events, store = EventStream(seen.append), UnitStore(tmp_path)
    outcome = run_units(units, InProcess({}), store, events, repeats=2)
    assert outcome.ran == 4
    repeated = [event for event in seen if event.kind is EventKind.UNIT_REPEATED]
    assert [event.unit for event in sorted(repeated, key=lambda event: event.label)] == [unit.key for unit in units[:2]]
    assert {event.detail == "" for event in repeated} == {own}


class TwoWorkers(InProcess):
    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        return 4 - len(self._queue)


@pytest.mark.parametrize("own", [True, False])
def test_of_code_of_ours_one_unit_run_twice_on_the_way_is_enough(tmp_path: Path, own: bool) -> None:
    units = [Unit(Add(number), f"unit {number}") for number in range(5)]
    assert all(unit.user_code for unit in units)
    units = units if own else [replace(unit, user_code=()) for unit in units]
    seen: list[Event] = []
    run_units(units, TwoWorkers({}), UnitStore(tmp_path), EventStream(seen.append), repeats=2)
    assert len([event for event in seen if event.kind is EventKind.UNIT_REPEATED]) == 1 + own


def test_a_unit_is_run_twice_where_a_worker_would_wait_for_another(tmp_path: Path) -> None:
    first = Unit(Add(1), "first")
    last = Unit(Add(2), "last", needs=(first.key,))
    seen: list[Event] = []
    run_units([first, last], TwoWorkers({}), UnitStore(tmp_path), EventStream(seen.append), repeats=1)
    shown = {EventKind.UNIT_STARTED, EventKind.UNIT_DONE, EventKind.UNIT_REPEATED}
    assert [f"{event.kind} {event.label}" for event in seen if event.kind in shown] == [
        "unit-started first",
        "unit-done first",
        "unit-started last",
        "unit-started first",
        "unit-done last",
        "unit-repeated first",
    ]


def test_what_takes_long_is_not_run_twice(tmp_path: Path) -> None:
    units = [Unit(Add(number, 0.02), f"sleeps {number}") for number in range(3)]
    seen: list[Event] = []
    events = EventStream(seen.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit.actors.schedule.REPEAT_BUDGET_S", 0.01)
        patch.setattr("dpaudit.actors.schedule.REPEAT_BUDGET_SHARE", 0.0)
        run_units(units, InProcess({}), UnitStore(tmp_path), events, repeats=2)
    assert not [event for event in seen if event.kind is EventKind.UNIT_REPEATED]


def run_hanging(make: Any, folder: Path, task: HangsFirst, beside: list[Unit]) -> tuple[RunOutcome, list[Event]]:
    seen: list[Event] = []
    events, store = EventStream(seen.append), UnitStore(folder / "units")
    with make(events) as backend:
        return run_units([Unit(task, "hangs"), *beside], backend, store, events), seen


def test_a_unit_that_hangs_in_this_process_is_ended_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.actors.backend.REMIND_S", 0.01)

    @contextmanager
    def limited(events: EventStream) -> Iterator[Backend]:
        yield InProcess({}, events=events, deadlines=Deadlines(0.5))

    outcome, seen = run_hanging(limited, tmp_path, HangsFirst(str(tmp_path)), [])
    assert len(outcome.finished) == 1
    retried = next(event for event in seen if event.kind is EventKind.UNIT_RETRIED)
    assert "still running after 0.5 s" in retried.detail
    assert [event for event in seen if event.kind is EventKind.UNIT_RUNNING]


def test_an_alarm_of_somebody_else_goes_on(tmp_path: Path) -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 300)
    try:
        backend = InProcess({}, deadlines=Deadlines(5.0))
        run_units([Unit(Add(1), "")], backend, UnitStore(tmp_path), EventStream())
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 300
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_unit_that_hangs_on_a_worker_is_ended_and_what_waited_behind_it_is_not_blamed(
    ray_cluster: None, tmp_path: Path
) -> None:
    """One worker: the unit behind the one that hangs waits for it, and never counts as lost."""
    outcome, seen = run_hanging(
        lambda events: on_ray({}, events, Deadlines(8.0)), tmp_path, HangsFirst(str(tmp_path)), [Unit(Add(1), "b")]
    )
    assert len(outcome.finished) == 2
    retried = next(event for event in seen if event.kind is EventKind.UNIT_RETRIED)
    assert retried.label == "hangs"
    assert "the stated `time_limit_s`" in retried.detail
    assert not [event for event in seen if event.kind is EventKind.WORKER_LOST]


@pytest.mark.nightly
@pytest.mark.ray
def test_a_worker_that_dies_while_it_starts_is_replaced(ray_cluster: None, tmp_path: Path) -> None:
    """Killed right after it was asked for; the pool asks for another."""
    from dpaudit.actors import pool as pools

    seen: list[Event] = []
    with on_ray({}, EventStream(seen.append)) as backend:
        assert isinstance(backend, pools.RayPool)
        (slot,) = backend._slots
        pools.ray.kill(slot.actor)
        outcome = run_units([Unit(Add(4), "")], backend, UnitStore(tmp_path), EventStream(seen.append))
    assert len(outcome.finished) == 1
    assert not [event for event in seen if event.kind is EventKind.WORKER_LOST]


def test_a_limit_is_learned_from_units_of_the_same_kind() -> None:
    deadlines, unit = Deadlines(), Unit(Add(1), "")
    assert deadlines.limit_s(unit) is None
    deadlines.learn(unit, 100.0)
    deadlines.learn(unit, 40.0)
    assert deadlines.limit_s(Unit(Add(2), "")) == 3000.0
    assert deadlines.limit_s(Unit(Draws(1), "")) is None
    assert Deadlines(5.0).limit_s(unit) == 5.0


def test_a_log_cut_short_by_a_kill_is_read_up_to_there(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log(Event(EventKind.UNIT_DONE, "k", seconds=1.5))
    log.close()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "unit-do"})[:10])
    assert [(event.kind, event.seconds) for event in read_events(tmp_path / "events.jsonl")] == [
        (EventKind.UNIT_DONE, 1.5)
    ]


def test_held_units_wait_for_others_and_are_spared_when_nothing_else_is_left(tmp_path: Path) -> None:
    first, waits, never = Unit(Add(1), "first"), Unit(Add(2), "waits"), Unit(Add(3), "never")
    seen: list[Event] = []

    def hold(finished: Set[str], failed: Set[str]) -> Set[str]:
        return {never.key} if first.key in finished else {waits.key, never.key}

    events = EventStream(seen.append)
    outcome = run_units([waits, never, first], InProcess({}), UnitStore(tmp_path), events, defer=hold)
    assert [event.label for event in seen if event.kind is EventKind.UNIT_STARTED] == ["first", "waits"]
    assert outcome.spared == {never.key}
    assert outcome.failed == {}
