"""The model of how a run scales: what can be said of it without simulating."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Overheads, simulate, steady_state

FREE = Overheads((0.0, 0.0), (0.0, 0.0), 0.0, 0.0)


def test_without_overheads_and_faults_all_workers_are_busy() -> None:
    """But for the two journeys of the first and the last unit."""
    simulation = simulate(16, 16 * 50, lambda _: 1.0, FREE, failing=0.0, dying=0.0)
    assert 0.999 < simulation.efficiency <= 1
    assert simulation.driver == 0
    assert simulation.steady == pytest.approx(1)


def test_a_driver_that_is_always_at_work_decides() -> None:
    """500 workers, units of 1 s, 10 ms of the driver each: 100 units a second, a fifth of what the workers could do."""
    busy = Overheads((0.0, 0.0), (0.01, 0.0), 0.0, 0.0)
    simulation = simulate(500, 5_000, lambda _: 1.0, busy, failing=0.0, dying=0.0, parcel_s=0.0)
    assert simulation.efficiency == pytest.approx(0.2, rel=0.05)
    assert simulation.driver == pytest.approx(1, abs=0.03)


def test_what_a_parcel_costs_is_shared_by_its_units() -> None:
    """The same in parcels of four or so: but for the first and the last, which are single, the driver keeps up."""
    busy = Overheads((0.0, 0.0), (0.01, 0.0), 0.0, 0.0)
    one_by_one, together = (
        simulate(50, 10_000, lambda _: 0.5, busy, failing=0.0, dying=0.0, parcel_s=seconds) for seconds in (0.0, 2.1)
    )
    assert one_by_one.efficiency == pytest.approx(1.0, abs=0.03)  # 50 workers / 0.5 s x 10 ms: just kept up with
    assert one_by_one.driver == pytest.approx(1.0, abs=0.05)
    assert together.driver == pytest.approx(0.25 + 0.05, abs=0.06)


def test_what_a_worker_spends_beside_units_is_not_useful() -> None:
    """A tenth of a second beside each second."""
    simulation = simulate(4, 400, lambda _: 1.0, Overheads((0.0, 0.0), (0.0, 0.0), 0.0, 0.1), failing=0.0, dying=0.0)
    assert simulation.steady == pytest.approx(1 / 1.1, abs=0.005)


def test_steady_state_leaves_out_start_and_end() -> None:
    """Both have begun their second unit at 1; what lies between units is not in them."""
    share, first, last = steady_state([[(-9.0, -8.0), (0.0, 4.0), (5.0, 9.0)], [(-8.0, -7.0), (1.0, 3.0), (3.0, 8.0)]])
    assert (first, last) == (1.0, 8.0)
    assert share == pytest.approx((3 + 3 + 2 + 5) / 14)


def test_work_that_fails_or_dies_is_not_counted_as_done() -> None:
    """A tenth of attempts fail: nine tenths of the work count, within 4 deviations of 2,000 coins and the tail."""
    failing = simulate(4, 2_000, lambda _: 1.0, FREE, failing=0.1, dying=0.0)
    assert failing.efficiency == pytest.approx(0.9, abs=0.03)
    dying = simulate(4, 2_000, lambda _: 1.0, FREE, failing=0.0, dying=0.01)  # 26 s lost every 100 s
    assert dying.efficiency == pytest.approx(100 / 125.5, abs=0.14)  # 4 deviations of 20 deaths
