"""The hash of sources in unit keys covers every source file."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpaudit
from dpaudit.actors.unit import hash_of_sources

ROOT = Path(dpaudit.__file__).parent


def _linked_package(place: Path) -> Path:
    """Return a package with linked folders, as in an editable installation of dpaudit."""
    package, floor = place / "package", place / "floor" / "room"
    package.mkdir()
    floor.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (floor / "counting.py").write_text("SIGN = 1\n")
    (package / "floor").symlink_to(place / "floor")
    return package


def test_the_hash_covers_source_files_only(tmp_path: Path) -> None:
    package = _linked_package(tmp_path)
    before = hash_of_sources(package)
    (package / "floor" / "room" / "page.html.j2").write_text("<p>")
    assert hash_of_sources(package) == before
    (package / "floor" / "room" / "counting.py").write_text("SIGN = -1\n")
    changed = hash_of_sources(package)
    (package / "floor" / "room" / "other.py").write_text("")
    assert len({before, changed, hash_of_sources(package)}) == 3


@pytest.mark.parametrize("name", ["engine/planning/plan.py", "engine/planning/power.py", "engine/data/partition.py"])
def test_files_of_the_engine_are_hashed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    read_bytes = Path.read_bytes

    def recorded(path: Path) -> bytes:
        hashed.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", recorded)
    hash_of_sources(ROOT)
    assert ROOT / name in hashed
