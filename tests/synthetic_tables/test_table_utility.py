"""Utility of synthetic tables: marginal errors and models, exact where they can be computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit.errors import DataError
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.utility import utility


def frame(rows: int, seed: int, *, informative: bool = True) -> pd.DataFrame:
    """Return rows whose class follows a number and a word, or nothing."""
    rng = np.random.default_rng(seed)
    number, word = rng.normal(size=rows), rng.choice(["a", "b"], rows)
    follows = (number > 0) ^ (word == "a") if informative else rng.random(rows) < 0.5
    return pd.DataFrame({"number": number, "word": word, "class": np.where(follows, "yes", "no")})


def values(*tables: Any, target: str | None = None) -> dict[str, tuple[float, float]]:
    train, holdout, synth = tables
    return {each.name: (each.value, each.reference) for each in utility(train, holdout, synth, target)}


def test_marginal_errors_of_words_are_exact() -> None:
    train = pd.DataFrame({"x": ["a", "a", "b", "b"], "y": ["u", "u", "v", "v"]})
    synth = pd.DataFrame({"x": ["a", "a", "b", "b"], "y": ["u", "v", "u", "v"]})  # independent columns
    holdout = pd.DataFrame({"x": ["a", "b", "b", "b"], "y": ["u", "v", "v", None]})
    measured = values(train, holdout, synth)
    assert measured["mean_one_way_distance"] == (0.0, 0.25)
    assert measured["largest_one_way_distance"] == (0.0, 0.25)
    assert measured["mean_two_way_distance"] == measured["largest_two_way_distance"] == (0.5, 0.25)


def test_numbers_are_divided_at_quantiles_of_the_training_rows() -> None:
    train = pd.DataFrame({"x": np.arange(1000.0), "y": "a"})
    synth = pd.DataFrame({"x": np.r_[np.arange(500.0), np.arange(500.0)], "y": "a"})
    measured = values(train, train, synth)
    assert measured["largest_one_way_distance"] == pytest.approx((0.5, 0.0))


def test_a_model_trained_on_synthetic_rows_is_as_good_as_they_are() -> None:
    train, holdout = frame(400, 0), frame(400, 1)
    good, useless = values(train, holdout, frame(400, 2)), values(train, holdout, frame(400, 3, informative=False))
    assert good["test_accuracy"][0] > 0.95
    assert useless["test_accuracy"][0] < 0.65
    assert good["test_accuracy"][1] == useless["test_accuracy"][1] > 0.95
    assert good["majority_accuracy"][0] == max((holdout["class"] == "yes").mean(), (holdout["class"] == "no").mean())
    assert useless["mean_two_way_distance"][0] < 0.15  # no pair of columns tells the class


def test_a_number_is_predicted_with_r_squared() -> None:
    train, holdout = frame(400, 0), frame(400, 1)
    measured = values(train, holdout, train.sample(frac=1.0, random_state=0), target="number")
    assert "test_accuracy" not in measured
    assert measured["test_r2"][0] == pytest.approx(measured["test_r2"][1], abs=0.1)
    assert measured["test_r2"][1] > 0.3


def test_a_number_with_few_whole_values_is_a_class() -> None:
    tables = [frame(300, seed).replace({"class": {"yes": 1, "no": 0}}).infer_objects() for seed in range(3)]
    tables[2]["class"] = tables[2]["class"] + 0.2  # synthetic numbers are no whole ones: the nearest class counts
    assert values(*tables)["test_accuracy"][0] > 0.95


def test_coded_tables_and_frames_give_the_same() -> None:
    tables = [frame(200, seed) for seed in range(3)]
    assert values(*encoded(*tables), target="class") == values(*tables)


def test_one_class_in_the_synthetic_rows_is_the_constant_answer() -> None:
    train, holdout = frame(200, 0), frame(200, 1)
    measured = values(train, holdout, train.assign(**{"class": "yes"}))
    assert measured["test_accuracy"][0] == (holdout["class"] == "yes").mean()


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(DataError, match=r"must be a column of the tables, got 'clas'.*did you mean 'class'"):
        utility(frame(20, 0), frame(20, 1), frame(20, 2), "clas")


def test_a_single_column_has_marginals_only() -> None:
    assert set(values(*(frame(50, seed)[["word"]] for seed in range(3)))) == {
        "mean_one_way_distance",
        "largest_one_way_distance",
    }
