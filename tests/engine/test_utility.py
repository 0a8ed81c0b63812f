"""Utility is measured by a model trained on the true labels, even if a game plants labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit import Audit, AuditSpec, Claim, RunOptions, audit
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.label_inference import LabelCanaries, LabelInference
from dpaudit.engine.planning.plan import make_plan
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.tables import LogisticRegression


@dataclass(frozen=True)
class SharesOfLabels:
    """A learner that predicts the class frequencies of its training labels for every row."""

    def claim(self) -> Claim:
        return Claim(1.0)

    def fit(self, train: Any, *, seed: Any, compute: Any, validation: Any) -> Any:
        shares = np.bincount(train.labels, minlength=train.classes) / len(train)

        class Model:
            def probabilities(self, features: Any) -> Any:
                return np.tile(shares, (len(features), 1))

        return Model()


def spec(mechanism: Any, game: Any, test: float = 0.2) -> AuditSpec:
    split = Partition(target=0.5, reference=0.5 - test, test=test)
    data = GaussianMixture(rows=800, classes=2)
    present = RunOptions(runner="in-process", repeats=0, figures=False)
    return AuditSpec((Audit(mechanism, data, game, proxy="true-posterior", split=split),), run=present)


def test_planted_labels_do_not_change_the_utility(tmp_path: Path) -> None:
    """On planted labels a logistic regression is correct in half of the rows, on true labels nearly as often as
    possible."""
    learner = NonPrivate(LogisticRegression())
    planted = audit(spec(learner, LabelCanaries(replays=2)), output=tmp_path / "planted", quiet=True).results[0]
    unchanged = audit(spec(learner, LabelInference(replays=2)), output=tmp_path / "as it is", quiet=True).results[0]
    assert not planted.observational
    assert planted.metrics["test_accuracy"] == pytest.approx(unchanged.metrics["test_accuracy"], abs=0.03)
    assert planted.metrics["test_accuracy"] > 0.7


def test_utility_needs_one_more_training_if_there_is_a_test_part() -> None:
    def trainings(game: Any, test: float) -> list[str]:
        (entry,) = make_plan(spec(SharesOfLabels(), game, test)).audits
        return [unit.label for unit in entry.game.trainings]

    assert trainings(LabelInference(replays=2), 0.2) == ["training 1 of 1"]
    assert trainings(LabelCanaries(replays=2), 0.2) == ["utility, a training on the true labels", "training 1 of 1"]
    assert trainings(LabelCanaries(replays=2), 0.0) == ["training 1 of 1"]


def test_a_release_of_labels_has_no_utility(tmp_path: Path) -> None:
    report = audit(
        spec({"name": "randomized-response", "epsilon": 1.0}, LabelCanaries(replays=2)), output=tmp_path, quiet=True
    )
    assert report.results[0].metrics == {}
