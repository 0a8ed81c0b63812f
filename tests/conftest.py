"""One Ray session for the whole run, however many test processes; started by the first test that asks for it."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import nightly
from tests.processes import processor_s
from tests.remote import bucket, checking_s3_server, s3_server  # noqa: F401
from tests.suite import RECORD_VARIABLE

# A shell that starts this in the background ignores SIGINT for it, and Python then leaves it ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Two workers on two cores: libraries that start threads of their own would fight over them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests must not write to the home folder of the user who runs them.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpaudit-tests-")

# Below click 8.2 a test is told either both outputs apart or both in one; from there on it has all three.
if "mix_stderr" in inspect.signature(CliRunner).parameters:
    CliRunner.__init__ = partialmethod(CliRunner.__init__, mix_stderr=False)  # type: ignore[method-assign, assignment]
    Result.output = property(lambda result: result.stdout + result.stderr)  # type: ignore[method-assign, assignment]

STARTED = pytest.StashKey[float]()
PROCESSOR_S = "processor_s"
HEAVY = ("ray", "cluster")
"""Marks of tests that bring up Ray: each kind in one process, one test after the other."""
OBJECTS_BEFORE_COLLECTION = 20_000
"""New objects before Python's garbage collection; the default is 700."""
PARALLEL_FROM = 4
"""Minimum number of processes to run the two kinds in parallel. On two cores they share one process: two parallel
starts of Ray occupy both cores for half a minute, and a session that fails to start fails all its tests."""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    from dpaudit.cluster.session import ray_session

    with ray_session(cpus=2):
        yield


@pytest.fixture(autouse=True)
def _only_tests_marked_so_use_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse Ray sessions outside marked tests: a separate session takes ten seconds and all cores.

    Mark the test `ray`, or run in process. A test marked `cluster` has its drivers in separate processes.
    """

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a test that uses Ray must be marked `ray` and ask for `ray_cluster`; or use runner='in-process'")

    if request.node.get_closest_marker("ray") is None:
        monkeypatch.setattr("dpaudit.cluster.session.ray_session", refuse)


@pytest.fixture
def code_read_once() -> Iterator[None]:
    """For tests that make many units by hand: a plan reads the code behind its units once, a lone unit each time."""
    from dpaudit.actors.fingerprint import read_once

    with read_once():
        yield


@pytest.fixture(autouse=True)
def _figures_where_they_are_looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a small audit's time: tests that look at figures are marked `figures`."""
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr("dpaudit.engine.report.page._figures", lambda *_: [])
        monkeypatch.setattr("dpaudit.engine.report.page._save_figure", lambda *_: "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `nightly` outside `make nightly`, and group tests that must share a process.

    pytest-xdist runs each group in one process (`--dist loadgroup`), the largest group first. One group shares the Ray
    session, so that only one session starts. Another starts clusters, so that at most one cluster runs next to that
    session. Tests with a common module fixture form a group, so that an expensive fixture is built once. All other
    tests run in any process.
    """
    if later := [item for item in items if _is(item, "nightly") and not nightly.on()]:
        items[:] = [item for item in items if item not in later]
        config.hook.pytest_deselected(items=later)
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    heavy = {kind: {module for item in items if _is(item, kind) for module in _shares(item)} for kind in HEAVY}
    for item in items:
        shared = _shares(item)
        kinds = [kind for kind in HEAVY if _is(item, kind) or shared & heavy[kind]]
        if kinds or shared:
            item.add_marker(pytest.mark.xdist_group(heavy_group(kinds[0], processes) if kinds else min(shared)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Reject a pytest whose items pytest-xdist cannot group: each process would start a separate Ray session.

    Collected items are frozen: repeated garbage collection over them slows audits of many short units.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION, *gc.get_threshold()[1:])
    if session.config.getoption("loadgroup", False):
        groups = tuple(f"@{kind}" for kind in HEAVY)
        needing = [item for item in session.items if any(_is(item, kind) for kind in HEAVY)]
        ungrouped = [item for item in needing if not item.nodeid.endswith(groups)]
        assert not ungrouped, "pytest-xdist does not know this pytest's items; install the one of constraints.txt"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the processor seconds at the start of a test."""
    item.stash[STARTED] = processor_s()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Put the processor seconds of a test, its fixtures included, into its last report."""
    outcome = yield
    if call.when == "teardown":
        outcome.get_result().user_properties.append((PROCESSOR_S, processor_s() - item.stash[STARTED]))  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    """Record the seconds of every test in the file that `tests/suite.py` names; in the first process alone."""
    if (path := os.environ.get(RECORD_VARIABLE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimesRecorder(Path(path)))


class TimesRecorder:
    """Plugin of pytest: write the seconds of every test, of the clock and of the processor, to a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        times = self._tests.setdefault(report.nodeid.partition("@")[0], {"clock_s": 0.0, "processor_s": 0.0})
        times["clock_s"] += report.duration
        if report.when == "teardown":
            times["processor_s"] += dict(report.user_properties)[PROCESSOR_S]

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._tests, indent=1))


def heavy_group(kind: str, processes: int) -> str:
    """Return the group of a kind of `HEAVY` for this number of test processes."""
    return kind if processes >= PARALLEL_FROM else HEAVY[0]


def _is(item: pytest.Item, kind: str) -> bool:
    return item.get_closest_marker(kind) is not None


def _shares(item: pytest.Item) -> set[str]:
    """Return the modules of the item's module-wide fixtures."""
    if not isinstance(item, pytest.Function):
        return set()
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return {definition.baseid for several in definitions for definition in several if definition.scope == "module"}
