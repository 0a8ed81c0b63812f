"""Files of units: content, provenance, and detection of damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.actors.events import Event, EventKind, EventLog, read_events
from dpaudit.actors.storage.store import UnitStore, encode_unit
from dpaudit.errors import RunError

ONE, OTHER = "a" * 32, "b" * 32
TABLE = pa.table({"total": [1, 2, 3], "name": ["x", "y", None]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = UnitStore(tmp_path)
    store.write(ONE, encode_unit(ONE, TABLE, version="0.1+1", user_code="abc"))
    store.write(OTHER, encode_unit(OTHER, pa.table({"total": [4]}), version="0.1+2"))
    return tmp_path


def file(folder: Path, key: str = ONE) -> Path:
    return folder / f"{key}.parquet"


def assert_damaged(folder: Path, defect: str) -> None:
    """Assert that the unit does not count, its defect is reported, and a second write repairs it."""
    store = UnitStore(folder)
    assert store.finished([ONE, OTHER]) == {OTHER}
    assert defect in store.damaged[ONE]
    with pytest.raises(RunError, match="runs this unit again"):
        store.read(ONE)
    store.write(ONE, encode_unit(ONE, pa.table({"total": [7]})))
    assert not store.damaged
    assert UnitStore(folder).finished([ONE, OTHER]) == {ONE, OTHER}
    assert UnitStore(folder).read(ONE)["total"].to_pylist() == [7]
    assert (folder / f"{ONE}.damaged").exists()


def test_output_of_units_is_stored_up_to_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.actors.storage.store.MAX_PRINTED_BYTES", 120)
    for number in range(9):
        UnitStore(folder).append_printed(f"unit {number}", b"x" * 40 + b"\n")
    printed = (folder / "printed.log").read_text()
    line = "x" * 40
    stored = f"--- unit 0\n{line}\n--- unit 1\n{line}\n--- unit 2\n{line[:16]}\n"
    assert printed == stored + "... full: output of further units is not stored ...\n"


def test_written_units_are_read_with_their_provenance(folder: Path) -> None:
    store = UnitStore(folder)
    assert store.finished([ONE, OTHER, "c" * 32]) == {ONE, OTHER}
    assert store.read(ONE).to_pydict() == {"total": [1, 2, 3], "name": ["x", "y", None]}
    provenance = store.provenance([ONE, OTHER])
    assert (provenance.units, provenance.versions, provenance.user_code) == (2, ("0.1+1", "0.1+2"), ("abc",))
    assert not store.damaged


def test_the_same_table_gives_the_same_bytes(folder: Path) -> None:
    assert file(folder).read_bytes() == encode_unit(ONE, TABLE, version="0.1+1", user_code="abc")


def test_flipped_bits_are_detected(folder: Path) -> None:
    """One bit of every third byte, including the seal and the footer."""
    content = file(folder).read_bytes()
    for index in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[index] ^= 1 << (index % 8)
        file(folder).write_bytes(flipped)
        assert UnitStore(folder).finished([ONE]) == set(), f"bit {index % 8} of byte {index}"
    assert_damaged(folder, "has changed since it was written")


@pytest.mark.parametrize("size", [0, 1, 11, 100, -1])
def test_a_truncated_file_does_not_count(folder: Path, size: int) -> None:
    file(folder).write_bytes(file(folder).read_bytes()[:size])
    assert_damaged(folder, "has changed since it was written")


def test_results_swapped_between_keys_do_not_count(folder: Path) -> None:
    shutil.copyfile(file(folder, OTHER), file(folder))
    assert_damaged(folder, "another unit's results")


def test_a_file_that_cannot_be_read_does_not_count(folder: Path) -> None:
    file(folder).unlink()
    file(folder).mkdir()
    assert_damaged(folder, "cannot be read")


def test_damage_while_the_store_is_open_is_detected(folder: Path) -> None:
    store = UnitStore(folder)
    assert ONE in store.finished([ONE])
    content = bytearray(file(folder).read_bytes())
    content[40] ^= 1
    file(folder).write_bytes(content)
    with pytest.raises(RunError, match="has changed since it was written"):
        store.read(ONE)


def test_scores_keep_their_types(tmp_path: Path) -> None:
    table = pa.table({"score": np.array([0.5, -1], dtype=np.float32), "truth": [True, False]})
    store = UnitStore(tmp_path)
    store.write(ONE, encode_unit(ONE, table))
    assert store.read(ONE).schema.equals(table.schema)


def test_records_of_failures_may_hold_any_bytes(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    for key, content in {"a": b"\xff\xfe broken \x00", "b": b"", "c": b"  \n"}.items():
        (tmp_path / f"{key}.failed").write_bytes(content)
    (tmp_path / "d.failed").mkdir()
    texts = store.failures()
    assert texts.keys() == {"a", "b", "c"}
    assert "broken" in texts["a"]
    assert all(text.strip() for text in texts.values())


def test_invalid_lines_of_a_log_are_skipped(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log(Event(EventKind.FINISHED, detail="\udce4"))
    log.close()
    invalid = [
        b"\xff\xfe\x00",
        b"[]",
        b"1",
        b"null",
        b'{"kind": "of another version"}',
        b'{"kind": "stage", "x": 1}',
        b"{",
    ]
    invalid += [b"[" * 100_000, b'{"kind": []}', b"9" * 5000, b'"' + b"a" * 10_000]
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b"\n".join(invalid) + b"\n")
    log = EventLog(tmp_path / "events.jsonl")
    log(Event(EventKind.INTERRUPTED))
    log.close()
    kinds = [event.kind for event in read_events(tmp_path / "events.jsonl")]
    assert kinds == [EventKind.FINISHED, EventKind.INTERRUPTED]
    assert list(read_events(tmp_path / "none")) == []


def test_floats_are_stored_without_a_dictionary(tmp_path: Path) -> None:
    """A dictionary of values that rarely repeat is larger, and takes forty times as long in a list."""
    noise = np.random.default_rng(0).laplace(size=200_000).astype(np.float32)
    lists = pa.LargeListArray.from_arrays(pa.array([0, noise.size], pa.int64()), pa.array(noise))
    UnitStore(tmp_path).write(ONE, encode_unit(ONE, pa.table({"numbers": lists, "word": ["a"]})))
    assert len(file(tmp_path).read_bytes()) < noise.nbytes
    assert UnitStore(tmp_path).read(ONE)["numbers"][0].values.to_numpy().tobytes() == noise.tobytes()
    assert UnitStore(tmp_path).schema(ONE).names == ["numbers", "word"]
