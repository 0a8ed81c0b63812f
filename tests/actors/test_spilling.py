"""What object stores write to disk is seen, told once each time it grows, and kept in the log."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dpaudit.actors import pool
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.pool import SpillWatch, spilled_bytes
from dpaudit.engine.run.run_status import _status
from tests.waiting import HANGS_S


def test_spilling_is_told_when_it_has_grown_and_from_the_beginning_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([7_000_000, 7_000_000, None, 25_900_000, 25_900_001, 95_000_000])
    monkeypatch.setattr(pool, "spilled_bytes", lambda: next(answers))
    heard: list[Event] = []
    watch = SpillWatch(EventStream(heard.append))
    for _ in range(5):
        watch.look(now=True)
    watch.look()  # too early to ask again
    assert [(event.kind, event.count) for event in heard] == [(EventKind.SPILLED, 18), (EventKind.SPILLED, 88)]
    assert next(answers, None) is None
    status = str(_status("run", 1, heard, None))
    assert "object stores wrote 88 MB to disk because memory was full" in status
    assert "wrote" not in str(_status("run", 1, [], None))


def test_where_it_cannot_be_learnt_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = set()

    def never(state: object, timeout_seconds: float) -> SimpleNamespace:
        limits.add(timeout_seconds)
        raise TimeoutError

    monkeypatch.setattr("ray._private.internal_api.get_memory_info_reply", never)
    heard: list[Event] = []
    SpillWatch(EventStream(heard.append)).look(now=True)
    assert spilled_bytes() is None
    assert not heard
    assert limits == {pool.ANSWERED_S}


@pytest.mark.ray
def test_a_session_says_what_it_has_spilled(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a store which is too small for what is held is seen, is checked by `make chaos` (pool_checks)."""
    monkeypatch.setattr(pool, "ANSWERED_S", HANGS_S)
    found = spilled_bytes()
    assert found is not None
    assert found >= 0
