"""Selection of tests between `make test` and `make nightly`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.nightly import BASE, SWITCH, by_day, changed, changed_files, changed_since_base, nightly_games

ROOT = Path(__file__).parent


@pytest.mark.parametrize(
    ("switch", "selected", "skipped"), [("", ["quick"], ["large"]), ("yes", ["quick", "large"], [])]
)
def test_tests_marked_nightly_run_where_the_switch_is_set(
    monkeypatch: pytest.MonkeyPatch, switch: str, selected: list[str], skipped: list[str]
) -> None:
    def item(name: str, *marks: str) -> Any:
        return SimpleNamespace(name=name, get_closest_marker=lambda mark: mark in marks or None)

    monkeypatch.setenv(SWITCH, switch)
    deselected: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    items = [item("quick"), item("large", "nightly")]
    pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    assert [item.name for item in items] == selected
    assert [item.name for item in deselected] == skipped


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


def test_changes_are_those_of_the_working_tree_and_of_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert changed_files(tmp_path / "nowhere") == set()
    git("init", "-q")
    (tmp_path / "docs").mkdir()
    for name in ("old.md", "last.md", "edited.md", "docs/gone.md"):
        (tmp_path / name).write_text("a")
        git("add", "-A")
        git("commit", "-q", "-m", name)
    (tmp_path / "last.md").write_text("b")
    git("commit", "-q", "-a", "-m", "last")
    (tmp_path / "edited.md").write_text("b")
    (tmp_path / "new.md").write_text("b")
    (tmp_path / "docs" / "gone.md").unlink()
    changed_files.cache_clear()
    assert changed_files(tmp_path) == {"last.md", "edited.md", "new.md", "docs/gone.md"}
    monkeypatch.setattr("tests.nightly.changed_files", lambda: {"docs/gone.md"})
    assert changed("mkdocs.yml", "docs/*")
    assert not changed("*.py", "gone.md")


def test_the_base_is_stated_or_where_the_branch_left_main_or_the_commit_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.delenv(BASE, raising=False)
    git("init", "-q")
    for name in ("first", "second", "third"):
        (tmp_path / name).write_text("a")
        git("add", "-A")
        git("commit", "-q", "-m", name)
        if name == "first":
            assert changed_since_base(tmp_path) is None, "a clone of one commit has no base"
            git("update-ref", "refs/remotes/origin/main", "HEAD")
    (tmp_path / "new").write_text("b")
    assert changed_since_base(tmp_path) == {"second", "third", "new"}
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed_since_base(tmp_path) == {"third", "new"}
    monkeypatch.setenv(BASE, "HEAD")
    assert changed_since_base(tmp_path) == {"new"}
    monkeypatch.setenv(BASE, "nowhere")
    assert changed_since_base(tmp_path) is None
