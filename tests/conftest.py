"""One Ray session for the whole run, however many test processes; started by the first test that asks for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.remote import bucket, s3_server  # noqa: F401

# Two workers on two cores: libraries that start threads of their own would fight over them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What this user made here is noted in their home: not in that of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpaudit-tests-")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    from dpaudit.cluster.session import ray_session

    with ray_session(cpus=2):
        yield


@pytest.fixture(autouse=True)
def _only_tests_marked_so_use_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own takes a test ten seconds and the cores from the rest: mark it `ray`, or run in process."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a test that uses Ray must be marked `ray` and ask for `ray_cluster`; or use runner='in-process'")

    if request.node.get_closest_marker("ray") is None:
        monkeypatch.setattr("dpaudit.cluster.session.ray_session", refuse)


@pytest.fixture(autouse=True)
def _figures_where_they_are_looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a small audit's time: tests that look at figures are marked `figures`."""
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr("dpaudit.engine.report.page._figures", lambda *_: [])
        monkeypatch.setattr("dpaudit.engine.report.page._saved", lambda *_: "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests stay in one process when pytest-xdist runs several (`--dist loadgroup`); the largest group begins.

    All that need Ray, so that one session is started; and those that share a fixture of their module, so that what is
    dear to make is made once. Any other test goes wherever there is room.
    """
    on_ray = {module for item in items if _needs_ray(item) for module in _shares(item)}
    for item in items:
        shared = _shares(item)
        if _needs_ray(item) or shared & on_ray:
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif shared:
            item.add_marker(pytest.mark.xdist_group(min(shared)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses a pytest whose items pytest-xdist cannot group: each process would start a Ray session of its own."""
    if session.config.getoption("loadgroup", False):
        lost = [item for item in session.items if _needs_ray(item) and not item.nodeid.endswith("@ray")]
        assert not lost, "pytest-xdist does not know this pytest's items; install the one of constraints.txt"


def _needs_ray(item: pytest.Item) -> bool:
    return item.get_closest_marker("ray") is not None


def _shares(item: pytest.Item) -> set[str]:
    """The modules of the item's module-wide fixtures."""
    if not isinstance(item, pytest.Function):
        return set()
    made = item._fixtureinfo.name2fixturedefs.values()
    return {definition.baseid for several in made for definition in several if definition.scope == "module"}
