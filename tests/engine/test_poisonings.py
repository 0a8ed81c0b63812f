"""Poisonings: the strength of each kind, and the search among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Claim, Examples, Relation, RunOptions, Verdict, audit
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.bundled import BreastCancer, Iris
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.neighbours.game import Neighbours, as_numbers
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    InformedPoisoning,
    PoisoningSearch,
    Worlds,
    features_of,
    for_learner,
)
from dpaudit.engine.games.neighbours.poisonings.regression import Influence, OpposingRecords
from dpaudit.engine.games.neighbours.poisonings.rows import (
    Automatic,
    ClassFlip,
    ClipBackdoorPair,
    CornerFlip,
    Curvature,
    FarCorner,
    FarthestFlip,
    InsertRecords,
    Remove,
    SwapX,
)
from dpaudit.engine.games.neighbours.poisonings.shadow_adversarial import ShadowAdversarial
from dpaudit.engine.request.check import CheckRequest, check_spec
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.random_forest import PrivateForest
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.registry import catalogue, load
from tests.engine.test_neighbours import NoisyCount

HERE = RunOptions(runner="in-process", figures=False, repeats=0)
RNG = np.random.default_rng


@dataclass(frozen=True)
class SumOfFirst(NoisyCount):
    """Sum of the first column with Laplace noise of scale 1 / truth; labels are ignored."""

    def claim(self) -> Claim:
        return Claim(self.claimed, relation=Relation.REPLACE)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        noise = RNG(seed).laplace(0, 1 / self.truth, (count, 1))
        summaries: NDArray[np.float64] = features_of(train)[:, 0].astype(np.float64).sum() + noise
        return summaries


@dataclass(frozen=True)
class Refusing:
    """A poisoning that refuses all data."""

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        raise InputError("these data will not do")


@dataclass(frozen=True)
class Among:
    """Search among a fixed list of poisonings."""

    offered: tuple[tuple[str, Any], ...]
    relation: Relation = Relation.REPLACE
    share: float = 0.5
    among: tuple[str, ...] = ("these",)

    def for_claim(self, claim: Claim) -> Among:
        return self

    def candidates(self, mechanism: Any) -> dict[str, Any]:
        return dict(self.offered)


def audited(folder: Path, mechanism: Any, poisoning: Any, **fields: Any) -> Any:
    sizes = {"trials": 2_000, "search": 1_600, "stack": 2_000} | fields
    game = Neighbours(poisoning=poisoning, **sizes)
    entry = Audit(mechanism, Iris(), game=game, attack=OutputSet(("linear",)))
    return audit(AuditSpec((entry,), seed=5, run=HERE), output=folder, quiet=True).results[0]


def test_search_chooses_the_poisoning_with_evidence(tmp_path: Path) -> None:
    """A replaced row gives evidence about a sum of features, changed labels do not. Fixed seed."""
    offered = (("class-flip", ClassFlip()), ("none", Refusing()), ("opposing-records", OpposingRecords()))
    result = audited(tmp_path, SumOfFirst(truth=3.0), Among(offered))
    left_out, note = result.chosen
    chosen = "poisoning chosen: opposing-records"
    told_of = f"{chosen}; bounds on search trainings: opposing-records 1."
    assert note.startswith(told_of)
    assert "class-flip 0.0" in note
    assert left_out == "poisonings left out: none: these data will not do"
    assert result.verdict is Verdict.VIOLATION  # the noise is for 1, the record moves the sum by less than 1
    assert note in result.text(verbose=True)


def test_search_without_fitting_poisonings_fails_with_a_reason(tmp_path: Path) -> None:
    result = audited(tmp_path, NoisyCount(), Among((("none", Refusing()),), Relation.LABEL))
    assert result.verdict is Verdict.FAILED
    assert any("no poisoning fits: none: these data will not do" in failure.error for failure in result.failures)


def test_search_causes_no_false_violation(tmp_path: Path) -> None:
    """The noise is exactly as claimed; false failure 1e-6 by the confidence."""
    game = Neighbours(trials=4_000, search=2_000, stack=2_000)
    entry = Audit(NoisyCount(), Iris(), game=game, attack=OutputSet(("linear",)))
    spec = AuditSpec((entry,), seed=5, confidence=1 - 1e-6, run=HERE)
    result = audit(spec, output=tmp_path, quiet=True).results[0]
    assert result.verdict is Verdict.NO_VIOLATION
    assert result.epsilon > 0  # the seed is fixed


def test_candidates_make_neighbours_of_the_requested_relation() -> None:
    learner = LogisticObjectivePerturbation(1.0, penalty=0.1)
    by_label = Automatic().candidates(learner)
    by_row = Automatic(Relation.REPLACE).candidates(learner)
    crafted = {name for name in by_row if name.startswith("opposite-corners")}
    assert set(by_label) - crafted == {"class-flip", "clip-bkd", "corner-flip", "farthest-flip"}
    assert {by_label[name].relation for name in crafted & set(by_label)} == {Relation.LABEL}
    assert set(by_row) - set(by_label) - crafted == {
        "coefficient-target",
        "curvature",
        "far-corner",
        "influence",
        "opposing-records",
        "shadow-adversarial",
        "swap-x",
    }
    assert by_row["influence"] == Influence(penalty=0.1)
    poisonings = Automatic(Relation.ADD_REMOVE).candidates(learner)
    assert {"remove", "coming influence", "coming corner-flip", "coming opposite-corners (few rows, equal)"} <= set(
        poisonings
    )
    assert poisonings["coming influence"] == InsertRecords(Influence(penalty=0.1))
    assert all(poisoning.relation is Relation.ADD_REMOVE for poisoning in poisonings.values())
    assert set(Automatic(among=("class-flip",)).candidates(learner)) == {"class-flip"}
    assert isinstance(Automatic(), PoisoningSearch)
    assert not isinstance(ClassFlip(), PoisoningSearch)
    with pytest.raises(InputError, match="no poisoning makes label neighbours"):
        Automatic(among=("remove",)).candidates(learner)
    with pytest.raises(InputError, match="among must name poisonings other than automatic"):
        Automatic(among=("automatic",))


def test_too_few_search_trainings_are_refused() -> None:
    """Named candidates must all be tried; otherwise as many as the trainings allow."""
    named = Automatic(among=("class-flip", "clip-bkd", "corner-flip"))
    with pytest.raises(SpecError, match="search must be at least 24 to try 3 poisonings, got 20"):
        audited(Path("nowhere"), NoisyCount(), named, search=20)


@pytest.mark.parametrize("copies", [1, 3])
def test_added_records_are_those_of_world_1(copies: int) -> None:
    data = as_numbers(Iris().load(), "box")
    both = CornerFlip().worlds(data, copies, RNG(0))
    added = InsertRecords(CornerFlip()).worlds(data, copies, RNG(0))
    assert added.world_one.digest == both.world_one.digest
    assert len(added.world_zero) == len(data) - copies
    with pytest.raises(InputError, match="of must be a poisoning that makes label or replace neighbours"):
        InsertRecords(Remove())
    with pytest.raises(InputError, match="of must be"):
        InsertRecords(Automatic())  # type: ignore[arg-type]


@pytest.mark.parametrize("copies", [1, 4])
def test_far_corner_moves_the_mean_of_one_class_from_corner_to_corner(copies: int) -> None:
    """Counts of classes stay, and no other choice of a row moves the sum of its features farther within the box."""
    data = as_numbers(Iris().load(), "box")
    worlds = FarCorner().worlds(data, copies, RNG(0))
    sums = [GaussianNaiveBayes(1.0).sums(world) for world in (worlds.world_zero, worlds.world_one)]
    assert np.array_equal(sums[0].count, sums[1].count)
    moved = np.abs(sums[1].total - sums[0].total)
    assert moved.max(1).tolist() == pytest.approx([copies, 0, 0], abs=1e-5)
    assert moved[0].tolist() == pytest.approx([copies] * 4, abs=1e-5)
    # The class lies near its corner: in the data set without the moved row, the mean is closer to it than the middle.
    mean = features_of(worlds.world_zero)[worlds.world_zero.labels == 0].mean(0)
    assert (np.abs(mean - worlds.points[0]) < 0.5).all()
    swapped = SwapX().worlds(data, 1, RNG(0))
    swap = (
        GaussianNaiveBayes(1.0).sums(swapped.world_one).total - GaussianNaiveBayes(1.0).sums(swapped.world_zero).total
    )
    assert np.abs(swap).sum() < moved.sum() / copies
    with pytest.raises(InputError, match="needs `copies` rows of one class"):
        FarCorner().worlds(data.take(np.array([0, 60, 120])), 2, RNG(0))


def test_curvature_changes_the_hessian_most() -> None:
    """The crafted row adds more to a squared loss along its direction than any row of the data."""
    data = as_numbers(BreastCancer().load(), "ball")
    worlds = Curvature().worlds(data, 1, RNG(0))
    assert isinstance(worlds, Worlds)
    (point,) = features_of(worlds.rows.take(worlds.in_d_prime & ~worlds.in_d))
    (other,) = features_of(worlds.rows.take(worlds.in_d & ~worlds.in_d_prime))
    assert np.linalg.norm(point) == pytest.approx(np.linalg.norm(features_of(data), axis=1).max(), rel=1e-5)
    assert not other.any()
    along = np.square(features_of(worlds.world_zero) @ (point / np.linalg.norm(point)))
    assert np.square(np.linalg.norm(point)) > along.sum()


@pytest.mark.parametrize("moved", ["coefficients", "slope"])
def test_opposing_records_move_the_minimiser_more_than_a_changed_class(moved: Any) -> None:
    """A changed class moves the gradient by at most a record's length, the two records by more. All are in the ball."""
    data = first_species("ball")
    learner = LogisticOutputPerturbation(1.0, penalty=0.01)
    poisoning = for_learner(OpposingRecords(moved=moved), learner)
    assert poisoning == OpposingRecords(penalty=0.01, moved=moved)
    worlds = poisoning.worlds(data, 1, RNG(0))
    assert np.linalg.norm(worlds.points, axis=1).max() <= np.linalg.norm(features_of(data), axis=1).max() * (1 + 1e-5)
    pulled = minimiser_moved(learner, worlds)
    flipped = minimiser_moved(learner, CornerFlip().worlds(data, 1, RNG(0)))
    assert pulled > 1.2 * flipped


def census(rows: int, categories: int, columns: int) -> Examples:
    """Skewed categories as columns of 0 and 1; their sums are constant."""
    rng = RNG(4)
    categories_drawn = rng.geometric(0.4, (rows, columns)).clip(max=categories) - 1
    features = (categories_drawn[:, :, None] == np.arange(categories)).reshape(rows, -1).astype(np.float32)
    return Examples(features, (categories_drawn[:, 0] + categories_drawn[:, 1] > 1).astype(np.int64), 2)


@pytest.mark.parametrize("copies", [1, 8])
def test_opposing_records_move_more_than_clip_bkd_without_variance(copies: int) -> None:
    """ClipBKD lies in a direction without variance; output noise hides the shift of the minimiser."""
    data = as_numbers(census(600, 8, 6), "ball")
    learner = LogisticOutputPerturbation(1.0, penalty=0.01)
    ours = minimiser_moved(learner, for_learner(OpposingRecords(), learner).worlds(data, copies, RNG(0)))
    theirs = minimiser_moved(learner, ClipBackdoorPair().worlds(data, copies, RNG(0)))
    assert ours > 1.2 * theirs


def test_corner_record_is_alone_in_its_leaf_unlike_the_farthest_row() -> None:
    """Category columns are 0 in most rows: a split leaves few rows with the corner, many with the farthest row."""
    data = as_numbers(census(600, 8, 6), "box")
    learner = PrivateForest(4.0, trees=1, depth=8)

    def separation(poisoning: Any) -> float:
        """Return the difference between the worlds in the probability of the second class."""
        worlds = poisoning.worlds(data, 1, RNG(0))
        chances = [
            learner.sample_summaries(world, worlds.points, 4_000, seed=SeedSequence(1), compute=Compute())[:, 1].mean()
            for world in (worlds.world_zero, worlds.world_one)
        ]
        return float(abs(chances[1] - chances[0]))

    # Alone, 1 - e^-4 = 0.98; the error of a difference is at most 0.011.
    assert separation(CornerFlip()) > 0.9
    assert separation(FarthestFlip()) < 0.6
    assert separation(ClipBackdoorPair()) < 0.6


def first_species(scale: Any) -> Examples:
    iris = as_numbers(Iris().load(), scale)
    return Examples(iris.features, (iris.labels == 0).astype(np.int64), 2)


def minimiser_moved(learner: LogisticOutputPerturbation, worlds: Worlds) -> float:
    return float(
        np.linalg.norm(learner.noiseless(worlds.world_one, Compute()) - learner.noiseless(worlds.world_zero, Compute()))
    )


def test_shadow_adversarial_makes_a_misclassified_row() -> None:
    """Shadow models misclassify the row, which stays within the box and length of the data."""
    iris = as_numbers(Iris().load(), "box")
    poisoning = for_learner(ShadowAdversarial(shadows=3, steps=20), DpSgd(1.0, model=Mlp(hidden=(8,), epochs=15)))
    assert isinstance(poisoning, ShadowAdversarial)
    assert isinstance(poisoning, InformedPoisoning)
    assert poisoning.model.hidden == (8,)  # type: ignore[attr-defined]
    worlds = poisoning.worlds(iris, 1, RNG(3))
    point = worlds.points[0]
    assert (point >= 0).all()
    assert (point <= 1).all()
    assert np.linalg.norm(point) <= np.linalg.norm(features_of(iris), axis=1).max() * (1 + 1e-5)
    row = np.flatnonzero((features_of(worlds.world_one) == point).all(1))[0]
    learned = poisoning.model.fit(iris, seed=SeedSequence(9), compute=Compute())
    assert learned.probabilities(point[None]).argmax() != worlds.world_one.labels[row]
    again = poisoning.worlds(iris, 1, RNG(3))
    assert np.array_equal(again.points, worlds.points)


def test_check_covers_every_summarised_learner() -> None:
    bayes = check_spec(CheckRequest(GaussianNaiveBayes(1.0), Iris()))
    games = {entry.name: entry.game for entry in bayes.audits}
    assert games["neighbours, records that come"].poisoning == Automatic(Relation.ADD_REMOVE, 0.55)
    assert games["neighbours, records replaced"].poisoning == Automatic(Relation.REPLACE, 0.55)
    few = check_spec(CheckRequest(GaussianNaiveBayes(1.0), Iris(), budget="2000 trainings"))
    game = next(entry.game for entry in few.audits if entry.name.startswith("neighbours"))
    assert game.trials == game.search < 1_000


def test_dp_sgd_is_summarised_by_predictions_at_clip_bkd_points(tmp_path: Path) -> None:
    """The points are the crafted point, zero and rows of the data. With little noise, a small claim is rejected."""
    network = Mlp(hidden=(4,), epochs=3, batch_size=60, learning_rate=0.5, momentum=0.0)
    game = Neighbours(trials=60, search=40, stack=60, poisoning=ClipBackdoorPair(asked=2), copies=8)
    learner = DpSgd(500.0, sample_rate=0.5, model=network)
    claim = Claim(0.1, 1e-5, Relation.ADD_REMOVE)
    entry = Audit(learner, Iris(), game=game, attack=OutputSet(("linear",)), claim=claim)
    result = audit(AuditSpec((entry,), seed=5, run=HERE), output=tmp_path, quiet=True).results[0]
    assert result.compared.steps == 16
    assert result.epsilon > 0  # the seed is fixed


@pytest.mark.parametrize("name", [name for name in catalogue("poisoning") if name != "automatic"])
def test_records_stay_in_the_public_range(name: str) -> None:
    """A mechanism makes no promise outside this range."""
    data = GaussianMixture(classes=2, rows=300).load(seed=0)
    worlds = Neighbours(copies=2).chosen(load("poisoning", name)(), data, RNG(0))
    for truth in (False, True):
        features = np.asarray(worlds.world(truth).features)
        assert features.min() >= 0.0
        assert features.max() <= 1.0
    assert 0 <= worlds.points.min() <= worlds.points.max() <= 1
