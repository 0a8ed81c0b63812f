"""The model of how a run scales: what can be said of it without simulating."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Overheads, simulate

FREE = Overheads((0.0, 0.0), (0.0, 0.0))


def test_without_overheads_and_faults_all_workers_are_busy() -> None:
    """But for the two journeys of the first and the last unit."""
    found = simulate(16, 16 * 50, lambda _: 1.0, FREE, failing=0.0, dying=0.0, worker_s=0.0)
    assert 0.999 < found.efficiency <= 1
    assert found.driver == 0


def test_a_driver_that_is_always_at_work_decides() -> None:
    """500 workers, units of 1 s, 10 ms of the driver each: 100 units a second, a fifth of what the workers could do."""
    found = simulate(
        500, 5_000, lambda _: 1.0, Overheads((0.0, 0.0), (0.01, 0.0)), failing=0.0, dying=0.0, worker_s=0.0
    )
    assert found.efficiency == pytest.approx(0.2, rel=0.05)
    assert found.driver == pytest.approx(1, abs=0.03)


def test_work_that_fails_or_dies_is_not_counted_as_done() -> None:
    """A tenth of attempts fail: nine tenths of the work count, within 4 deviations of 2,000 coins and the tail."""
    failing = simulate(4, 2_000, lambda _: 1.0, FREE, failing=0.1, dying=0.0, worker_s=0.0)
    assert failing.efficiency == pytest.approx(0.9, abs=0.03)
    dying = simulate(4, 2_000, lambda _: 1.0, FREE, failing=0.0, dying=0.01, worker_s=0.0)  # 26 s lost every 100 s
    assert dying.efficiency == pytest.approx(100 / 125.5, abs=0.14)  # 4 deviations of 20 deaths
