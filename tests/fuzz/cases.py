"""Cases for tables of `estimate`, specs, data files and run folders, each changed at random."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dpaudit import audit
from dpaudit.engine.data.criteo import Criteo
from dpaudit.engine.data.images import Cifar10, Mnist
from dpaudit.engine.data.labelled_files import Adult, Csv, Parquet
from dpaudit.engine.data.texts import Sst2
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.loading import load_spec
from tests.fuzz.outcome import End, Outcome, command, outcome

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four random errors: flipped, cut, duplicated, inserted or overwritten."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = data[: rng.randrange(len(data) + 1)]
            case 3:
                data[at:at] = rng.choice(ODD_BYTES)
            case 4:
                data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
            case _:
                del data[at : at + rng.randrange(1, 20)]
    return bytes(data)


ODD_BYTES = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\n",
    b"\r",
    b'"',
    b",",
    b"\t",
    b"'",
    b";",
    b"-",
    b"nan",
    b"inf",
    b"1e999",
    b"-0",
    b"9" * 400,
    b"[" * 200,
    b"{",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"!!python/none",
    b"%YAML 9",
    b"true",
    b"\xe2\x80\xae",
)


@dataclass(frozen=True)
class Estimates:
    """Cases of `dpaudit estimate FILE`: damaged tables, and tables and options without a right answer."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        table, options, nonsense = self._table(rng)
        ending = rng.choice((".csv", ".tsv", ".jsonl", ".npz", ".parquet", ".npy", ".txt"))
        content = as_file(table, ending)
        if not nonsense and rng.random() < 0.6:
            content = damaged(content, rng)
        elif not nonsense and rng.random() < 0.3:
            options, nonsense = [*options, *rng.choice(_WRONG_OPTIONS)], True
        path = self.folder / f"table{ending}"
        path.write_bytes(content)
        words = ["estimate", str(path), *options]
        return f"{words} on {content[:300]!r}", command(words, nonsense=nonsense)

    def _table(self, rng: random.Random) -> tuple[dict[str, list[Any]], list[str], bool]:
        rows = rng.randint(1, 30)
        if rng.random() < 0.5:
            table: dict[str, list[Any]] = {
                "score": [rng.gauss(0, 1) for _ in range(2 * rows)],
                "member": [0, 1] * rows,
            }
            options = rng.choice(([], ["--claim", "0.5"], ["--confidence", "0.9"], ["--delta", "1e-5"], ["--json"]))
            if rng.random() < 0.4:
                return *_nonsense_scores(table, rng), True
            return table, list(options), False
        k, n = rng.randint(0, 50), rng.randint(50, 100)
        table, wrong = rng.choice(
            (
                ({"tp": [k], "fp": [n - k], "tn": [n], "fn": [k]}, {"tp": [-1]}),
                ({"guesses": [n], "correct": [k], "canaries": [n]}, {"correct": [n + 1]}),
                ({"n1": [k], "n0": [k], "trials1": [n], "trials0": [n]}, {"n1": [n + 1]}),
                ({"k1": [k], "n1": [n], "k2": [k], "n2": [n]}, {"k1": [n + 1]}),
            )
        )
        if rng.random() < 0.4:
            name = rng.choice(sorted(wrong))
            odd = rng.choice((wrong[name], [float("nan")] * len(wrong[name]), ["x"] * len(wrong[name])))
            return {**table, name: list(odd)}, [], True
        return dict(table), [], False


_WRONG_OPTIONS: tuple[list[str], ...] = (
    ["--confidence", "1"],
    ["--confidence", "0"],
    ["--confidence", "-1"],
    ["--confidence", "nan"],
    ["--delta", "1"],
    ["--delta", "-0.1"],
    ["--delta", "nan"],
    ["--method", "none"],
    ["--method", "os:system"],
    ["--claim", "-1"],
    ["--claim", "x"],
    ["--claim", "nan"],
    ["--option", "nothing"],
    ["--option", "no_field=1"],
    ["--selection", "split:-1"],
    ["--group-by", "none"],
    ["--score-column", "none"],
    ["--member-column", "none"],
)


def _nonsense_scores(table: dict[str, list[Any]], rng: random.Random) -> tuple[dict[str, list[Any]], list[str]]:
    rows = len(table["member"])
    at = rng.randrange(rows)

    def put(column: str, value: Any) -> dict[str, list[Any]]:
        return {**table, column: [*table[column][:at], value, *table[column][at + 1 :]]}

    odd: list[dict[str, list[Any]]] = [
        put("score", float("nan")),
        put("member", 2),
        put("member", -1),
        put("member", 0.5),
        {**table, "member": [1] * rows},
        {**table, "member": [0] * rows},
        {**table, "score": ["word"] * rows},
        {"score": table["score"]},
        {"other": table["score"], "member": table["member"]},
        {"score": [], "member": []},
    ]
    return rng.choice(odd), []


def as_file(table: Mapping[str, list[Any]], ending: str) -> bytes:
    """Return a table in the format of this file ending."""
    names = list(table)
    rows = list(zip(*table.values(), strict=True))
    sink = io.BytesIO()
    match ending:
        case ".jsonl":
            return b"".join(json.dumps(dict(zip(names, row, strict=True))).encode() + b"\n" for row in rows)
        case ".npz":
            np.savez(sink, **{name: np.asarray(column) for name, column in table.items()})
            return sink.getvalue()
        case ".npy":
            kinds = [(name, np.asarray(column).dtype if column else np.float64) for name, column in table.items()]
            np.save(sink, np.array(rows, dtype=kinds))
            return sink.getvalue()
        case ".parquet":
            pq.write_table(pa.table({name: pa.array(column) for name, column in table.items()}), sink)
            return sink.getvalue()
    delimiter = "\t" if ending == ".tsv" else ","
    lines = [delimiter.join(names), *(delimiter.join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


ODD_VALUES: tuple[Any, ...] = (
    True,
    False,
    None,
    0,
    -1,
    1,
    2,
    10**9,
    10**17,
    10**18,
    -(10**17),
    0.5,
    1e-300,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    ":",
    "os:system",
    "tests.own_mechanism:KeepsEverything",
    "tests.own_mechanism:none",
    "x" * 300,
    "2020-01-01",
    "1e-5",
    "nan",
    "\x07",
    "../../etc/passwd",
    "$HOME",
    "~nobody/x",
    "a\x00b",
    [],
    [[]],
    [1, "a"],
    [None],
    {},
    {"name": "x"},
    {"name": None},
    {"name": "iris"},
    {"name": ["a"]},
    [{}],
    "iris",
    "mlp",
    "dp-sgd",
    "ray",
    "one-run",
)


@dataclass(frozen=True)
class Specs:
    """Cases of `load_spec` and `make_plan` for the examples and a small spec, with changed values, names and bytes."""

    folder: Path

    @cached_property
    def texts(self) -> list[str]:
        """Specs that need no data file."""
        small = {
            "name": "small",
            "seed": 1,
            "confidence": 0.95,
            "data": {"name": "gaussian-mixture", "rows": 300, "classes": 3, "dimensions": 2},
            "game": {"name": "label-inference", "replays": 4, "trainings": 2},
            "split": {"target": 0.5, "reference": 0.4, "test": 0.1},
            "claim": {"epsilon": 1.0, "delta": 1e-5},
            "proxy": "true-posterior",
            "run": {"runner": "in-process", "workers": 2, "resources": {"cpus": 1}},
            "mechanism": {"name": "lp-1st", "epsilon": 2.0, "model": {"name": "mlp", "hidden": [16], "epochs": 2}},
        }
        audits = {
            "data": {"name": "joined", "first": "iris", "second": {"name": "iris", "standardise": True}},
            "audits": [
                {
                    "name": "a",
                    "mechanism": {"name": "randomized-response", "epsilon": 1.0},
                    "estimator": "one-run-f-dp",
                },
                {
                    "name": "b",
                    "mechanism": {"name": "dp-sgd", "epsilon": 1.0, "delta": 1e-5, "model": {"name": "mlp"}},
                    "game": {"name": "ind-mia", "trials": 8, "stack": 4, "canary": {"name": "mislabelled", "count": 1}},
                    "estimator": {"name": "betting", "delta": 1e-5},
                    "stop": {"epsilon": 2.0},
                },
            ],
        }
        return [yaml.safe_dump(small), yaml.safe_dump(audits)]

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        text = rng.choice(self.texts).encode()
        if rng.random() < 0.4:
            text = damaged(text, rng)
        else:
            value = yaml.safe_load(text)
            for _ in range(rng.randint(1, 3)):
                value = _changed(value, rng)
            text = yaml.safe_dump(value, allow_unicode=True).encode(errors="surrogatepass")
        path = self.folder / "spec.yaml"
        path.write_bytes(text)
        return repr(text), outcome(lambda: _planned(path))


def _planned(path: Path) -> str:
    spec = load_spec(path)
    plan = make_plan(spec)
    spec.to_yaml()
    return f"{plan.table().num_rows} units"


def _changed(value: Any, rng: random.Random) -> Any:
    """Return a value with an odd value, an added or removed name, or two swapped values, at some place."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value, key=str))
        match rng.randrange(8):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, rng.choice(("epsilon", "name", "path", "x", "", "rows", 3, None)): value[key]}
            case _:
                return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD_VALUES)


@dataclass(frozen=True)
class Loaders:
    """Cases of data sets that read a damaged file."""

    folder: Path

    @cached_property
    def files(self) -> list[tuple[str, bytes, Callable[[str], Any]]]:
        """Return file name, valid content, and a function that loads the data set from the folder."""
        rng = np.random.default_rng(0)
        table = io.BytesIO()
        pq.write_table(pa.table({"a": [1.0, 2.0, None], "b": ["x", None, "y"], "y": [0, 1, 0]}), table)
        batch = rng.integers(0, 10, (2, 3073), dtype=np.uint8).tobytes()
        images = struct.pack(">4I", 0x803, 5, 3, 4) + bytes(60)
        person = (
            "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40"
        )
        adult = f"{person}, Cuba, <=50K\n{person}, Cuba, >50K\n"
        criteo = "".join("\t".join([str(label), *["1"] * 13, *["68fd1e64"] * 26]) + "\n" for label in (0, 1, 0))
        csv = b'a,b,y\n1,"x, z",0\n2,?,1\n3,"y",0\n'
        return [
            ("x.csv", csv, lambda at: Csv(f"{at}/x.csv", "y")),
            ("x.csv.gz", gzip.compress(csv), lambda at: Csv(f"{at}/x.csv.gz", "y", rows=10**18)),
            ("x.tsv", csv, lambda at: Csv(f"{at}/x.tsv", "column-2", delimiter=",", header=False)),
            ("x.parquet", table.getvalue(), lambda at: Parquet(f"{at}/x.parquet", "y")),
            ("data_batch_1.bin", batch, lambda at: Cifar10(at)),
            ("train-images-idx3-ubyte", images, lambda at: Mnist(at)),
            ("train-labels-idx1-ubyte", struct.pack(">2I", 0x801, 5) + bytes(range(5)), lambda at: Mnist(at)),
            ("adult.data", adult.encode(), lambda at: Adult(at)),
            ("day_0", criteo.encode(), lambda at: Criteo(f"{at}/day_0")),
            ("train.tsv", b"sentence\tlabel\na fine film\t1\ndull\t0\n", lambda at: Sst2(at)),
        ]

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        name, content, data = rng.choice(self.files)
        for other, good, _ in self.files:
            if not (self.folder / other).exists():
                (self.folder / other).write_bytes(good)
        odd = damaged(content, rng)
        (self.folder / name).write_bytes(odd)
        result = outcome(lambda: f"{len(data(str(self.folder)).load())} rows")
        (self.folder / name).write_bytes(content)
        return f"{name}: {odd[:300]!r}", result


SMALL: dict[str, Any] = {
    "name": "fuzz",
    "data": {"name": "gaussian-mixture", "rows": 200},
    "mechanism": {"name": "randomized-response", "epsilon": 1.0},
    "proxy": "true-posterior",
    "game": {"name": "label-inference", "replays": 4},
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "run": {"runner": "in-process", "figures": False},
}


@dataclass(frozen=True)
class RunFolders:
    """Cases of `dpaudit report` and `resume` on a damaged run folder: refused, or the bounds of the undamaged
    folder."""

    folder: Path

    @cached_property
    def whole(self) -> Path:
        """Return an undamaged run folder."""
        made_folder = self.folder / "whole"
        audit(SMALL, output=made_folder, quiet=True)
        return made_folder

    @cached_property
    def expected(self) -> Any:
        """Return the findings of the undamaged folder."""
        return _findings(self.whole)

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        expected, folder = self.expected, self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.whole, folder)
        changes = [_damage(folder, rng) for _ in range(rng.randint(1, 2))]
        words = [rng.choice(("report", "report", "resume")), str(folder), "--quiet"]
        result = command(words)
        if result.end is End.ANSWERED and not all(map(_holds, _findings(folder), expected)):
            result = Outcome(End.NONSENSE, f"{_findings(folder)} instead of {expected}")
        return f"{words} after {changes}", result


def _findings(folder: Path) -> Any:
    results = json.loads((folder / "bounds.json").read_text())["results"]
    return [(result["verdict"], result["claim"], result["finding"]) for result in results]


def _holds(actual: Any, expected: Any) -> bool:
    """True if the findings are those of the undamaged folder, or count replays reported as lost as bounds of 0."""
    lost_units = actual[2] is not None and actual[2]["counts"].get("lost replays", 0) > 0
    weaker = lost_units and actual[2]["lower"] <= expected[2]["lower"] and actual[1] == expected[1]
    return bool(actual == expected or weaker)


def _damage(folder: Path, rng: random.Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".svg", ".png"))
    if not files:
        return "nothing left"
    path = rng.choice(files)
    content = path.read_bytes()
    path.unlink()  # scores are hard links to the units' files
    match rng.randrange(6):
        case 0:
            return f"{path.name} gone"
        case 1:
            other = rng.choice(files)
            path.write_bytes(other.read_bytes() if other.exists() else b"")
            return f"{path.name} = {other.name}"
        case 2:
            path.mkdir()
            return f"{path.name} a folder"
        case 3 if path.parent.name == "units":
            path.write_bytes(content)
            path.with_suffix(".failed").write_bytes(rng.choice(ODD_BYTES))
            return f"{path.name} failed"
        case _:
            path.write_bytes(damaged(content, rng))
            return f"{path.name} damaged"
