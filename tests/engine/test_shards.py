"""Rows in Parquet shards: audits give the same scores as with the rows in memory, and the driver reads no rows."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import pickle
import runpy
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from dpaudit import AuditSpec, Examples, RunOptions, audit, load_spec
from dpaudit.actors.events import EventKind, read_events
from dpaudit.actors.unit import Inputs
from dpaudit.engine.data import shards
from dpaudit.engine.data.criteo import CATEGORICAL, NUMERIC, Criteo, CriteoSynthetic
from dpaudit.engine.data.labelled_files import Parquet
from dpaudit.engine.data.partition import Partition, RowRange
from dpaudit.engine.data.shards import ParquetShards, ShardedExamples
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.errors import DataError, RunError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.gpu_memory import in_unit, shared_examples

ROOT = Path(__file__).parent.parent.parent
ROWS, CUTS = 900, (0, 100, 100, 470, 900)
"""Rows in four shards, one of them without rows."""


def numbers() -> pa.Table:
    rng = np.random.default_rng(1)
    label = rng.integers(0, 3, ROWS)
    columns = {f"x{place}": (rng.standard_normal(ROWS) + label).astype(np.float32) for place in range(3)}
    return pa.table({"label": label.astype(np.int8), "row": np.arange(ROWS), **columns})


def mixed() -> pa.Table:
    """Numbers of several types, text, codes and a dictionary, with missing categories; labels are words."""
    rng, plain = np.random.default_rng(2), numbers()
    words = pa.array(rng.choice(["a", "b", "longer word"], ROWS), mask=rng.random(ROWS) < 0.1)
    columns = {
        "whole": pa.array(rng.integers(-5, 5, ROWS), pa.int16()),
        "words": words,
        "dictionary": words.dictionary_encode(),
        "code": pa.array(rng.integers(0, 4, ROWS)),
        "label": pa.array([f"class {label}" for label in plain["label"].to_pylist()]),
        "is": pa.array(rng.random(ROWS) < 0.3),
        "x": plain["x0"].cast(pa.float64()),
        "row": plain["row"],
    }
    return pa.table(columns)


TABLES: dict[str, Callable[[], pa.Table]] = {"numbers": numbers, "mixed": mixed}
OPTIONS: dict[str, Any] = {"label": "label", "drop": ("row",)}
CODES = {"numbers": (), "mixed": ("code",)}


def write(folder: Path, table: pa.Table) -> Path:
    """Write a table as shards of row groups of 64 rows, out of alphabetic order, and as the one file `all`."""
    (folder / "shards").mkdir()
    for number, (first, last) in enumerate(itertools.pairwise(CUTS)):
        pq.write_table(table.slice(first, last - first), folder / "shards" / f"day_{8 + number}.parquet", 64)
    pq.write_table(table, folder / "all")
    return folder / "shards"


@pytest.fixture(params=TABLES)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Examples, ShardedExamples]:
    """Rows in memory, and in shards."""
    folder, codes = write(tmp_path, TABLES[request.param]()), CODES[request.param]
    small = Parquet(str(tmp_path / "all"), **OPTIONS, categorical=codes).load()
    return small, ParquetShards(str(folder), **OPTIONS, categorical=codes).load()


def content(examples: Examples) -> tuple[Any, ...]:
    """All that examples hold, with the bytes of their arrays."""
    features = examples.features
    cells = features.to_pydict() if isinstance(features, pa.Table) else (features.dtype, features.tobytes())
    types = features.schema if isinstance(features, pa.Table) else features.shape
    about = (examples.classes, examples.categorical, examples.class_names, len(examples), examples.labels.dtype)
    return cells, types, examples.labels.tobytes(), about


def test_shards_hold_the_rows_of_one_file(both: tuple[Examples, ShardedExamples]) -> None:
    small, sharded = both
    assert content(sharded) == content(small)
    assert content(sharded.writable()) == content(small)


@pytest.mark.parametrize("order", ["random", "given"])
def test_parts_and_rows_of_parts_are_the_same(both: tuple[Examples, ShardedExamples], order: str) -> None:
    split = Partition(0.4, 0.3, 0.2, 0.1, order=order)  # type: ignore[arg-type]
    parts = [split.divide(rows, np.random.default_rng(3)) for rows in both]
    picks: list[Any] = [np.arange(5), np.arange(3, 9), np.arange(0), [4, 1, 1], np.arange(360) % 3 == 0, [9, 2]]
    for name in ("target", "reference", "test", "validation"):
        small, sharded = (getattr(each, name) for each in parts)
        assert content(pickle.loads(pickle.dumps(sharded))) == content(small)
    for rows in picks:
        small, sharded = (each.target.take(rows) for each in parts)
        assert content(sharded.take(np.arange(len(sharded)))) == content(small)
        repeated = np.zeros(min(2, len(small)), np.int64)
        small, sharded = (
            each.with_first_labels(repeated + 1).take(np.arange(len(each))[1:]) for each in (small, sharded)
        )
        assert content(sharded) == content(small)
        repeated = repeated[: len(small)]
        assert content(sharded.take(repeated)) == content(small.take(repeated))
    with pytest.raises(IndexError):
        parts[1].target.take([10_000]).labels  # noqa: B018


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 70_000])
def test_an_order_is_the_permutation_of_numpy(count: int) -> None:
    rng = np.random.default_rng(7)
    rng.random(3)  # a state in the middle of a stream
    state = json.dumps(rng.bit_generator.state)
    order = rng.permutation(count).tolist()
    assert RowRange(count, state, 0, count).positions().tolist() == order
    assert RowRange(count, state, count // 3, count).positions().tolist() == order[count // 3 :]
    assert RowRange(count, "", count // 3, count).positions().tolist() == list(range(count // 3, count))


LOGISTIC = {"name": "logistic-regression", "iterations": 20}
LP_1ST = {"name": "lp-1st", "epsilon": 2.0, "model": LOGISTIC}
AUDITS: list[dict[str, Any]] = [
    {"name": "observational", "game": {"name": "label-inference", "canaries": 200, "replays": 4}, "mechanism": LP_1ST},
    {"name": "all rows", "game": {"name": "label-inference", "replays": 4}, "mechanism": LP_1ST},
    {"name": "planted", "game": {"name": "label-canaries", "canaries": 150, "replays": 4}, "mechanism": LP_1ST},
    {
        "name": "released",
        "game": {"name": "label-canaries", "canaries": 100, "replays": 4},
        "mechanism": {"name": "randomized-response", "epsilon": 2.0},
    },
    {
        "name": "members",
        "game": {"name": "membership", "canaries": 50},
        "attack": "loss",
        "mechanism": {"name": "non-private", "model": LOGISTIC},
    },
    {
        "name": "teachers",
        "game": {"name": "label-inference", "canaries": 50, "replays": 4},
        "mechanism": {"name": "pate", "epsilon": 2.0, "teachers": 3, "model": LOGISTIC},
    },
]


def spec(data: dict[str, Any], audits: list[dict[str, Any]] = AUDITS, **run: Any) -> AuditSpec:
    """Return the spec of audits of one data set."""
    loaded = load_spec({"seed": 3, "data": data, "proxy": {"name": "model", "model": LOGISTIC}, "audits": audits})
    return replace(loaded, run=RunOptions(**{"runner": "in-process", "figures": False, **run}))


def in_shards(folder: Path) -> dict[str, Any]:
    return {"name": "parquet-shards", "path": str(folder), "label": "label", "drop": ["row"]}


def scores(folder: Path) -> dict[str, str]:
    """Digest of the scores of each audit."""
    tables = {path.name: pads.dataset(path, format="parquet").to_table() for path in (folder / "scores").iterdir()}
    cells = {name.rpartition("-")[0]: repr(table.to_pydict()) for name, table in tables.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in cells.items()}


def evidence(plan: Plan) -> list[pa.Table]:
    """Scores, tallies, controls and answers of every unit of a plan, as workers compute them."""
    tables: dict[str, pa.Table] = {}
    for unit in plan.units:
        task, shared = pickle.loads(pickle.dumps((unit.task, {name: plan.shared[name] for name in unit.shared})))
        with shared_examples(shared):
            tables[unit.key] = task.run(Inputs(shared, {key: tables[key] for key in unit.needs}), Compute())
    return list(tables.values())


def data_sets(folder: Path) -> list[dict[str, Any]]:
    """The rows in shards and in memory, as data of a spec."""
    sharded = in_shards(write(folder, numbers()))
    return [sharded, {**sharded, "name": "parquet", "path": str(folder / "all")}]


def test_units_that_read_shards_give_the_same_bits_as_units_with_rows_in_memory(tmp_path: Path) -> None:
    sharded, small = ([table.to_pydict() for table in evidence(make_plan(spec(data)))] for data in data_sets(tmp_path))
    assert len(small) > 3 * len(AUDITS)
    assert repr(sharded) == repr(small)  # digits of floats are exact, and NaN equals NaN


@pytest.mark.nightly  # by day every unit is compared without a report
def test_audits_of_shards_have_the_scores_and_answers_of_audits_in_memory(tmp_path: Path) -> None:
    folders = [tmp_path / "sharded", tmp_path / "small"]
    reports = [audit(spec(data), output=folder) for data, folder in zip(data_sets(tmp_path), folders, strict=True)]
    assert len(scores(folders[0])) == len(AUDITS)
    assert scores(folders[0]) == scores(folders[1])
    answers = [[(each.verdict, each.finding, each.metrics) for each in report.results] for report in reports]
    assert answers[0] == answers[1]


class DyingExamples(ShardedExamples):
    """Rows whose first three readers are killed when they have read the second row group."""

    deaths: Path

    def _cells(self, columns: Sequence[str]) -> Any:
        for number, cells in enumerate(super()._cells(columns)):
            yield cells
            count = len(list(self.deaths.iterdir()))
            if number == 1 and in_unit() and count < 3:
                (self.deaths / str(count)).touch()
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingShards(ParquetShards):
    def load(self, *, seed: int = 0) -> ShardedExamples:
        deaths = Path(self.path).parent / "deaths"
        deaths.mkdir(exist_ok=True)
        return DyingExamples(**vars(super().load()), deaths=deaths)


def runs_with_killed_workers(folder: Path, **run: Any) -> None:
    """Compare the scores of an undisturbed run with those of a run whose workers are killed while they read."""
    sharded, small = data_sets(folder)
    audit(spec(small, AUDITS[:1]), output=folder / "undisturbed")
    killed = spec(sharded, AUDITS[:1], **run)
    dying = DyingShards(sharded["path"], "label", drop=("row",))
    killed = replace(killed, audits=tuple(replace(each, data=dying) for each in killed.audits))
    audit(killed, output=folder / "killed")
    assert len(list((folder / "deaths").iterdir())) == 3
    kinds = [event.kind for event in read_events(folder / "killed" / "events.jsonl")]
    assert kinds.count(EventKind.WORKER_LOST) == 3
    assert scores(folder / "killed") == scores(folder / "undisturbed")


def test_children_killed_while_they_read_shards_change_no_score(tmp_path: Path) -> None:
    runs_with_killed_workers(tmp_path, runner="processes", workers=2)


@pytest.mark.nightly  # by day processes are killed
@pytest.mark.ray
def test_ray_workers_killed_while_they_read_shards_change_no_score(ray_cluster: None, tmp_path: Path) -> None:
    runs_with_killed_workers(tmp_path, runner="ray", workers=2)


def test_planning_reads_the_canaries_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted labels need none of them. Any other game is refused, unless it reads few rows."""
    data = in_shards(write(tmp_path, numbers()))
    observational, everything, planted, released, members, teachers = AUDITS
    monkeypatch.setattr(shards, "MAX_ROWS_OUTSIDE_UNITS", 200)
    make_plan(spec(data, [observational, teachers]))
    monkeypatch.setattr(shards, "MAX_ROWS_OUTSIDE_UNITS", 1)  # the row by which a model checks its columns
    make_plan(spec(data, [planted, released]))
    refused = r"would read (50|360|1[5-9][0-9]) of them where it is planned, more than 1\. Use the game label-inference"
    for each in (everything, members, teachers):
        with pytest.raises(SpecError, match=refused):
            make_plan(spec(data, [each]))
    folder = tmp_path / "in units"
    monkeypatch.setattr(shards, "MAX_ROWS_OUTSIDE_UNITS", 200)
    assert all(result.finding for result in audit(spec(data, [observational]), output=folder).results)


def test_days_of_criteo_become_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the program in examples; numbers that are missing become 0 there, and the mean for `criteo`."""
    write_shard = runpy.run_path(str(ROOT / "examples" / "criteo_shards.py"))["write_shard"]
    monkeypatch.setitem(write_shard.__globals__, "BLOCK_BYTES", 20_000)
    generated = CriteoSynthetic(300).load(seed=1)
    names = {name: generated.features[name].to_pylist() for name in (*NUMERIC, *CATEGORICAL)}  # type: ignore[call-overload]
    names["I1"][::3], names["C3"][::4] = [""] * 100, [""] * 75
    rows = zip(generated.labels.tolist(), *names.values(), strict=True)
    with gzip.open(tmp_path / "day_0.gz", "wt") as file:
        file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
    assert pq.ParquetFile(write_shard(tmp_path / "day_0.gz", tmp_path)).num_row_groups > 1
    sharded, log = ParquetShards(str(tmp_path), "label").load(), Criteo(str(tmp_path / "day_0.gz")).load()
    assert isinstance(log.features, pa.Table)
    zeros = np.where(np.arange(300) % 3 == 0, 0, np.asarray(log.features["I1"])).astype(np.float32)
    features = log.features.set_column(0, "I1", pa.array(zeros))
    assert (sharded.categorical, sharded.class_names) == (CATEGORICAL, ("0", "1"))
    assert sharded.features.to_pydict() == features.to_pydict()  # type: ignore[union-attr]
    assert sharded.labels.tolist() == log.labels.tolist()


def test_no_rows_are_sent_to_workers(tmp_path: Path) -> None:
    plan = make_plan(spec(in_shards(write(tmp_path, numbers())), AUDITS[:1]))
    parts = [rows for name, rows in plan.shared.items() if name.startswith("target")]
    before = len(pickle.dumps(parts))
    assert all(isinstance(rows, ShardedExamples) for rows in parts)
    assert parts[0].features.nbytes > 0  # type: ignore[attr-defined]
    assert len(pickle.dumps(parts)) == before < 5_000


def test_the_content_of_shards_decides_the_keys_of_units(tmp_path: Path) -> None:
    folder = write(tmp_path, numbers())

    def keys(**options: Any) -> set[str]:
        return {unit.key for unit in make_plan(spec({**in_shards(folder), **options}, AUDITS[:1])).units}

    first = keys()
    assert keys() == first
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    moved = make_plan(spec({**in_shards(folder), "path": str(copied)}, AUDITS[:1])).shared
    assert moved.keys() == make_plan(spec(in_shards(folder), AUDITS[:1])).shared.keys()
    assert not first & keys(drop=["row", "x2"])
    table = pq.read_table(folder / "day_11.parquet")
    swapped = table.take(pa.array([1, 0, *range(2, len(table))]))  # the same sizes and statistics
    pq.write_table(swapped, folder / "day_11.parquet", 64)
    assert not first & keys()


def test_a_shard_that_changed_after_planning_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, numbers())
    rows = ParquetShards(str(folder), **OPTIONS).load()
    pq.write_table(numbers().slice(0, 100), folder / "day_8.parquet", 50)
    with pytest.raises(
        DataError, match=r"day_8\.parquet: has changed since the audit was planned; run the audit again"
    ):
        rows.labels  # noqa: B018


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x0": [1.0, float("nan")]}, r"shards, column 'x0': must not hold missing numbers, .*; fill them before"),
        ({"x0": [1.0, None]}, r"shards, column 'x0': must not hold missing numbers"),
        ({"x0": [1.0, float("inf")]}, r"shards, column 'x0': must be a finite 32-bit number, got inf"),
        ({"x0": [[1.0], [2.0]]}, r"shards, column 'x0': must be numbers or text, got list<.*>; name it in `drop`"),
        ({"label": [None, 1]}, r"shards, column 'label': must hold a label, is missing"),
        ({"label": [1, 1]}, r"shards, column 'label': must hold at least 2 classes, got only '1'"),
        ({"other": [1, 1]}, r"b\.parquet: must have the columns and types of a\.parquet; write it again"),
        ({"x0": []}, r"shards: has no rows"),
    ],
)
def test_shards_name_what_is_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "shards").mkdir()
    columns = {"x0": [0.5, 1.5], "label": [0, 1]} | change
    columns = {name: values[: len(columns["x0"])] for name, values in columns.items()}
    types = [(name, pa.array(values).type) for name, values in columns.items()]
    if "other" in change:
        pq.write_table(pa.table({"x0": [0.5], "label": [1]}), tmp_path / "shards" / "a.parquet")
    pq.write_table(pa.table(columns, pa.schema(types)), tmp_path / "shards" / "b.parquet")
    with pytest.raises(DataError, match=message):
        ParquetShards(str(tmp_path / "shards"), label="label").load().features  # noqa: B018


def test_a_folder_without_whole_parquet_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold"):
        ParquetShards(str(tmp_path), label="label").load()
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(DataError, match="must hold Parquet files, holds none; set `path` to their folder"):
        ParquetShards(str(tmp_path), label="label").load()
    pq.write_table(numbers(), tmp_path / "day_0.parquet")
    assert len(ParquetShards(str(tmp_path), label="label").load()) == ROWS
    content = (tmp_path / "day_0.parquet").read_bytes()
    for damaged in (content[:-9], b"a,b", b"", content[:-8] + b"\xff\xff\xff\x7fPAR1"):
        (tmp_path / "day_1.pq").write_bytes(damaged)
        with pytest.raises(DataError, match=r"day_1\.pq: is not a whole Parquet file"):
            ParquetShards(str(tmp_path), label="label").load()


def test_a_row_group_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text of a megabyte stands once in the file and in each of 2,000 rows."""
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["w" * 1_000_000])
    table = pa.table({"words": rows, "label": [0, 1] * 1000})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", store_schema=False)
    examples = ParquetShards(str(tmp_path), label="label").load()
    with pytest.raises((DataError, RunError), match=r"must (unpack to at most|fit into half)"):
        examples.features  # noqa: B018
