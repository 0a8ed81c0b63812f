"""Cases for files of other people: score files of every kind, reports, CSV files for `init`."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dpaudit import audit
from dpaudit.engine.answer.stated_values import checksum_note
from dpaudit.engine.request.loading import load_spec
from tests.fuzz.cases import ODD_BYTES, SMALL, as_file, damaged
from tests.fuzz.outcome import End, Outcome, command, outcome

DESCRIPTIONS = (
    *(
        "'<f8'",
        "'>f4'",
        "'|b1'",
        "'<i8'",
        "'<u2'",
        "'<f2'",
        "'<f16'",
        "'<c16'",
        "'|O'",
        "'<U0'",
        "'<U3'",
        "'|S0'",
        "'|V8'",
    ),
    *(
        "'<M8[s]'",
        "'<m8'",
        "[('score', '<f8'), ('member', '|b1')]",
        "[('score', '|O'), ('member', '|b1')]",
        "[]",
        "None",
    ),
    *(
        "[('score', '<f8', (0,)), ('member', '|b1')]",
        "[(('title', 'score'), '<f8')]",
        "[('', '<f8')]",
        "'x'",
        "3",
        "'<f8",
    ),
    *("[('score', [('a', '<f8')]), ('member', '|b1')]", "[('score', '<f8'), ('score', '<f8')]", "('<f8', (2,))", "{}"),
    *("[('score', '<U0'), ('member', '|b1')]", "['<f8']", "'\\\\ud800'", "'<f8,<f8'", "((((((((((", "__import__('os')"),
)
SHAPES = (
    *(
        "(24,)",
        "(24, 2)",
        "(2, 24)",
        "(24, 1)",
        "()",
        "(0,)",
        "(0, 2)",
        "(1, 1, 2)",
        "(10**18, 2)",
        "(-1,)",
        "24",
        "[24]",
    ),
    *(
        "(True,)",
        "(24.0,)",
        "(None,)",
        f"({'9' * 400},)",
        "(4611686018427387904,)",
        "(4611686018427387904, 0)",
        "('a',)",
    ),
)


def npy(descr: str, shape: str, values: bytes, *, version: int = 1) -> bytes:
    """Return a NumPy file with any header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header) & 0xFFFF)
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + values


@dataclass(frozen=True)
class ScoreFiles:
    """Cases of `dpaudit estimate FILE`: all formats, other kinds of content, odd headers and shapes."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        makers: dict[str, Callable[[random.Random], bytes]] = {
            ".npy": self._array,
            ".npz": self._archive,
            ".jsonl": self._lines,
            ".csv": self._text,
            ".csv.gz": self._packed,
        }
        ending = rng.choice(list(makers))
        content = makers[ending](rng)
        if rng.random() < 0.35:
            table = {"score": [rng.gauss(n % 2, 1) for n in range(24)], "member": [0, 1] * 12, "who": [*range(12)] * 2}
            content = as_file(table, ending)
        if rng.random() < 0.3:
            ending = rng.choice((".csv", ".tsv", ".jsonl", ".json", ".npy", ".npz", ".parquet", ".txt", ".pkl", ""))
        if rng.random() < 0.3:
            content = damaged(content, rng)
        path = self.folder / f"scores{ending}"
        path.write_bytes(content)
        options = rng.choice(
            ([], [], ["--group-by", "who"], ["--by", "who"], ["--claim", "0.5"], ["--method", "betting"])
        )
        words = ["estimate", str(path), *options]
        return f"{words} on {content[:300]!r}", command(words)

    def _array(self, rng: random.Random) -> bytes:
        values = rng.randbytes(rng.choice((0, 1, 24, 192, 384, 1000)))
        if rng.random() < 0.3:
            sink = io.BytesIO()
            np.save(sink, np.asfortranarray(np.array([[rng.gauss(0, 1), n % 2] for n in range(24)])))
            return sink.getvalue()
        return npy(rng.choice(DESCRIPTIONS), rng.choice(SHAPES), values, version=rng.choice((1, 1, 2, 3, 9)))

    def _archive(self, rng: random.Random) -> bytes:
        sink = io.BytesIO()
        method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        names = rng.choice(
            (["score", "member"], ["score", "member", "who"], ["in_scores", "out_scores"], ["k", "n"], [])
        )
        with zipfile.ZipFile(sink, "w", method) as archive:
            for name in names:
                good = npy("'<f8'", "(24,)", struct.pack("<24d", *(float(n % 2) for n in range(24))))
                content = good if rng.random() < 0.7 else self._array(rng)
                archive.writestr(rng.choice((f"{name}.npy",) * 8 + (name, f"{name}.npy.npy", f"/{name}.npy")), content)
        return sink.getvalue()

    def _lines(self, rng: random.Random) -> bytes:
        rows: list[Any] = [
            {"score": rng.gauss(0, 1), "member": n % 2, "who": f"p{n}"} for n in range(rng.randint(1, 30))
        ]
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(rows))
            if not isinstance(rows[at], dict):
                continue
            odd = rng.choice(
                (None, True, 10**400, -(10**30), float("nan"), float("inf"), "x", [1], {"a": 1}, "\ud800", "")
            )
            rows[at] = (
                {**rows[at], rng.choice(("score", "member", "who", "\ud800", "")): odd} if rng.random() < 0.8 else odd
            )
        text = b"\n".join(json.dumps(row).encode() for row in rows)
        return text + rng.choice(
            (b"", b"\n", b"\r\n", b'{"a":' * 5000, b'{"score": ' + b"[" * 100_000, b"\n{}", b"9" * 5000)
        )

    def _packed(self, rng: random.Random) -> bytes:
        content = self._text(rng)
        packs: tuple[Callable[[bytes], bytes], ...] = (
            gzip.compress,
            bz2.compress,
            lzma.compress,
            lambda content: pickle.dumps(content, rng.randrange(6)),
            lambda content: content.decode("latin-1").encode("utf-16"),
            lambda content: content.decode("latin-1").encode("utf-32"),
            lambda content: as_file({"score": [0.5, 1.5], "member": [0, 1]}, ".parquet"),
            lambda content: b"\x89HDF\r\n\x1a\n" + content,
        )
        return rng.choice(packs)(content)

    def _text(self, rng: random.Random) -> bytes:
        names = rng.choice(
            ("score,member", "score,member,who", "score\tmember", "k,n", "c1_a,c2_a", "score,score", ",", "")
        )
        wide = rng.choice((0, 0, 0, 0, 300, 20_000))
        cells = [
            rng.choice(("1", "0", "0.5", "x", "", "nan", "inf", '"a', "1e999", "9" * 400, "2020-01-01", "\x00"))
            for _ in "abc"
        ]
        good = [[f"{rng.gauss(0, 1)}", str(n % 2), f"p{n}"] for n in range(rng.randint(0, 20))]
        rows = [*good, *([cells] if rng.random() < 0.5 else [])]
        width = names.count(",") + names.count("\t") + 1
        sign = "\t" if "\t" in names else ","
        lines = [names + "".join(f",c{n}" for n in range(wide)), *(sign.join(row[:width]) for row in rows)]
        return rng.choice(("\n", "\n", "\r\n", "\r")).join(lines).encode()


ODD_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -1000, 0.5, 1e308, -1e-300, float("nan"), float("inf"), -float("inf"), 2**53, 2**63),
    *(
        10**19,
        10**399,
        -(10**399),
        "",
        "x",
        "inf",
        "nan",
        "VIOLATION",
        "NO CLAIM",
        "\ud800",
        "\x1b[2J\u202e",
        "x" * 5000,
    ),
    *([], [[]], [1], ["a"], {}, {"epsilon": 1}, {"name": "x"}, [{}], "<script>alert(1)</script>", "---\nlicense: mit"),
)


@dataclass(frozen=True)
class Readers:
    """Cases of `status`, `card` and `records` on a run folder with edited files and adjusted hashes."""

    folder: Path

    @cached_property
    def whole(self) -> Path:
        """Return an undamaged run folder."""
        made_folder = self.folder / "whole"
        game = {"name": "label-canaries", "canaries": 20, "replays": 1, "trainings": 4}
        split = {"target": 0.6, "reference": 0.2, "test": 0.2}
        audit({**SMALL, "proxy": "model", "game": game, "split": split}, output=made_folder, quiet=True)
        return made_folder

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        folder = self.folder / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.whole, folder)
        changes = (self._bounds, self._bounds, self._bounds, self._spec, self._events, self._scores, self._plan)
        descriptions = [rng.choice(changes)(folder, rng) for _ in range(rng.randint(1, 2))]
        page = ["--html", str(self.folder / "page.html")]
        words = rng.choice(
            (
                ["status", str(folder)],
                ["card", str(folder), *page],
                ["card", str(folder)],
                ["records", str(folder), *page],
                ["records", str(folder), "--csv", str(self.folder / "all.csv"), "--top", "3"],
            )
        )
        return f"{words} after {descriptions}", command(words)

    def _bounds(self, folder: Path, rng: random.Random) -> str:
        path, log = folder / "bounds.json", folder / "events.jsonl"
        before = path.read_bytes()
        if rng.random() < 0.2:
            content, document = damaged(before, rng), "bounds damaged"
        else:
            try:
                report = json.loads(before)
            except (ValueError, RecursionError):
                return "bounds left"
            places = [_put(report, rng) for _ in range(rng.randint(1, 3))]
            content, document = json.dumps(report).encode(), f"bounds {places}"
            if rng.random() < 0.2:
                deep = rng.choice(
                    (b"[" * 100_000, b'{"a":' * 3000, b"1e999", b"9" * 5000, b"-9e9999", b"[" * 50 + b"]" * 50)
                )
                content = content.replace(rng.choice((b"0.95", b"null", b"true", b"[]")), deep, 1)
                document += f" and {deep[:20]!r}"
        path.write_bytes(content)
        log.write_bytes(log.read_bytes().replace(checksum_note(before).encode(), checksum_note(content).encode()))
        return document

    def _spec(self, folder: Path, rng: random.Random) -> str:
        path = folder / "spec.yaml"
        if rng.random() < 0.4:
            path.write_bytes(damaged(path.read_bytes(), rng))
            return "spec damaged"
        try:
            spec = yaml.safe_load(path.read_bytes())
        except (yaml.YAMLError, ValueError, RecursionError):
            spec = None
        if not isinstance(spec, dict):
            return "spec left"
        place = _put(spec, rng)
        path.write_bytes(yaml.safe_dump(spec, allow_unicode=True).encode(errors="surrogatepass"))
        return f"spec {place}"

    def _events(self, folder: Path, rng: random.Random) -> str:
        path = folder / "events.jsonl"
        if rng.random() < 0.3:
            path.write_bytes(damaged(path.read_bytes(), rng))
            return "events damaged"
        kind = rng.choice(
            ("unit-started", "unit-done", "units-planned", "finished", "reported", "spilled", "stage", "x")
        )
        event = {
            "kind": kind,
            rng.choice(("count", "time", "seconds", "unit", "label", "detail", "x")): rng.choice(ODD_JSON),
        }
        with path.open("ab") as log:
            log.write(json.dumps(event).encode() + b"\n")
        return f"event {str(event)[:200]}"

    def _scores(self, folder: Path, rng: random.Random) -> str:
        path = rng.choice(sorted((folder / "scores").rglob("*.parquet")))
        if rng.random() < 0.3:
            content = damaged(path.read_bytes(), rng)
            path.unlink()  # a hard link to a unit's file
            path.write_bytes(content)
            return "scores damaged"
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError, ValueError):
            return "scores left"
        name = rng.choice(("score", "truth", "replay", "canary"))
        if name not in table.column_names or not table.num_rows:
            return "scores left"
        values = table[name].to_pylist()
        at = rng.randrange(len(values))
        odd = rng.choice((None, float("nan"), float("inf"), -1, 99_999_999, 2**62, True, "x", 0.5, [1], values[at - 1]))
        values = [odd] * len(values) if rng.random() < 0.2 else [*values[:at], odd, *values[at + 1 :]]
        try:
            column = pa.array(values)
        except pa.ArrowException:
            column = pa.array([str(value) for value in values])
        table = table.set_column(table.column_names.index(name), name, column)
        path.unlink()
        pq.write_table(table.drop_columns([name]) if rng.random() < 0.1 else table, path)
        return f"scores {name} {odd!r}"

    def _plan(self, folder: Path, rng: random.Random) -> str:
        path = folder / "plan.parquet"
        if rng.random() < 0.3:
            path.write_bytes(damaged(path.read_bytes(), rng))
            return "plan damaged"
        try:
            table = pq.read_table(path)
            about = json.loads(table.schema.metadata[b"record"])
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, RecursionError):
            return "plan left"
        place = _put(about, rng) if isinstance(about, dict) else "none"
        document = json.dumps(about) if rng.random() < 0.9 else "[" * 100_000
        pq.write_table(table.replace_schema_metadata({"record": document}), path)
        return f"plan {place}"


def _put(value: Any, rng: random.Random, at: str = "") -> str:
    """Put an odd value at some place of nested plain values, or remove a field; return a description of the place."""
    if isinstance(value, dict) and value:
        inside: Any = rng.choice(sorted(value))
    elif isinstance(value, list) and value:
        inside = rng.randrange(len(value))
    else:
        return f"{at} left"
    place = f"{at}.{inside}"
    deeper = isinstance(value[inside], dict | list) and value[inside]
    if deeper and rng.random() < 0.85:
        return _put(value[inside], rng, place)
    if isinstance(value, dict) and rng.random() < 0.15:
        del value[inside]
        return f"{place} gone"
    value[inside] = rng.choice(ODD_JSON)
    return f"{place} = {str(value[inside])[:40] if not isinstance(value[inside], int) else type(value[inside])}"


@dataclass(frozen=True)
class Beginnings:
    """Cases of `dpaudit init` with any answers; the spec it writes can be loaded, or is refused."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        spec, rows = (
            self.folder / "audit.yaml",
            self.folder / rng.choice(("rows.csv", "r\u00f6ws \u2028.csv", "a: {b}.csv")),
        )
        spec.unlink(missing_ok=True)
        content, sound = self._rows(rng)
        rows.write_bytes(content)
        mechanism = rng.choice(("lp-1st", "randomized-response"))
        epsilon, data = rng.choice(("1", "0.5", "1.23456789")), str(rows)
        odd = rng.random()
        if odd < 0.2:
            mechanism = rng.choice(("a.b:C", "x:y z", "", ":", "lp-1st\n", "\u202e", "nope", "dp-sgd", "a:b\n- c"))
        elif odd < 0.4:
            epsilon = rng.choice(("nan", "inf", "-1", "0", "1e308", "1e-300", "x", "1e400", "5e-324"))
        elif odd < 0.6:
            data = rng.choice(("digits", "iris", "nowhere", str(self.folder), "", "a\nb", "x" * 300, "\ud800"))
        is_user_code = ":" in mechanism and rng.random() < 0.8
        words = ["init", str(spec), "--mechanism", mechanism, "--data", data]
        words += [] if is_user_code else ["--epsilon", epsilon]
        result = command(words)
        description = f"{words} on {content[:100]!r}"
        if result.end is End.ANSWERED:
            result = outcome(lambda: load_spec(spec).to_yaml())
            if result.end is End.REFUSED and odd >= 0.6 and sound:
                result = Outcome(End.NONSENSE, f"init wrote a spec that is none: {result.text}")
        return description, result

    def _rows(self, rng: random.Random) -> tuple[bytes, bool]:
        """Return a file, and true if it is valid CSV."""
        label = rng.choice(
            ("y", "Gr\u00f6\u00dfe", "\u2028", "null", "1", "{", "'", "\x7f", "\x1b[2J", "- a", "$HOME", "\U0001f600")
        )
        encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-7", "cp1252"))
        content = f"a,b,{label}\n1,2,0\n3,4,1\n".encode(encoding, "replace")
        match rng.randrange(8):
            case 0 | 1 | 2:
                return damaged(content, rng), False
            case 3:
                return rng.choice(ODD_BYTES) * rng.choice((1, 1000, 1_000_000)), False
            case 4:
                return b"a,b," + b"x" * rng.choice((100_000, 200_000, 10_000_000)), False
            case _:
                return content, True
