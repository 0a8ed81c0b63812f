"""The usual measures of synthetic tables see what they can see, and pass what they cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from dpaudit.errors import InputError
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.usual_measures import UsualMeasure, usual_measures
from dpaudit.synthetic_tables.games.view import KNOWN_HOLDOUT, TableView

CLOSER = "share of synthetic rows closer to training"
EXACT = "share of synthetic rows equal to a training row"
LOW = "5th percentile of the distance to the closest record, training to holdout"
MEDIAN = "median distance to the closest record, training to holdout"
RATIO = "5th percentile of the nearest-neighbour distance ratio, training to holdout"
ONE_COLUMN, SEVERAL = "singling-out risk, univariate", "singling-out risk, multivariate"
RULES = (CLOSER, LOW, MEDIAN, RATIO, EXACT, ONE_COLUMN, SEVERAL)


def rows(count: int, rng: np.random.Generator) -> pd.DataFrame:
    numbers = {f"number {place}": rng.normal(size=count).round(3) for place in range(3)}
    return pd.DataFrame(
        numbers | {"town": rng.geometric(0.05, count).astype(str), "sex": rng.choice(["f", "m"], count)}
    )


def measured(
    training: pd.DataFrame, holdout: pd.DataFrame, released: pd.DataFrame, score: NDArray[np.float64] | None = None
) -> dict[str, UsualMeasure]:
    first, second, synthetic = encoded(training, holdout, released)
    real = replace(
        first,
        numbers=np.concatenate([first.numbers, second.numbers]),
        words=np.concatenate([first.words, second.words]),
    )
    count = len(real)
    view = TableView(synthetic, real, np.full(count, -1), np.full(count, KNOWN_HOLDOUT, np.int8))
    trained = np.arange(count) < len(first)
    scores = {"guess": trained.astype(np.float64) if score is None else score}
    return {measure.name: measure for measure in usual_measures(view, trained, scores)}


@pytest.fixture(scope="module")
def fresh() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(3)  # about one fresh table in twenty fails a rule
    return rows(500, rng), rows(700, rng), rows(600, rng)


def test_fresh_rows_pass_every_rule(fresh: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]) -> None:
    """The holdout is larger than the training file, and is cut down: else the closer share would be below 0.5."""
    values = measured(*fresh)
    assert [name for name in RULES if not values[name].passes] == []
    assert values[CLOSER].lower < 0.5 < values[CLOSER].upper
    for name in (LOW, MEDIAN, RATIO):
        assert values[name].lower < 1 < values[name].upper
    for name in (ONE_COLUMN, SEVERAL):
        assert values[name].lower < 0 < values[name].upper


def test_a_table_of_copies_fails_every_rule(fresh: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]) -> None:
    values = measured(fresh[0], fresh[1], fresh[0])
    assert [name for name in RULES if values[name].passes] == []
    assert values[EXACT].value == 1
    assert values[CLOSER].value == 1
    assert values[LOW].value == 0


def test_few_copies_pass_the_distance_rules(fresh: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]) -> None:
    training, holdout, released = fresh
    values = measured(training, holdout, pd.concat([released[:594], training[:6]]))
    assert values[CLOSER].passes
    assert values[LOW].passes
    assert values[EXACT].value == pytest.approx(0.01)


def test_copies_of_holdout_rows_are_no_failure(fresh: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]) -> None:
    values = measured(fresh[0], fresh[1][:500].reset_index(drop=True), fresh[1][:500])
    assert values[CLOSER].value == 0
    assert values[CLOSER].passes
    assert values[EXACT].passes
    assert values[SEVERAL].upper < 0


def test_singling_out_counts_predicates_that_fit_one_row() -> None:
    """Ten of the twenty predicates on single values fit one training row, and two of them one holdout row."""
    training = pd.DataFrame({"name": [f"name {place}" for place in range(10)] * 1 + ["same"] * 10})
    holdout = pd.DataFrame({"name": [f"name {place}" for place in range(2)] + ["same"] * 18})
    released = pd.DataFrame({"name": [f"name {place}" for place in range(20)]})
    risk = measured(training, holdout, released)[ONE_COLUMN]
    assert risk.value == pytest.approx((0.5 - 0.1) / 0.9)
    assert "50 % fit exactly one training row, 10 % one holdout row" in risk.means
    assert risk.lower < risk.value < risk.upper


def test_attack_scores_get_auc_and_rate(fresh: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]) -> None:
    perfect = measured(*fresh)
    assert perfect["AUC of guess"].value == 1
    assert perfect["TPR at 1 % FPR of guess"].value == 1
    blind = measured(*fresh, score=np.random.default_rng(1).random(1_200))
    assert blind["AUC of guess"].lower < 0.5 < blind["AUC of guess"].upper
    assert "[0." in str(blind["AUC of guess"])


def test_missing_cells_and_single_columns_are_measured() -> None:
    rng = np.random.default_rng(2)
    tables = [rows(60, rng)[["number 0"]].where(rng.random((60, 1)) > 0.2) for _ in range(3)]
    assert all(np.isfinite(measure.value) for measure in measured(tables[0], tables[1], tables[2]).values())
    words = [rows(60, rng)[["town"]] for _ in range(3)]
    assert all(np.isfinite(measure.value) for measure in measured(words[0], words[1], words[2]).values())


def test_both_files_must_have_rows(fresh: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]) -> None:
    first, _, synthetic = encoded(*fresh)
    view = TableView(synthetic, first, np.full(500, -1), np.zeros(500, np.int8))
    with pytest.raises(InputError, match="both files must have rows"):
        usual_measures(view, np.ones(500, bool), {})
