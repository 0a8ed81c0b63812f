"""The game `neighbours`: two data sets, summaries of trainings, and an output set learned from the summaries."""

from __future__ import annotations

import math
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Claim, Examples, Relation, RunOptions, Verdict, audit, from_summary
from dpaudit.actors.values import decode, encode
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.engine.data.bundled import BreastCancer, Iris
from dpaudit.engine.games.neighbours.game import Neighbours, as_numbers
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.engine.games.neighbours.poisonings.regression import Influence, Surrogate
from dpaudit.engine.games.neighbours.poisonings.rows import ClassFlip, Remove
from dpaudit.engine.report.charts import DetectedLine, detected, draw_detected, lines_of
from dpaudit.engine.request.loading import load_spec
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.bound import Bound
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.registry import catalogue, load

CONFIDENCE = 1 - 1e-6
"""Confidence of the bounds in this file: a bound exceeds the truth less often than once in 10^6."""


@dataclass(frozen=True)
class NoisyCount:
    """Number of records of class 1, with Laplace noise of scale 1 / truth: exactly `truth`-DP for a flipped label."""

    truth: float = 1.0
    claimed: float = 1.0

    def claim(self) -> Claim:
        return Claim(self.claimed, relation=Relation.LABEL)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        noise = np.random.default_rng(seed).laplace(0, 1 / self.truth, (count, 1))
        summaries: NDArray[np.float64] = (train.labels == 1).sum() + noise
        return summaries


def audited(folder: Path, mechanism: Any, *, trials: int = 4_000, stack: int = 2_000, **fields: Any) -> Any:
    fields = {"poisoning": ClassFlip(), "search": 1_000} | fields
    game = Neighbours(trials=trials, stack=stack, **fields)
    entry = Audit(mechanism, Iris(), game=game, attack=OutputSet(("linear",)))
    run = RunOptions(runner="in-process", figures=False, repeats=0)
    return audit(AuditSpec((entry,), seed=5, confidence=CONFIDENCE, run=run), output=folder).results[0]


@pytest.mark.parametrize("copies", [1, 2])
def test_bound_holds_and_is_near_the_truth(copies: int, tmp_path: Path) -> None:
    """False failure <= 1e-6 for the upper side, by the confidence of the bound; fixed seed for the lower side."""
    result = audited(tmp_path, NoisyCount(), copies=copies)
    assert result.verdict is Verdict.NO_VIOLATION
    assert result.compared.steps == copies
    assert 0.6 * copies < result.finding.lower <= copies


@pytest.mark.parametrize("copies", [1, 2])
def test_planted_defect_is_detected(copies: int, tmp_path: Path) -> None:
    """Half of the noise: the true epsilon is twice the claim. Fixed seed."""
    assert audited(tmp_path, NoisyCount(truth=2.0), copies=copies).verdict is Verdict.VIOLATION


def test_group_privacy_with_delta(tmp_path: Path) -> None:
    """For four records, the claim is (4 eps, delta (1 + e^eps + e^2eps + e^3eps))."""
    claim = Claim(0.5, 1e-3, Relation.REPLACE)
    game = replace(Neighbours(), poisoning=ClassFlip(), copies=4)
    converted = game.traits.compared(claim)
    assert converted.claim.epsilon == pytest.approx(2.0)
    assert converted.claim.delta == pytest.approx(1e-3 * math.expm1(2.0) / math.expm1(0.5))
    assert converted.steps == 4
    assert "4 records" in converted.note
    removed = Neighbours(poisoning=Remove()).traits
    assert removed.relation is Relation.ADD_REMOVE
    assert Neighbours.traits.relation is Relation.LABEL  # of the class: as for its usual poisoning
    with pytest.raises(SpecError, match="says nothing"):
        removed.compared(claim)
    with pytest.raises(InputError, match="1, 2, 4, 8"):
        replace(game.traits, records=3).compared(claim)


def test_learner_without_summaries_predicts_at_the_points(tmp_path: Path) -> None:
    """A regression without privacy: models trained on different labels predict differently."""
    mechanism = NonPrivate(LogisticRegression())
    entry = Audit(
        mechanism,
        Iris(),
        game=Neighbours(trials=60, search=40, stack=50, poisoning=ClassFlip()),
        attack=OutputSet(("linear",)),
        claim=Claim(0.5, relation=Relation.LABEL),
    )
    run = RunOptions(runner="in-process", figures=False, repeats=0)
    result = audit(AuditSpec((entry,), seed=5, run=run), output=tmp_path).results[0]
    assert result.verdict is Verdict.VIOLATION
    assert result.finding.lower > 1.5


@pytest.mark.parametrize("name", sorted(set(catalogue("poisoning")) - {"automatic"}))
@pytest.mark.parametrize("copies", [1, 4])
def test_poisoning_makes_neighbours_of_its_relation(name: str, copies: int) -> None:
    data = as_numbers(Iris().load(), "box")
    poisoning = load("poisoning", name)()
    worlds: Worlds = poisoning.worlds(data, copies, np.random.default_rng(3))
    different = worlds.in_d != worlds.in_d_prime
    both = worlds.rows.take(~different)
    rows_zero, rows_one = (worlds.rows.take(different & marks) for marks in (worlds.in_d, worlds.in_d_prime))
    if poisoning.relation is Relation.ADD_REMOVE:
        assert sorted((len(rows_zero), len(rows_one))) == [0, copies]
    else:
        assert len(rows_zero) == len(rows_one) == copies
        assert len(worlds.world_zero) == len(worlds.world_one) == len(data)
    if poisoning.relation is Relation.LABEL:
        assert np.array_equal(rows_zero.features, rows_one.features)
        assert (rows_zero.labels != rows_one.labels).all()
    # What both worlds hold is the data without at most `copies` rows, in their order.
    assert len(both) == len(data) - copies
    assert worlds.points.shape[1] == data.features.shape[1]
    (again,) = decode(encode([worlds], Worlds), Worlds)
    assert again.world_zero.digest == worlds.world_zero.digest
    assert again.world_one.digest == worlds.world_one.digest
    assert np.array_equal(again.points, worlds.points)


def test_classifier_is_chosen_on_held_out_search_samples() -> None:
    """World 1 is far from 0 on both sides: a line cannot separate it, bins can."""
    rng = np.random.default_rng(0)
    truth = rng.random(1_200) < 0.5
    summaries = np.where(truth, rng.choice([-3.0, 3.0], 1_200), 0.0)[:, None] + rng.normal(0, 0.3, (1_200, 1))
    view = SummaryView(summaries, truth, np.array([[-3.0], [0.0], [3.0]]))
    scores = OutputSet(("linear", "additive")).score(view)
    assert scores[0] > 0 > scores[1]
    assert scores[2] > 0
    with pytest.raises(InputError, match="both worlds"):
        OutputSet().score(SummaryView(summaries[truth], truth[truth], summaries))


def test_scales_of_features() -> None:
    data = Iris().load()
    box, ball = as_numbers(data, "box").features, as_numbers(data, "ball").features
    assert isinstance(box, np.ndarray)
    assert (box.min(0) == 0).all()
    assert (box.max(0) == 1).all()
    lengths = np.linalg.norm(np.asarray(ball, np.float64), axis=1)
    assert 0.999 < lengths.max() <= 1
    assert np.array_equal(as_numbers(data, "none").features, data.features)


GRID = {
    "name": "a grid",
    "data": "iris",
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "mechanism": {"name": "gaussian-naive-bayes", "relation": "replace"},
    "game": {"name": "neighbours", "trials": 200, "search": 100, "stack": 200},
    "attack": {"name": "output-set", "classifiers": ["linear"]},
    "grid": {
        "game.poisoning": ["corner-flip", "swap-x"],
        "mechanism.epsilon, game.copies": [[1, 8], [2, 4], [4, 2]],
    },
    "run": {"runner": "in-process", "figures": False, "repeats": 0},
}


@pytest.mark.figures
def test_grid_gives_an_audit_for_each_combination(tmp_path: Path) -> None:
    spec = load_spec(GRID)
    assert [entry.name for entry in spec.audits][:2] == [
        "poisoning=corner-flip, epsilon=1, copies=8",
        "poisoning=corner-flip, epsilon=2, copies=4",
    ]
    assert [entry.game.copies for entry in spec.audits] == [8, 4, 2] * 2
    report = audit(spec, output=tmp_path, quiet=True)
    lines = lines_of(report.results)
    assert [line.label for line in lines] == ["poisoning=corner-flip", "poisoning=swap-x"]
    first = report.results[0]
    assert isinstance(first.finding, Bound)
    assert lines[0].points[0][:2] == (1.0, first.finding.lower / 8)
    assert detected(report.results[:2]) is None
    assert "Detected against claimed" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "figures" / "detected.png").exists()


def test_a_ceiling_below_a_detected_epsilon_is_not_drawn() -> None:
    """It is measured with fewer trainings than the audit, and is no maximum then."""

    def labels(detected: float) -> list[str]:
        axes = Figure().subplots()
        draw_detected(axes, [DetectedLine("attack", ((1.0, 0.4, 4.8), (8.0, detected, 4.8)))])
        return axes.get_legend_handles_labels()[1]

    assert labels(4.7) == ["attack", "claim", "maximum detectable"]
    assert labels(4.9) == ["attack", "claim"]


def test_grid_over_learners_data_claims_and_copies() -> None:
    """Learners are paired with scales; mechanism and data occur in the grid only."""
    words = {name: value for name, value in GRID.items() if name not in ("mechanism", "data", "grid")}
    grid = {
        "mechanism, game.scale": [
            [{"name": "gaussian-naive-bayes", "relation": "replace"}, "box"],
            ["random-forest", "none"],
        ],
        "data": ["iris", "breast-cancer"],
        "mechanism.epsilon, game.copies": [[1, 8], [2, 4]],
    }
    spec = load_spec({**words, "grid": grid})
    assert len({entry.name for entry in spec.audits}) == 8
    last = spec.audits[-1]
    assert isinstance(last.data, BreastCancer)
    assert (last.mechanism.epsilon, last.game.scale, last.game.copies) == (2.0, "none", 4)
    with pytest.raises(SpecError, match="needs `data`"):
        load_spec({**words, "grid": {name: values for name, values in grid.items() if name != "data"}})


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ([1], "must be a mapping"),
        ({"mechanism.epsilon": 3}, "must be a list"),
        ({"mechanism.epsilon, game.copies": [[1]]}, "must be a list of 2 values each"),
        ({"seed.of": [1]}, "must be a dataclass for its field"),
        ({"mechanism.epsilon": list(range(200)), "game.trials": list(range(200))}, "at most 10,000"),
    ],
)
def test_malformed_grid_is_refused(grid: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        load_spec(
            {**GRID, "seed": 3, "grid": grid}
            if "seed.of" not in str(grid)
            else {**GRID, "game": 3, "grid": {"game.x": [1]}}
        )


def unlucky(X: Any, y: Any, seed: int, unlucky: float = 0.0) -> Any:
    """Return a noisy count of class 1, or a failure of user code, decided by the seed."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(6) if rng.random() < unlucky else -1
    X[:] = 0  # the data are its own
    value = (y == 1).sum() + rng.laplace(0, 1 / 3)
    if kind == 0:
        raise KeyError("nothing here")
    if kind == 4:
        raise KeyboardInterrupt("not the user's")
    if kind == 5:
        sys.exit("enough")
    if kind == 1:
        signal.raise_signal(signal.SIGALRM)  # as the system's timer does: its time is up
    return [value] * (1 + int(kind == 2)) + [math.nan] * int(kind == 3)


def test_user_function_that_raises_hangs_or_returns_odd_vectors(tmp_path: Path) -> None:
    """A twentieth of the trainings fail: each is named, the audit continues, and an honest function passes."""
    mechanism = from_summary(unlucky, Claim(3.0, relation=Relation.LABEL), unlucky=0.05)
    result = audited(tmp_path, mechanism, trials=600, stack=400, training_limit_s=60.0)
    assert result.verdict is Verdict.NO_VIOLATION
    assert result.finding.lower > 0.5
    failures = " ".join(result.failed_trials)
    assert "KeyError" in failures
    assert "KeyboardInterrupt: not the user's" in failures
    assert "SystemExit: enough" in failures
    assert "still running after 60 s" in failures
    assert "not finite" in failures
    assert "it returned 2 numbers, most runs 1 numbers" in failures
    assert 0.025 < len(result.failed_trials) / 600 < 0.08


def interrupted(X: Any, y: Any, seed: int) -> Any:
    """Raise SIGINT during the training."""
    signal.raise_signal(signal.SIGINT)
    return [0.0]


def test_interrupt_during_a_training_ends_the_run(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # commands in a shell's background ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        audited(tmp_path, from_summary(interrupted, Claim(3.0, relation=Relation.LABEL)), trials=20, stack=10)


def test_influence_record_moves_a_regression_more_than_any_row() -> None:
    """The test compares the exact change of the minimiser for rows of the same class."""
    data = as_numbers(BreastCancer().load(), "ball")
    surrogate = Surrogate.fit(data, 1, 0.01)
    worlds = Influence().worlds(data, 1, np.random.default_rng(0))
    poisoned = worlds.rows.take(worlds.in_d_prime & ~worlds.in_d)
    assert isinstance(poisoned.features, np.ndarray)
    assert isinstance(data.features, np.ndarray)
    assert np.linalg.norm(poisoned.features[0]) <= surrogate.longest * (1 + 1e-6)

    def influence(row: NDArray[np.float32], label: int) -> float:
        return float(np.linalg.norm(surrogate.influence(row.astype(np.float64), label == 1)))

    crafted = influence(poisoned.features[0], int(poisoned.labels[0]))
    assert crafted > max(influence(row, int(label)) for row, label in zip(data.features, data.labels, strict=True))


def moved(influence: Influence, data: Examples, surrogate: Surrogate) -> float:
    """Return the length of the shift of the weights by the crafted record."""
    worlds = influence.worlds(data, 1, np.random.default_rng(0))
    row = worlds.rows.take(worlds.in_d_prime & ~worlds.in_d)
    assert isinstance(row.features, np.ndarray)
    return float(np.linalg.norm(surrogate.influence(row.features[0].astype(np.float64), bool(row.labels[0] == 1))))


def test_a_record_of_either_class_moves_a_regression_at_least_as_much() -> None:
    data = as_numbers(BreastCancer().load(), "ball")
    surrogate = Surrogate.fit(data, 1, 0.01)
    assert moved(Influence(either_class=True), data, surrogate) > 1.1 * moved(Influence(), data, surrogate)


def test_no_random_record_of_either_class_moves_a_regression_more_than_the_crafted_one() -> None:
    """Ascent from the mean of the record's own class ends 2 % lower on iris, at a local maximum."""
    iris = Iris().load()
    data = as_numbers(Examples(iris.features, (iris.labels == 0).astype(np.int64), 2), "ball")
    surrogate = Surrogate.fit(data, 1, 0.01)
    directions = np.random.default_rng(0).normal(size=(20_000, 4))
    points = surrogate.longest * directions / np.linalg.norm(directions, axis=1)[:, None]
    most = max(np.linalg.norm(surrogate.influence(point, positive)) for point in points for positive in (True, False))
    crafted = moved(Influence(either_class=True), data, surrogate)
    assert 0.99 * crafted < most < (1 + 1e-6) * crafted
