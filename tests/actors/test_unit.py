"""Keys of units: whatever code may decide a result is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpaudit
from dpaudit.actors.unit import hash_of_sources

ROOT = Path(dpaudit.__file__).parent


def _linked_package(place: Path) -> Path:
    """A package laid out like ours: most folders are links."""
    package, floor = place / "package", place / "floor" / "room"
    package.mkdir()
    floor.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (floor / "counting.py").write_text("SIGN = 1\n")
    (package / "floor").symlink_to(place / "floor")
    return package


def test_every_source_file_counts(tmp_path: Path) -> None:
    package = _linked_package(tmp_path)
    before = hash_of_sources(package)
    (package / "floor" / "room" / "counting.py").write_text("SIGN = -1\n")
    changed = hash_of_sources(package)
    (package / "floor" / "room" / "other.py").write_text("")
    assert len({before, changed, hash_of_sources(package)}) == 3


def test_what_is_no_source_does_not_count(tmp_path: Path) -> None:
    package = _linked_package(tmp_path)
    before = hash_of_sources(package)
    (package / "floor" / "room" / "page.html.j2").write_text("<p>")
    assert hash_of_sources(package) == before


@pytest.mark.parametrize("name", ["engine/planning/plan.py", "engine/planning/power.py", "engine/data/partition.py"])
def test_files_that_were_left_out_once_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negating every score in one of these left keys and version as they were."""
    read: list[Path] = []
    content = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path)
        return content(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    hash_of_sources(ROOT)
    assert ROOT / name in read
