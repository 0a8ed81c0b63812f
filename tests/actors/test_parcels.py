"""Parcels of units give the same bytes as single units, and a fault affects only one unit."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpaudit.actors.backend import Backend, Deadlines, InProcess
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.schedule import RunOutcome, run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from tests.actors.tasks import Add, Draws, FailsFirst, HangsFirst

pytestmark = pytest.mark.usefixtures("code_read_once")

WORKERS = 2
COUNT = 60


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Number of units in each parcel that was sent."""
    from dpaudit.actors import pool as pools

    sizes: list[int] = []
    give = pools.RayPool._send

    def counting(pool: pools.RayPool, slot: object, jobs: list[object]) -> None:
        sizes.append(len(jobs))
        give(pool, slot, jobs)  # type: ignore[arg-type]

    monkeypatch.setattr(pools.RayPool, "_send", counting)
    return sizes


class SimulatedPool:
    """Pool with ready workers and without Ray, which records the sizes of parcels."""

    def __init__(self, workers: int, takes: dict[str, float]) -> None:
        from dpaudit.actors import pool as pools

        self.pool = pool = pools.RayPool.__new__(pools.RayPool)
        self.slots = [pools._WorkerSlot(Resources(), None, 0.0, ready=True) for _ in range(workers)]
        pool._slots, pool._starting = dict.fromkeys(self.slots), {}
        pool._median_s, pool._longest_s, pool._schedulable, pool._flights = takes, {}, {}, {}
        pool._waiting = defaultdict(deque)
        pool._alone, pool._shared, pool._refused = set(), {}, {}
        pool._send = self._record  # type: ignore[method-assign]
        self.parcels: list[int] = []

    def _record(self, slot: Any, jobs: Any) -> None:
        slot.parcels.append(jobs)
        self.parcels.append(len(jobs))

    def submit_all(self, units: deque[Unit]) -> None:
        """Submit units as the schedule does."""
        while units and (room := self.pool.capacity(Resources(), len(units), units[0].kind_of_work)) > 0:
            for _ in range(min(room, len(units))):
                self.pool.submit(units.popleft(), (), needed=False)
        self.pool._send_waiting()


def some(count: int) -> deque[Unit]:
    return deque([Unit(Add(1), "one")] * count)


def test_the_size_of_a_parcel_follows_the_driver_and_the_share() -> None:
    pool = SimulatedPool(1024, {"nap": 0.5}).pool
    assert pool._size("nap", 1000) == 64  # 32 s: no more than 32 parcels come back in a second
    assert pool._size("nap", 3) == 3
    assert pool._size("other", 1000) == 1
    few = SimulatedPool(2, {"nap": 0.5}).pool
    assert [few._size("nap", count) for count in (0, 3, 100)] == [1, 3, 4]


@pytest.mark.parametrize(
    ("waiting", "first", "remaining"), [(16, [2] * 8, 0), (400, [50] * 8, 0), (2000, [100] * 8, 1200)]
)
def test_no_worker_gets_more_than_half_its_share(waiting: int, first: list[int], remaining: int) -> None:
    """With four workers and units of 0.02 s, 100 units fill a parcel."""
    simulated, units = SimulatedPool(4, {"Add": 0.02}), some(waiting)
    simulated.submit_all(units)
    assert (simulated.parcels, len(units)) == (first, remaining)
    assert simulated.pool.capacity(Resources(), len(units), "Add") <= 0
    assert not simulated.pool._waiting[Resources()]


def test_returned_units_are_distributed_again() -> None:
    simulated = SimulatedPool(4, {"Add": 0.02})
    simulated.submit_all(some(400))
    for slot in simulated.slots:
        slot.parcels.clear()
    simulated.parcels.clear()
    simulated.pool._waiting[Resources()].extend((unit, (), False) for unit in some(40))
    simulated.pool._send_waiting()
    assert simulated.parcels == [5] * 8


def test_units_without_a_place_wait_in_order() -> None:
    simulated = SimulatedPool(2, {"Add": 5.0})
    jobs = [(Unit(Add(number), f"{number}"), (), False) for number in range(7)]
    simulated.pool._waiting[Resources()].extend(jobs)
    simulated.pool._send_waiting()
    assert simulated.parcels == [1] * 4
    assert [unit.label for unit, *_ in simulated.pool._waiting[Resources()]] == ["4", "5", "6"]
    assert simulated.pool.capacity(Resources(), 9, "Add") == -3


def test_units_are_sent_one_by_one_until_one_was_timed() -> None:
    simulated, units = SimulatedPool(10, {}), some(500)
    simulated.submit_all(units)
    assert simulated.parcels == [1] * 10
    assert len(units) == 490


def test_long_units_are_not_queued_behind_others() -> None:
    """One unit of a minute suffices: the next ones of its function may be as long, however short the median is."""
    simulated, units = SimulatedPool(10, {"Add": 5.0}), some(500)
    simulated.pool._longest_s["Add"] = 60.0
    simulated.submit_all(units)
    assert simulated.parcels == [1] * 10


def units_of(*odd: Unit) -> list[Unit]:
    """Return small units with the odd ones in the middle, and two units that need results of others."""
    small = [Unit(Add(number), f"small {number}") for number in range(COUNT)]
    random_units = [Unit(Draws(number), f"drawn {number}") for number in range(COUNT)]
    last = [Unit(Add(7), f"last {many}", needs=tuple(unit.key for unit in small[: 10 * many])) for many in (1, 2)]
    return [*small[:40], *odd, *small[40:], *random_units, *last]


def on_ray(
    folder: Path, units: list[Unit], deadlines: Deadlines | None = None, *, shared_folder: bool = True
) -> tuple[RunOutcome, list[Event]]:
    from dpaudit.actors.pool import RayPool

    events_seen: list[Event] = []
    events, store = EventStream(events_seen.append), UnitStore(folder)
    reached = store if shared_folder else None
    pool = RayPool(
        {}, demand={Resources(): len(units)}, workers=WORKERS, events=events, deadlines=deadlines, store=reached
    )
    try:
        return run_units(units, pool, store, events), events_seen
    finally:
        pool.close()


def run_in(folder: Path, units: list[Unit], backend: Backend) -> None:
    try:
        run_units(units, backend, UnitStore(folder), EventStream())
    finally:
        backend.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_processes_give_the_same_bytes(tmp_path: Path) -> None:
    units = units_of()
    run_in(tmp_path / "here", units, InProcess({}))
    run_in(tmp_path / "children", units, ChildProcesses({}, None, EventStream(), Deadlines(), WORKERS))
    assert len(files(tmp_path / "here")) == len(units)
    assert files(tmp_path / "children") == files(tmp_path / "here")


@pytest.mark.nightly
@pytest.mark.ray
def test_parcels_of_any_size_give_the_same_bytes(
    ray_cluster: None, tmp_path: Path, sized: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers or the driver write the files, and no other files remain."""
    units = units_of()
    run_in(tmp_path / "here", units, InProcess({}))
    expected = files(tmp_path / "here")
    for name, seconds, shared_folder in (("single", 0.0, True), ("large", 2.0, True), ("driver", 2.0, False)):
        sized.clear()
        monkeypatch.setattr("dpaudit.actors.pool.PARCEL_S", seconds)
        monkeypatch.setattr("dpaudit.actors.pool.PARCELS_A_SECOND", 1e9)
        outcome, events = on_ray(tmp_path / name, units, shared_folder=shared_folder)
        assert files(tmp_path / name) == expected
        assert outcome.ran == len(units)
        assert len(units) <= sum(sized) < 2 * len(units)  # what a slow worker hands back is given again
        assert (max(sized) == 1) if name == "single" else (max(sized) >= 5), sized
        ends = [event for event in events if event.kind is EventKind.UNIT_DONE]
        assert {event.unit for event in ends} == {unit.key for unit in units}
        assert len(ends) == len(units)
        assert not [event for event in events if event.kind is EventKind.UNIT_REMARKED]


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("shared_folder", [True, False])
def test_a_fault_in_a_parcel_affects_only_its_unit(
    ray_cluster: None, tmp_path: Path, sized: list[int], shared_folder: bool
) -> None:
    """One unit kills its worker once, one always, one fails always and one once, among timed units."""
    run_folder, folder = tmp_path / "units", str(tmp_path)
    first = [Unit(FailsFirst(folder, f"fine {number}", 0, ""), f"fine {number}") for number in range(40)]
    dies = Unit(FailsFirst(folder, "dies", 1, "die"), "dies once")
    deadly = Unit(FailsFirst(folder, "deadly", 99, "die"), "deadly")
    fails = Unit(FailsFirst(folder, "fails", 99, "bug"), "fails")
    flaky = Unit(FailsFirst(folder, "flaky", 1, "training"), "flaky")
    units = units_of(*first[:20], dies, *first[20:30], deadly, fails, *first[30:], flaky)
    outcome, events = on_ray(run_folder, units, shared_folder=shared_folder)
    assert max(sized) >= 5, sized
    assert outcome.failed.keys() == {deadly.key, fails.key}
    assert "workers died while they ran this unit" in outcome.failed[deadly.key]
    assert outcome.finished == {unit.key for unit in units} - outcome.failed.keys()
    retried = {event.label for event in events if event.kind is EventKind.UNIT_RETRIED}
    assert retried == {"flaky"}
    lost_labels = [event.label for event in events if event.kind is EventKind.WORKER_LOST]
    if shared_folder:  # the driver knows the finished units, so it knows the running one
        assert set(lost_labels) == {"dies once", "deadly"}
    assert len(lost_labels) <= 1 + 4 + 2


@pytest.mark.nightly
@pytest.mark.ray
def test_a_hanging_unit_in_a_parcel_is_ended_and_the_rest_continues(
    ray_cluster: None, tmp_path: Path, sized: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.actors.pool.PATIENCE_S", 1.0)
    monkeypatch.setattr("dpaudit.actors.pool.PARCEL_S", 1.0)
    (tmp_path / "fine").mkdir()
    first = [Unit(HangsFirst(str(tmp_path / "fine"), f"{number}", 0.0), f"fine {number}") for number in range(30)]
    hangs = Unit(HangsFirst(str(tmp_path), "sleep", 1e6), "hangs")
    units = [*first[:20], hangs, *first[20:]]
    outcome, events = on_ray(tmp_path / "units", units, Deadlines(8.0))
    assert max(sized) >= 2, sized
    assert outcome.finished == {unit.key for unit in units}
    assert not [event for event in events if event.kind is EventKind.WORKER_LOST]
    assert {event.label for event in events if event.kind is EventKind.UNIT_RETRIED} <= {"hangs"}


def test_a_folder_is_opened_only_with_its_mark(tmp_path: Path) -> None:
    store = UnitStore(tmp_path / "units")
    folder, mark = store.mark_for_workers()
    reached = UnitStore.open_marked(folder, mark)
    assert reached is not None
    reached.write("k", b"content")
    assert store.has_file("k")
    assert UnitStore.open_marked(folder, "0" * 32) is None
    (tmp_path / "units" / ".k.parquet.77.partial").touch()  # of a worker that was killed
    store.remove_worker_files()
    assert [path.name for path in (tmp_path / "units").iterdir()] == ["k.parquet"]
    assert UnitStore.open_marked(folder, mark) is None
    assert UnitStore.open_marked(str(tmp_path / "elsewhere"), mark) is None
    assert not (tmp_path / "elsewhere").exists()
