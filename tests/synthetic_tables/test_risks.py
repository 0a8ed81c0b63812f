"""Risks by plain names: the holdout is the control, and no attempt knows a coin; several tables ranked in one call."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import binom

import dpaudit
from dpaudit.claims import Claim, Relation, claim_under
from dpaudit.engine.cli.main import main
from dpaudit.errors import DataError
from dpaudit.registry import catalogue
from dpaudit.synthetic_tables.front_door import auditing
from dpaudit.synthetic_tables.front_door.auditing import Reading, _risk
from dpaudit.synthetic_tables.front_door.result import Risk
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.pairs import PairedTables, paired
from dpaudit.synthetic_tables.games.risks import Attempts, attempts

STATED = Claim(np.inf)
READING = Reading(STATED, claim_under(STATED, Relation.REPLACE), 0.999, "")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play two of the attacks, without the one that fits classifiers."""
    entries = {name: catalogue("table-attack")[name] for name in ("copies", "nearest-neighbour")}
    monkeypatch.setattr(auditing, "catalogue", lambda kind: entries)


def people(count: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return rows in which pay follows age, and the town follows the district."""
    age, district = rng.normal(40, 10, count).round(1), rng.integers(0, 30, count)
    return pd.DataFrame(
        {
            "age": age,
            "district": [f"d{code}" for code in district],
            "pay": (age * np.exp(rng.normal(4, 0.3, count))).round(2),
            "town": [f"t{code}" for code in 4 * district + rng.integers(0, 4, count)],
            "height": rng.normal(170, 10, count).round(1),
        }
    )


def game(copied: float, count: int, seed: int) -> PairedTables:
    rng = np.random.default_rng(seed)
    train, holdout, released = (people(count, rng) for _ in range(3))
    released.iloc[: round(copied * count)] = train.iloc[: round(copied * count)].to_numpy()
    return paired(*encoded(train, holdout, released), seed=seed)


def risks(pairs: PairedTables) -> dict[str, Risk]:
    return {each.name: _risk(pairs, each, READING) for each in attempts(pairs, [], 0)}


def test_copies_are_singled_out_linked_and_inferred() -> None:
    measured = risks(game(0.7, 200, 0))
    assert list(measured) == ["singled out", "linked", "inferred"]
    for risk in measured.values():
        assert risk.bound.lower > 0.3
        assert risk.lower > 0
        assert risk.training > risk.holdout + 0.1


def test_what_the_columns_explain_is_inferred_of_everybody_and_shows_nothing() -> None:
    """Synthetic rows of the true law infer values of training and of holdout rows alike."""
    measured = risks(game(0, 300, 1))["inferred"]
    assert min(measured.training, measured.holdout) > 0.6
    assert measured.lower < 0 < measured.upper
    assert measured.bound.lower == 0


def test_scores_and_views_of_a_view_count_as_singling_out() -> None:
    pairs = game(0, 100, 2)
    view = pairs.trained * 3.0
    assert next(attempts(pairs, [view], 0)).success[pairs.trained].all()


def peeking(pairs: PairedTables) -> Attempts:
    """Return the planted defect: values are drawn for training rows alone, so that only these can be preferred."""
    fair = next(each for each in attempts(pairs, [], 0) if each.name == "inferred")
    return Attempts(
        "inferred", "", np.where(pairs.trained, fair.score, -np.abs(fair.score)), fair.success, fair.attempted
    )


def test_bounds_of_fresh_rows_hold_together_and_a_peeking_attempt_is_caught() -> None:
    """False failure < 1e-6: at most 5 % of 80 games may show a bound above 0."""
    games = [game(0, 40, 100 + seed) for seed in range(80)]
    above = sum(any(risk.bound.lower > 0 for risk in risks(pairs).values()) for pairs in games)
    limit = binom.ppf(1 - 1e-6, 80, 0.05)
    assert above <= limit
    assert sum(_risk(pairs, peeking(pairs), READING).bound.lower > 0 for pairs in games) > limit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write three tables: fresh rows, and copies of a half and of most of the training rows."""
    rng = np.random.default_rng(0)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / ".hidden").write_text("no table")
    train, holdout, fresh = (people(150, rng) for _ in range(3))
    train.to_csv(tmp_path / "train.csv", index=False)
    holdout.to_csv(tmp_path / "holdout.csv", index=False)
    for name, copies in (("a", 0), ("b", 120), ("c", 60)):
        pd.concat([train[:copies], fresh[copies:]]).to_csv(tmp_path / "tables" / f"{name}.csv", index=False)
    return tmp_path


@pytest.mark.usefixtures("quick")
def test_the_tables_of_a_folder_are_ranked_and_share_the_error(folder: Path) -> None:
    files = [str(folder / name) for name in ("train.csv", "holdout.csv", "tables")]
    ranked = dpaudit.rank_synthetic(*files, claim=1)
    assert list(ranked.audits) == ["b.csv", "c.csv", "a.csv"]
    assert str(ranked).splitlines()[-1] == "all bounds hold together: the 3 tables share the error evenly"
    alone = dpaudit.synthetic(*files[:2], str(folder / "tables" / "b.csv"), claim=1)
    assert 0 < ranked.audits["b.csv"].epsilon < alone.epsilon
    confidence = ranked.audits["b.csv"].guessed[0].strict.confidence
    assert 1 - confidence == pytest.approx((1 - alone.guessed[0].strict.confidence) / 3)
    assert ranked.to_frame()["table"].tolist() == list(ranked.audits)
    values = json.loads(CliRunner().invoke(main, ["synthetic", *files, "--json"]).stdout)
    assert [table["table"] for table in values["tables"]] == list(ranked.audits)
    assert [risk["name"] for risk in values["tables"][0]["risks"]] == ["singled out", "linked", "inferred"]
    refused = CliRunner().invoke(main, ["synthetic", *files, "--output", str(folder / "page.html")])
    assert "--output needs one table" in refused.output


def test_a_folder_without_files_is_refused(folder: Path) -> None:
    (folder / "none").mkdir()
    files = [str(folder / name) for name in ("train.csv", "holdout.csv")]
    with pytest.raises(DataError, match="at least one synthetic table"):
        dpaudit.rank_synthetic(*files, str(folder / "none"))
    with pytest.raises(DataError, match="must be a folder"):
        dpaudit.rank_synthetic(*files, files[0])
