"""What `make test` leaves to `make nightly`, and what it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.nightly import SWITCH, by_day, nightly_games

ROOT = Path(__file__).parent


@pytest.mark.parametrize(("switch", "kept", "left"), [("", ["quick"], ["large"]), ("yes", ["quick", "large"], [])])
def test_tests_marked_nightly_run_where_the_switch_is_set(
    monkeypatch: pytest.MonkeyPatch, switch: str, kept: list[str], left: list[str]
) -> None:
    def item(name: str, *marks: str) -> Any:
        return SimpleNamespace(name=name, get_closest_marker=lambda mark: mark in marks or None)

    monkeypatch.setenv(SWITCH, switch)
    deselected: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    items = [item("quick"), item("large", "nightly")]
    pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    assert [one.name for one in items] == kept
    assert [one.name for one in deselected] == left


def test_coverage_is_of_100_games_or_of_all_and_a_fault_large_or_subtle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert [nightly_games(number) for number in (80, 1_000)] == [80, 100]
    assert by_day(0.1, by_night=0.01) == 0.1
    monkeypatch.setenv(SWITCH, "yes")
    assert [nightly_games(number) for number in (80, 1_000)] == [80, 1_000]
    assert by_day(0.1, by_night=0.01) == 0.01


def test_make_nightly_sets_the_switch_and_runs_the_fuzzer() -> None:
    recipe = (ROOT.parent / "Makefile").read_text().partition("\nnightly:")[2].partition("\n\n")[0]
    assert f"{SWITCH}=yes" in recipe
    assert "tests.fuzz" in recipe
    assert "$(MAKE) lowest" in recipe
