"""Score files of strangers: sizes are checked before unpacking, and other files are refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
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
from dpaudit.engine.estimate import score_files
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.errors import DataError

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
    monkeypatch.setattr(score_files, "MAX_DIRECTORY", 10_000)
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
        if kind in ("|S20", "<f16"):
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
    refused(estimate(path), "must name each column once, got 'score' more than once")
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
        monkeypatch.setattr(score_files, "_RECORDS_AT_ONCE", at_once)
        path.write_bytes(b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n"))
        assert estimate(path).output.splitlines()[0] == str(dpaudit.estimate(SCORES, MEMBERS)).splitlines()[0]
        path.write_bytes(
            b'{"a": 1, "x": [[1]]}\n{"a": 2.5, "b": true}\n\n{"b": null, "a": 18446744073709551615, "c": "x"}\n'
        )
        table = SourceTable.of_file(path, lambda names: {"a", "b"})
        assert table.columns.to_pydict() == {"a": [1.0, 2.5, 2.0**64], "b": [None, True, None]}
        assert (table.names, table.unread) == (["a", "b", "x", "c"], ("x", "c"))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet", ".npz"])
def test_tables_of_too_many_columns_are_refused(tmp_path: Path, ending: str) -> None:
    names = [f"c{number}" for number in range(20_000)]
    path = tmp_path / f"a{ending}"
    sign = "\t" if ending == ".tsv" else ","
    table = pa.table({name: [1] for name in names})
    sink = io.BytesIO()
    if ending == ".parquet":
        pq.write_table(table, sink)
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


def array() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.stack([SCORES, MEMBERS], axis=1))
    return sink.getvalue()


OTHER: dict[str, tuple[Callable[[], bytes], str]] = {
    "gzip": (lambda: gzip.compress(CSV), "are those of a gzip file; unpack it first"),
    "bzip2": (lambda: bz2.compress(CSV), "are those of a bzip2 file; unpack it first"),
    "xz": (lambda: lzma.compress(CSV), "are those of an xz file; unpack it first"),
    "zstd": (lambda: b"\x28\xb5\x2f\xfd" + bytes(20), "are those of a zstd file; unpack it first"),
    "pickle 5": (lambda: pickle.dumps({"score": SCORES}, 5), "are those of a pickle, which runs code when it is read"),
    "pickle 2": (lambda: pickle.dumps({"score": SCORES}, 2), "are those of a pickle, which runs code when it is read"),
    "pickle 0": (lambda: pickle.dumps({"score": [1.0]}, 0), "must "),
    "UTF-16": (lambda: CSV.decode().encode("utf-16"), "are those of text in UTF-16; save it as UTF-8"),
    "UTF-16 without a mark": (lambda: CSV.decode().encode("utf-16-le"), "probably UTF-16 or binary; save it as UTF-8"),
    "UTF-32": (lambda: CSV.decode().encode("utf-32"), "are those of text in UTF-16; save it as UTF-8"),
    "Parquet": (parquet, "are those of a Parquet file; name it .parquet"),
    "NumPy": (array, "are those of an array of NumPy; name it .npy"),
    "NumPy's archive": (
        lambda: saved(score=SCORES, member=MEMBERS),
        "are those of a zip archive; name it .npz if NumPy",
    ),
    "HDF5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(100), "are those of an HDF5 file; write the scores as CSV"),
    "zeros": (lambda: bytes(10_000), "it has bytes that are zero"),
}


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".txt", ".pkl", ".csv.gz"])
def test_a_file_with_the_wrong_ending_is_refused_by_name(tmp_path: Path, kind: str, ending: str) -> None:
    make, message = OTHER[kind]
    path = tmp_path / f"a{ending}"
    path.write_bytes(make())
    refused(estimate(path), message)


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("ending", [".parquet", ".npy", ".npz"])
def test_a_binary_file_of_another_kind_is_refused_in_one_line(tmp_path: Path, kind: str, ending: str) -> None:
    own_values = {"Parquet": ".parquet", "NumPy": ".npy", "NumPy's archive": ".npz"}
    (tmp_path / f"a{ending}").write_bytes(OTHER[kind][0]())
    result = estimate(tmp_path / f"a{ending}")
    if own_values.get(kind) == ending:
        assert result.exit_code == 0, result.output
    else:
        refused(result, f"a{ending} must")


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
    monkeypatch.setattr(score_files.pacsv, "read_csv", None)
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
