"""An audit on two nodes that loses workers, a node and its driver, and goes on: the bytes of an undisturbed one."""

from __future__ import annotations

import pytest

from benchmarks.chaos_cluster import outcome, reference

TRAININGS = 30


@pytest.mark.ray
def test_nothing_is_lost_nothing_twice_and_the_bytes_are_the_same() -> None:
    """`python -m benchmarks.chaos_cluster` does this twenty times, with four nodes and 2,002 units."""
    found = outcome(0, 0, reference(TRAININGS), TRAININGS, count=2)
    assert (found.wrong, found.lost, found.twice, found.same) == ("", 0, 0, True), found
    assert found.planned == 1 + 3 * TRAININGS
    assert found.commands == 2
