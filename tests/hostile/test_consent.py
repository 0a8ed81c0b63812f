"""A stranger's spec executes, contacts and reads nothing without consent, and its effects are stated before."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.hostile.reader import SECRETS, Reader
from tests.http_servers import serving

EVIL = """\
import pathlib
pathlib.Path({mark!r}).write_text("ran")
class M:
    def claim(self): ...
    def release(self): ...
    def fit(self): ...
"""
SHADOWED = ("yaml", "numpy", "click", "torch", "pyarrow", "opacus", "dp_accounting", "sitecustomize", "usercustomize")
"""Modules that dpaudit imports, or would import if they were installed."""


@pytest.fixture
def mark(reader: Reader) -> Path:
    """Return the file that a stranger's code would write, outside the stranger's folder."""
    return reader.elsewhere / "mark"


def evil(path: Path, mark: Path) -> None:
    """Write a module that creates `mark` when it is imported."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EVIL.format(mark=str(mark)))


def changed(folder: Path, **parts: Any) -> None:
    """Give the audit of a run folder other components, and adjust its plan to the changed spec."""
    spec = yaml.safe_load((folder / "spec.yaml").read_text())
    run = parts.pop("run", {})
    spec["audits"][0] |= parts
    spec["run"] |= run
    text = yaml.safe_dump(spec, sort_keys=False)
    (folder / "spec.yaml").write_text(text)
    plan = pq.read_table(folder / "plan.parquet")
    plan_record = json.loads(plan.schema.metadata[b"record"])
    plan_record["spec"] = hashlib.sha256(text.encode()).hexdigest()
    pq.write_table(plan.replace_schema_metadata({"record": json.dumps(plan_record)}), folder / "plan.parquet")


@pytest.mark.parametrize(
    ("verb", "named"),
    [
        ("report", "got-x.evil:M"),  # no pattern for Python names matches this name
        pytest.param("resume", "got-x.evil:M", marks=pytest.mark.nightly),
        pytest.param("report", "os:system", marks=pytest.mark.nightly),
        ("resume", "sklearn.linear_model:LogisticRegression"),
    ],
)
def test_a_class_that_a_stranger_names_is_not_imported(
    reader: Reader, folder: Path, mark: Path, verb: str, named: str
) -> None:
    evil(folder / "got-x" / "evil.py", mark)
    changed(folder, mechanism={"name": named})
    reader.opens(verb, folder, cwd=folder).refused(f"names code ({named})", "add --allow-code")


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "callable", "train": "subprocess:run", "claimed": {"epsilon": 1.0}},
        {"name": "lp-1st", "epsilon": 1.0, "model": {"name": "torch", "module": "evil:M", "train": "evil:M"}},
    ],
)
def test_code_in_a_field_of_a_part_is_not_imported(
    reader: Reader, folder: Path, mark: Path, mechanism: dict[str, Any]
) -> None:
    evil(folder / "evil.py", mark)
    changed(folder, mechanism=mechanism)
    reader.opens("report", folder, cwd=folder).refused("names code", "add --allow-code")


def test_an_edited_spec_is_refused_before_anything_is_imported(reader: Reader, folder: Path, mark: Path) -> None:
    evil(folder / "evil.py", mark)
    spec = folder / "spec.yaml"
    spec.write_text(spec.read_text().replace("randomized-response", "evil:M", 1))
    refused = reader.opens("report", folder, "--allow-code", cwd=folder)
    refused.refused("the spec has changed")
    status = reader.opens("status", folder, cwd=folder)
    status.harmless()
    assert status.code == 0


def test_allowed_code_is_imported_from_the_readers_own_folder_only(reader: Reader, folder: Path, mark: Path) -> None:
    """No module is imported from the stranger's folder or its parents: `PYTHONPATH` or another working folder is
    needed."""
    evil(folder / "evil.py", mark)
    changed(folder, mechanism={"name": "evil:M"})
    for where in (folder, reader.stranger):
        reader.starts("resume", folder, "--allow-code", cwd=where).refused("evil:M", "must be in PYTHONPATH")
    shutil.copy(folder / "evil.py", reader.work)
    assert reader.starts("resume", folder, "--allow-code", cwd=reader.work).code == 2  # a mechanism without a claim
    assert mark.read_text() == "ran"


@pytest.mark.parametrize("where", ["in", pytest.param("around", marks=pytest.mark.nightly)])
def test_no_module_of_the_working_folder_is_imported(reader: Reader, folder: Path, mark: Path, where: str) -> None:
    """The reader's working folder is the stranger's folder, or its parent."""
    cwd = folder if where == "in" else reader.stranger
    for name in SHADOWED:
        evil(cwd / f"{name}.py", mark)
    metadata_folder = cwd / "evil-1.0.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (metadata_folder / "entry_points.txt").write_text("[dpaudit.mechanisms]\nnice = opacus:M\n")
    process = reader.starts("report", folder, cwd=cwd)
    process.harmless()
    assert process.code == 0, process.err
    script = Path(sys.executable).with_name("dpaudit")
    reader.runs([str(script), "status", str(folder)], cwd=cwd).harmless()
    changed(folder, mechanism={"name": "nice"})
    reader.starts("report", folder, cwd=cwd).refused("mechanism must be one of")


@pytest.mark.nightly
@pytest.mark.ray
def test_workers_import_no_module_of_the_working_folder(reader: Reader, folder: Path, mark: Path) -> None:
    """Ray would put the working folder of its driver before all installed packages."""
    for name in ("torch", "yaml", "scipy", "sklearn", "catboost", "pandas"):
        evil(folder / f"{name}.py", mark)
    shutil.rmtree(folder / "units")
    changed(folder, run={"runner": "ray", "workers": 1})
    process = reader.runs(
        [str(Path(sys.executable).with_name("dpaudit")), "resume", str(folder), "--fresh"], cwd=folder, time_limit_s=300
    )
    assert process.code == 0, process.err
    assert not mark.exists()


GAME = {
    "name": "private-prediction",
    "votes": "run",
    "full_runs": 8,
    "queries": 2,
    "adversary": "nat-adv-q",
}


def querying_parts(url: str, **more: Any) -> dict[str, Any]:
    """Return the components of an audit that queries a server."""
    claimed = {"epsilon": 1.0, "delta": 1e-6, "relation": "add-remove"}
    mechanism = {"name": "prediction-endpoint", "url": url, "claimed": claimed, "first_wait_s": 0.01, **more}
    split = {"target": 0.9, "reference": 0.0, "test": 0.1}
    parts: dict[str, Any] = {"mechanism": mechanism, "game": GAME, "split": split, "data": {"name": "iris"}}
    return {**parts, "attack": None, "estimator": None}


def test_no_data_are_sent_without_consent(reader: Reader, folder: Path) -> None:
    with serving(lambda body: {"answers": [0] * len(body["queries"])}) as server:
        changed(folder, **querying_parts(server.url, key_variable="GITHUB_TOKEN"))
        refused = reader.opens("resume", folder, "--fresh", "--allow-code", "--allow-files")
        refused.refused(server.url, "the value of $GITHUB_TOKEN", "about 10 requests or more", "add --allow-network")
        assert server.bodies == []
        reader.opens("resume", folder, "--fresh", "--allow-network")
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {SECRETS['GITHUB_TOKEN']}"}


def test_no_variable_is_expanded_in_an_address(reader: Reader, folder: Path) -> None:
    with serving(lambda body: {"answers": []}) as server:
        changed(folder, **querying_parts(f"{server.url}/$AWS_SECRET_ACCESS_KEY"))
        reader.opens("resume", folder, "--fresh", "--allow-network").refused("url must be written out")
        assert server.bodies == []


def test_no_cluster_is_joined_without_consent(reader: Reader, folder: Path) -> None:
    changed(folder, run={"runner": "ray", "address": "ray://192.0.2.1:10001"})
    reader.opens("resume", folder, "--fresh").refused("the Ray cluster at ray://192.0.2.1:10001", "add --allow-network")
    refused = reader.opens("resume", folder, "--fresh", "--allow-network")
    refused.refused("which can run code here", "add --allow-code")


@pytest.mark.parametrize("way", ["path", pytest.param("~", marks=pytest.mark.nightly), "$NAME", "link", "cache"])
def test_no_file_of_the_reader_is_read_without_consent(reader: Reader, folder: Path, way: str) -> None:
    secret = reader.home / "grades.csv"
    secret.write_text("grade,label\n" + "1,pass\n2,fail\n" * 50)
    if way == "link":
        (folder / "rows.csv").symlink_to(secret)
    path = {"path": str(secret), "~": "~/grades.csv", "$NAME": "$HOME/grades.csv", "link": str(folder / "rows.csv")}
    if way == "cache":
        model = {"name": "endpoint", "url": "http://localhost:1", "model_name": "m", "cache": "~/.ssh"}
        changed(folder, mechanism={"name": "prompt-pate", "model": model})
    else:
        changed(folder, data={"name": "csv", "path": path[way], "label": "label"})
    named = path.get(way, "~/.ssh")
    for verb in ("report", "resume") if way == "path" else ("report",):
        refused = reader.opens(verb, folder)
        words = ("must be a plain file, it is a link",) if way == "link" else (named, "add --allow-files")
        refused.refused(*words)
        assert "grade," not in refused.err


def test_data_in_the_strangers_folder_need_no_consent(reader: Reader, folder: Path) -> None:
    (folder / "rows.csv").write_text("x,label\n" + "1,a\n2,b\n" * 300)
    changed(folder, data={"name": "csv", "path": str(folder / "rows.csv"), "label": "label"})
    process = reader.opens("resume", folder, "--fresh")
    process.harmless()
    assert process.code == 0, process.err


class Runs:
    """An object whose pickle runs code."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self._mark, "ran")


SWEEP = """\
name: swept
data: {name: iris}
mechanism: {name: lp-1st, epsilon: 1.0, model: recall}
game: {name: label-canaries, canaries: 30, replays: 2}
grid: {mechanism.epsilon: [0.5, 2.0]}
run: {runner: in-process, figures: false}
"""


def test_no_pickle_of_a_strangers_sweep_is_opened(
    reader: Reader, mark: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    maker = Reader(tmp_path_factory.mktemp("maker"))
    (maker.work / "spec.yaml").write_text(SWEEP)
    made_folder = maker.work / "swept"
    assert maker.opens("sweep", "spec.yaml", "--output", made_folder, "--quiet", WATCHED_LOG="").code == 0
    folder = Path(shutil.copytree(made_folder, reader.stranger / "swept"))
    content = pickle.dumps(Runs(mark))
    for name in ("tune/x/tuner.pkl", "tune/x/trainable.pkl", "tune/x/searcher-state.pkl", "tune/x/t/error.pkl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "checkpoints").mkdir(exist_ok=True)
    units = sorted((folder / "units").glob("*.parquet"))
    for unit in units:
        (folder / "checkpoints" / unit.stem).write_bytes(content)
    units[0].write_bytes(content)
    for verb in (("report",), ("sweep", "--restore"), ("status",)):
        process = reader.opens(*verb, folder)
        process.harmless()
    assert not mark.exists()
