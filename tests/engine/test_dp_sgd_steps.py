"""DP-SGD step by step: canaries join by coins, scores use earlier steps only, and defects show in one training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from scipy.stats import binom

from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit, load_spec
from dpaudit.actors.seed import Seed
from dpaudit.claims import GaussianDP, SubsampledGaussian
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.steps.dp_sgd_steps import DpSgdSteps, StepMidpoint, learn_steps, score_steps, train_steps
from dpaudit.engine.games.steps.step_probes import FEATURES, StepProber, Steps, StepView
from dpaudit.engine.games.two_world.canaries import RandomGradient
from dpaudit.engine.planning.plan import make_plan
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.one_run.step_martingale import StepAccuracy, StepMartingale
from dpaudit.estimators.scores import Scores, StepScores
from dpaudit.mechanisms.adapters.own_training import OwnSteps, from_steps
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.protocols import StepLearner
from dpaudit.mechanisms.training.private.private_steps import StepCanary
from tests.bank.loops import (
    BareBias,
    BareFirstLayer,
    Loop,
    MirroredHalves,
    NoiseOverflows,
    OneNoiseForLayers,
    OwnLayers,
    SeededByStep,
    SeededEachEpoch,
)
from tests.nightly import by_day

SMALL = {"name": "mlp", "hidden": [32], "epochs": 20, "batch_size": 100, "learning_rate": 0.5, "momentum": 0.0}


def steps_of(*mechanisms: dict[str, Any], folder: Path, **changes: Any) -> Report:
    audits = [{"name": str(number), "mechanism": mechanism} for number, mechanism in enumerate(mechanisms)]
    spec = {
        "name": "steps",
        "seed": 4,
        "data": {"name": "digits", "flat": True},
        "split": {"target": 0.8, "reference": 0.0, "test": 0.2},
        "game": "dp-sgd-steps",
        "audits": audits,
        "run": {"runner": "in-process", "figures": False, "repeats": 0},
    }
    return audit(load_spec(spec | changes), output=folder)


def private(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "epsilon": 16.0, "sample_rate": 0.1, "model": SMALL} | changes


def test_planted_defects_are_refuted_in_one_training_and_the_honest_one_is_not(tmp_path: Path) -> None:
    """200 steps each. The seed is fixed; with another one the honest training is accused with probability <= 0.05."""
    bugs = (
        *(f"planted-{bug}" for bug in ("half-the-noise", "no-clipping", "clip-batch-mean", "noise-over-batch")),
        "tests.bank.planted_dp_sgd:NoiseSeededEachStepDpSgd",
    )
    report = steps_of(private("dp-sgd"), *map(private, bugs), folder=tmp_path)
    honest, *planted = report.results
    assert honest.verdict is Verdict.NO_VIOLATION
    assert [result.verdict for result in planted] == [Verdict.VIOLATION] * len(bugs)
    mechanism = DpSgd(16.0, sample_rate=0.1, model=Mlp(epochs=20, batch_size=100))
    noise = mechanism.noise_multiplier()
    assert honest.compared.claim.curve == GaussianDP(1 / noise)
    half = planted[0]
    assert half.violation_point is not None
    assert half.violation_point.quantity == "total variation"
    assert half.violation_point.claimed == pytest.approx(GaussianDP(1 / noise).delta(0.0))
    assert half.violation_point.observed <= GaussianDP(2 / noise).delta(0.0)
    assert any("by the accountant, where 16 is claimed" in line for line in half.meaning_for_whole)
    assert any("not the accountant nor the data pipeline" in line for line in honest.meaning_for_whole)
    assert "by the accountant" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("trainings", "steps", "expected"), [(3, None, 3), (64, 1_000, 5), (64, 1_001, 6), (4, 10_000, 4)]
)
def test_trainings_are_made_until_there_are_enough_steps(trainings: int, steps: int | None, expected: int) -> None:
    """Each training states its 200 steps before it starts."""
    mechanism = DpSgd(16.0, sample_rate=0.1, model=Mlp(epochs=20, batch_size=100, learning_rate=0.5, momentum=0.0))
    steps_audit = Audit(mechanism=mechanism, data=Digits(flat=True), game=DpSgdSteps(trainings=trainings, steps=steps))
    (entry,) = make_plan(AuditSpec((steps_audit,))).audits
    assert len(entry.trainings) == expected


def test_a_step_is_tested_with_its_sampling_if_asked_for(tmp_path: Path) -> None:
    still = {"name": "dirac-gradient", "weight": 0}  # the first pixel is always blank: no data along the canary
    game = {"name": "dp-sgd-steps", "sampling": True, "canary": still}
    steep = private("planted-noise-over-batch", sample_rate=0.5, model=SMALL | {"epochs": 60})
    (result,) = steps_of(steep, folder=tmp_path, game=game).results
    curve = result.compared.claim.curve
    assert isinstance(curve, SubsampledGaussian)
    assert (curve.sample_rate, curve.steps) == (0.5, 1)
    # Without noise a canary that is in half of its steps is found there: right in 3 of 4 steps.
    counts = dict(result.finding.counts)  # type: ignore[union-attr]
    assert abs(counts["correct"] - 0.75 * 120) < 5 * np.sqrt(120 * 0.75 * 0.25), "false failure < 1e-6"
    assert any("and their sampling" in line for line in result.meaning_for_whole)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="dp-sgd-steps needs learners that show their steps"):
        steps_of({"name": "non-private"}, folder=tmp_path, claim={"epsilon": 1.0, "relation": "add-remove"})
    with pytest.raises(SpecError, match="the canary of dp-sgd-steps must be a gradient"):
        steps_of(private("dp-sgd"), folder=tmp_path, game={"name": "dp-sgd-steps", "canary": "blank"})
    with pytest.raises(SpecError, match="must read scores of steps in their order, got simultaneous-guess-count"):
        steps_of(private("dp-sgd"), folder=tmp_path, estimator="simultaneous-guess-count")
    with pytest.raises(SpecError, match="must read scores, got step-martingale"):
        steps_of(private("dp-sgd"), folder=tmp_path, game="ind-mia", estimator="step-martingale")


def canary(seed: int = 0, **changes: Any) -> tuple[StepCanary, StepProber]:
    """Return a canary that is the same at every step, and the prober that measures it."""
    probe = StepProber(StepMidpoint(), 1.0, np.random.default_rng(seed), only=RandomGradient())
    settings = {"clip": 2.0, "divisor": 4.0} | changes
    return StepCanary(probe, np.random.default_rng(seed), **settings), probe


def test_a_canary_joins_by_its_coins_and_measures_in_clips() -> None:
    import torch

    steps_canary, probe = canary()
    joins = []
    for step in range(40):
        rows = np.zeros((3, 5), np.float32) if step % 2 else torch.zeros(3, 5)
        joined = steps_canary.join(step, rows)
        joins.append(len(joined) == 4)
        summed = np.asarray(joined).sum(0)
        norm = np.linalg.norm(summed)
        steps_canary.observe(step, summed * min(1.0, 2.0 / max(norm, 1e-9)) / 4)
    steps = probe.steps()
    assert steps.coin.tolist() == joins
    np.testing.assert_allclose(steps.features[:, 0], steps.coin.astype(float), atol=1e-6)
    assert 5 < steps.coin.sum() < 35, "false failure < 1e-5"


def test_steps_of_16_bits_are_observed() -> None:
    import torch

    steps_canary, probe = canary()
    for step in range(20):
        joined = steps_canary.join(step, torch.zeros(3, 5, dtype=torch.bfloat16))
        assert joined.dtype == torch.bfloat16
        summed = joined.double().sum(0)
        steps_canary.observe(step, (summed * min(1.0, 2.0 / max(float(summed.norm()), 1e-9)) / 4).bfloat16())
    steps = probe.steps()
    np.testing.assert_allclose(steps.features[:, 0], steps.coin.astype(float), atol=0.02)


def test_a_loop_that_does_not_play_by_the_rules_is_told_so() -> None:
    data = Examples(np.zeros((9, 4), np.float32), np.zeros(9, np.int64), 2, "blank")
    with pytest.raises(InputError, match="it never called `observe`"):
        one_training(OwnSteps(silent_loop, 1.0, 5), data)
    steps_canary, probe = canary()
    with pytest.raises(InputError, match=r"must ask for its canary \(join\) before it is observed"):
        steps_canary.observe(0, np.zeros(5))
    steps_canary.gradients(0, 5)
    with pytest.raises(InputError, match="ask for its canary once"):
        steps_canary.gradients(0, 5)
    with pytest.raises(InputError, match="one vector of all weights"):
        steps_canary.observe(0, np.zeros((5, 1)))
    steps_canary.observe(0, np.full(5, np.nan))
    assert np.isnan(probe.steps().features).all()
    with pytest.raises(InputError, match="steps are numbered from 0"):
        steps_canary.gradients(2, 5)


def silent_loop(X: Any, y: Any, seed: int, canary: StepCanary) -> None:
    """Shows nothing."""


def one_training(mechanism: Any, data: Examples, *, canary: Any = None) -> Steps:
    return train_steps(mechanism, StepMidpoint(), canary, data, None, (), Compute(), size=len(data), seed=Seed(1))


@pytest.mark.parametrize("only", [RandomGradient(), None])
def test_no_score_depends_on_what_comes_later(only: Any) -> None:
    """A score may use the next step, but neither the coin of its own step nor that of the next one."""

    def scored(steps: int, flipped: int | None = None) -> Steps:
        probe, rng = StepProber(StepMidpoint(), 1.0, np.random.default_rng(1), only=only), np.random.default_rng(5)
        for step in range(steps):
            batch, coin, noise = rng.standard_normal((3, 6)), rng.random() < 0.5, rng.standard_normal(6)
            probe.gradients(6, batch)
            probe.see(np.full(6, np.nan) if step == 7 else noise, np.array([coin != (step == flipped)]))
        return probe.steps()

    whole, flipped = scored(60), scored(60, flipped=30)
    np.testing.assert_array_equal(whole.score[:30], scored(31).score[:30])
    np.testing.assert_array_equal(whole.score[:31], flipped.score[:31])
    np.testing.assert_array_equal(whole.kind[:32], flipped.kind[:32], "the next canary does not depend on the coin")
    assert (whole.score[32:] != flipped.score[32:]).any(), "later scores learn from it"
    assert whole.score[7] == 0, "a gradient that is not finite tells nothing"


def test_the_midpoint_learns_what_a_canary_adds_and_that_noise_is_used_again() -> None:
    """Guesses are nearly always right where the noise cancels; false failure of the honest case < 1e-6."""
    rng = np.random.default_rng(6)
    coins = rng.random(400) < 0.5

    def right(products: Any) -> float:
        views = (StepView(products[: step + 1, None], coins[:step]) for step in range(400))
        guesses = np.array([StepMidpoint().score(view)[0] > 0 for view in views])
        return float((guesses == coins)[40:].mean())

    honest = right(coins + rng.standard_normal(400))
    assert abs(honest - 0.69) < 5 * np.sqrt(0.69 * 0.31 / 360)
    assert right(0.02 * (coins + 0.1 * rng.standard_normal(400)) + 3) > 0.97, "another unit, and data along the canary"
    assert right(coins + 3 * rng.standard_normal()) > 0.97


def test_features_that_tell_nothing_cost_the_midpoint_next_to_nothing() -> None:
    """30 trainings with half the noise of a usual claim; a looser choice of rules costs 3 % here."""
    rng, steps = np.random.default_rng(8), 200
    best, correct = 0, 0
    for _ in range(30):
        coins, x = rng.random(steps) < 0.5, rng.standard_normal((steps, FEATURES))
        x[:, 0] = coins + 2.1 * x[:, 0]
        best += ((x[:, 0] > 0.5) == coins).sum()
        views = (StepView(x[: step + 1], coins[:step]) for step in range(steps))
        correct += sum((StepMidpoint().score(view)[0] > 0) == coin for view, coin in zip(views, coins, strict=True))
    assert (best - correct) / (30 * steps) < 0.012, "false failure < 0.01"


def test_the_batch_does_not_hide_a_canary_that_points_against_it() -> None:
    """The first feature is the noise along the canary, plus the squared norm of the canary where it joins."""
    probe, rng = StepProber(StepMidpoint(), 1.0, np.random.default_rng(1)), np.random.default_rng(5)
    noises, coins = rng.standard_normal((50, 6)), rng.random(50) < 0.5
    expected = []
    for noise, coin in zip(noises, coins, strict=True):
        batch = rng.standard_normal((30, 6)) + 2
        (along,) = probe.gradients(6, batch)
        along /= max(1.0, float(np.linalg.norm(along)))
        total = (batch / np.maximum(1, np.linalg.norm(batch, axis=1))[:, None]).sum(0)
        probe.see(total + coin * along + noise, np.array([coin]))
        expected.append(coin * (along @ along) + noise @ along)
    np.testing.assert_allclose(probe.steps().features[:, 0], expected, atol=1e-5)


def test_right_guesses_bound_total_variation_and_false_claims_are_rare() -> None:
    """1,000 games of 100 steps right with probability (1 + TV) / 2; false failure < 1e-6."""
    rng, curve, estimator = np.random.default_rng(7), GaussianDP(1.0), StepMartingale(delta=1e-5)
    accuracy = (1 + curve.delta(0.0)) / 2
    truth = rng.random((1000, 100)) < 0.5
    scores = np.where((rng.random(truth.shape) < accuracy) == truth, 1.0, -1.0)
    tallies = [estimator.tally(StepScores(score, bits)) for score, bits in zip(scores, truth, strict=True)]
    p_values = np.array([StepAccuracy(tally, 0.0).p_value(curve) for tally in tallies])
    assert 0 < (p_values <= 0.05).sum() <= binom.ppf(1 - 1e-6, 1000, 0.05)
    steep = GaussianDP(0.5)
    assert np.mean([StepAccuracy(tally, 0.0).p_value(steep) <= 0.05 for tally in tallies]) > 0.3, "it can fail"
    for place in np.argsort(p_values)[[0, 10, 20, 40, 400, 800]]:
        bound = estimator.find([tallies[place]])
        (evidence,) = bound.evidence
        assert isinstance(evidence, StepAccuracy)
        assert (bound.violation_point(curve) is not None) == (p_values[place] <= 0.05)
        # TV <= 1 - 2 (1 - delta) / (1 + e^epsilon), with equality where the bound is above 0.
        at_most = 1 - 2 * (1 - 1e-5) / (1 + np.exp(bound.lower))
        assert bound.lower == 0 or at_most == pytest.approx(evidence.total_variation, rel=1e-6)


def test_guesses_are_read_in_the_order_of_the_steps() -> None:
    truth = np.ones(50, np.bool_)
    score = np.where(np.arange(50) < 25, 1.0, -1.0)
    backwards = StepScores(score[::-1], truth, canary=np.arange(50)[::-1])
    forwards = StepMartingale().tally(StepScores(score, truth))
    np.testing.assert_array_equal(forwards.right, StepMartingale().tally(backwards).right)
    assert forwards.right[0] == 1
    assert StepMartingale().tally(StepScores(0 * score, truth)).right[-1] == 0, "no guess is a wrong one"
    assert not isinstance(Scores(score, truth), StepScores)


def noisy_loop(X: Any, y: Any, seed: int, canary: StepCanary, noise: float = 1.0) -> None:
    """DP-SGD of a logistic regression on two classes, in NumPy."""
    rng, weights = np.random.default_rng(seed), np.zeros(X.shape[1])
    for step in range(300):
        picked = rng.random(len(X)) < 0.1
        gradients = X[picked] * (1 / (1 + np.exp(-X[picked] @ weights)) - y[picked])[:, None]
        gradients = canary.join(step, gradients)
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        summed = (gradients * np.minimum(1, 1 / np.maximum(norms, 1e-9))).sum(0)
        noisy = (summed + noise * rng.standard_normal(len(summed))) / 20
        canary.observe(step, noisy)
        weights -= 0.5 * noisy


def quiet_loop(X: Any, y: Any, seed: int, canary: StepCanary) -> None:
    noisy_loop(X, y, seed, canary, noise=0.5)


@pytest.mark.parametrize(("loop", "verdict"), [(noisy_loop, Verdict.NO_VIOLATION), (quiet_loop, Verdict.VIOLATION)])
def test_ones_own_loop_is_audited_by_what_it_observes(loop: Any, verdict: Verdict, tmp_path: Path) -> None:
    """The seed is fixed; with another one the honest loop is accused with probability <= 0.05."""
    learner = from_steps(loop, noise_multiplier=1.0, sample_rate=0.1, steps=300, divisor=20)
    assert isinstance(learner, StepLearner)
    rng = np.random.default_rng(8)
    data = Examples(rng.standard_normal((200, 600)).astype(np.float32), rng.integers(0, 2, 200), 2, "drawn")
    part = Audit(learner, data, "dp-sgd-steps", split=Partition(target=1.0, reference=0.0, test=0.0))
    options = RunOptions(runner="in-process", figures=False, repeats=0)
    (result,) = audit(AuditSpec((part,), seed=9, run=options), output=tmp_path).results
    assert result.verdict is verdict
    assert result.compared.claim.curve == GaussianDP(1.0)


def test_a_training_shows_the_steps_it_states() -> None:
    """Steps missing at the end of a training get the score 0; more steps than claimed are refused."""
    data = Examples(np.zeros((9, 4), np.float32), np.zeros(9, np.int64), 2, "blank")

    def train(steps: int) -> Steps:
        return one_training(OwnSteps(noisy_loop, 1.0, steps), data, canary=RandomGradient())

    whole = train(310)
    assert np.isnan(whole.features[:, 0]).tolist() == [False] * 300 + [True] * 10
    (scores,) = score_steps(None, (whole,))
    assert scores.score[300:].tolist() == [0.0] * 10
    with pytest.raises(InputError, match="must show the 299 steps it states, got 300"):
        train(299)


def test_ones_own_loop_is_checked_before_it_runs() -> None:
    with pytest.raises(InputError, match=r"must take \(X, y, seed, canary\)"):
        OwnSteps(lambda X, y: None, 1.0, 1)
    with pytest.raises(InputError, match=r"must take \(X, y, seed, canary\).* no signature"):
        OwnSteps(dict, 1.0, 1)
    with pytest.raises(InputError, match="noise_multiplier must be > 0"):
        OwnSteps(noisy_loop, 0.0, 1)
    with pytest.raises(InputError, match="at least one step"):
        OwnSteps(noisy_loop, 1.0, 0)


def test_opacus_shows_its_steps_as_it_is() -> None:
    """40 steps: a canary adds one clip to the noise of its standard deviation, no clip where it is kept out."""
    pytest.importorskip("opacus")
    from opacus.optimizers import DPOptimizer

    from dpaudit.mechanisms.adapters.opacus_dp_sgd import OpacusDpSgd

    rng = np.random.default_rng(10)
    data = Examples(rng.standard_normal((100, 30)).astype(np.float32), rng.integers(0, 2, 100), 2, "drawn")
    learner = OpacusDpSgd(
        20.0, clip=0.5, accountant="rdp", model=Mlp(hidden=(8,), epochs=8, batch_size=20, momentum=0.0)
    )
    claimed = learner.claimed_steps(len(data))
    assert (claimed.count, claimed.divisor, claimed.private.sample_rate) == (40, 1, 0.2)
    steps_canary, probe = canary(11, clip=0.5, divisor=claimed.divisor)
    original = DPOptimizer.pre_step
    learner.show_steps(data, steps_canary, seed=SeedSequence(1), compute=Compute())
    assert DPOptimizer.pre_step is original
    coins, products = probe.steps().coin, probe.steps().features[:, 0]
    assert len(coins) == 40
    # Means of n draws: noise of sigma clips, and at most 20 or so clipped gradients along a random direction.
    limit = 5.5 * (claimed.private.noise_multiplier + 1) / np.sqrt(min(coins.sum(), (~coins).sum()))
    assert limit < 4
    assert abs(products[coins].mean() - 1) < limit
    assert abs(products[~coins].mean()) < limit
    assert np.std(products) > 0.3 * claimed.private.noise_multiplier


class Short(Loop):
    """The honest loop of the bank, shorter."""

    steps = 60


class ShortLayers(OwnLayers):
    """Each layer has its own clip and its own noise."""

    steps = 60


def told_by(loop: type[Loop], seed: int, *, trainings: int = 1) -> float:
    """P-value of the step's claim in the last half of some trainings that try all canaries."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 300)
    data = Examples((rng.standard_normal((300, 5)) + labels[:, None]).astype(np.float32), labels, 2, "drawn")
    learner = from_steps(
        loop, noise_multiplier=loop.sigma, steps=loop.steps, sample_rate=loop.rate, divisor=loop.divisor
    )
    trained: tuple[Steps, ...] = ()
    for number in range(trainings):
        each = Seed(seed).child(number) if number else Seed(seed)
        attacked = (learner, StepMidpoint(), None, data, None, trained)
        trained += (train_steps(*attacked, Compute(), size=300, without_search=trainings == 1, seed=each),)
    (scores,) = score_steps(None, trained[trainings // 2 :])
    return StepAccuracy(StepMartingale().tally(scores), 0.0).p_value(GaussianDP(1 / loop.sigma))


@pytest.mark.parametrize(
    "loop", [OneNoiseForLayers, SeededEachEpoch, MirroredHalves, BareBias, BareFirstLayer, NoiseOverflows]
)
def test_noise_that_is_shared_used_again_or_spares_weights_is_seen_in_one_training(loop: type[Loop]) -> None:
    """The seed is fixed. For each loop, 20 of 20 other seeds detected the defect too."""
    assert told_by(loop, 1) < 0.001


def test_noise_that_comes_back_in_another_training_is_seen() -> None:
    """The seed is fixed."""
    assert told_by(SeededByStep, 1, trainings=4) < 0.001


def test_honest_loops_are_refuted_no_more_often_than_stated_whatever_the_canaries_try() -> None:
    """False failure < 1e-4."""
    p_values = [told_by(loop, seed) for loop in (Short, ShortLayers) for seed in range(by_day(10, by_night=20))]
    p_values += [told_by(Short, seed, trainings=2) for seed in range(by_day(8, by_night=16))]
    assert (np.array(p_values) <= 0.05).sum() <= binom.ppf(1 - 1e-4, len(p_values), 0.05)


def test_the_steps_and_rows_that_count_are_chosen_by_trainings_to_learn_from() -> None:
    """Every tenth step told and bare: these alone count; where all tell, all do."""
    rng = np.random.default_rng(4)

    def training(rows: int, every: int) -> Steps:
        coin, bare = rng.random(100) < 0.5, np.arange(100) % every == every - 1
        score = np.where(bare | (rng.random(100) < 0.6), 1.0, -1.0) * np.where(coin, 1, -1)
        blank = np.zeros(100, np.int64)
        return Steps(coin, blank, np.zeros((100, 2)), score, np.where(bare, 0.0, 1.0), rows)

    some = learn_steps(tuple(training(300, 10) for _ in range(6)), 0.69).value
    np.testing.assert_array_equal(np.flatnonzero(some.counts), np.arange(9, 100, 10))
    every = learn_steps((training(300, 200), training(15, 1), training(300, 200), training(15, 1)), 0.69).value
    assert every.counts.all()
    assert every.size == 15
