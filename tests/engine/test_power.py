"""Planned sensitivity of audits, compared with simulated games."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit import Audit, AuditSpec, Claim
from dpaudit.engine.answer import sensitivity as power
from dpaudit.engine.answer.sensitivity import (
    Outlook,
    ceiling_bound,
    expected_bound,
    outlook,
    planned_outlook,
    rows_to_reject,
)
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.coins import CanarySetup
from dpaudit.engine.games.one_run.label_inference import LabelCanaries, LabelInference
from dpaudit.engine.games.one_run.membership import Membership
from dpaudit.engine.games.reference import CoinResponse, PlantedLabels, ProxyLabels, Reference, Response
from dpaudit.engine.planning.plan import make_plan
from dpaudit.estimators.bound import format_upper
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.betting import Betting
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.two_sample import Band
from dpaudit.mechanisms.examples import Examples

COINS = Reference(CoinResponse(), 1000, "canaries")


@pytest.mark.parametrize(
    "response",
    [CoinResponse(), PlantedLabels(2), PlantedLabels(10), ProxyLabels((0.5, 0.3, 0.2)), ProxyLabels((0.0, 1.0))],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, math.inf])
def test_levels_are_calibrated_log_odds(response: Response, epsilon: float) -> None:
    """Both bits are equally likely overall, and no level has log-odds above epsilon."""
    levels = response.levels(epsilon)
    assert levels.share.sum() == pytest.approx(1.0)
    assert (levels.share > 0).all()
    assert (levels.share * special.expit(levels.log_odds)).sum() == pytest.approx(0.5)
    assert np.abs(levels.log_odds).max() <= epsilon + 1e-12


@pytest.mark.parametrize(
    ("game", "classes"), [(LabelCanaries(), 2), (LabelCanaries(), 5), (LabelInference(), 2), (LabelInference(), 4)]
)
def test_the_levels_of_a_label_game_match_simulation(game: LabelCanaries | LabelInference, classes: int) -> None:
    """K-ary randomised response with the game's own draws; false failure < 1e-5 (20 normal limits of 5.2)."""
    rows, epsilon, rng = 200_000, 1.0, np.random.default_rng(1)
    frequencies = np.arange(1, classes + 1) / (classes * (classes + 1) / 2)
    labels = np.repeat(np.arange(classes), np.diff(np.rint(np.cumsum([0, *frequencies]) * rows)).astype(int))
    canaries = Examples(np.zeros((rows, 1), np.float32), labels, classes, "flat")
    setup = CanarySetup(canaries, canaries.take(np.arange(0)), np.broadcast_to(np.cumsum(frequencies), (rows, classes)))
    design = game.design(canaries, rng)
    trained = labels if design.labels is None else design.labels
    kept_share = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    others = (trained + rng.integers(1, classes, rows)) % classes
    released = np.where(rng.random(rows) < kept_share, trained, others)
    draw = game.draw(setup, design, rng)
    reveal = game.hint(setup, design, draw).labels
    guesses_true = reveal == released
    setting: Any = SimpleNamespace(parts=SimpleNamespace(target=canaries, reference=None))
    levels = game.response(setting).levels(epsilon)
    right = levels.share * special.expit(np.abs(levels.log_odds))
    for guess in (True, False):
        rows_guessed = (levels.log_odds > 0) == guess
        _near(np.mean(guesses_true == guess), levels.share[rows_guessed].sum(), rows)
        _near(np.mean((guesses_true == guess) & (draw.bits == guess)), right[rows_guessed].sum(), rows)


def _near(share: float, expected: float, rows: int) -> None:
    assert abs(share - expected) <= 5.2 * math.sqrt(expected * (1 - expected) / rows)


@pytest.mark.parametrize(
    ("estimator", "response", "replays"),
    [
        (OneRun(), CoinResponse(), 1),
        (SimultaneousGuessCount(), CoinResponse(), 1),
        (SimultaneousGuessCount(delta=1e-5), PlantedLabels(10), 100),
        (OneRun(delta=1e-5), PlantedLabels(10), 1),
        (OneRun(), ProxyLabels((0.5, 0.3, 0.2)), 1),
        (Band(), CoinResponse(), 1),
        (ClopperPearson(), CoinResponse(), 1),
        (Betting(), CoinResponse(), 1),
    ],
)
def test_expected_bounds_are_the_median_of_simulated_games(
    estimator: Estimator[Any, Any], response: Response, replays: int
) -> None:
    """The planned median lies between the quartiles of 80 games drawn at random.

    If it is the median, a side fails with Pr[Bin(80, 0.5) <= 20] < 5e-6: false failure < 1e-4 over all cases.
    """
    rows, spent = 2000, 1.5
    games = [response.levels(spent).sample(rows, np.random.default_rng(seed)) for seed in range(80)]
    simulated = [estimator.bound([estimator.tally(game)] * min(replays, 2)).lower for game in games]
    planned = expected_bound(estimator, Reference(response, rows, "canaries", replays), spent)
    assert np.quantile(simulated, 0.25) <= planned <= np.quantile(simulated, 0.75)


@pytest.mark.parametrize(
    ("estimator", "claimed"),
    [
        (OneRun(), 1.0),
        (SimultaneousGuessCount(), 0.5),
        (SimultaneousGuessCount(), 1.0),
        (Band(), 1.0),
        (Betting(), 1.0),
    ],
)
def test_the_planned_rows_reject_with_the_stated_power(estimator: Estimator[Any, Any], claimed: float) -> None:
    """Among 200 simulated games of the planned size 80 to 99 % reject; of half the size, fewer than 80 %.

    At a power of 0.9 the first fails with Pr[Bin(200, 0.9) < 160] < 1e-5. Measured shares of 200 games, at this size
    and half of it: one-run 0.89 and 0.66, band 0.94 and 0.53, betting 0.92 and 0.67. At 0.67 the second fails
    with probability < 1e-4.
    """
    needed = rows_to_reject(estimator, COINS, claimed, spent=2 * claimed)
    assert needed is not None

    def rejections(rows: int) -> int:
        games = [CoinResponse().levels(2 * claimed).sample(rows, np.random.default_rng(seed)) for seed in range(200)]
        return sum(estimator.bound([estimator.tally(game)]).lower > claimed for game in games)

    assert 160 <= rejections(needed) <= 199
    assert rejections(needed // 2) < 160


def test_the_ceiling_assumes_all_guesses_correct() -> None:
    estimator = OneRun(delta=0.0, selection="fixed:1")
    ceiling = ceiling_bound(estimator, COINS)
    assert dict(ceiling.counts)["correct"] == dict(ceiling.counts)["guesses"] == 1000
    # All of n correct at confidence 0.95: epsilon with (e^epsilon / (1 + e^epsilon))^n = 0.05.
    assert ceiling.lower == pytest.approx(special.logit(0.05 ** (1 / 1000)), abs=1e-6)
    assert Counter(ceiling_bound(ClopperPearson(selection="fixed:0"), COINS).counts)[("fp", 0)] == 1


def test_proxies_of_rare_labels_leave_little_to_detect() -> None:
    """If all canaries have one class, the shown label equals the trained one and nothing is detectable."""
    assert ceiling_bound(OneRun(), Reference(ProxyLabels((0.0, 1.0)), 1000, "canaries")).lower == 0.0
    few = ceiling_bound(OneRun(), Reference(ProxyLabels((0.01, 0.99)), 1000, "canaries")).lower
    assert 0 < few < ceiling_bound(OneRun(), Reference(ProxyLabels((0.5, 0.5)), 1000, "canaries")).lower


def test_a_number_of_rows_above_the_maximum_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "MOST_TRIED", 1 << 12)
    assert rows_to_reject(OneRun(), COINS, 0.01, spent=0.02) is None


@pytest.mark.parametrize("estimator", [OneRun(), OneRun(delta=1e-5), Band()])
def test_planning_tallies_few_rows(estimator: Estimator[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100,000 canaries and 100 replays, it tallies at most four times the canaries
    (`benchmarks/bench_planning.py`)."""
    looked: list[int] = []
    tally = type(estimator).tally

    def counted(self: Estimator[Any, Any], evidence: Scores) -> object:
        looked.append(evidence.score.size)
        return tally(self, evidence)

    monkeypatch.setattr(type(estimator), "tally", counted)
    outlook(estimator, Reference(CoinResponse(), 100_000, "canaries", 100), 1.0)
    assert max(looked) == 100_000
    assert sum(looked) <= 4 * 100_000
    assert len(looked) <= 100


def test_an_audit_without_a_claim_has_only_a_ceiling() -> None:
    silent = outlook(OneRun(), COINS, math.inf)
    assert silent.at_claim is None
    assert silent.needed is None
    assert silent.lines == (
        f"sensitivity: maximum detectable epsilon {format_upper(silent.ceiling, 2)} (1,000 canaries)",
    )


def planned(game: object, **fields: Any) -> Outlook:
    audit = Audit({"name": "randomized-response", "epsilon": 1.0}, GaussianMixture(rows=2000), game, **fields)
    (entry,) = make_plan(AuditSpec((audit,))).audits
    outlook = planned_outlook(entry)
    assert outlook is not None
    return outlook


def test_a_plan_states_the_sensitivity_of_its_audits() -> None:
    """At the planned rows, noise scaled down twice is detected if the plan needs fewer rows."""
    canaries = planned(LabelCanaries(canaries=300), claim=Claim(epsilon=1.0))
    assert canaries.reference.rows == 300
    assert canaries.at_claim is not None
    assert canaries.factor is not None
    assert canaries.factor_of_more is not None
    assert canaries.needed is not None
    assert canaries.at_claim < 1.0
    assert 1.0 < canaries.factor_of_more < canaries.factor < 2.0
    assert canaries.needed < 300
    assert canaries.lines[0].startswith("sensitivity: would detect noise scaled down 1.")
    assert canaries.lines[2].startswith("noise scaled down 2 times needs ")
    assert "independent of the label" in planned(LabelInference()).lines[0]


def test_membership_is_planned_by_its_canaries() -> None:
    audit = Audit("non-private", GaussianMixture(rows=2000), Membership(canaries=100))
    (entry,) = make_plan(AuditSpec((audit,))).audits
    outlook = planned_outlook(entry)
    assert outlook is not None
    assert outlook.reference == Reference(CoinResponse(), 100, "canaries", 1)
    # All of 100 correct: at so large an epsilon the guess band has nearly all of its error left for the last threshold.
    assert outlook.ceiling == pytest.approx(stats.logistic.ppf(0.05 ** (1 / 100)), abs=0.01)
