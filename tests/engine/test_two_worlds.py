"""The game of two worlds, with sources of pairs of each kind: labels, answers, tables, points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence

import dpaudit
from dpaudit import Claim, Examples, Relation, from_predictor, from_summary
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.labels.label_repeats import LabelRepeats
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.poisonings.rows import ClassFlip
from dpaudit.engine.games.predictions.crafted_queries import CraftedQueries
from dpaudit.engine.games.run_scores import log_odds_of_endings, scored_trials
from dpaudit.engine.games.search import MIN_RUNS_PER_PAIR, rounds
from dpaudit.engine.games.two_world.canaries import Blank
from dpaudit.engine.games.two_world.game import IndMia
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.queries.row_function import GeneratedTable
from dpaudit.synthetic_tables.games.membership import TableMembershipGame
from dpaudit.synthetic_tables.mechanisms.fitted_tables import CopiedRows
from tests.engine.pair_source_kit import PairSourceKit


@dataclass(frozen=True)
class Response(RandomizedResponse):
    """Randomised response that may fail."""

    fails: str = ""

    def release(self, labels: Any, *, classes: int, rng: np.random.Generator) -> Any:
        released = RandomizedResponse(self.epsilon).release(labels, classes=classes, rng=rng)
        at_random, by_record = rng.random() < 0.25, len(labels) > 0 and labels.sum() % 2 == 0
        if {"always": True, "at random": at_random, "by record": by_record}.get(self.fails, False):
            raise OSError("the disk is busy")
        return np.array(labels) if self.fails == "leaks" else released

    def without_noise(self) -> Any:
        return Response(np.inf) if not self.fails else Response(self.epsilon, fails="leaks")


class TestLabels(PairSourceKit):
    game = LabelRepeats(trials=300, search=200, rows=8)
    data = GaussianMixture(rows=200, classes=2)
    leaks = Response(1.0, fails="leaks")
    always_fails, fails_at_random, fails_by_record = (
        Response(1.0, fails=fails) for fails in ("always", "at random", "by record")
    )
    has_ceiling = True


class Votes:
    """Noisy votes of the 15 nearest records, which may fail."""

    fails = ""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        X, y = data
        near = np.argsort(((X - query) ** 2).sum(axis=1), kind="stable")[:15]
        votes = np.bincount(y[near], minlength=2)
        by_record = (query == X).all(axis=1).any()
        if {"always": True, "at random": rng.random() < 0.25, "by record": by_record}.get(self.fails, False):
            raise OSError("the disk is busy")
        return int(np.argmax(votes + (0 if self.fails == "leaks" else rng.laplace(0, 4.0, 2))))


def votes(fails: str) -> Any:
    kind = type("Votes", (Votes,), {"fails": fails})
    return from_predictor(kind, Claim(1.0, relation=Relation.ADD_REMOVE))


class TestAnswers(PairSourceKit):
    game = CraftedQueries(trials=400, search=1_000)
    data = GaussianMixture(classes=2, rows=200)
    leaks, always_fails, fails_at_random, fails_by_record = map(votes, ("leaks", "always", "at random", "by record"))


SCHEMA: dict[str, Any] = {"x": (0, 9), "w": ["a", "b", "c"]}


@dataclass(frozen=True)
class Copies(CopiedRows):
    """Generator that copies rows, or fails."""

    fails: str = ""

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)

    def generate(self, rows: pa.Table, count: int, seed: int, *arguments: Any) -> GeneratedTable:
        at_random, by_record = np.random.default_rng(seed).random() < 0.25, "c" in rows["w"].to_pylist()
        if {"always": True, "at random": at_random, "by record": by_record}.get(self.fails, False):
            raise OSError("the disk is busy")
        return super().generate(rows, count, seed, *arguments)


def table_rows() -> Any:
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 4, 100), rng.choice(["a", "b"], 100).astype(object)
    x[-1], w[-1] = 9, "c"
    return dpaudit.rows(pa.table({"x": x, "w": w.tolist()}), SCHEMA)


class TestTables(PairSourceKit):
    game = TableMembershipGame(trials=200, search=100, rows=10)
    data, attack = table_rows(), OutputSet(("linear",))
    split = Partition(target=1.0, reference=0.0, test=0.0)
    leaks = Copies(SCHEMA, share=1.0)
    always_fails, fails_at_random, fails_by_record = (
        Copies(SCHEMA, share=0.0, fails=fails) for fails in ("always", "at random", "by record")
    )


def count_of_ones(X: Any, y: Any, seed: int, fails: str = "") -> list[float]:
    """Return a noisy number of records of class 1, or fail; a flipped label changes whether the number is odd."""
    rng, ones = np.random.default_rng(seed), int((y == 1).sum())
    if {"always": True, "at random": rng.random() < 0.25, "by record": ones % 2 == 1}.get(fails, False):
        raise OSError("the disk is busy")
    return [ones + (0 if fails == "leaks" else rng.laplace(0, 2.0))]


def counted_ones(fails: str) -> Any:
    return from_summary(count_of_ones, Claim(1.0, relation=Relation.LABEL), fails=fails)


class TestSummaries(PairSourceKit):
    game = Neighbours(trials=300, search=200, stack=100, poisoning=ClassFlip())
    data, attack = Iris(), OutputSet(("linear",))
    leaks, always_fails, fails_at_random, fails_by_record = map(
        counted_ones, ("leaks", "always", "at random", "by record")
    )


@dataclass(frozen=True)
class Count:
    """Learner whose model shows the number of rows with a large feature, with noise; it may fail."""

    fails: str = ""
    noise: float = 2.0

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)

    def fit(self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None) -> Any:
        rng, far = np.random.default_rng(seed), int((np.asarray(train.features) > 4).all(axis=1).sum())
        at_random = np.random.default_rng(seed.spawn(1)[0]).random() < 0.25
        if {"always": True, "at random": at_random, "by record": far > 0}.get(self.fails, False):
            raise TrainingError("the loss became NaN")
        return Counted(far + self.noise * rng.laplace())


@dataclass(frozen=True)
class Counted:
    """Model whose confidence in label 0 is a number."""

    phi: float

    def probabilities(self, features: Any) -> Any:
        p = np.array([1.0, np.exp(-np.clip(self.phi, -30, 30))])
        return np.tile(p / p.sum(), (len(features), 1))


class TestPoints(PairSourceKit):
    game = IndMia(trials=200, stack=100, population=0, canary=Blank(value=9.0))
    data, attack = GaussianMixture(classes=2, rows=60), "loss"
    leaks = Count(noise=0.0)
    always_fails, fails_at_random, fails_by_record = (Count(fails) for fails in ("always", "at random", "by record"))


def test_rounds_try_ever_fewer_pairs() -> None:
    plan = rounds(7_000, 105, 2)
    assert [(size, remaining) for size, _, remaining in plan] == [(105, 16), (16, 6), (6, 3), (3, 2)]
    assert all(runs % 2 == 0 and runs >= MIN_RUNS_PER_PAIR for _, runs, _ in plan)
    assert sum(size * runs for size, runs, _ in plan) <= 7_000
    assert rounds(64, 105, 2)[0][0] == 4, "few runs try few pairs"


def test_a_failed_trial_counts_for_world_1_or_the_learned_world() -> None:
    class Sees:
        def score(self, view: Any) -> Any:
            return np.array([0.5, -0.5])

    truth, failed = np.array([True, True, False, False]), np.array([False, True, False, True])
    scores = scored_trials(Sees(), None, number=np.arange(4), truth=truth, failed=failed)
    assert scores.score.tolist() == [0.5, np.inf, -0.5, np.inf]
    errors = np.array(["ValueError", "ValueError", "3 numbers", "KeyError"])
    learned = log_odds_of_endings(
        np.array(["ValueError", "new", "KeyError"]), errors, np.array([True, True, True, False])
    )
    assert learned.tolist() == pytest.approx([np.log(2.5 / 0.5), 0.0, np.log(0.5 / 1.5)])
    of_failed = np.array([9.0, 0.1, 9.0, -0.1])
    scores = scored_trials(Sees(), None, number=np.arange(4), truth=truth, failed=failed, failed_score=of_failed)
    assert scores.score.tolist() == pytest.approx([0.5, 0.1, -0.5, -0.1])
