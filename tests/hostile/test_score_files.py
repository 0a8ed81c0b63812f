"""Score files of strangers: sizes are checked before unpacking, and other files are refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import dpaudit
from dpaudit.actors.storage import bounded_parquet
from dpaudit.engine.cli.main import main
from dpaudit.engine.data import delimited, files, table_files
from dpaudit.engine.data.labelled_files import Csv
from dpaudit.engine.data.table_rows import RowsFile
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.errors import DataError
from dpaudit.synthetic_tables.front_door.inputs import data_frame

SCORES = np.random.default_rng(0).normal(size=200)
MEMBERS = np.random.default_rng(1).random(200) < 0.5
CSV = ("score,member\n" + "".join(f"{s},{int(m)}\n" for s, m in zip(SCORES, MEMBERS, strict=True))).encode()
LINES = "".join(
    json.dumps({"score": s, "member": bool(m)}) + "\n" for s, m in zip(SCORES, MEMBERS, strict=True)
).encode()


def estimate(path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["estimate", str(path), *words])


def refused(result: Result, *words: str) -> None:
    """Assert that a command ended with one refusal that contains these words."""
    assert result.exit_code in (2, 3), result.output
    assert result.output.count("\n") == 1, result.output
    assert len(result.output) < 1200, result.output
    for word in words:
        assert word in result.output, result.output


def npy(descr: str, shape: str, values: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values


def npz(arrays: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return sink.getvalue()


def saved(**arrays: Any) -> bytes:
    sink = io.BytesIO()
    np.savez_compressed(sink, **arrays)
    return sink.getvalue()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the opened members of archives."""
    names: list[str] = []
    way = zipfile.ZipFile.open

    def open_member(archive: zipfile.ZipFile, name: Any, *arguments: Any, **options: Any) -> Any:
        names.append(getattr(name, "filename", name))
        return way(archive, name, *arguments, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", open_member)
    return names


def test_only_used_arrays_of_an_archive_are_read(tmp_path: Path, opened: list[str]) -> None:
    """Unused arrays may be objects or unpack to any size."""
    objects = np.array([{"a": 1}], dtype=object)
    path = tmp_path / "a.npz"
    path.write_bytes(saved(score=SCORES, member=MEMBERS, other=objects, wide=np.zeros((3, 4)), person=MEMBERS))
    expected = str(dpaudit.estimate(SCORES, MEMBERS))
    opened.clear()
    assert estimate(path).output == expected + "\n"
    assert set(opened) == {"score.npy", "member.npy"}
    assert estimate(path, "--group-by", "person").exit_code in (0, 2)
    assert "person.npy" in opened
    counts = {"tp": [65], "fp": [25], "tn": [75], "fn": [35]}
    path.write_bytes(saved(**counts, other=objects))
    opened.clear()
    assert estimate(path).exit_code == 0
    assert set(opened) == {"tp.npy", "fp.npy", "tn.npy", "fn.npy"}
    path.write_bytes(saved(scores=SCORES, labels=MEMBERS))
    refused(estimate(path), "must have the columns score,member", "got scores,labels")


def test_an_archive_that_unpacks_to_gigabytes_is_refused_by_its_directory(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_parquet, "ALWAYS_ALLOWED", 1 << 20)
    path = tmp_path / "a.npz"
    path.write_bytes(saved(score=np.zeros(1 << 20), member=np.zeros(1 << 20, bool)))
    opened.clear()
    refused(estimate(path), "must unpack to at most 100 times its size, but its ", "bytes unpack to 9,437,")
    assert opened == []
    path.write_bytes(saved(score=SCORES, member=MEMBERS, zeros=np.zeros(1 << 20)))
    assert estimate(path).exit_code == 0


def test_an_archive_gives_no_more_bytes_than_its_directory_states(tmp_path: Path) -> None:
    content = bytearray(
        npz({"score": npy("'<f8'", "(200,)", bytes(1600)), "member": npy("'|b1'", "(200,)", bytes(200))})
    )
    at = content.index(b"PK\x01\x02")
    for size in (100, 2**31):
        content[at + 24 : at + 28] = struct.pack("<I", size)
        (tmp_path / "a.npz").write_bytes(content)
        refused(estimate(tmp_path / "a.npz"), "a.npz")


def test_a_directory_of_many_names_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "MAX_DIRECTORY", 10_000)
    (tmp_path / "a.npz").write_bytes(npz({f"array {number}": b"" for number in range(300)}, zipfile.ZIP_STORED))
    monkeypatch.setattr(zipfile, "ZipFile", None)
    refused(estimate(tmp_path / "a.npz"), "must have a directory of at most 10,000 bytes")


MALFORMED: dict[str, bytes] = {
    "texts without letters": npy("'<U0'", "(4611686018427387904,)"),
    "fields without letters": npy("[('score', '<U0'), ('member', '|S0')]", "(4611686018427387904,)"),
    "more than it holds": npy("[('score', '<f8'), ('member', '|b1')]", "(1000000000000,)", b"123456789"),
    "nothing of many rows": npy("[('score', '<f8', (0,)), ('member', '|b1', (0,))]", "(4611686018427387904,)"),
    "a subarray": npy("[('score', '<f8', (1000,)), ('member', '|b1')]", "(1,)", bytes(8001)),
    "a shape below zero": npy("'<f8'", "(-1, 2)"),
    "a shape that is none": npy("'<f8'", "'ab'"),
    "a shape of floats": npy("'<f8'", "(2.0, 2)", bytes(32)),
    "a shape of truths": npy("'<f8'", "(True, 2)", bytes(16)),
    "a shape of 400 digits": npy("'<f8'", f"({'9' * 400}, 2)"),
    "a deep header": npy("(" * 4000, "(1,)"),
    "a deep type": npy("[('score', " * 500 + "'<f8'" + ")]" * 500, "(1,)"),
    "a call in the header": npy("__import__('os').system('true')", "(1,)"),
    "a long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{",
    "another version": b"\x93NUMPY\x09\x00\x01\x00{",
    "no header": b"\x93NUMPY\x01\x00",
    "half of one": b"\x93NUM",
    "objects": npy("'|O'", "(2, 2)", pickle.dumps([1, 2])),
    "voids": npy("'|V8'", "(2, 2)", bytes(32)),
    "complex": npy("'<c16'", "(2, 2)", bytes(64)),
    "times": npy("[('score', '<M8[s]'), ('member', '|b1')]", "(2,)", bytes(18)),
    "three dimensions": npy("'<f8'", "(1, 1, 2)", bytes(16)),
    "no dimension": npy("'<f8'", "()", bytes(8)),
    "many fields": npy(str([(f"c{number}", "|b1") for number in range(600)]), "(1,)", bytes(600)),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_an_array_that_is_no_table_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    content = MALFORMED[kind]
    (tmp_path / "a.npy").write_bytes(content)
    refused(estimate(tmp_path / "a.npy"), "a.npy")
    (tmp_path / "a.npz").write_bytes(npz({"score": content, "member": content}))
    refused(estimate(tmp_path / "a.npz"), "a.npz")


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i4", "<f2", "<f4", "<i8", "|u1", "<u8", "<f16", "<U20", "|S20"])
def test_numbers_of_any_type_are_read_or_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    """Also in the other byte order."""
    score = np.round(SCORES * 8) + 100
    table = np.array(list(zip(score, MEMBERS, strict=True)), dtype=[("score", kind), ("member", "?")])
    np.save(tmp_path / "a.npy", table)
    np.savez(tmp_path / "a.npz", score=table["score"], member=table["member"])
    expected = str(dpaudit.estimate(score, MEMBERS)).splitlines()[0]
    for name in ("a.npy", "a.npz"):
        result = estimate(tmp_path / name)
        if kind == "|S20":
            refused(result, name)
        else:
            assert result.output.splitlines()[0] == expected
    np.save(tmp_path / "b.npy", np.zeros((0, 2), kind))
    refused(estimate(tmp_path / "b.npy"), "b.npy")


def test_an_array_packed_in_another_way_is_refused(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        content = npz({"score": npy("'<f8'", "(2,)", bytes(16)), "member": npy("'|b1'", "(2,)", b"\0\1")}, method)
        (tmp_path / "a.npz").write_bytes(content)
        refused(estimate(tmp_path / "a.npz"), "must be packed as NumPy packs it")


def test_arrays_of_the_same_name_or_of_other_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("score.npy", npy("'<f8'", "(1,)", bytes(8)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("score.npy", npy("'<f8'", "(1,)", bytes(8)))
    refused(estimate(path), "must name each column once, got 'score' 2 times")
    path.write_bytes(saved(score=SCORES, member=MEMBERS[1:]))
    refused(estimate(path), "must hold arrays of one length, got 200 score, 199 member")


JSON: dict[str, bytes] = {
    "lists in lists": b'{"score": ' + b"[" * 200_000,
    "mappings in mappings": b'{"score":' * 100_000,
    "a depth that grows from line to line": b'{"}":\n' * 200_000,
    "a depth in an unused column": LINES
    + b'{"score": 1, "member": 0, "x": '
    + b"[" * 200_000
    + b"]" * 200_000
    + b"}\n",
    "a long line": b'{"score": 1, "member": "' + b"1" * (2 << 20) + b'"}\n',
    "no end of a line": b'{"score": 1, "x": "' + b"1" * (9 << 20),
    "many names": b"".join(b'{"c%d": 1}\n' % number for number in range(20_000)),
    "400 digits": b'{"score": ' + b"9" * 400 + b', "member": 1}\n',
    "5000 digits": b'{"score": ' + b"9" * 5000 + b', "member": 1}\n',
    "half a line": LINES[:-5],
    "a number": LINES + b"3\n",
    "a list a line": b"[1, 2]\n" * 5,
    "two in a line": LINES + b'{"score": 1, "member": 1} {"score": 1, "member": 1}\n',
    "no UTF-8": LINES + b'{"score": 1, "member": "\xff"}\n',
    "words": b'{"score": "a", "member": 1}\n{"score": 1, "member": 0}\n',
    "half of a sign": b'{"score": 1, "member": "\\ud800"}\n',
    "nothing": b"\n\n",
    "a list of records": json.dumps([{"score": 1.0, "member": 1}]).encode(),
}


@pytest.mark.parametrize("kind", JSON)
def test_lines_that_are_no_records_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_bytes(JSON[kind])
        refused(estimate(tmp_path / name), name)


def test_lines_of_records_are_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats and integers, large ones, blank lines, a byte order mark, fields that start later; read in many parts."""
    path = tmp_path / "a.jsonl"
    for at_once in (1, 3, 1 << 16):
        monkeypatch.setattr(table_files, "_RECORDS_AT_ONCE", at_once)
        path.write_bytes(b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n"))
        assert estimate(path).output.splitlines()[0] == str(dpaudit.estimate(SCORES, MEMBERS)).splitlines()[0]
        path.write_bytes(
            b'{"a": 1, "x": [[1]]}\n{"a": 2.5, "b": true}\n\n{"b": null, "a": 18446744073709551615, "c": "x"}\n'
        )
        table = SourceTable.of_file(path, lambda names: {"a", "b"})
        assert table.columns.to_pydict() == {"a": [1.0, 2.5, 2.0**64], "b": [None, True, None]}
        assert (table.names, table.unread) == (["a", "b", "x", "c"], ("x", "c"))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet", ".feather", ".npz"])
def test_tables_of_too_many_columns_are_refused(tmp_path: Path, ending: str) -> None:
    names = [f"c{number}" for number in range(20_000)]
    path = tmp_path / f"a{ending}"
    sign = "\t" if ending == ".tsv" else ","
    table = pa.table({name: [1] for name in names})
    sink = io.BytesIO()
    if ending == ".parquet":
        pq.write_table(table, sink)
    elif ending == ".feather":
        sink.write(arrow(table))
    elif ending == ".npz":
        sink.write(npz({name: npy("'|b1'", "(1,)", b"\1") for name in names}, zipfile.ZIP_STORED))
    elif ending == ".jsonl":
        sink.write(json.dumps(dict.fromkeys(names, 1)).encode())
    else:
        sink.write(f"{sign.join(names)}\n{sign.join('1' * 20_000)}\n".encode())
    path.write_bytes(sink.getvalue())
    refused(estimate(path), "must have at most 10,000 columns")
    with pytest.raises(DataError, match="must have at most 10,000 columns"):
        dpaudit.estimate(table)


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"score": SCORES, "member": MEMBERS}), sink)
    return sink.getvalue()


def arrow(table: pa.Table | None = None, compression: str | None = "zstd") -> bytes:
    table = pa.table({"score": SCORES, "member": MEMBERS}) if table is None else table
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def array() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.stack([SCORES, MEMBERS], axis=1))
    return sink.getvalue()


OTHER: dict[str, tuple[Callable[[], bytes], str]] = {
    "zstd": (lambda: b"\x28\xb5\x2f\xfd" + bytes(20), "are those of a zstd file; unpack it first"),
    "pickle 5": (lambda: pickle.dumps({"score": SCORES}, 5), "are those of a pickle, which runs code when it is read"),
    "pickle 2": (lambda: pickle.dumps({"score": SCORES}, 2), "are those of a pickle, which runs code when it is read"),
    "pickle 0": (lambda: pickle.dumps({"score": [1.0]}, 0), "must "),
    "half of UTF-16": (lambda: CSV.decode().encode("utf-16")[:-1], "must be whole text in UTF-16"),
    "UTF-16 without a mark": (lambda: CSV.decode().encode("utf-16-le"), "probably UTF-16 or binary; save it as UTF-8"),
    "UTF-32 with a number too large": (lambda: b"\xff\xfe\0\0" + b"\xff" * 4, "must be whole text in UTF-32"),
    "Feather 1": (lambda: b"FEA1" + bytes(100), "are those of a Feather file of version 1; write it again with pandas"),
    "SQLite": (lambda: b"SQLite format 3\0" + bytes(100), "are those of an SQLite database; write the scores as CSV"),
    "HDF5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(100), "are those of an HDF5 file; write the scores as CSV"),
    "zeros": (lambda: bytes(10_000), "it has bytes that are zero"),
}


READ: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(CSV),
    "bzip2": lambda: bz2.compress(CSV),
    "xz": lambda: lzma.compress(CSV),
    "packed UTF-16": lambda: gzip.compress(CSV.decode().encode("utf-16")),
    "packed Parquet": lambda: gzip.compress(parquet()),
    "packed records": lambda: lzma.compress(LINES),
    "packed Feather": lambda: gzip.compress(arrow()),
    "Parquet": parquet,
    "Feather": arrow,
    "NumPy": array,
    "NumPy's archive": lambda: saved(score=SCORES, member=MEMBERS),
}


@pytest.mark.parametrize("kind", READ)
def test_the_content_tells_the_format_and_not_the_name(tmp_path: Path, kind: str) -> None:
    expected = str(dpaudit.estimate(SCORES, MEMBERS)).splitlines()[0]
    for ending in (".csv", ".tsv", ".txt", ".csv.gz", ".PARQUET", ".npz", ""):
        (tmp_path / f"a{ending}").write_bytes(READ[kind]())
        assert estimate(tmp_path / f"a{ending}").output.splitlines()[0] == expected
    piped = CliRunner().invoke(main, ["estimate", "-"], input=READ[kind]())
    assert piped.output.splitlines()[0] == expected
    (tmp_path / "a.pkl").write_bytes(READ[kind]())
    refused(estimate(tmp_path / "a.pkl"), "its ending is that of a pickle")


@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, packed: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every reader of files, before more than the limit is in memory."""
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1 << 20)
    path = tmp_path / "a.csv"
    path.write_bytes(packed(b"score,member\n" + b"1,0\n" * 600_000))
    refused(estimate(path), f"must unpack to at most {max(1 << 20, 100 * path.stat().st_size):,} bytes (100 times")
    for load in (RowsFile(str(path)).load, Csv(str(path), "member").load, lambda: data_frame(path, "training")):
        with pytest.raises(DataError, match=r"must unpack to at most .* it holds more"):
            load()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("scores.csv", CSV)
    refused(estimate(tmp_path / "a.zip"), "it is a zip archive of other files; unpack it first")
    path.write_bytes(packed(CSV)[:-20])
    refused(estimate(path), "a.csv: is not a whole .csv file")


def repeated(values: pa.Array) -> pa.Table:
    return pa.table({"score": pa.DictionaryArray.from_arrays(np.zeros(300_000, np.int8), values)})


def claims(size: int) -> bytes:
    """Return a file whose first packed buffer states that it unpacks to `size` bytes."""
    content = arrow()
    at = content.index(struct.pack("<q", 8 * len(SCORES)) + b"\x28\xb5\x2f\xfd")
    return content[:at] + struct.pack("<q", size) + content[at + 8 :]


ARROW: dict[str, tuple[Callable[[], bytes], str]] = {
    "zeros": (lambda: arrow(pa.table({"score": np.zeros(300_000)})), "must unpack to at most 1,000 times its size"),
    "a claim": (lambda: claims(1 << 40), "must unpack to at most 1,000 times its size, but its"),
    "a small claim": (lambda: claims(8), "must be a table with named columns"),
    "nulls": (lambda: arrow(pa.table({"score": pa.nulls(1 << 21)})), "must unpack to at most 1,000 times its size"),
    "a text for all rows": (lambda: arrow(repeated(pa.array(["x" * 10_000]))), "bytes unpack to 3,00"),
    "views": (lambda: arrow(repeated(pa.array(["x"]).cast(pa.string_view()))), "must hold numbers, texts or dates"),
    "runs": (
        lambda: arrow(pa.table({"score": pa.RunEndEncodedArray.from_arrays(pa.array([1000]), pa.array([1.0]))})),
        "must hold numbers, texts or dates, got run_end_encoded",
    ),
    "lists": (lambda: arrow(pa.table({"score": [[1]], "member": [1]})), "got list<item: int64>; write the file as"),
    "duplicate names": (
        lambda: arrow(pa.Table.from_arrays([pa.array([1])] * 2, ["score", "score"])),
        "must name each column once, got 'score' 2 times",
    ),
    "half a file": (lambda: arrow()[: len(arrow()) // 2], "the file is incomplete"),
    "no messages": (lambda: b"ARROW1\0\0ARROW1", "must be a table"),
    "other messages": (lambda: b"ARROW1\0\0\xff\xff\xff\xff" + bytes(100) + b"ARROW1", "must "),
}


@pytest.mark.parametrize("kind", ARROW)
def test_a_feather_file_is_bounded_by_its_messages(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = ARROW[kind]
    monkeypatch.setattr(bounded_parquet, "ALWAYS_ALLOWED", 1 << 20)
    (tmp_path / "a.feather").write_bytes(make())
    with pytest.raises(DataError, match=re.escape(message)):
        table_files.read_table(tmp_path / "a.feather")


def test_a_damaged_feather_file_ends_in_one_line_or_is_read(tmp_path: Path) -> None:
    content, rng = arrow(), np.random.default_rng(2)
    for _ in range(150):
        damaged = bytearray(content)
        for place in rng.integers(8, len(content) - 6, 3):
            damaged[place] = rng.integers(256)
        (tmp_path / "a.feather").write_bytes(damaged)
        result = estimate(tmp_path / "a.feather")
        assert result.exit_code == 0 or result.output.count("\n") == 1, result.output


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".txt", ".pkl", ".csv.gz"])
def test_a_file_of_another_format_is_refused_by_name(tmp_path: Path, kind: str, ending: str) -> None:
    make, message = OTHER[kind]
    path = tmp_path / f"a{ending}"
    path.write_bytes(make())
    if ending == ".pkl" and kind in ("UTF-16 without a mark", "zeros"):
        message = "its ending is that of a pickle, which runs code when it is read; write the scores as CSV"
    refused(estimate(path), message)


FOREIGN = {
    "a.pkl": (pickle.dumps([1.0], 0), "its ending is that of a pickle, which runs code when it is read"),
    "a.joblib": (b"\x80\x04" + bytes(9), "its first bytes are those of a pickle, which runs code when it is read"),
    "a.pt": (b"PK\x03\x04" + bytes(100), "its ending is that of a file of torch, which may hold a pickle"),
    "a.xlsx": (b"PK\x03\x04" + bytes(100), "its ending is that of a spreadsheet; write the scores as CSV"),
    "a.zip": (b"PK\x03\x04" + bytes(100), ": the zip archive is incomplete"),
    "a.safetensors": (b"\x10" + bytes(7) + b"{}" + bytes(60), "its ending is that of a file of tensors; write"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_tool_is_refused_by_its_ending(tmp_path: Path, name: str) -> None:
    content, message = FOREIGN[name]
    (tmp_path / name).write_bytes(content)
    refused(estimate(tmp_path / name), message)


def test_a_folder_without_parquet_is_refused_in_one_line(tmp_path: Path) -> None:
    refused(estimate(tmp_path), "must be a folder of Parquet files, it holds none; name one file of scores")
    (tmp_path / "a.csv").write_bytes(CSV)
    refused(estimate(tmp_path), "must be a folder of Parquet files alone", "; name one file of scores")


def spelled(cell: Callable[[float], str], names: str = "score,member", between: str = ",") -> str:
    rows = zip(np.round(SCORES, 4).tolist(), MEMBERS.tolist(), strict=True)
    return names + "\n" + "".join(f"{cell(score)}{between}{int(member)}\n" for score, member in rows)


FORMS: dict[str, bytes] = {
    "UTF-8 with a mark": spelled(str).encode("utf-8-sig"),
    "UTF-16": spelled(str).encode("utf-16"),
    "UTF-16 of the other order": b"\xfe\xff" + spelled(str).encode("utf-16-be"),
    "UTF-32": spelled(str).encode("utf-32"),
    "UTF-16 with tabs": spelled(str, "score\tmember", "\t").encode("utf-16"),
    "semicolons": spelled(str, "score;member", ";").encode(),
    "tabs": spelled(str, "score\tmember", "\t").encode(),
    "bars": spelled(str, "score|member", "|").encode(),
    "blanks": spelled(str, "score member", " ").encode(),
    "blanks about the cells": spelled(lambda score: f" {score} ", "score , member", " , ").encode(),
    "a separator in a quoted name": spelled(str, 'score,"a;b;c",member', ",0,").encode(),
    "decimal commas": spelled(lambda score: str(score).replace(".", ","), "score;member", ";").encode(),
    "decimal commas with tabs": spelled(lambda score: str(score).replace(".", ","), "score\tmember", "\t").encode(),
    "NumPy's text": spelled("np.float64({})".format).encode(),
    "text of a tensor": spelled("\"tensor([{}], device='cuda:0')\"".format).encode(),
    "text of an array": spelled('"Array({}, dtype=float32)"'.format).encode(),
    "brackets": spelled("[{}]".format).encode(),
    "a comment": ("# attack: lira\n\n" + spelled(str)).encode(),
    "names in a comment": ("# a\n# " + spelled(str)).encode(),
    "old line ends": spelled(str).replace("\n", "\r").encode(),
    "another column that is not UTF-8": spelled(str, "score,place,member", ",K\xf6ln,").encode("cp1252"),
    "NumPy's truths": b"score,member\n"
    + b"".join(
        f"{score},np.{bool(member)}_\n".encode()
        for score, member in zip(np.round(SCORES, 4).tolist(), MEMBERS, strict=True)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_text_of_another_tool_is_read_as_the_plain_one(tmp_path: Path, form: str) -> None:
    expected = str(dpaudit.estimate(np.round(SCORES, 4) + 0.0, MEMBERS)).splitlines()[0]
    (tmp_path / "a.csv").write_bytes(FORMS[form])
    result = estimate(tmp_path / "a.csv")
    assert (result.exit_code, result.output.splitlines()[0]) == (0, expected), result.output
    table = SourceTable.of_file(tmp_path / "a.csv")
    assert table.numbers("score").tolist() == np.round(SCORES, 4).tolist()
    assert table.bits("member").tolist() == MEMBERS.tolist()
    piped = CliRunner().invoke(main, ["estimate", "-"], input=FORMS[form])
    assert piped.output.splitlines()[0] == expected


def test_lists_of_records_and_lines_in_utf_16_are_read(tmp_path: Path) -> None:
    expected = str(dpaudit.estimate(SCORES, MEMBERS)).splitlines()[0]
    records = json.dumps([json.loads(line) for line in LINES.splitlines()], indent=1)
    for text in (LINES.decode(), records):
        for encoding in ("utf-8", "utf-8-sig", "utf-16"):
            (tmp_path / "a.json").write_bytes(text.encode(encoding))
            assert estimate(tmp_path / "a.json").output.splitlines()[0] == expected


UNCLEAR: dict[str, tuple[str, str]] = {
    "thousands": (
        spelled(lambda score: f'"{1000 + score:,}"'),
        "got string: .*; write numbers such",
    ),
    "thousands with tabs": (
        spelled(lambda score: f"{int(5000 + 100 * score):,}", "score\tmember", "\t"),
        "must hold numbers, got string: .*; write numbers such as 1234.5",
    ),
    "a formula": (spelled("exp({})".format), "must hold numbers, got string: .*; write numbers such as 1234.5"),
    "a share": (spelled("{}%".format), "must hold numbers, got string: .*; write numbers such as 1234.5"),
    "two numbers in brackets": (
        spelled('"[{0}, {0}]"'.format),
        "got string: .*; write numbers such",
    ),
    "no names": (
        spelled(str).partition("\n")[2],
        "must name its columns in its first line, got numbers; write 'score,member' above them",
    ),
    "no names of three columns": ("0.5,1,7\n0.7,0,8\n", "got numbers; write their names above them"),
    "a comment that names other columns": ("# a,b,c\n0.5,1\n0.7,0\n", "got numbers; write 'score,member' above them"),
    "names that pandas gives": ("0,1\n0.5,1\n0.7,0\n", "must have the columns score,member .*, got 0,1; name yours"),
    "a short line": (spelled(str) + "1.5\n", "line 202: must have 2 columns separated by commas, got 1"),
    "yes and no": (
        "score,member\n1,yes\n2,no\n",
        "got the texts 'yes', 'no'; write 1 for members and 0 for",
    ),
    "one and two": ("score,member\n1,1\n2,2\n", "must be 0 or 1 .*, got 2 in line 3; write 1 for members"),
    "nothing known": ("score,member\n1,1\n2,\n3,0\n", "got nothing in 1 of 3 rows; state for each row whether it was"),
    "large numbers": (
        f"score,member\n{2**60 + 1},1\n{2**60 + 3},0\n",
        "must hold numbers, got int64: .*; subtract the least score from all",
    ),
}


@pytest.mark.parametrize("kind", UNCLEAR)
def test_a_text_that_could_be_misread_is_refused_with_the_remedy(tmp_path: Path, kind: str) -> None:
    content, message = UNCLEAR[kind]
    (tmp_path / "a.csv").write_text(content)
    result = estimate(tmp_path / "a.csv")
    refused(result)
    assert re.search(message, result.output), result.output


def test_names_and_slices_that_are_not_utf_8_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(FORMS["another column that is not UTF-8"])
    refused(estimate(path, "--by", "place"), "column place must be text in UTF-8; save the file as UTF-8")
    path.write_bytes(spelled(str, "score,gr\xf6\xdfe,member", ",1,").encode("cp1252"))
    refused(estimate(path), "line 1: must be UTF-8 text; convert the file to UTF-8")


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("ending", [".parquet", ".npy", ".npz"])
def test_a_binary_file_of_another_kind_is_refused_in_one_line(tmp_path: Path, kind: str, ending: str) -> None:
    (tmp_path / f"a{ending}").write_bytes(OTHER[kind][0]())
    refused(estimate(tmp_path / f"a{ending}"), f"a{ending} must")


def test_a_pipe_is_read_and_an_endless_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write = os.pipe()
    os.write(write, CSV)
    os.close(write)
    assert estimate(Path(f"/dev/fd/{read_end}")).exit_code == 0
    os.close(read_end)
    monkeypatch.setattr("dpaudit.plain_files.max_read_bytes", lambda: 5_000_000)
    refused(estimate(Path("/dev/zero")), "must fit into half of the free memory, 5,000,000 bytes")
    assert CliRunner().invoke(main, ["estimate", "-"], input=CSV).exit_code == 0


def test_a_text_above_the_memory_limit_is_refused_before_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell takes eight bytes: of two letters each, four times the file."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"score,member\n" + b"1,0\n1,1\n" * 200_000)
    monkeypatch.setattr("dpaudit.plain_files.max_read_bytes", lambda: 5_000_000)
    monkeypatch.setattr(delimited.pacsv, "read_csv", None)
    refused(estimate(path), "must fit into half of the free memory, 5,000,000 bytes, it takes 6,400,016")


def test_the_size_of_a_folder_of_tables_is_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    table = pa.table({"score": SCORES, "member": MEMBERS, "who": ["x" * 50] * 200})
    for number in range(3):
        pq.write_table(table, folder / f"{number}.parquet")
    assert estimate(folder).exit_code == 0
    monkeypatch.setattr("dpaudit.plain_files.SMALL_FILE_BYTES", 0)
    monkeypatch.setattr("dpaudit.plain_files.max_read_bytes", lambda: 6_000)
    refused(estimate(folder), "must fit into half of the free memory, 6,000 bytes")
