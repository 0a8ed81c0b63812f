"""Rows passed in Python: conversion of columns and labels, refused inputs, and runs that find their rows again."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from dpaudit import Audit, AuditSpec, Examples, RunOptions, audit, table
from dpaudit.actors.unit import fingerprint
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.in_memory import InMemory, data_source, in_memory
from dpaudit.engine.games.neighbours.game import as_numbers
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import with_stored_rows
from dpaudit.engine.request.build import describe
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import report_again
from dpaudit.errors import AuditError, DataError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.tables import LogisticRegression

FRAME = pd.DataFrame(
    {
        "age": [31.0, np.nan, 50.0, 42.0],
        "city": ["Bern", None, "Rome", "Bern"],
        "size": pd.Categorical([1, 2, 2, 1]),
        "member": [True, False, True, True],
        "clicked": ["yes", "no", "no", "yes"],
    },
    index=[7, 8, 9, 10],
)


def test_a_frame_is_read_as_a_csv_file_is() -> None:
    examples = table(FRAME, label="clicked", name="clicks").load()
    assert isinstance(examples.features, pa.Table)
    assert examples.categorical == ("city", "size", "member")
    assert examples.class_names == ("no", "yes")
    assert examples.labels.tolist() == [1, 0, 0, 1]
    assert examples.features["age"].to_pylist() == [31, 41, 50, 42]
    assert examples.features["city"].to_pylist() == ["Bern", "unknown", "Rome", "Bern"]
    assert examples.features["size"].to_pylist() == ["1", "2", "2", "1"]
    assert examples.name == "clicks (2 missing values: a number became its column's mean, a category 'unknown')"


def test_missing_values_reach_code_that_fills_them_itself(tmp_path: Path) -> None:
    data = table(FRAME, label="clicked", name="clicks", keep_missing=True)
    examples = data.load()
    assert isinstance(examples.features, pa.Table)
    assert examples.features["city"].to_pylist() == ["Bern", None, "Rome", "Bern"]
    assert np.isnan(examples.features["age"].to_numpy()).tolist() == [False, True, False, False]
    assert examples.name == "clicks (2 missing values, kept)"
    data.keep(tmp_path)
    features = InMemory(data.digest, data.contents).found_in(tmp_path).load().features
    assert isinstance(features, pa.Table)
    assert features["city"].to_pylist() == ["Bern", None, "Rome", "Bern"]
    gaps = table(pd.DataFrame({"a": [0.0, np.nan, 1.0, 2.0] * 5, "y": [0, 0, 1, 1] * 5}), label="y", keep_missing=True)
    model = LogisticRegression().fit(gaps.load(), seed=np.random.SeedSequence(0), compute=Compute())
    assert np.isfinite(model.probabilities(gaps.load().features)).all()
    assert np.isfinite(np.asarray(as_numbers(gaps.load(), "box").features)).all()
    assert np.isfinite(np.asarray(as_numbers(examples, "box").features)).all()


def test_frames_of_other_makers_and_arrow_tables_give_the_same_rows() -> None:
    arrow = pa.Table.from_pandas(FRAME, preserve_index=False)
    assert table(arrow, label="clicked") == table(FRAME, label="clicked")


def test_a_label_may_have_a_name_of_several_levels() -> None:
    levels = pd.concat({"a": FRAME}, axis=1)
    rows = table(levels, label=("a", "clicked")).load()
    assert rows.labels.tolist() == table(FRAME, label="clicked").load().labels.tolist()


def test_features_and_labels_may_be_tensors_of_16_bits() -> None:
    points, labels = torch.tensor([[0.5, 1.0], [2.0, 0.25]]), torch.tensor([1, 0])
    expected = data_source((points.numpy(), labels.numpy())).load()
    for kind in (torch.bfloat16, torch.float16):
        rows = data_source((points.to(kind).requires_grad_(), labels[:, None])).load()
        assert rows.features.tolist() == expected.features.tolist()
        assert rows.labels.tolist() == expected.labels.tolist()


@pytest.mark.parametrize(
    ("labels", "names", "codes"),
    [
        (["b", "a", "b", "c"], ("a", "b", "c"), [1, 0, 1, 2]),
        ([True, False, False, True], ("False", "True"), [1, 0, 0, 1]),
        (np.array([5, -1, 5, 7]), ("-1", "5", "7"), [1, 0, 1, 2]),
        (pd.Series([2.0, 1.0, 1.0, 2.0]), ("1", "2"), [1, 0, 0, 1]),
    ],
)
def test_labels_become_classes_and_keep_their_names(labels: Any, names: tuple[str, ...], codes: list[int]) -> None:
    examples = data_source((np.zeros((4, 2)), labels)).load()
    assert examples.class_names == names
    assert examples.labels.tolist() == codes


def test_missing_numbers_of_an_array_become_their_columns_mean_and_are_said() -> None:
    examples = data_source((np.array([[1.0, np.nan], [3.0, 4.0]]), [0, 1])).load()
    assert examples.features.tolist() == [[1, 4], [3, 4]]
    assert "1 missing values" in examples.name


def test_a_bunch_brings_the_names_of_its_classes() -> None:
    bunch = load_breast_cancer()
    examples = data_source(bunch).load()
    assert examples.class_names == ("malignant", "benign")
    np.testing.assert_array_equal(examples.features, bunch.data.astype(np.float32))
    framed = data_source(load_breast_cancer(as_frame=True)).load()
    assert framed.digest == examples.digest
    assert framed.class_names == examples.class_names


def test_examples_are_taken_as_they_are() -> None:
    examples = Examples(np.ones((3, 1, 2, 2), np.float32), np.array([0, 1, 2]), 3, "squares")
    assert data_source(examples).load() is examples
    assert data_source("digits") == "digits"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (FRAME, r"write data=dpaudit\.table\(frame, label=\.\.\.\)"),
        (3, "data must be a name, Examples"),
        ((np.zeros((3, 2)), [0, 1]), "X and y must have the same number of rows, got X = 3, y = 2"),
        ((np.zeros(3), [0, 1, 0]), r"got an array of shape \(3,\)"),
        ((np.array([[1.0], [np.inf]]), [0, 1]), r"finite 32-bit numbers, got inf at \[1, 0\]"),
        ((np.array([[np.nan], [np.nan]]), [0, 1]), "has none in"),
        ((np.array([["a"], ["b"]]), [0, 1]), "columns of text use"),
        ((np.zeros((2, 1)), [0, np.nan]), r"row 1 \(from 0\), column 'y': must hold a label, is missing"),
        ((np.zeros((2, 1)), [0, 0.5]), "must hold classes, got 0.5"),
        ((np.zeros((2, 1)), [0, 0]), "must hold at least 2 classes"),
        ((np.zeros((2, 1)), [0, "a"]), "y must be one column of plain values of one type"),
    ],
)
def test_what_is_no_data_gets_one_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(AuditError, match=sentence) as refused:
        AuditSpec((Audit(mechanism=RandomizedResponse(1.0), data=value),))
    assert "\n" not in str(refused.value)


def test_a_sparse_matrix_is_refused() -> None:
    from scipy.sparse import csr_matrix

    with pytest.raises(DataError, match=r"write X\.toarray\(\)"):
        data_source((csr_matrix(np.eye(2)), [0, 1]))


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pd.to_datetime(["2024-01-01"] * 4), "column 'odd': must be numbers or text, got timestamp"),
        ([1, "a", 2, "b"], "column 'odd' must be one column of plain values of one type"),
        ([1.0, np.inf, 2.0, 3.0], r"row 1 \(from 0\), column 'odd': must be a finite 32-bit number, got inf"),
        ([np.nan] * 4, "column 'odd': must hold a value in some row, has none; name the column in `drop`"),
    ],
)
def test_a_column_that_does_not_fit_is_named(column: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        table(FRAME.assign(odd=column), label="clicked")


def test_columns_that_are_not_there_are_named() -> None:
    with pytest.raises(DataError, match="has no column 'bought', named in `label`; its columns are age, city"):
        table(FRAME, label="bought")
    dropped = table(FRAME, label="clicked", drop="city", categorical=["age"]).load()
    assert dropped.categorical == ("age", "size", "member")
    with pytest.raises(DataError, match="got list"):
        table([1, 2], label="clicked")


@pytest.mark.parametrize(
    "examples",
    [
        table(FRAME, label="clicked").load(),
        Examples(np.random.default_rng(0).normal(size=(50, 1, 4, 3)).astype(np.float32), np.arange(50) % 2, 2),
        Examples(
            pa.table({"a": pa.chunked_array([["x", None], ["y"]]), "b": [1, 2, 3], "c": [0.5, float("nan"), 1.0]}),
            np.array([0, 1, 1]),
            2,
            categorical=("a",),
        ),
    ],
    ids=["table", "images", "chunked"],
)
def test_a_run_folder_keeps_the_rows(examples: Examples, tmp_path: Path) -> None:
    data = in_memory(examples)
    data.keep(tmp_path)
    bare = InMemory(data.digest, data.contents)
    again = bare.found_in(tmp_path).load()
    assert again.digest == examples.digest
    assert (again.name, again.classes, again.class_names) == (examples.name, examples.classes, examples.class_names)
    assert again.categorical == examples.categorical


def test_rows_do_not_travel_with_the_units_and_change_their_keys() -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 10))
    data, other = data_source((rows, np.arange(1000) % 2)), data_source((rows + 1, np.arange(1000) % 2))
    assert len(pickle.dumps(data)) < 1000
    assert pickle.loads(pickle.dumps(data)) == data
    assert fingerprint(data) != fingerprint(other)
    assert describe(data) == {
        "name": "in-memory",
        "digest": data.digest,
        "contents": "1,000 rows, 10 features, 2 classes (0, 1)",
    }


def spec_of(data: Any) -> AuditSpec:
    game = LabelInference(replays=3)
    audits = (Audit(mechanism=RandomizedResponse(1.0), data=data, game=game, name="own rows"),)
    return AuditSpec(audits, name="own", run=RunOptions(runner="in-process", figures=False))


def test_a_run_on_own_rows_is_resumed_from_its_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=300), "kind": rng.choice(["a", "b"], 300)})
    frame["y"] = (frame["x"] > 0) ^ (frame["kind"] == "b")
    spec = spec_of(table(frame, label="y"))
    first = audit(spec, output=tmp_path)
    assert first.executed > 0
    restored = load_spec(tmp_path / "spec.yaml")
    assert [unit.key for unit in make_plan(restored).units] == [unit.key for unit in make_plan(spec).units]
    again = audit(restored, output=tmp_path)
    assert again.executed == 0
    assert again.results[0].finding == first.results[0].finding
    assert report_again(tmp_path).results[0].finding == first.results[0].finding

    (path,) = (tmp_path / "data").iterdir()
    path.rename(tmp_path / "elsewhere.parquet")
    with pytest.raises(DataError, match=r"in the memory of another program \(300 rows, 2 features"):
        make_plan(load_spec(tmp_path / "spec.yaml"))
    table(frame.assign(x=1.0), label="y").keep(tmp_path)
    next((tmp_path / "data").iterdir()).rename(path)
    with pytest.raises(DataError, match="was changed"):
        load_spec(tmp_path / "spec.yaml")


class HasKeep:
    """A user's data set whose methods share names with methods of dpaudit."""

    def load(self, *, seed: int = 0) -> Examples:
        return Digits().load()

    def keep(self, folder: Path) -> None:
        raise AssertionError("only the user may call it")

    found_in = keep


def test_methods_of_own_data_are_not_taken_for_ours(tmp_path: Path) -> None:
    entry = Audit(RandomizedResponse(1.0), HasKeep(), {"name": "label-canaries", "canaries": 20, "replays": 1})
    audit(AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False)), output=tmp_path, quiet=True)
    assert with_stored_rows(entry.data, tmp_path) is entry.data


def test_a_data_set_of_ones_own_needs_a_method_load() -> None:
    class Nothing:
        pass

    with pytest.raises(SpecError, match=r"a method `load\(seed=\.\.\.\) -> Examples`; got Nothing"):
        data_source(Nothing())


@pytest.mark.parametrize(
    "about",
    ["[" * 100_000, "3", "{}", '{"shape": [' + "9" * 400 + "]}", '{"shape": null, "classes": []}'],
    ids=["deep", "number", "nothing", "400 digits", "no classes"],
)
def test_kept_rows_with_another_description_are_one_sentence(tmp_path: Path, about: str) -> None:
    rows = table(pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}), label="y")
    rows.keep(tmp_path)
    (path,) = (tmp_path / "data").iterdir()
    stored = pq.read_table(path).replace_schema_metadata({"examples": about})
    pq.write_table(stored, path)
    with pytest.raises(DataError, match="is not a whole Parquet file"):
        rows.found_in(tmp_path)
