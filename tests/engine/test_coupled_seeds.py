"""The search for two data sets by trainings with one seed, and the laws that use the change it measured."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Examples, Relation, RunOptions, Verdict, audit, from_summary
from dpaudit.actors.seed import Seed
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.neighbours.coupled_seeds import (
    CandidateWorlds,
    Choice,
    CoupledTrainings,
    crafted_choices,
    predicted_candidates,
    summarised,
)
from dpaudit.engine.games.neighbours.game import Neighbours, as_numbers
from dpaudit.engine.games.neighbours.poisonings.rows import ClassFlip
from dpaudit.engine.games.outcomes import Runs
from dpaudit.engine.games.search import coupled_move
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from tests.bank import numbers
from tests.engine.own_learners import (
    DEFECTS,
    HONEST,
    REPLACE,
    huber_weights,
    logistic_weights,
    output_perturbed,
    rows_in_ball,
    spherical,
)

HERE = RunOptions(runner="in-process", figures=False, repeats=0)
SMALL = Neighbours(trials=1_500, search=1_600, stack=500)
DATA = as_numbers(GaussianMixture(classes=2, rows=200).load(seed=0), "box")


def predicted(mechanism: Any, relation: Relation = Relation.REPLACE, **options: Any) -> list[CandidateWorlds] | None:
    coupled = CoupledTrainings(mechanism, 700, seed=Seed(3), limit_s=None, compute=Compute())
    settings: dict[str, Any] = {"copies": 1, "far": True, "longest": None, "count": 9, "offers": []} | options
    offers = settings.pop("offers")
    return predicted_candidates(coupled, DATA, offers, relation=relation, **settings)


def rows_of(data: Examples) -> set[tuple[float, ...]]:
    """Return the distinct rows; equal rows are numbered."""
    count: dict[tuple[float, ...], int] = {}
    rows = set()
    for features, label in zip(np.asarray(data.features), data.labels, strict=True):
        row = (*map(float, features), float(label))
        count[row] = count.get(row, 0) + 1
        rows.add((*row, count[row]))
    return rows


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("relation", list(Relation))
def test_data_sets_of_a_choice_are_neighbours(relation: Relation, copies: int) -> None:
    for choice in itertools.islice(crafted_choices(DATA, relation, copies, far=True), 4):
        assert choice.pairs
        for places in choice.pairs[::7]:
            worlds = choice.worlds_of(places)
            world_zero, world_one = worlds.world_zero, worlds.world_one
            assert rows_of(world_zero) == rows_of(choice.data_set(places[0]))
            assert rows_of(world_one) == rows_of(choice.data_set(places[1]))
            assert len(rows_of(world_one) - rows_of(world_zero)) == copies
            if relation is Relation.ADD_REMOVE:
                assert len(world_one) == len(world_zero) + copies
            else:
                assert len(world_one) == len(world_zero)
            if relation is Relation.LABEL:
                assert np.array_equal(world_zero.features, world_one.features)


@pytest.mark.parametrize(
    ("weights_of", "penalty", "least"), [(huber_weights, 0.1, 0.95), (logistic_weights, 0.01, 0.6)]
)
def test_pair_reaches_most_of_the_sensitivity(weights_of: Any, penalty: float, least: float) -> None:
    """The bound 2 / (n penalty) is attained by a loss with a kink; a logistic loss attains about 0.7 of it."""
    candidates = predicted(from_summary(output_perturbed, REPLACE, weights_of=weights_of, penalty=penalty))
    assert candidates is not None
    shares = []
    for candidate in candidates:
        world_zero, world_one = (
            weights_of(rows_in_ball(data.features), data.labels, penalty)
            for data in (candidate.worlds.world_zero, candidate.worlds.world_one)
        )
        shares.append(np.linalg.norm(world_one - world_zero) * len(candidate.worlds.world_one) * penalty / 2)
    assert max(shares) > least


def sum_of_first(X: Any, y: Any, seed: int) -> NDArray[np.float64]:
    """The first column, cut at -3 and 3, is summed with noise."""
    return np.array([np.clip(X[:, 0], -3.0, 3.0).sum(), 0.0]) + np.random.default_rng(seed).laplace(0, 1.0, 2)


def unlimited_sum(X: Any, y: Any, seed: int) -> NDArray[np.float64]:
    return np.array([X[:, 0].sum()]) + np.random.default_rng(seed).laplace(0, 1.0, 1)


OWN_NOISE = np.random.default_rng(7)
"""Source of noise that ignores the seed of a training."""


def seedless_sum(X: Any, y: Any, seed: int) -> NDArray[np.float64]:
    return np.array([X[:, 0].sum()]) + OWN_NOISE.laplace(0, 1.0, 1)


def noise_by_content(X: Any, y: Any, seed: int) -> NDArray[np.float64]:
    """The noise follows the seed and the data together, so that no two data sets share it."""
    return np.array([X[:, 0].sum()]) + np.random.default_rng([seed, int(1e6 * X.sum())]).laplace(0, 1.0, 1)


def test_far_records_are_used_where_code_limits_them() -> None:
    limited, unlimited = (predicted(from_summary(code, REPLACE)) for code in (sum_of_first, unlimited_sum))
    assert limited is not None
    assert unlimited is not None
    assert limited[0].farther is not None
    assert all(candidate.farther is None for candidate in unlimited)
    assert all(
        candidate.farther is None for candidate in predicted(from_summary(sum_of_first, REPLACE), far=False) or ()
    )


LIMITS = {
    "huber-vector": True,
    "logistic-model": True,
    "huber-in-range": False,
    "logistic-in-range": False,
    "mean-in-wide-bounds": True,
}


@pytest.mark.parametrize(("name", "limits"), LIMITS.items())
def test_a_bounded_loss_is_no_limit_on_records(name: str, limits: bool) -> None:
    """A far record has a bounded effect in both cases; only code with a limit makes a promise about it."""
    of_name = HONEST | {"mean-in-wide-bounds": numbers.BANK["mean-wide-bounds-half-noise"].defect}
    coupled = CoupledTrainings(of_name[name](), 9, seed=Seed(3), limit_s=None, compute=Compute())
    choice = next(crafted_choices(DATA, Relation.REPLACE, 1, far=False))
    assert coupled.limit_records(DATA, choice.points) == limits


def test_code_that_fails_with_the_first_record_is_predicted_by_another_one() -> None:
    candidates = predicted(numbers.BANK["nan-on-a-record"].defect())
    assert candidates is not None
    assert candidates[0].name.startswith("the data: the lower corner"), "the failing pair comes first"


@pytest.mark.parametrize("code", [seedless_sum, noise_by_content])
def test_learner_that_does_not_follow_its_seed_gives_no_prediction(code: Any) -> None:
    assert predicted(from_summary(code, REPLACE)) is None


def test_offers_of_poisonings_are_predicted_as_well() -> None:
    """Labels decide nothing, so a flipped class is never among the best; a moved row of the data may be."""
    flip = ClassFlip().worlds(DATA, 1, np.random.default_rng(0))
    candidates = predicted(from_summary(unlimited_sum, REPLACE), offers=[CandidateWorlds("flip", flip)], count=3)
    assert candidates is not None
    assert len(candidates) == 3
    assert "flip" not in [candidate.name for candidate in candidates]


def test_rows_keep_a_largest_length() -> None:
    choice = next(crafted_choices(as_numbers(DATA, "ball"), Relation.REPLACE, 1, far=False, longest=1.0))
    data_sets = [choice.data_set(place) for place in range(len(choice.records))]
    assert max(np.linalg.norm(rows.features, axis=1).max() for rows in data_sets) <= 1 + 1e-6


def test_few_failing_pairs_are_among_the_strongest() -> None:
    """Trainings on the upper corner of class 1 fail: such pairs come first, but leave room for others."""
    candidates = predicted(from_summary(fails_at_the_corner, REPLACE))
    assert candidates is not None
    with_corner = ["the upper corner (class 1)" in candidate.name for candidate in candidates]
    assert with_corner == [True] * 3 + [False] * 6


def fails_at_the_corner(X: Any, y: Any, seed: int) -> NDArray[np.float64]:
    if (X[0] >= 1).all() and y[0] == 1:
        raise ValueError("no such row, please")
    return unlimited_sum(X, y, seed)


def paired_samples(code: Any, choice: Choice) -> Any:
    worlds = choice.worlds_of(choice.pairs[-1])
    runs = Runs(np.arange(40) % 2 == 1, np.arange(40), Seed(5), (), Compute(), paired=True)
    return summarised(from_summary(code, REPLACE), worlds, runs)


def test_measured_change_has_no_noise() -> None:
    choice = next(crafted_choices(DATA, Relation.REPLACE, 1, far=False))
    world_zero, world_one = (choice.data_set(place) for place in choice.pairs[-1])
    change = float(world_one.features[:, 0].sum(dtype=np.float64) - world_zero.features[:, 0].sum(dtype=np.float64))
    assert coupled_move(paired_samples(unlimited_sum, choice)) == pytest.approx([change], abs=1e-4)
    assert not len(coupled_move(paired_samples(seedless_sum, choice)))


def noise_of(law: str, count: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
    if law == "normal":
        return rng.normal(size=(count, width))
    if law == "laplace":
        return rng.laplace(size=(count, width))
    return np.stack([spherical(width, 1.0, int(seed)) for seed in rng.integers(2**31, size=count)])


@pytest.mark.parametrize("law", ["normal", "laplace", "spherical"])
def test_law_with_the_measured_change_is_nearly_the_likelihood_ratio(law: str) -> None:
    rng, width = np.random.default_rng(0), 12
    move = np.full(width, 2.0 / math.sqrt(width)) * (4.0 if law == "spherical" else 1.0)
    truth = rng.random(4_000) < 0.5
    mixing = rng.normal(size=(width, width)) if law != "laplace" else np.eye(width)
    pure = noise_of(law, len(truth), width, rng) + truth[:, None] * move
    exact = {
        "normal": lambda x: (x - move / 2) @ move,
        "laplace": lambda x: (np.abs(x) - np.abs(x - move)).sum(1),
        "spherical": lambda x: np.linalg.norm(x, axis=1) - np.linalg.norm(x - move, axis=1),
    }[law](pure[400:])
    summaries = pure @ mixing
    view = SummaryView(summaries[:400], truth[:400], summaries[400:], move=move @ mixing)
    scores = OutputSet((f"moved-{law}",)).score(view)
    right, best = (float(((odds > 0) == truth[400:]).mean()) for odds in (scores, exact))
    assert right > best - 0.02
    assert right > 0.8


def test_laws_with_the_change_need_it() -> None:
    view = SummaryView(np.zeros((8, 2)), np.arange(8) % 2 == 1, np.zeros((1, 2)))
    with pytest.raises(InputError, match="moved-normal need a mechanism that states its law, or a search"):
        OutputSet(("moved-normal",)).score(view)
    assert OutputSet(("moved-normal", "atoms")).score(view).shape == (1,)


@pytest.mark.parametrize("name", DEFECTS)
def test_defect_is_found_with_few_trainings(name: str, tmp_path: Path) -> None:
    entry = Audit(DEFECTS[name](), GaussianMixture(classes=2, rows=100, dimensions=2), game=SMALL)
    result = audit(AuditSpec((entry,), seed=1, run=HERE), output=tmp_path, quiet=True).results[0]
    assert result.verdict is Verdict.VIOLATION


@pytest.mark.parametrize("name", ["logistic-vector", "huber-laplace"])
def test_honest_twin_passes(name: str, tmp_path: Path) -> None:
    entry = Audit(HONEST[name](), GaussianMixture(classes=2, rows=100, dimensions=2), game=SMALL)
    result = audit(AuditSpec((entry,), seed=1, confidence=1 - 1e-6, run=HERE), output=tmp_path, quiet=True).results[0]
    assert result.verdict is Verdict.NO_VIOLATION
