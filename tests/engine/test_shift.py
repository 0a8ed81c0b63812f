"""Inaccurate proxies: their shift is detected on held-out rows, and Theorem 10 corrects for a stated shift."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logit
from scipy.stats import binom

from dpaudit import Audit, AuditResult, AuditSpec, Claim, RunOptions, audit
from dpaudit.claims import GaussianDP
from dpaudit.engine.answer.shift import advantage_limits, bound_beyond_shift, rows_to_decide, shift_control
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.attacks import LabelInferenceScore
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.proxies import Predictor, TruePosterior
from dpaudit.engine.planning.plan import make_plan
from dpaudit.errors import InputError
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRun, control_estimator
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Fixed, Grid, Split
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.tables import LogisticRegression

DATA = GaussianMixture(classes=4, rows=8_000)


@dataclass(frozen=True)
class Sharpened:
    """A planted shift: the true posterior raised to a power, which makes the proxy overconfident."""

    power: float = 4.0

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        def predict(examples: Examples) -> NDArray[np.float64]:
            sharp: NDArray[np.float64] = data.posterior(examples.features) ** self.power
            sharp /= sharp.sum(axis=1, keepdims=True)
            return sharp

        return predict


def audited(proxy: Any, folder: Path, **fields: Any) -> AuditResult:
    entry = Audit(
        mechanism=NonPrivate(LogisticRegression()),
        data=DATA,
        game=LabelInference(replays=20),
        proxy=proxy,
        split=Partition(target=0.5, reference=0.2, test=0.3),
        claim=Claim(0.1),
        **fields,
    )
    return audit(AuditSpec((entry,), seed=3, run=RunOptions(runner="in-process")), output=folder).results[0]


def test_a_planted_shift_is_detected_on_held_out_rows(tmp_path: Path) -> None:
    """A regression with 5 weights per class hardly memorises 4,000 labels, so the bound comes from the proxy."""
    result = audited(Sharpened(), tmp_path)
    assert result.comparison is not None
    assert result.control is not None
    assert result.comparison.observed > 0.1
    assert result.control.shift_detected
    assert result.control.epsilon > 0.1
    assert result.verdict is Verdict.UNDECIDED
    assert "the proxy is inaccurate" in str(result)
    assert "No number of held-out rows would decide it" in result.answer.line("reason")
    assert "No number of held-out rows would decide it" in (tmp_path / "report.html").read_text()
    control = result.control.to_dict()
    assert control["shift_detected"]
    # The shift measured on the rows explains the bound.
    assert control["epsilon_beyond_shift"] <= 0.1


def test_the_truth_as_proxy_shows_no_shift(tmp_path: Path) -> None:
    """False failure <= 0.05 over seeds by the control's own confidence; the seed is fixed."""
    result = audited(TruePosterior(), tmp_path)
    assert result.control is not None
    assert not result.control.shift_detected
    assert result.control.rows == 2_400
    assert result.control.distinguishers == 3
    assert result.finding is not None
    assert result.finding.validity is Validity.FINITE_SAMPLE
    assert "assumed" not in result.text(verbose=True)


def test_a_tau_that_is_too_small_is_rejected(tmp_path: Path) -> None:
    small_tau = audited(Sharpened(), tmp_path / "small", estimator=OneRun(tau=0.01, selection=Fixed(1.0)))
    large_tau = audited(Sharpened(), tmp_path / "large", estimator=OneRun(tau=0.6, selection=Fixed(1.0)))
    assert small_tau.control is not None
    assert large_tau.control is not None
    assert small_tau.control.shift_detected
    assert small_tau.control.advantage[0] > 0.01
    assert "tau = 0.01 is too small" in str(small_tau)
    assert not large_tau.control.shift_detected
    assert large_tau.comparison is not None
    assert large_tau.comparison.observed == 0
    assert "Theorem 10, tau 0.6" in large_tau.finding.method


def test_the_control_can_be_left_out_and_needs_a_test_part() -> None:
    def controls(game: LabelInference, test: float) -> int:
        split = Partition(target=0.5, reference=0.2, test=test)
        entry = Audit(NonPrivate(LogisticRegression()), DATA, game=game, proxy=TruePosterior(), split=split)
        return len(make_plan(AuditSpec((entry,), run=RunOptions(runner="in-process"))).audits[0].controls)

    assert controls(LabelInference(replays=2), 0.3) == 3
    assert controls(LabelInference(replays=2, control=False), 0.3) == 0
    assert controls(LabelInference(replays=2), 0.0) == 0


def false_alarms(power: float, games: int) -> int:
    """Return the number of controls that detect a shift, by one replay on 500 fresh rows with the reference only."""
    data, attack = GaussianMixture(classes=4, rows=500), LabelInferenceScore()
    reader = control_estimator(OneRun(confidence=0.9), 1)
    alarms = 0
    for seed in range(games):
        rng = np.random.default_rng([seed, 1])
        rows = data.load(seed=seed)
        proxy = data.posterior(rows.features) ** power
        proxy /= proxy.sum(axis=1, keepdims=True)
        sampled = (rng.random(500)[:, None] >= proxy.cumsum(axis=1)[:, :-1]).sum(axis=1)
        bits = rng.random(500) < 0.5
        view = CanaryView(
            np.full((500, 4), 0.25, np.float32), proxy.astype(np.float32), np.where(bits, rows.labels, sampled)
        )
        alarms += reader.bound([reader.tally(Scores(attack.score(view), bits))]).lower > 0
    return alarms


def test_the_control_has_the_stated_false_positive_rate() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(400, 0.1)."""
    limit = binom.ppf(1 - 1e-6, 400, 0.1)
    assert false_alarms(1.0, 400) <= limit
    assert false_alarms(3.0, 400) > limit  # a planted shift is detected


def counterexample(canaries: int, rng: np.random.Generator) -> Scores:
    """Return scores with labels uniform on 10 values, a proxy that never draws the last one (tau = 0.1), and no model.

    The attack is certain of the last value only: it can only be a true label.
    """
    bits = rng.random(canaries) < 0.5
    shown_labels = np.where(bits, rng.integers(0, 10, canaries), rng.integers(0, 9, canaries))
    return Scores(np.where(shown_labels == 9, 1.0, 1e-3 * rng.standard_normal(canaries)), bits)


@pytest.mark.parametrize("selection", [Fixed(0.03), Fixed(0.2), Fixed(1.0), Grid()])
def test_theorem_10_is_valid_where_a_multiplicative_tau_fails(selection: Fixed | Grid) -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(300, 0.05)."""
    games, canaries, tau = 300, 1_000, 0.1
    limit = binom.ppf(1 - 1e-6, games, 0.05)
    shifted, uncorrected = OneRun(tau=tau, selection=selection), OneRun(selection=selection)
    missed = multiplied = unshifted = 0
    for seed in range(games):
        tally = shifted.tally(counterexample(canaries, np.random.default_rng(seed)))
        missed += shifted.bound([tally]).lower > 0
        unshifted += uncorrected.bound([tally]).lower > 0
        counts = one_run_epsilon(
            tally.guesses,
            tally.correct,
            canaries=canaries,
            delta=0.0,
            confidence=0.95,
        )
        multiplied += bool(np.max(counts) > math.log((1 + tau) / (1 - tau)))
    assert missed <= limit
    assert unshifted > limit
    if selection != Fixed(1.0):  # with abstention
        assert multiplied > limit


def test_a_shift_of_zero_changes_nothing_and_the_bound_falls_with_the_shift() -> None:
    tally = OneRun().tally(counterexample(2_000, np.random.default_rng(0)))
    bounds = [OneRun(delta=1e-5, tau=tau).bound([tally]).lower for tau in (0.0, 1e-12, 0.01, 0.05, 0.2)]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-7)  # slope about 1e4, search within 2e-9 (1 + epsilon)
    assert all(first >= second for first, second in itertools.pairwise(bounds))
    with pytest.raises(InputError, match=r"tau must be in \[0, 1\), got 1"):
        OneRun(tau=1.0)
    with pytest.raises(InputError, match="a split is valid for tau = 0 only"):
        OneRun(tau=0.1, selection=Split())


def tally_of(right: int, rows: int) -> OneRunTally:
    counts = np.array([rows]), np.array([right])
    return OneRunTally(0, rows, *counts, *counts, rows)


def test_the_limits_of_an_advantage_are_exact_and_valid() -> None:
    """False failure < 1e-6 each: the limit is the 1 - 1e-6 quantile of Binomial(2000, 0.1)."""
    # Clopper-Pearson, 95 % two-sided, 65 of 100: [0.54815, 0.74271]
    assert advantage_limits([tally_of(65, 100)], confidence=0.95) == pytest.approx((0.0963, 0.48542), abs=3e-5)
    # A distinguisher that is nearly always wrong is as informative.
    assert advantage_limits([tally_of(35, 100)], confidence=0.95) == pytest.approx((0.0963, 0.48542), abs=3e-5)
    right = np.random.default_rng(0).binomial(400, 0.55, size=2_000)
    limits = np.array([advantage_limits([tally_of(int(k), 400)], confidence=0.9) for k in right])
    assert ((limits[:, 0] > 0.1) | (limits[:, 1] < 0.1)).sum() <= binom.ppf(1 - 1e-6, 2_000, 0.1)


def test_game_and_controls_share_the_error_equally() -> None:
    estimator = OneRun(confidence=0.95, selection=Fixed(1.0))
    tally, held_out = tally_of(1_900, 2_000), [[tally_of(5_400, 10_000)], [tally_of(5_100, 10_000)]]
    beyond = bound_beyond_shift(estimator, [tally], held_out)
    upper = clopper_pearson(5_400, 10_000, confidence=0.975, side="upper").upper
    assert beyond.shift == pytest.approx(float(logit(upper)), abs=1e-9)
    assert beyond.game == OneRun(confidence=0.975, selection=Fixed(1.0)).bound([tally]).lower
    assert beyond.epsilon == pytest.approx(beyond.game - beyond.shift)
    assert shift_control(estimator, [tally], [], where="rows") is None
    # A distinguisher worse than chance adds nothing.
    assert bound_beyond_shift(estimator, [tally], [[tally_of(100, 10_000)]]).shift == 0


def test_the_guess_band_and_one_run_have_the_same_control() -> None:
    """The guess band and `one-run` use the same guesses, so they share the control."""
    rng = np.random.default_rng(2)
    guess_band, one_run = SimultaneousGuessCount(delta=1e-6, guess="both-tails"), OneRun(delta=1e-6, guess="both-tails")
    assert (
        control_estimator(guess_band, 2)
        == control_estimator(one_run, 2)
        == OneRun(confidence=0.975, guess="both-tails")
    )
    bits = rng.random(2_000) < 0.5
    games = [Scores(4.0 * bits + rng.normal(size=2_000), bits, replay) for replay in range(3)]
    reader = control_estimator(guess_band, 1)
    held_out = [[reader.tally(Scores(0.3 * bits + rng.normal(size=2_000), bits, replay)) for replay in range(3)]]
    controls = [
        shift_control(estimator, [estimator.tally(game) for game in games], held_out, where="rows")
        for estimator in (guess_band, one_run)
    ]
    assert controls[0] == controls[1]
    assert controls[0] is not None
    assert controls[0].explained is not None
    assert controls[0].explained.shift > 0.1
    assert 1 < controls[0].explained.epsilon < guess_band.bound([guess_band.tally(game) for game in games]).lower


def test_the_stated_number_of_rows_suffices() -> None:
    """If 10,000 rows continue like the first 1,000, the bound at the stated number of rows exceeds the claim."""
    estimator = OneRun(confidence=0.95, selection=Fixed(1.0))
    tally, few = tally_of(7_600, 10_000), [[tally_of(52, 100)] * 2]
    assert bound_beyond_shift(estimator, [tally], few).epsilon < 0.9
    rows = rows_to_decide(estimator, [tally], few, epsilon=0.9)
    assert rows is not None
    assert rows > 100
    enough = [[tally_of(round(0.52 * rows), rows)] * 2]
    assert bound_beyond_shift(estimator, [tally], enough).epsilon > 0.9
    fewer = [[tally_of(round(0.52 * 0.85 * rows), round(0.85 * rows))] * 2]
    assert bound_beyond_shift(estimator, [tally], fewer).epsilon <= 0.9
    # log-odds of 0.76 minus those of 0.52: no number of rows reaches 1.1.
    assert rows_to_decide(estimator, [tally], few, epsilon=1.1) is None
    assert rows_to_decide(estimator, [tally], [], epsilon=0.9) is not None


def test_delta_is_scaled_up_for_unfair_bits() -> None:
    estimator = OneRun(delta=1e-3, confidence=0.95, selection=Fixed(1.0))
    tally, held_out = tally_of(1_900, 2_000), [[tally_of(6_000, 10_000)]]
    beyond = bound_beyond_shift(estimator, [tally], held_out)
    limit = clopper_pearson(6_000, 10_000, confidence=0.975, side="upper").upper
    wider = OneRun(delta=float(2e-3 * limit), confidence=0.975, selection=Fixed(1.0))
    assert beyond.game == pytest.approx(wider.bound([tally]).lower, abs=1e-6)


def test_a_shift_of_some_rows_counts_at_their_share_of_guesses() -> None:
    """One row in ten reveals itself, but averaging over all rows would hide half of its log-odds."""
    bits = np.random.default_rng(0).random(20_000) < 0.5
    sure = np.arange(20_000) % 10 == 0
    score = np.where(bits, 1.0, -1.0) * np.where(sure, 1.0, 1e-3 * np.random.default_rng(1).choice([-1, 1], 20_000))
    tally = OneRun(selection=Fixed(0.1)).tally(Scores(score, bits))
    beyond = bound_beyond_shift(OneRun(selection=Fixed(0.1)), [tally], [[tally]])
    assert beyond.game > 5
    assert beyond.shift > 5
    assert beyond.epsilon == 0


def test_the_bound_beyond_a_shift_does_not_violate_other_points_of_the_curve() -> None:
    """The counts violate the claim's curve, and the control explains all of them."""
    estimator = OneRun(delta=1e-5)
    truth = np.arange(1_000) % 2 == 0
    tally = estimator.tally(Scores(np.where(truth, 1.0, -1.0), truth))
    assert estimator.bound([tally]).violation_point(GaussianDP(0.5)) is not None
    control = shift_control(estimator, [tally], [[tally]], where="rows")
    assert control is not None
    assert control.beyond is not None
    assert not control.exceeds(GaussianDP(0.5))
