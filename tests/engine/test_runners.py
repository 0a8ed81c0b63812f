"""`runner: auto` chooses once between this process and Ray; results do not depend on the choice."""

from __future__ import annotations

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
from dpaudit.actors.unit import ResourceRequest, Resources, Unit
from dpaudit.engine.cli.main import RUNNERS
from dpaudit.engine.request.audit_spec import Runner, RunOptions
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import audit
from dpaudit.engine.run.runners import AutoBackend, ray_pays
from dpaudit.errors import RunError
from tests.actors.tasks import Add, FailsFirst

pytestmark = pytest.mark.usefixtures("code_read_once")

SPEC = "examples/violations/half-scale.yaml"


class Places:
    """Two backends, the first process and Ray, which report `seconds` for each unit."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.opened, self.closed, self.held = seconds, list[str](), list[str](), list[str]()

    def open(self, name: str, at_a_time: int = 1) -> InProcess:
        places = self

        class Place(InProcess):
            def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
                return at_a_time - len(self._queue)

            def wait(self) -> list[Completion]:
                assert name not in places.closed
                (completion,) = super().wait()
                return [replace(completion, attempt=replace(completion.attempt, seconds=places.seconds))]

            def hold(self, table: pa.Table) -> Handle:
                places.held.append(name)
                return [table] if name == "ray" else table

            def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
                assert all(isinstance(table, list) == (name == "ray") for table in tables)
                super().submit(unit, tuple(t[0] if isinstance(t, list) else t for t in tables), needed=needed)

            def close(self) -> None:
                assert not self._queue, "running units finish on their backend"
                places.closed.append(name)

        self.opened.append(name)
        return Place({})

    def ray(self) -> InProcess:
        return self.open("ray", 4)


class WithoutRay(Places):
    def ray(self) -> InProcess:
        self.opened.append("ray")
        raise RunError("a local Ray session did not start")


def chosen(places: Places, folder: Path, count: int = 20, cap_s: float | None = None) -> list[str]:
    """Run `count` units and one that needs them all; return the stages that were emitted."""
    stages: list[str] = []

    def hear(event: Event) -> None:
        if event.kind is EventKind.STAGE:
            stages.append(event.detail)

    first = [Unit(Add(number), f"unit {number}") for number in range(count)]
    last = Unit(Add(0), "last", needs=tuple(unit.key for unit in first))
    backend = AutoBackend([*first, last], 2, places.open("first"), places.ray, EventStream(hear), cap_s)
    store = UnitStore(folder)
    outcome = run_units([*first, last], backend, store, EventStream())
    assert len(outcome.finished) == count + 1
    assert store.read(last.key)["total"][0].as_py() == sum(range(count))
    return stages


@pytest.mark.parametrize(
    ("left_s", "workers", "pays"),
    [(0, 8, False), (83, 2, False), (84, 2, True), (47, 8, False), (48, 8, True), (1e5, 1, False)],
)
def test_ray_pays_if_the_run_ends_30_s_earlier(left_s: float, workers: int, pays: bool) -> None:
    assert ray_pays(left_s, workers) is pays


def test_long_work_goes_to_ray_once_two_units_were_timed(tmp_path: Path) -> None:
    places = Places(60.0)
    assert chosen(places, tmp_path) == ["about 1140 s of work are left: Ray runs the rest"]
    assert (places.opened, places.closed) == (["first", "ray"], ["first"])


@pytest.mark.parametrize(("seconds", "count"), [(0.1, 20), (3.0, 20), (60.0, 1)])
def test_short_work_stays_in_the_first_process(tmp_path: Path, seconds: float, count: int) -> None:
    places = Places(seconds)
    assert chosen(places, tmp_path, count) == []
    assert (places.opened, places.closed) == (["first"], [])


def test_the_choice_is_made_once(tmp_path: Path) -> None:
    """Later units that take longer do not change the choice."""
    places = Places(3.0)
    units = [Unit(Add(number), f"unit {number}") for number in range(20)]

    def grow(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE and event.label == "unit 5":
            places.seconds = 600.0

    assert in_places(places, units, tmp_path, grow).ran == 20
    assert places.opened == ["first"]


def test_without_ray_the_rest_runs_in_the_first_process(tmp_path: Path) -> None:
    """Ray is tried once; started units finish."""
    places = WithoutRay(100.0)
    stages = chosen(places, tmp_path)
    assert (places.opened, places.closed) == (["first", "ray"], [])
    assert stages[-1] == "Ray does not start, the rest runs in one process: a local Ray session did not start"


def test_work_beyond_a_cap_is_no_reason_for_ray(tmp_path: Path) -> None:
    """With 1,140 s of work, a cap of 40 s allows 80 s on two workers."""
    places = Places(60.0)
    assert chosen(places, tmp_path, cap_s=40.0) == []
    assert places.opened == ["first"]


def in_places(
    places: Places, units: list[Unit], folder: Path, listener: Callable[[Event], None] | None = None, **more: Any
) -> RunOutcome:
    """Run units in the first process, or on Ray after the choice."""
    backend = AutoBackend(units, 2, places.open("first"), places.ray, EventStream())
    events = EventStream() if listener is None else EventStream(listener)
    return run_units(units, backend, UnitStore(folder / "units"), events, **more)


def test_a_result_that_many_need_is_put_on_ray_once(tmp_path: Path) -> None:
    first = Unit(Add(1), "first")
    users = [Unit(Add(number), f"user {number}", needs=(first.key,)) for number in range(9)]
    places = Places(200.0)
    outcome = in_places(places, [first, *users], tmp_path)
    assert len(outcome.finished) == 10
    assert places.opened == ["first", "ray"]
    assert places.held.count("ray") == 1


def test_repeated_units_do_not_start_ray(tmp_path: Path) -> None:
    """Three of many units run and one of them is repeated in the first process; the others are skipped."""
    units = [Unit(Add(number), f"unit {number}") for number in range(1000)]
    rest = {unit.key for unit in units[3:]}
    places, emitted = Places(1.9), list[Event]()
    outcome = in_places(
        places,
        units,
        tmp_path,
        emitted.append,
        skip=lambda finished, failed: rest if len(finished) > 2 else frozenset(),
        repeats=1,
    )
    assert outcome.ran == 3
    assert [event.kind for event in emitted].count(EventKind.UNIT_REPEATED) == 1
    assert places.opened == ["first"]


def test_failed_units_are_not_counted_as_work(tmp_path: Path) -> None:
    """Most units fail at once, so little work remains."""
    folders = [tmp_path / str(number) for number in range(63)]  # the task's name is that of its kind
    for folder in folders:
        folder.mkdir()
    failing = [Unit(FailsFirst(str(folder), "same", 9, "bug"), "bug") for folder in folders[:60]]
    few = [Unit(FailsFirst(str(folder), "same", 0, "bug"), "works") for folder in folders[60:]]
    places = Places(10.0)
    outcome = in_places(places, [*failing, *few], tmp_path)
    assert (len(outcome.failed), outcome.ran) == (60, 3)
    assert places.opened == ["first"]


def test_auto_is_ray_for_a_gpu_or_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert RunOptions().runner_if_settled() == "auto"
    assert RunOptions(resources=ResourceRequest(gpus=0.5)).runner_if_settled() == "ray"
    assert RunOptions(address="ray://head:10001").runner_if_settled() == "ray"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert RunOptions().runner_if_settled() == "ray"
    assert RunOptions(runner="in-process").runner_if_settled() == "in-process"


def test_the_command_line_has_the_runners_of_the_spec() -> None:
    assert set(RUNNERS) == set(get_args(Runner))


def test_scores_do_not_depend_on_the_runner(tmp_path: Path) -> None:
    spec, files = load_spec(Path(SPEC)), []
    for runner in ("auto", "in-process", "processes"):
        options = RunOptions(runner=runner, workers=2, figures=False)  # type: ignore[arg-type]
        audit(replace(spec, run=options), output=tmp_path / runner, quiet=True)
        files.append({path.name: path.read_bytes() for path in (tmp_path / runner / "units").glob("*.parquet")})
    assert files[0]
    assert files[0] == files[1] == files[2]
