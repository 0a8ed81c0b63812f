"""Analytic checks of the simulation of how a run scales."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Overheads, simulate, steady_state

FREE = Overheads((0.0, 0.0), (0.0, 0.0), 0.0, 0.0)


def test_without_overheads_and_faults_all_workers_are_busy() -> None:
    """Except while the first unit is sent and the last one returns."""
    simulation = simulate(16, 16 * 50, lambda _: 1.0, FREE, failing=0.0, dying=0.0)
    assert 0.999 < simulation.efficiency <= 1
    assert simulation.driver == 0
    assert simulation.steady == pytest.approx(1)


def test_a_busy_driver_limits_the_throughput() -> None:
    """500 workers, units of 1 s and 10 ms of the driver per unit: 100 units per second, one fifth of the workers'
    capacity."""
    busy = Overheads((0.0, 0.0), (0.01, 0.0), 0.0, 0.0)
    simulation = simulate(500, 5_000, lambda _: 1.0, busy, failing=0.0, dying=0.0, parcel_s=0.0)
    assert simulation.efficiency == pytest.approx(0.2, rel=0.05)
    assert simulation.driver == pytest.approx(1, abs=0.03)


def test_units_of_a_parcel_share_its_cost() -> None:
    """With parcels of about four units the driver keeps up, except for the single units at start and end."""
    busy = Overheads((0.0, 0.0), (0.01, 0.0), 0.0, 0.0)
    one_by_one, together = (
        simulate(50, 10_000, lambda _: 0.5, busy, failing=0.0, dying=0.0, parcel_s=seconds) for seconds in (0.0, 2.1)
    )
    assert one_by_one.efficiency == pytest.approx(1.0, abs=0.03)  # 50 workers / 0.5 s x 10 ms: the driver just keeps up
    assert one_by_one.driver == pytest.approx(1.0, abs=0.05)
    assert together.driver == pytest.approx(0.25 + 0.05, abs=0.06)


def test_time_between_units_is_not_useful() -> None:
    """A worker spends 0.1 s per unit of 1 s on other work."""
    simulation = simulate(4, 400, lambda _: 1.0, Overheads((0.0, 0.0), (0.0, 0.0), 0.0, 0.1), failing=0.0, dying=0.0)
    assert simulation.steady == pytest.approx(1 / 1.1, abs=0.005)


def test_steady_state_leaves_out_start_and_end() -> None:
    """Both workers have started their second unit at 1; time between units does not count."""
    share, first, last = steady_state([[(-9.0, -8.0), (0.0, 4.0), (5.0, 9.0)], [(-8.0, -7.0), (1.0, 3.0), (3.0, 8.0)]])
    assert (first, last) == (1.0, 8.0)
    assert share == pytest.approx((3 + 3 + 2 + 5) / 14)


def test_failed_and_lost_work_does_not_count() -> None:
    """One tenth of attempts fail, so nine tenths of the work count, within 4 deviations of 2,000 coins."""
    failing = simulate(4, 2_000, lambda _: 1.0, FREE, failing=0.1, dying=0.0)
    assert failing.efficiency == pytest.approx(0.9, abs=0.03)
    dying = simulate(4, 2_000, lambda _: 1.0, FREE, failing=0.0, dying=0.01)  # 26 s lost every 100 s
    assert dying.efficiency == pytest.approx(100 / 125.5, abs=0.14)  # 4 deviations of 20 deaths
