"""An inaccurate proxy must not lead to a violation of an honest mechanism in observational games.

The large version is `benchmarks/false_violations.py`; docs/statistics/calibration.md has its table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.exact_mechanisms import Drifting, Forgets
from benchmarks.false_violations import SCENES
from dpaudit import Audit, AuditResult, AuditSpec, Claim, Examples, RunOptions, audit
from dpaudit.claims import Relation
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.attribute_inference import AttributeInference
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.one_run.membership import ObservationalMembership
from dpaudit.engine.games.protocol import Game
from dpaudit.engine.games.proxies import TruePosterior
from dpaudit.estimators.finding import Validity
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.recalled_labels import Recall
from dpaudit.mechanisms.models.tables import ConstantModel
from tests.engine.observational_audits import Observed, fitted, powered
from tests.nightly import by_day

AUDITS = 20


@pytest.mark.parametrize(
    "case",
    [
        Observed(powered(1.3), canaries=12_000, held_out=400, replays=1),
        Observed(powered(1.4), canaries=12_000, held_out=300, replays=1),
        Observed(fitted(60), canaries=16_000, held_out=200, dimensions=8, replays=1),
    ],
    ids=["log-probabilities times 1.3", "times 1.4", "fitted to 60 rows"],
)
def test_an_inaccurate_proxy_does_not_reject_an_honest_mechanism(case: Observed) -> None:
    """Randomised response at 1, claim 1. False failure < 1e-6: `limit` is that quantile of Binomial(20, 0.05)."""
    limit = binom.ppf(1 - 1e-6, AUDITS, 0.05)
    outcomes = [case.run(seed) for seed in range(AUDITS)]
    assert sum(outcome.by_size(1.0) for outcome in outcomes) <= limit
    # A rule by the significance of a shift rejects most: the rows are too few to detect a shift of this size.
    assert sum(outcome.by_significance(1.0) for outcome in outcomes) > limit


def test_a_true_violation_is_found_despite_a_small_shift() -> None:
    """The true epsilon is 2.94, the claim 1. A rule by significance of the shift decides nothing. The seeds are
    fixed."""
    case = Observed(powered(1.3), canaries=4_000, held_out=4_000, epsilon=2.94, classes=10, replays=1)
    games = by_day(5, by_night=10)
    outcomes = [case.run(seed) for seed in range(games)]
    assert sum(outcome.by_size(1.0) for outcome in outcomes) >= 0.9 * games
    assert sum(outcome.by_significance(1.0) for outcome in outcomes) <= 1


FORGETS = Forgets(Relation.REPLACE, ConstantModel((0.5, 0.5)))
DRIFTING = Drifting(6_000)


def audited(folder: Path, mechanism: Any, game: Game, split: Partition, seed: int = 0, **fields: Any) -> AuditResult:
    entry = Audit(mechanism=mechanism, game=game, split=split, **fields)
    spec = AuditSpec((entry,), seed=seed, run=RunOptions(runner="in-process", figures=False))
    return audit(spec, output=folder).results[0]


IN_ORDER = Partition(target=0.3, reference=0.4, test=0.3, order="given")


def test_drifting_labels_do_not_reject_a_learner_that_ignores_its_data(tmp_path: Path) -> None:
    game = ObservationalMembership(replays=3)
    result = audited(tmp_path, FORGETS, game, IN_ORDER, data=DRIFTING)
    assert result.comparison is not None
    assert result.comparison.observed > 0.1  # a violation without the control
    assert result.verdict is Verdict.UNDECIDED
    assert result.finding is not None
    assert result.finding.validity is Validity.CONDITIONAL_ON_PROXY
    assert result.control is not None
    assert result.control.shift_detected
    assert result.control.rows == 1_800
    assert "assumed: The fresh points must be independent draws from the law" in result.text(verbose=True)


def test_memorisation_is_detected_despite_a_drift(tmp_path: Path) -> None:
    game = ObservationalMembership(replays=3)
    forgets = replace(IN_ORDER, reference=0.3)
    result = audited(
        tmp_path, NonPrivate(Recall()), game, forgets, data=DRIFTING, claim=Claim(1.0, relation=Relation.REPLACE)
    )
    assert result.verdict is Verdict.VIOLATION
    assert result.violation_point is not None
    assert result.control is not None
    assert result.control.beyond is not None
    assert result.violation_point.observed == result.control.beyond.lower


def test_rows_split_at_random_need_no_control(tmp_path: Path) -> None:
    """A fair coin decides which row of a pair is trained on. False failure <= 0.05 over seeds; the seed is fixed."""
    random_order = replace(IN_ORDER, order="random")
    result = audited(tmp_path, FORGETS, ObservationalMembership(replays=3), random_order, data=DRIFTING)
    assert result.verdict is Verdict.NO_VIOLATION
    assert result.control is None
    assert result.finding is not None
    assert result.finding.validity is Validity.FINITE_SAMPLE


@dataclass(frozen=True)
class Sexes:
    """Records whose label equals the protected attribute with probability 0.9."""

    rows: int = 4_000

    def load(self, *, seed: int = 0) -> Examples:
        rng = np.random.default_rng(seed)
        protected = rng.random(self.rows) < 0.5
        labels = np.where(rng.random(self.rows) < 0.9, protected, ~protected).astype(np.int64)
        features = np.column_stack([rng.standard_normal((self.rows, 2)), protected]).astype(np.float32)
        return Examples(features, labels, 2, "sexes")


@dataclass(frozen=True)
class Knows:
    """A model independent of the data: the law of the label given the attribute."""

    def probabilities(self, features: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        probability = np.where(features[:, 2] > 0.5, 0.9, 0.1)
        return np.column_stack([1 - probability, probability])


@pytest.mark.parametrize("test_share", [0.0, 0.2])
def test_without_held_out_rows_there_is_no_violation(test_share: float, tmp_path: Path) -> None:
    """The proxy, fitted to 8 rows, is inaccurate; the mechanism ignores its data."""
    game = AttributeInference(replays=3, columns=("2",))
    split = Partition(target=0.75, reference=0.002, test=test_share)
    result = audited(tmp_path, Forgets(Relation.REPLACE, Knows()), game, split, data=Sexes())
    assert result.comparison is not None
    assert result.comparison.observed > 0.1
    assert result.verdict is Verdict.UNDECIDED
    if not test_share:
        assert result.control is None
        assert "there are none (`split: {test: ...}`)" in result.answer.line("reason")


def test_a_true_proxy_needs_no_held_out_rows(tmp_path: Path) -> None:
    split = Partition(target=0.9, reference=0.0, test=0.0)
    fields = {"data": GaussianMixture(rows=2_000), "proxy": TruePosterior(), "claim": Claim(0.1)}
    result = audited(tmp_path, NonPrivate(Recall()), LabelInference(replays=3), split, **fields)
    assert result.verdict is Verdict.VIOLATION
    assert result.finding is not None
    assert result.finding.validity is Validity.FINITE_SAMPLE


def test_without_a_control_the_audit_is_undecided(tmp_path: Path) -> None:
    split = Partition(target=0.5, reference=0.2, test=0.3)
    fields = {"data": GaussianMixture(rows=2_000), "claim": Claim(0.1)}
    result = audited(tmp_path, NonPrivate(Recall()), LabelInference(replays=3, control=False), split, **fields)
    assert result.verdict is Verdict.UNDECIDED
    again = audited(tmp_path / "with", NonPrivate(Recall()), LabelInference(replays=3), split, **fields)
    assert again.verdict is Verdict.VIOLATION


@pytest.mark.parametrize(("scene", "real"), [("leaking", True), ("fresh points", False)])
def test_verdicts_of_a_scene_are_true(scene: str, real: bool) -> None:
    """Checks every cell with an exact proxy. The seed is fixed; a false VIOLATION has probability <= 0.05."""
    verdicts = SCENES[scene].verdicts(0)
    exact = {verdict for cell, verdict in verdicts.items() if cell.endswith("exact")}
    assert exact == {Verdict.VIOLATION.value if real else Verdict.NO_VIOLATION.value}
