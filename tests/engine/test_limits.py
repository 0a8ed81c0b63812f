"""Limits of plans and loaders; values of environment variables are never stored."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpaudit import audit, load_spec
from dpaudit.actors.unit import Unit
from dpaudit.consent import hide_variable_values
from dpaudit.engine.data import generated
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.images import Cifar10, read_idx
from dpaudit.engine.data.labelled_files import Csv
from dpaudit.engine.planning import plan
from dpaudit.engine.planning.plan import make_plan, planning_announcement
from dpaudit.errors import AuditError, DataError, InputError, SpecError

RR = {"name": "randomized-response", "epsilon": 1.0}
SMALL = {"name": "gaussian-mixture", "rows": 2000}
PRIVATE = {"name": "dp-sgd", "epsilon": 1.0, "delta": 1e-5, "model": "mlp"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": {"name": "gaussian-mixture", "classes": 1e9}}, "must have at most 2,147,483,648 numbers"),
        ({"data": {"name": "gaussian-mixture", "rows": 10**17}}, "must have at most 2,147,483,648 numbers"),
        ({"data": {"name": "criteo-synthetic", "rows": 10**17}}, "must have at most 2,147,483,648 numbers"),
        ({"data": {"name": "made-phrases", "length": 10**17}}, "must have at most 2,147,483,648 numbers"),
        ({"game": {"name": "label-inference", "replays": 10**17}}, "a plan must have at most 100,000 units"),
        ({"game": {"name": "label-inference", "trainings": 10**9}}, "a plan must have at most 100,000 units"),
        ({"game": {"name": "label-repeats", "trials": 10**12}}, "trials must be in 2 .. 10,000,000, got 1000000000"),
        ({"game": {"name": "label-crafted", "releases": 10**9}}, "releases must be in .1, 125,000., got 1000000000"),
        ({"game": {"name": "ind-mia", "trials": 10**9}, "mechanism": PRIVATE}, "trials must be in 2 .. 10,000,000"),
        ({"game": {"name": "ind-mia", "trials": 10**7}, "mechanism": PRIVATE}, "a plan must have at most 100,000"),
    ],
)
def test_a_plan_beyond_a_limit_is_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises((SpecError, InputError), match=message):
        make_plan(load_spec({"data": SMALL, "mechanism": RR, "split": {"test": 0.1}, **content}))


@pytest.mark.parametrize(
    "content",
    [
        {
            "data": {"name": "gaussian-mixture", "rows": 20_000_000},
            "game": {"name": "label-inference", "replays": 10**9},
        },
        {"game": {"name": "label-canaries", "canaries": 100, "replays": 10**9}},
        {"game": {"name": "label-inference", "trainings": 10**9}},
        {"game": {"name": "ind-mia", "trials": 10**7}, "mechanism": PRIVATE},
        {
            "grid": {"mechanism.epsilon": [0.01 * n for n in range(1, 400)]},
            "game": {"name": "label-inference", "trainings": 200},
        },
    ],
)
def test_a_too_large_plan_is_refused_before_data_are_generated(
    content: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        pytest.fail("this was made before the plan was refused")

    spec = load_spec({"data": SMALL, "mechanism": RR, "split": {"test": 0.1}, **content})
    monkeypatch.setattr(GaussianMixture, "load", forbidden)
    monkeypatch.setattr(Unit, "__post_init__", forbidden)
    with pytest.raises(SpecError, match="a plan must have at most 100,000 units"):
        make_plan(spec)


def test_audits_that_share_their_units_count_them_once() -> None:
    game = {"name": "label-inference", "trainings": 20_000, "replays": 1}
    audits = [{"estimator": name, "name": name} for name in ("simultaneous-guess-count", "one-run")]
    spec = load_spec({"data": SMALL, "mechanism": RR, "game": game, "audits": audits})
    assert plan._fewest_units(spec) == 60_000


def test_generated_data_larger_than_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "memory_bytes", lambda: 10**9)
    with pytest.raises(InputError, match=r"this machine's memory, 1\.0 GB, these take 1\.2 GB"):
        GaussianMixture(rows=20_000_000)


def test_a_header_that_exceeds_the_file_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "images"
    for head in ((2**32 - 1, 2**16, 2**16), (2**32 - 1, 2**32 - 1, 2**32 - 1), (7, 2**32 - 1, 1)):
        path.write_bytes(struct.pack(">4I", 0x803, *head) + b"1234")
        with pytest.raises(DataError, match=r"must hold .* items of .* bytes, ends in item"):
            read_idx(path, 0x803)
    path.write_bytes(struct.pack(">4I", 0x803, 2**32 - 1, 0, 5))
    with pytest.raises(DataError, match="must hold items of at least 1 byte"):
        read_idx(path, 0x803)


def test_more_rows_than_the_file_holds_reads_all_rows(tmp_path: Path) -> None:
    batch = np.zeros((3, 3073), np.uint8)
    batch[1, 0] = 4
    (tmp_path / "data_batch_1.bin").write_bytes(batch.tobytes())
    assert len(Cifar10(str(tmp_path), rows=10**18).load()) == 3
    (tmp_path / "x.csv").write_text("a,y\n1,0\n2,1\n")
    assert len(Csv(str(tmp_path / "x.csv"), "y", rows=10**18).load()) == 2


def test_unusual_column_names_are_printed_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'a,b\x01,"x\n\x1b[2Jy",z\n1,2,3,0\n')
    with pytest.raises(DataError) as caught:
        Csv(str(tmp_path / "x.csv"), "y").load()
    assert str(caught.value).endswith(r"its columns are a, b\x01, x\n\x1b[2Jy, z")


def test_names_of_variables_are_stored_but_not_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "s3cret-token"
    secret.mkdir()
    monkeypatch.setenv("DATA_FOLDER", str(secret))
    data = {"name": "csv", "path": "$DATA_FOLDER/x.csv", "label": "y"}
    spec = load_spec({"data": data, "mechanism": RR})
    assert "$DATA_FOLDER/x.csv" in spec.to_yaml()
    assert "s3cret" not in spec.to_yaml()
    for text in (None, "", "a,y\n1,0\n2\n"):
        if text is not None:
            (secret / "x.csv").write_text(text)
        with pytest.raises(AuditError) as caught:
            make_plan(spec)
        assert "s3cret" not in str(caught.value)
        assert "$DATA_FOLDER/x.csv" in str(caught.value)
        assert caught.value.__cause__ is None
    idx = load_spec({"data": {"name": "mnist", "path": "$DATA_FOLDER/x.csv"}, "mechanism": RR})
    with pytest.raises(DataError, match=r"set `path` to \$DATA_FOLDER$"):
        make_plan(idx)
    (secret / "x.csv").write_text("a,y\n" + "1,0\n2,1\n" * 50)
    plan = make_plan(spec)
    assert plan.audits[0].data_name == "x.csv"
    monkeypatch.delenv("DATA_FOLDER")
    with pytest.raises(DataError, match="the environment variable DATA_FOLDER is not set"):
        make_plan(spec)


def test_a_failing_unit_shows_no_value_of_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT", "s3cret-vault")
    settings = {"path": f"{tmp_path}/$VAULT/${{VAULT}}.key"}
    run = {"runner": "in-process", "figures": False}
    spec = {
        "data": {"name": "gaussian-mixture", "rows": 200},
        "mechanism": {"name": "tests.own_mechanism:ReadsAFile", "settings": settings},
        "proxy": "true-posterior",
        "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
        "run": run,
    }
    report = audit(spec, output=tmp_path / "run", quiet=True)
    (result,) = report.results
    assert f"the token in '{settings['path']}' opens nothing" in result.failures[0].error
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {".failed", ".jsonl", ".json", ".html"} <= {path.suffix for path in written}
    assert [path.name for path in written if b"s3cret" in path.read_bytes()] == []
    assert "s3cret" not in str(report)


def test_values_of_variables_are_masked_at_any_depth_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "/data/inner-secret")
    monkeypatch.setenv("INNER", "inner-secret")
    monkeypatch.setenv("SHORT", "a")
    deep: list[object] = ["$OUTER/x", "$SHORT", Path("$INNER")]
    for _ in range(5000):
        deep = [deep]
    deep.append(deep)
    masked = hide_variable_values("cannot read /data/inner-secret/x, /data/inner-secret, a/inner-secret", {"in": deep})
    assert masked == "cannot read $OUTER/x, $OUTER, a/$INNER"
    assert hide_variable_values("/data/inner-secret", "no variable") == "/data/inner-secret"


def test_a_relative_path_starts_at_the_folder_where_the_spec_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a,y\n" + "1,0\n2,1\n" * 50)
    data = {"name": "csv", "path": "x.csv", "label": "y"}
    spec = load_spec({"data": {"name": "joined", "first": data, "second": data}, "mechanism": RR})
    keys = [unit.key for unit in make_plan(spec).units]
    monkeypatch.chdir("/")
    assert [unit.key for unit in make_plan(load_spec(yaml.safe_load(spec.to_yaml()))).units] == keys


def test_slow_data_generation_is_announced() -> None:
    spec = {
        "data": {"name": "gaussian-mixture", "rows": 20_000_000},
        "mechanism": {"name": "randomized-response", "epsilon": 1},
    }
    announcement = planning_announcement(load_spec({**spec, "game": {"name": "label-canaries"}}))
    assert re.fullmatch(
        r"planning at least \d+ units on 20,000,000 generated rows, which are made first", announcement
    ), announcement
    spec["data"] = {"name": "gaussian-mixture", "rows": 1000}
    assert planning_announcement(load_spec({**spec, "game": {"name": "label-canaries"}})) == ""
