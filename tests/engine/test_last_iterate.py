"""Audits of the final model from crafted initial weights: tight for honest DP-SGD, and what they find and print."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, audit, from_torch, load_spec
from dpaudit.actors.seed import Seed
from dpaudit.claims import GaussianDP
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.search import Strength, Tried
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.engine.games.two_world.last_iterate import LastIterate
from dpaudit.engine.games.two_world.work import TrialSetup, phi_of_logits
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec, matching_tests
from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import BagOfEmbeddings, Mlp
from dpaudit.mechanisms.planted.dp_sgd import HalfTheNoiseDpSgd
from dpaudit.mechanisms.training.stack import NetworkModel

ALL = Partition(target=1.0, reference=0.0, test=0.0)
STEPS, CLIP, RATE = 10, 1.0, 0.2
SOFTMAX = Mlp(hidden=(), epochs=STEPS, learning_rate=RATE, momentum=0.0, batch_size=40)
HONEST = DpSgd(4.0, sample_rate=1.0, accountant="pld", model=SOFTMAX)
DATA = GaussianMixture(rows=80)
COMPUTE = Compute()


def choices(game: LastIterate, learner: Any, pool: Examples) -> list[TrialSetup]:
    return list(game.propose(learner, (pool,), game.proposing(learner), Seed(3), COMPUTE))


def module() -> torch.nn.Module:
    return torch.nn.Linear(5, 2)


def private_loop(module: Any, X: torch.Tensor, y: torch.Tensor, seed: int, noise: float = 4.0) -> None:
    """Full-batch DP-SGD of a softmax regression, with gradients of examples in closed form."""
    rows = torch.cat([X, torch.ones(len(X), 1)], 1)
    for _ in range(STEPS):
        errors = (module(X).softmax(1) - torch.nn.functional.one_hot(y, 2)).detach()
        factors = (CLIP / (errors.norm(dim=1) * rows.norm(dim=1) + 1e-12)).clamp(max=1.0)
        total = (errors * factors[:, None]).T @ rows
        total = total + noise * CLIP * torch.randn_like(total)
        with torch.no_grad():
            module.weight -= RATE / 40 * total[:, :-1]
            module.bias -= RATE / 40 * total[:, -1]


def leaky_loop(module: Any, X: torch.Tensor, y: torch.Tensor, seed: int) -> None:
    """The loop with a quarter of the noise, for the same claim."""
    private_loop(module, X, y, seed, noise=1.0)


CLAIM = Claim.of(GaussianDP(math.sqrt(STEPS) / 4.0), relation=Relation.ADD_REMOVE, delta=1e-5)


def test_a_task_and_a_module_start_from_stated_weights() -> None:
    """With a tiny learning rate, the trained weights are the stated ones; a loop that does nothing returns them."""
    rows = DATA.load(seed=0).take(np.arange(40))
    start = np.arange(1, 13, dtype=np.float32)
    still = replace(HONEST, model=replace(SOFTMAX, learning_rate=1e-30))
    runs = [TrainingRun(np.arange(40), Seed(1), start), TrainingRun(np.arange(40), Seed(1))]
    stated, random = train_runs(still, rows, runs, compute=COMPUTE)
    assert isinstance(stated, NetworkModel)
    assert isinstance(random, NetworkModel)
    np.testing.assert_array_equal(stated.parameters, start)
    assert np.abs(random.parameters).max() < 1.0

    def nothing(module: Any, X: torch.Tensor, y: torch.Tensor, seed: int) -> None:
        assert X.dtype == torch.bfloat16

    def halves() -> torch.nn.Module:
        return torch.nn.Linear(5, 2).bfloat16()

    (trained,) = train_runs(from_torch(halves, nothing, CLAIM), rows, runs[:1], compute=COMPUTE)
    logits = np.asarray(rows.features) @ start[:10].reshape(2, 5).T + start[10:]
    certain = np.abs(logits[:, 1] - logits[:, 0]) > 2
    guesses = trained.probabilities(rows.features).argmax(1)  # type: ignore[union-attr]
    np.testing.assert_array_equal(guesses[certain], logits.argmax(1)[certain])


def test_trainings_of_a_loop_that_works_in_place_are_independent() -> None:
    rows, start = DATA.load(seed=0).take(np.arange(40)), np.zeros(12, np.float32)
    runs = [TrainingRun(np.arange(40), Seed(number), start) for number in (1, 2, 1)]
    first, other, again = train_runs(from_torch(module, private_loop, CLAIM), rows, runs, compute=COMPUTE)
    assert not start.any()
    answers = [model.probabilities(rows.features) for model in (first, other, again)]  # type: ignore[union-attr]
    np.testing.assert_array_equal(answers[0], answers[2])
    assert not np.array_equal(answers[0], answers[1])


def test_other_gradients_vanish_at_crafted_weights_and_the_canarys_does_not() -> None:
    """Most rows of trials have a gradient below a hundredth of the canary's."""
    pool = Digits(flat=True).load().take(np.arange(600))
    offered = choices(LastIterate(), HONEST, pool)
    assert 4 <= len(offered) <= 8
    for choice in offered[:1]:
        assert choice.challenges is not None
        assert choice.initial is not None
        assert len(choice.base) == 300
        model = NetworkModel(SOFTMAX, (64,), 10, choice.initial)
        point = choice.challenges.examples
        probability = model.probabilities(pool.features[choice.base])  # type: ignore[index]
        size = np.linalg.norm(probability - np.eye(10)[pool.labels[choice.base]], axis=1)
        assert np.median(size) < 0.01
        assert phi_of_logits(model.logits(point.features), point.labels)[0] < -10
        assert model.logits(point.features)[0].argmin() == point.labels[0]


def test_initial_weights_do_not_depend_on_the_rows_of_trials() -> None:
    pool = DATA.load(seed=0).take(np.arange(80))
    (before, *_), game = choices(LastIterate(), HONEST, pool), LastIterate(search=32)
    moved = pool.with_(labels=np.where(np.isin(np.arange(80), before.base), 1 - pool.labels, pool.labels))
    (after,) = choices(game, HONEST, moved)
    np.testing.assert_array_equal(before.initial, after.initial)
    other = pool.with_(labels=1 - pool.labels)
    assert not np.array_equal(before.initial, choices(game, HONEST, other)[0].initial)


def test_embeddings_get_a_canary_of_whole_numbers() -> None:
    """A point of least variance has fractions, which no embedding reads."""
    words = Examples(np.random.default_rng(0).integers(0, 20, (60, 4)).astype(np.float32), np.arange(60) % 2, 2)
    learner = DpSgd(4.0, model=BagOfEmbeddings(vocabulary=20, width=4))
    offered = choices(LastIterate(), learner, words)
    assert offered
    assert all(choice.name.startswith("a point far from the data") for choice in offered)


def test_the_search_takes_the_choice_whose_confidence_shifts_most() -> None:
    game, (first, second, *_) = LastIterate(), choices(LastIterate(), HONEST, DATA.load(seed=0).take(np.arange(80)))
    tried = [Tried(place, pair, None) for place, pair in enumerate((first, second))]  # type: ignore[arg-type]
    strengths = [Strength(0.5, 0.0, 0.0), Strength(2.0, 0.0, 0.0)]
    assert game.ranking(1, tried, strengths, by_scores=True) == [1]
    (note,) = game.judged([tried[1]], tried, strengths)
    assert f"chosen: {second.name}." in note
    assert f"{first.name}: 0.50" in note


def test_honest_training_is_tight_and_half_the_noise_is_found(tmp_path: Path) -> None:
    """By the final model alone, the bound on mu exceeds half of the claimed 1.03, and never the claim."""
    game = LastIterate(trials=400, search=64, stack=400)
    leaky = HalfTheNoiseDpSgd(4.0, sample_rate=1.0, accountant="pld", model=SOFTMAX)
    learners = {"honest": HONEST, "leaky": leaky}
    audits = tuple(Audit(learner, DATA, game=game, split=ALL, name=name) for name, learner in learners.items())
    results = audit(AuditSpec(audits, seed=5, run=RunOptions("in-process")), output=tmp_path, quiet=True).results
    assert [result.verdict.value for result in results] == ["NO VIOLATION FOUND", "VIOLATION"]
    claimed = math.sqrt(STEPS) / HONEST.noise_multiplier()
    assert 0.5 * claimed < results[0].mu < claimed
    assert "A claim for a public (fixed) initial model covers this." in (tmp_path / "report.html").read_text()


def test_check_plays_it_for_a_loop_whose_steps_it_cannot_see() -> None:
    learner = from_torch(module, private_loop, CLAIM)
    tests, *_ = matching_tests(learner, CLAIM)
    assert [planned.name for planned in tests] == ["last-iterate", "ind-mia, far point"]
    (planned, _) = check_spec(CheckRequest(learner, data=DATA)).audits
    assert (planned.game.trials, planned.game.search) == (1024, 256)
    assert "last-iterate" not in [planned.game for planned in matching_tests(HONEST, HONEST.claim())[0]]


def test_check_rejects_a_loop_by_its_final_model(tmp_path: Path) -> None:
    """At quick effort the other test, from random weights, is not needed."""
    options = CheckOptions(effort="quick", run=RunOptions("in-process"))
    report = audit(check_spec(CheckRequest(from_torch(module, leaky_loop, CLAIM), data=DATA), options), output=tmp_path)
    assert report.results
    assert [result.name for result in report.results if result.verdict.value == "VIOLATION"][:1] == ["last-iterate"]


def test_a_learner_that_draws_its_weights_is_refused() -> None:
    spec = {"mechanism": {"name": "gaussian-naive-bayes", "epsilon": 1.0}, "data": "iris", "game": "last-iterate"}
    with pytest.raises(SpecError, match="last-iterate needs learners that can start from given weights"):
        make_plan(load_spec(spec))
