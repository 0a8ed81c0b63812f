"""Keys of units: the hash of sources covers every source file, and resources count that may change results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dpaudit
from dpaudit.actors.unit import Resources, Unit, hash_of_sources
from dpaudit.errors import InputError
from tests.actors.tasks import Add

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


@pytest.mark.parametrize(
    "name", ["engine/planning/plan.py", "engine/answer/sensitivity.py", "engine/data/partition.py"]
)
def test_files_of_the_engine_are_hashed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    read_bytes = Path.read_bytes

    def recorded(path: Path) -> bytes:
        hashed.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", recorded)
    hash_of_sources(ROOT)
    assert ROOT / name in hashed


def test_memory_and_custom_resources_are_no_part_of_a_key() -> None:
    """A rerun with other ones reuses finished units; CPUs and GPUs may change the last digits of results."""

    def key(*arguments: Any) -> str:
        return Unit(Add(1), "", resources=Resources(*arguments)).key

    assert key(1, 0.5) == key(1, 0.5, 10**9) == key(1, 0.5, 0, (("accelerator_type:H100", 0.001),))
    assert len({key(1), key(2), key(1, 0.5), key(1, 1.0)}) == 4


def test_the_name_of_a_custom_resource_and_its_amount_are_checked() -> None:
    for custom, wrong in (
        (("GPU", 1.0), "a name of its own, got 'GPU'; state cpus, gpus or memory"),
        (("made_up_gpu", 1.5), r"made_up_gpu must be in \[0.0001, 1\] or a whole number, got 1.5"),
        (("made_up_gpu", 0.0), r"made_up_gpu must be in \[0.0001, 1\] or a whole number, got 0.0"),
    ):
        with pytest.raises(InputError, match=wrong):
            Resources(custom=(custom,))
    with pytest.raises(InputError, match="memory of a unit must be >= 0 bytes, got -1"):
        Resources(memory=-1)
