"""Two-world games: the training data of a trial, scores independent of stacking, bounds below known truths."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from numpy.typing import NDArray

from dpaudit import AuditSpec, Examples, Verdict, audit, load_spec
from dpaudit.actors.seed import Seed
from dpaudit.claims import Claim, Relation
from dpaudit.engine.games.outcomes import Observed, Outcomes
from dpaudit.engine.games.trials import TrainingRun
from dpaudit.engine.games.two_world.game import IndMia, Mia
from dpaudit.engine.games.two_world.views import Challenges, ChallengeView, Shadows
from dpaudit.engine.games.two_world.work import (
    joined_shadows,
    members,
    parameter_count,
    train_observed,
)
from dpaudit.engine.games.two_worlds import TwoWorlds
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.report.page import intervals
from dpaudit.errors import RunError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp

SPEC: dict[str, Any] = {
    "name": "worlds",
    "seed": 3,
    "data": {"name": "digits", "flat": True},
    "split": {"target": 0.2, "reference": 0.0, "test": 0.1},
    "mechanism": {
        "name": "non-private",
        "model": {"name": "mlp", "hidden": [16], "epochs": 4, "learning_rate": 0.2},
    },
    "game": {
        "name": "ind-mia",
        "trials": 24,
        "stack": 8,
        "shadows": 12,
        "population": 20,
        "canary": {"name": "select-worst", "count": 2},
    },
    "run": {"runner": "in-process"},
}


def spec_with(**changes: Any) -> AuditSpec:
    """The small spec with fields of its game or others changed."""
    content = {**SPEC, **{name: value for name, value in changes.items() if name not in SPEC["game"]}}
    game = changes.get("game", SPEC["game"])
    content["game"] = {**game, **{name: value for name, value in changes.items() if name in SPEC["game"]}}
    return load_spec(content)


def scores_in(folder: Path) -> pa.Table:
    return pads.dataset(next((folder / "scores").iterdir()), format="parquet").to_table()


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "scores").rglob("*.parquet"))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    audit(spec_with(), output=folder)
    return folder


def test_stacks_of_another_size_give_the_same_scores(finished: Path, tmp_path: Path) -> None:
    """phi to 1e-4: float32 sums grouped differently, over 12 steps. Shadow stacks follow `stack` too."""
    audit(spec_with(stack=5, attack="loss"), output=tmp_path / "five")
    audit(spec_with(attack="loss"), output=shutil.copytree(finished, tmp_path / "eight"))
    ours, theirs = scores_in(tmp_path / "five"), scores_in(tmp_path / "eight")
    assert ours["truth"].to_pylist() == theirs["truth"].to_pylist() == scores_in(finished)["truth"].to_pylist()
    np.testing.assert_allclose(ours["score"].to_numpy(), theirs["score"].to_numpy(), atol=1e-4)


def test_score_table_is_one_replay_of_numbered_trials(finished: Path) -> None:
    table = scores_in(finished)
    columns = {"score": pa.float32(), "truth": pa.bool_(), "replay": pa.int32(), "canary": pa.int32()}
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == columns
    assert set(table["replay"].to_pylist()) == {0}
    assert table["canary"].to_pylist() == list(range(24))
    labels = [unit.label for unit in make_plan(spec_with()).units if unit.function_name == "make_runs"]
    assert labels == ["fresh runs 1-8", "fresh runs 9-16", "fresh runs 17-24"], "each tells its trials"


def test_shadow_models_and_trials_are_trained_once_for_all_attacks(finished: Path, tmp_path: Path) -> None:
    """In one spec, and across runs in one folder: another attack runs two units, its scores and their counts."""
    folder = shutil.copytree(finished, tmp_path / "copy")
    attacks = ["lira-online", "lira-offline", {"name": "rmia", "offline": True}, "loss"]
    audits = [{"name": str(number), "attack": attack} for number, attack in enumerate(attacks)]
    together = make_plan(load_spec({**SPEC, "audits": audits}))
    trained = [unit.label for unit in together.units if unit.label.startswith(("fresh", "shadow"))]
    assert len(trained) == 3 + 2
    assert audit(load_spec({**SPEC, "audits": audits}), output=folder).executed == 2 * 3


def test_more_trials_reuse_the_finished_stacks(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    report = audit(spec_with(trials=32), output=folder)
    assert report.executed == 3, "one more stack, the scores, the counts"
    before, after = scores_in(finished).to_pylist(), scores_in(folder).to_pylist()
    assert [row["score"] for row in after[:24]] == [row["score"] for row in before]


def challenges_at(rows: list[int], crafted: bool) -> Challenges:
    pool = Examples(np.zeros((100, 2), np.float32), np.zeros(100, np.int64), 2)
    where = np.array(rows)
    return Challenges(pool.take(np.maximum(where, 0)), where, crafted, np.zeros(len(rows)))


@pytest.mark.parametrize("crafted", [False, True])
def test_ind_mia_trains_on_a_fixed_base_set_with_or_without_the_challenge(crafted: bool) -> None:
    game, challenges = IndMia(population=30), challenges_at([4, 9], crafted)
    setup = game.setup(100, challenges, np.random.default_rng(1))
    truths = np.random.default_rng(2).random(400) < 0.5
    trials = [game.trial(setup, truth, np.random.default_rng(number)) for number, truth in enumerate(truths)]
    without = {tuple(rows) for (_, rows), truth in zip(trials, truths, strict=True) if not truth}
    assert len(without) == 1, "the base set is one"
    (base,) = without
    assert len(base) == 50
    assert not {4, 9} & set(base)
    assert not set(setup.population) & {*base, 4, 9}
    assert len(setup.population) == 30
    for (challenge, rows), truth in zip(trials, truths, strict=True):
        assert challenge in ({100, 101} if crafted else {4, 9})
        assert tuple(rows) == (*base, challenge) if truth else tuple(rows) == base
    # Four cells of 400 fair draws: each within 6 deviations of 100 (false failure < 1e-8).
    cells = [
        sum(coin == truth and challenge == place for (challenge, _), coin in zip(trials, truths, strict=True))
        for truth in (True, False)
        for place in challenges.points(100)
    ]
    assert all(abs(cell - 100) < 6 * math.sqrt(400 * 3 / 16) for cell in cells)


def test_mia_replaces_one_fresh_point_by_another() -> None:
    game = Mia(population=20)
    setup = game.setup(100, None, np.random.default_rng(1))
    trials = [game.trial(setup, number % 2 == 1, np.random.default_rng(number)) for number in range(200)]
    for number, (challenge, rows) in enumerate(trials):
        assert len(rows) == 50 == len(set(rows))
        assert (challenge in rows) == (number % 2 == 1)
        assert not set(setup.population) & {*rows, challenge}
    assert len({tuple(sorted(rows)) for _, rows in trials}) == 200, "each trial draws its own data set"
    assert game.traits.relation is Relation.REPLACE


def test_shadow_models_come_in_halves() -> None:
    seed = Seed(3)
    for pair in range(4):
        first, second = members(seed, 2 * pair, 101), members(seed, 2 * pair + 1, 101)
        assert (first ^ second).all()
        assert first.sum() == 50
    halves = {members(seed, model, 101).tobytes() for model in range(8)}
    assert len(halves) == 8
    crafted = challenges_at([7, -1], True)
    for model in range(8):
        member = members(seed, model, 100, crafted)
        assert len(member) == 102
        assert not member[7], "what a crafted point is made from stays out"
    assert sum(members(seed, model, 100, crafted)[100] for model in range(8)) == 4


def test_stacks_of_shadow_models_are_joined_and_those_that_failed_are_left_out() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.standard_normal((4, 2, 5)).astype(np.float32)
    shadows = Shadows(confidence, rng.random((4, 5)) < 0.5)
    stacks = [shadows.of_models(slice(first, first + 2)) for first in (0, 2)]
    back = joined_shadows(stacks)
    assert (back.confidence.dtype.name, back.member.dtype.name) == ("float32", "bool")
    np.testing.assert_array_equal(back.confidence, shadows.confidence)
    np.testing.assert_array_equal(back.member, shadows.member)
    single = joined_shadows(stacks[:1])
    assert np.shares_memory(single.confidence, stacks[0].confidence), "no further copy of many confidences"
    confidence[2] = np.nan
    assert len(joined_shadows([Shadows(confidence, shadows.member)]).member) == 3
    confidence[:3] = np.nan
    with pytest.raises(RunError, match="at least two shadow models"):
        joined_shadows([Shadows(confidence, shadows.member)])


def test_one_score_for_each_trial_or_an_error() -> None:
    @dataclass(frozen=True)
    class Broken:
        def score(self, view: Any) -> NDArray[np.float64]:
            return np.full(len(view.point), np.nan)

    runs = Outcomes.of_numbers(np.zeros((1, 2)), np.array([True]))
    observed = Observed(None, None, runs, runs, (), Compute())
    with pytest.raises(RunError, match="returned NaN scores"):
        TwoWorlds.scores_by_view(
            Broken(), observed, lambda outcomes: ChallengeView(*[outcomes.subject] * 4, None, *[outcomes.matrix()] * 2)
        )


def test_a_game_of_replaced_points_doubles_an_add_remove_claim(tmp_path: Path) -> None:
    spec = spec_with(game={"name": "mia", "trials": 24, "stack": 12, "shadows": 4, "population": 10})
    (result,) = audit(spec, output=tmp_path).results
    assert result.comparison is not None
    assert result.finding.method == "fair-coins", "the game's usual estimator"
    assert "lira-online" in result.game
    assert "proxy" not in result.game
    private = spec_with(
        game={"name": "mia", "trials": 24},
        attack="loss",
        mechanism={"name": "dp-sgd", "epsilon": 1.0, "model": {"name": "mlp", "momentum": 0.0}},
    )
    (entry,) = make_plan(private).audits
    assert entry.audit.estimator.delta == pytest.approx((1 + math.e) * 1e-5)


DIGITS = Mlp(hidden=(8,), epochs=1, learning_rate=0.1, momentum=0.0, batch_size=10)


def digits() -> Examples:
    from dpaudit.registry import load

    data: Examples = load("data", "digits")(flat=True).load(seed=0)
    return data


def test_observed_canary_without_noise_counts_its_steps() -> None:
    """A Dirac canary on an otherwise constant weight: the product is the number of steps that sampled it."""
    learner = DpSgd(math.inf, sample_rate=0.25, clip=2.0, model=replace(DIGITS, epochs=5))
    data = digits()
    gradient = np.zeros((6, parameter_count(learner, data)), np.float32)
    gradient[:, 0] = 1.0  # the first pixel is always blank
    runs = [TrainingRun(np.arange(30), Seed(5).child(number)) for number in range(6)]
    inserted = np.array([True, False] * 3)
    observed = train_observed(learner, data, runs, compute=Compute(), gradients=gradient, inserted=inserted)
    steps = observed.products.sum(1)
    np.testing.assert_array_equal(observed.norms, 1)
    np.testing.assert_allclose(steps[~inserted], 0, atol=1e-6)
    # The engine's clipping shortens a gradient of exactly the clip norm by 1e-6 of its norm.
    np.testing.assert_allclose(steps[inserted], np.round(steps[inserted]), atol=20 * 1e-6)
    assert (steps[inserted] > 0).all(), "20 steps at rate 1/4: none would draw it with probability 0.003"
    assert set(np.round(observed.products.ravel(), 4) + 0.0) <= {0.0, 1.0}


def test_observed_example_gives_its_clipped_gradient() -> None:
    """One step on the example alone, without noise: the product is the squared norm of its clipped gradient."""
    data = digits()
    for clip in (0.5, 100.0):
        learner = DpSgd(math.inf, sample_rate=1.0, clip=clip, model=DIGITS)
        runs = [TrainingRun(np.array([row]), Seed(6).child(row)) for row in range(5)]
        observed = train_observed(learner, data, runs, compute=Compute(), points=np.arange(5))
        if clip == 0.5:
            np.testing.assert_allclose(observed.products[:, 0], 1.0, rtol=1e-4)
        else:
            assert (observed.products[:, 0] > 0).all()
            assert (observed.products[:, 0] < 1).all()


def test_planted_bug_of_dp_sgd_is_detected_by_its_steps(tmp_path: Path) -> None:
    """Noise divided by the batch size: with 60 trials the bound is above the claim, honest DP-SGD's below."""
    audits = [
        {"name": "honest", "mechanism": {"name": "dp-sgd"}},
        {"name": "bug", "mechanism": {"name": "planted-noise-over-batch"}},
    ]
    for entry in audits:
        entry["mechanism"] |= {  # type: ignore[operator]
            "epsilon": 0.5,
            "sample_rate": 0.25,
            "model": {"name": "mlp", "hidden": [8], "epochs": 4, "batch_size": 40, "momentum": 0.0},
        }
    game = {"name": "ind-mia", "trials": 60, "population": 0, "canary": {"name": "dirac-gradient", "weight": 0}}
    report = audit(load_spec({**SPEC, "game": game, "attack": "gradient-dot", "audits": audits}), output=tmp_path)
    assert [result.verdict for result in report.results] == [Verdict.NO_VIOLATION, Verdict.VIOLATION]


@pytest.mark.figures
def test_the_page_shows_trade_off_posterior_and_three_intervals(finished: Path) -> None:
    (result,) = audit(spec_with(), output=finished).results
    page = (finished / "report.html").read_text()
    assert "Three ways to read the counts" in page
    assert page.count("<svg") == 1 + 4
    figures = {re.sub("^.*-[0-9a-f]{6}-", "", path.stem) for path in (finished / "figures").glob("*.png")}
    assert figures == {"overview", "scores", "delta", "trade-off", "posterior"}
    counts = result.series["posterior"]
    assert sum(counts[name] for name in ("tp", "fp", "tn", "fn")) == 24
    assert list(intervals(result)) == ["clopper-pearson", "jeffreys", "bayesian"]
    assert all(way.lower <= way.upper for way in intervals(result).values())


RR = {"name": "randomized-response", "epsilon": 1.0}
ANY = Claim(1.0, 0.0, Relation.ADD_REMOVE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attack": "label-inference"},
            "sees a model's answers .* game ind-mia shows independent trials",
        ),
        (
            {"game": {"name": "membership"}, "attack": "rmia"},
            "sees independent trials.*that fit: .*learned-membership, loss",
        ),
        (
            {"mechanism": {"name": "randomized-response", "epsilon": 1.0}, "claim": ANY},
            "ind-mia needs learners .* got randomized-response; games that fit: .*label-c",
        ),
        ({"canary": "dirac-gradient", "attack": "gradient-dot"}, "DP-SGD family"),
        ({"canary": "dirac-gradient"}, "DP-SGD family"),
        ({"canary": "dirac-gradient", "attack": "lira-online"}, "Use attack: gradient-likelihood"),
        ({"attack": "gradient-dot"}, "DP-SGD family"),
        ({"shadows": 7}, "shadows must be even"),
        ({"trials": 1}, "trials must be in 2 .. 10,000,000"),
        ({"game": {"name": "mia", "population": 358}}, "must have training rows"),
    ],
)
def test_invalid_combinations_are_refused_before_the_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_plan(spec_with(**changes))
