"""`runner: auto`: where units begin, when they move, and that the results are the same wherever they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from dpaudit.actors.backend import Completion, Handle, InProcess
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.schedule import RunOutcome, run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.engine.cli.main import RUNNERS
from dpaudit.engine.request.audit_spec import Runner, RunOptions
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import audit
from dpaudit.engine.run.moving import Moving, place_for
from dpaudit.errors import InputError, RunError
from tests.actors.tasks import Add, FailsFirst

pytestmark = pytest.mark.usefixtures("code_read_once")

SPEC = "examples/violations/half-scale.yaml"


class Places:
    """Three places whose clocks are made up: each unit is said to take `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.opened, self.closed, self.held = seconds, list[str](), list[str](), list[str]()

    def opens(self, name: str, at_a_time: int = 1) -> Callable[..., InProcess]:
        places = self

        class Place(InProcess):
            def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
                return at_a_time - len(self._queue)

            def wait(self) -> list[Completion]:
                assert name not in places.closed
                (done,) = super().wait()
                return [replace(done, attempt=replace(done.attempt, seconds=places.seconds))]

            def hold(self, table: pa.Table) -> Handle:
                places.held.append(name)
                return [table] if name == "ray" else table

            def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
                assert all(isinstance(table, list) == (name == "ray") for table in tables)
                super().submit(unit, tuple(t[0] if isinstance(t, list) else t for t in tables), needed=needed)

            def close(self) -> None:
                assert not self._queue, "what is in flight ends where it began"
                places.closed.append(name)

        def opened(*_: int) -> InProcess:
            self.opened.append(name)
            return Place({})

        return opened


def moved(seconds: float, folder: Path, count: int = 20) -> tuple[Places, list[str]]:
    """The places of a run whose units took so long each, and what was said."""
    places, said = Places(seconds), list[str]()

    def hear(event: Event) -> None:
        if event.kind is EventKind.STAGE:
            said.append(event.detail)

    first = [Unit(Add(number), f"unit {number}") for number in range(count)]
    last = Unit(Add(0), "last", needs=tuple(unit.key for unit in first))
    here, beside, ray = places.opens("here"), places.opens("processes", 2), places.opens("ray", 4)
    backend, store = Moving([*first, last], 2, here, beside, ray, EventStream(hear)), UnitStore(folder)
    outcome = run_units([*first, last], backend, store, EventStream())
    assert len(outcome.finished) == count + 1
    assert store.read(last.key)["total"][0].as_py() == sum(range(count))
    return places, said


def test_where_ray_does_not_come_up_work_goes_on_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once; whatever was begun is finished."""
    opens = Places.opens

    def fails(self: Places, name: str, at_a_time: int = 1) -> Callable[..., InProcess]:
        def refused(*_: int) -> InProcess:
            self.opened.append(name)
            raise RunError("a local Ray session must come up")

        return refused if name == "ray" else opens(self, name, at_a_time)

    monkeypatch.setattr(Places, "opens", fails)
    places, said = moved(100.0, tmp_path)
    assert (places.opened, places.closed) == (["here", "ray", "processes"], ["here"])
    assert said[-1] == "going on in 2 processes: a local Ray session must come up"


@pytest.mark.parametrize(
    ("left_s", "workers", "place"),
    [
        (0, 8, "here"),
        (11.9, 2, "here"),
        (12, 2, "processes"),
        (239, 2, "processes"),
        (240, 2, "ray"),
        (60, 1, "here"),
        (7, 8, "processes"),
        (959, 8, "processes"),
        (960, 8, "ray"),
        (100_000, 1, "here"),
    ],
)
def test_work_goes_where_it_ends_first(left_s: float, workers: int, place: str) -> None:
    assert place_for(left_s, workers) == place


def test_short_work_stays(tmp_path: Path) -> None:
    places, said = moved(0.1, tmp_path)
    assert (places.opened, said) == (["here"], [])


def test_longer_work_moves_to_processes_once_two_units_were_timed(tmp_path: Path) -> None:
    places, said = moved(2.0, tmp_path)
    assert (places.opened, places.closed) == (["here", "processes"], ["here"])
    assert said == ["moving to 2 processes: about 38 s of work are left"]


def test_long_work_moves_to_ray(tmp_path: Path) -> None:
    places, said = moved(60.0, tmp_path)
    assert (places.opened, places.closed) == (["here", "ray"], ["here"])
    assert len(said) == 1
    assert said[0].startswith("moving to Ray")


def test_the_first_unit_may_have_loaded_libraries(tmp_path: Path) -> None:
    """One unit of 4 s says nothing of the others: two do."""
    assert moved(3.0, tmp_path / "two")[1] == ["moving to 2 processes: about 57 s of work are left"]
    assert moved(3.0, tmp_path / "one", count=1)[1] == []


def in_places(
    places: Places, units: list[Unit], folder: Path, listener: Callable[[Event], None] | None = None, **more: Any
) -> RunOutcome:
    """What became of units that begin in the first place."""
    here, beside, ray = places.opens("here"), places.opens("processes", 2), places.opens("ray", 4)
    backend = Moving(units, 2, here, beside, ray, EventStream())
    events = EventStream() if listener is None else EventStream(listener)
    return run_units(units, backend, UnitStore(folder / "units"), events, **more)


def test_a_result_that_many_need_is_put_on_ray_once(tmp_path: Path) -> None:
    first = Unit(Add(1), "first")
    users = [Unit(Add(number), f"user {number}", needs=(first.key,)) for number in range(9)]
    places = Places(200.0)
    outcome = in_places(places, [first, *users], tmp_path)
    assert len(outcome.finished) == 10
    assert places.opened == ["here", "ray"]
    assert places.held.count("ray") == 1


def test_nobody_waits_for_ray_to_repeat_a_unit(tmp_path: Path) -> None:
    """Two of many units are run and the others spared; one of the two is run once more, where it was."""
    units = [Unit(Add(number), f"unit {number}") for number in range(1000)]
    rest = {unit.key for unit in units[2:]}
    places, seen = Places(1.9), list[Event]()
    outcome = in_places(
        places,
        units,
        tmp_path,
        seen.append,
        spare=lambda finished, failed: rest if len(finished) > 1 else frozenset(),
        repeats=1,
    )
    assert outcome.ran == 2
    assert [event.kind for event in seen].count(EventKind.UNIT_REPEATED) == 1
    assert places.opened == ["here"]


def test_units_that_failed_are_not_waited_for(tmp_path: Path) -> None:
    """Most units fail at once: what is left is not counted as work."""
    folders = [tmp_path / str(number) for number in range(63)]  # the task's name is that of its kind
    for folder in folders:
        folder.mkdir()
    failing = [Unit(FailsFirst(str(folder), "same", 9, "bug"), "bug") for folder in folders[:60]]
    few = [Unit(FailsFirst(str(folder), "same", 0, "bug"), "works") for folder in folders[60:]]
    places = Places(1.0)
    outcome = in_places(places, [*failing, *few], tmp_path)
    assert (len(outcome.failed), outcome.ran) == (60, 3)
    assert places.opened == ["here"]


def test_a_gpu_or_a_cluster_means_ray_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert RunOptions().settled_runner() == "auto"
    assert RunOptions(gpus_per_worker=0.5).settled_runner() == "ray"
    assert RunOptions(address="ray://head:10001").settled_runner() == "ray"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert RunOptions().settled_runner() == "ray"
    assert RunOptions(runner="in-process").settled_runner() == "in-process"


def test_processes_do_not_share_gpus() -> None:
    with pytest.raises(InputError, match="a unit with a GPU must run on Ray or in-process, got 'processes'"):
        RunOptions(runner="processes", gpus_per_worker=0.5)


def test_the_command_line_offers_what_a_spec_may_say() -> None:
    assert set(RUNNERS) == set(get_args(Runner))


def test_the_same_bytes_whatever_ran_it(tmp_path: Path) -> None:
    spec, files = load_spec(Path(SPEC)), []
    for runner in ("auto", "in-process", "processes"):
        options = RunOptions(runner=runner, workers=2, figures=False)  # type: ignore[arg-type]
        audit(replace(spec, run=options), output=tmp_path / runner, quiet=True)
        files.append({path.name: path.read_bytes() for path in (tmp_path / runner / "units").glob("*.parquet")})
    assert files[0]
    assert files[0] == files[1] == files[2]


def test_work_beyond_a_cap_is_no_reason_to_move() -> None:
    """Work that the cap of 60 s forbids is not counted: it would not be done on Ray either."""
    moving = Moving([], 4, lambda: None, lambda count: None, lambda: None, EventStream(), cap_s=60.0)  # type: ignore[arg-type, return-value]
    moving._left, moving._took = Counter(kind=1_000), {"kind": [5.0, 5.0, 5.0]}
    assert 200 < moving.left_s <= 240
    free = Moving([], 4, lambda: None, lambda count: None, lambda: None, EventStream())  # type: ignore[arg-type, return-value]
    free._left, free._took = moving._left, moving._took
    assert free.left_s == 5_000
