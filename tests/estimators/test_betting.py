"""The betting test: a supermartingale by enumeration, its slow twin, false rejections, a planted defect, its power."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpaudit.actors.values import decode, encode
from dpaudit.errors import InputError
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world import _betting_kernels as kernels
from dpaudit.estimators.two_world import betting
from dpaudit.estimators.two_world.betting import Betting, BettingState
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.two_sample import Band
from tests.nightly import nightly_games
from tests.twins import betting_twin

Floats = NDArray[np.float64]
TEST = Betting()


def pairs_of(ones: Floats, zeros: Floats) -> Scores:
    """Return trials alternating between world 1 and world 0."""
    score = np.column_stack([ones, zeros]).ravel()
    return Scores(score, np.arange(score.size) % 2 == 0)


def played(ones: Floats, zeros: Floats, test: Betting = TEST) -> BettingState:
    return test.update(BettingState(), pairs_of(np.asarray(ones, float), np.asarray(zeros, float)))


def randomised_response(epsilon: float, pairs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    keep = 1 / (1 + math.exp(-epsilon))
    ones, zero = (np.where(rng.random(pairs) < keep, 1.0, -1.0) for _ in range(2))
    return ones, -zero


def raised(law: tuple[float, ...], score: int, to: float) -> tuple[float, ...]:
    """Return the law with the probability of `score` set to `to`, and the others rescaled."""
    return tuple(to if i == score else p * (1 - to) / (1 - law[score]) for i, p in enumerate(law))


FALLING, RISING = (0.6, 0.3, 0.1), (0.1, 0.6, 0.3)
KEEP, CORNER = math.e / (1 + math.e), (math.e + 0.1) / (1 + math.e)
# Laws of three scores in the two worlds, each on the border of (epsilon, delta)-DP: name, epsilon, delta, laws.
LAWS = [
    ("both directions", 1.0, 0.0, (1 - KEEP, 0.0, KEEP), (KEEP, 0.0, 1 - KEEP)),
    ("high side only", 1.0, 0.0, raised(FALLING, 2, 0.1 * math.e), FALLING),
    ("low side only", 0.5, 0.0, RISING, raised(RISING, 0, 0.1 * math.exp(0.5))),
    ("same law", 0.0, 0.0, RISING, RISING),
    ("delta is all there is", 0.0, 0.2, (0.0, 0.8, 0.2), (0.2, 0.8, 0.0)),
    ("epsilon and delta, both", 1.0, 0.1, (1 - CORNER, 0.0, CORNER), (CORNER, 0.0, 1 - CORNER)),
    ("epsilon and delta, one", 1.0, 0.1, raised(FALLING, 2, 0.1 * math.e + 0.1), FALLING),
]


@pytest.mark.parametrize(
    ("epsilon", "delta", "law_one", "zero"), [law[1:] for law in LAWS], ids=[law[0] for law in LAWS]
)
def test_the_wealth_of_a_true_claim_is_a_supermartingale(
    epsilon: float, delta: float, law_one: tuple[float, ...], zero: tuple[float, ...]
) -> None:
    """Over all 9^3 streams of three pairs: given any past, the next pair gains nothing on average."""
    some = [subset for size in (1, 2) for subset in itertools.combinations(range(3), size)]
    rates = [(sum(law_one[i] for i in subset), sum(zero[i] for i in subset)) for subset in some]
    leaks = [max(p - math.exp(epsilon) * q, q - math.exp(epsilon) * p) for p, q in rates]
    assert max(leaks) == pytest.approx(delta, abs=1e-12), "the law must attain its privacy exactly"
    test = Betting(delta=delta)
    chance = {(i, j): law_one[i] * zero[j] for i in range(3) for j in range(3) if law_one[i] * zero[j] > 0}

    def wealth(past: tuple[tuple[int, int], ...]) -> float:
        ones, zeros = (np.array([pair[side] for pair in past], float) for side in (0, 1))
        return math.exp(test.log_wealth(played(ones, zeros, test), epsilon)) if past else 1.0

    for length in range(3):
        for past in itertools.product(chance, repeat=length):
            mean = sum(share * wealth((*past, pair)) for pair, share in chance.items())
            assert mean <= wealth(past) * (1 + 1e-12)


def test_the_chance_of_ever_exceeding_the_truth_is_exact() -> None:
    """All 2^12 streams of six pairs of RR(1), at the largest error at which six pairs can reject the claim."""
    test, keep = Betting(confidence=0.5), 1 / (1 + math.exp(-1.0))
    error = 0.0
    for bits in itertools.product([True, False], repeat=12):
        signs = np.where(bits, 1.0, -1.0)
        if played(signs[:6], -signs[6:], test).lower > 1:
            error += keep ** sum(bits) * (1 - keep) ** (12 - sum(bits))
    assert 0.05 < error <= 0.5


@pytest.mark.parametrize("delta", [0.0, 0.03])
@pytest.mark.parametrize("digits", [0, 6])
def test_agrees_with_its_slow_twin(delta: float, digits: int) -> None:
    """With ties (scores rounded to whole numbers) and without."""
    rng = np.random.default_rng(5)
    ones, zeros = rng.normal(1.5, 1, 14).round(digits), rng.normal(0, 1, 14).round(digits)
    test = Betting(delta=delta)
    for epsilon in (0.0, 0.7, 2.5):
        expected = betting_twin.wealth(ones.tolist(), zeros.tolist(), epsilon, delta)
        assert math.exp(test.log_wealth(played(ones, zeros, test), epsilon)) == pytest.approx(expected, rel=1e-10)


def test_an_epsilon_is_rejected_when_its_wealth_reaches_the_inverse_of_the_error() -> None:
    """And the next epsilon of the grid, which is not rejected, has less."""
    ones, zeros = randomised_response(2.0, 120, np.random.default_rng(1))
    rejected, needed = played(ones, zeros).rejected, -math.log(1 - TEST.confidence)
    rises = np.flatnonzero(np.diff(rejected, prepend=0))
    assert rises.size > 3
    for pair in rises[-4:]:
        state = played(ones[: pair + 1], zeros[: pair + 1])
        last, after = betting.EPSILONS[rejected[pair] - 1 : rejected[pair] + 1]
        assert TEST.log_wealth(state, after) < needed <= TEST.log_wealth(state, last)


def test_true_claim_is_rejected_no_more_often_than_stated() -> None:
    """RR(1), 2,000 streams tested after each of 150 pairs. False failure < 1e-6: the binomial quantile.

    `make test` runs the first 100 streams. The planted defect rejects nearly every stream.
    """
    games = nightly_games(2000)
    limit = stats.binom.ppf(1 - 1e-6, games, 0.05)
    rng = np.random.default_rng(11)
    streams = [randomised_response(1.0, 150, rng) for _ in range(games)]
    misses = sum(played(*stream).lower > 1 for stream in streams)
    assert misses <= limit
    assert misses >= 1, "the test can reject"
    assert sum(rejected_after_peeking(*stream) for stream in streams) > limit


def rejected_after_peeking(ones: Floats, zeros: Floats) -> bool:
    """Planted defect: return True if a test that sees a pair before it bets on that pair rejects the claim."""
    counts = np.zeros((3, 2, 1), np.int64)
    for one_score, zero in zip(ones, zeros, strict=True):
        won = one_score >= 0 and zero < 0
        counts[:, 0] += np.array([[won], [False], [won]])
        wealth = kernels.log_wealth(1.0, 0.0, *counts, betting._STAKES, betting._CAPITAL, 1)
        if wealth >= math.log(20):
            return True
    return False


def test_true_claim_with_delta_is_rejected_no_more_often_than_stated() -> None:
    """Exactly (1, 0.05)-DP: with probability delta the world is revealed. 1,000 streams, of which `make test` runs
    100; false failure < 1e-6. Defect: the world is revealed five times as often."""
    test, games = Betting(delta=0.05), nightly_games(1000)

    def refuted(told_share: float) -> int:
        rng, count = np.random.default_rng(12), 0
        for _ in range(games):
            ones, zeros = randomised_response(1.0, 200, rng)
            ones, zeros = (
                np.where(rng.random(200) < told_share, 2.0, ones),
                np.where(rng.random(200) < told_share, -2.0, zeros),
            )
            count += played(ones, zeros, test).lower > 1
        return count

    assert refuted(0.05) <= stats.binom.ppf(1 - 1e-6, games, 0.05) < refuted(0.25)


def fixed_size_rejects(estimator: ClopperPearson | Band, epsilon: float, pairs: int) -> bool:
    """True if at least 18 of 20 audits of `pairs` pairs reject a claim of 1 against RR(epsilon)."""
    rejections = 0
    for seed in range(20):
        rows = pairs_of(*randomised_response(epsilon, pairs, np.random.default_rng(seed)))
        rejections += estimator.bound([estimator.tally(rows)]).lower > 1
    return rejections >= 18


@pytest.mark.parametrize("estimator", [ClopperPearson(), Band()], ids=["clopper-pearson", "band"])
def test_leak_is_detected_with_a_fifth_of_the_trials_of_a_planned_audit(estimator: ClopperPearson | Band) -> None:
    """The fixed size is that for a claim wrong by a factor of two, because the leak is unknown in advance.

    The audited learner is not private: scores of a likelihood-ratio attack, four deviations apart. Median of 20.
    """
    planned = next(pairs for pairs in range(20, 400, 5) if fixed_size_rejects(estimator, 2.0, pairs))
    needed = []
    for seed in range(20):
        rng = np.random.default_rng(1000 + seed)
        path = played(rng.normal(4, 1, 100), rng.normal(0, 1, 100)).rejected
        needed.append(int(np.flatnonzero(betting._epsilon(path) > 1)[0]) + 1)
    assert np.median(needed) <= planned / 5


CLOSE = {  # claim, true epsilon, most pairs by the median of 20 streams
    "a tenth of the noise": (0.1, 1.0, 80),
    "half the noise": (0.5, 1.0, 400),
    "half the noise of a larger claim": (1.0, 2.0, 120),
}


@pytest.mark.parametrize(("claim", "epsilon", "most"), CLOSE.values(), ids=CLOSE)
def test_a_small_claim_falls_after_few_pairs(claim: float, epsilon: float, most: int) -> None:
    """Scores with Laplace noise, which differ little at every threshold."""
    needed = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        path = played(rng.laplace(1, 1 / epsilon, 1_000), rng.laplace(0, 1 / epsilon, 1_000)).rejected
        above = np.flatnonzero(betting._epsilon(path) > claim)
        needed.append(int(above[0]) + 1 if above.size else 1_001)
    assert np.median(needed) <= most


def test_trials_in_sequence_give_the_result_of_all_at_once() -> None:
    rng = np.random.default_rng(3)
    truth = rng.random(300) < 0.5
    score = rng.normal(size=300) + 2 * truth
    test = Betting(delta=1e-3)
    whole = test.update(BettingState(), Scores(score, truth))
    state, bounds = BettingState(), []
    for row in range(300):
        state = test.update(state, Scores(score[[row]], truth[[row]], canary=np.array([row])))
        bounds.append(state.lower)
        state = pickle.loads(pickle.dumps(state))
    assert bounds == sorted(bounds)
    assert bounds[-1] == whole.lower > 1
    assert np.array_equal(state.rejected, whole.rejected)
    assert test.log_wealth(state, 0.5) == test.log_wealth(whole, 0.5)
    assert state.trials == 300


def test_tallies_are_sorted_into_the_order_of_the_trials() -> None:
    rng = np.random.default_rng(4)
    truth = rng.random(200) < 0.5
    rows = Scores(rng.normal(size=200) + 3 * truth, truth)
    test = Betting()
    parts = [
        test.tally(Scores(rows.score[i : i + 20][::-1], truth[i : i + 20][::-1], 0, rows.canary[i : i + 20][::-1]))
        for i in range(0, 200, 20)
    ]
    stored = decode(encode(parts[::-1], test.tally_type), test.tally_type)
    assert test.bound(stored) == test.bound([test.tally(rows)])
    path, replays = (test.find(stored).series[name] for name in ("trials", "replays"))
    assert path["epsilon"][-1] == replays["combined"][-1] == test.bound(stored).lower
    assert path["trials"][-1] == 2 * dict(test.bound(stored).counts)["pairs"]


def test_replays_combine_by_their_median_at_half_the_error() -> None:
    rng = np.random.default_rng(6)
    replays = [
        Scores(rows.score, rows.truth, replay)
        for replay in range(3)
        for rows in [pairs_of(rng.normal(3, 1, 60), rng.normal(0, 1, 60))]
    ]
    strict = Betting(confidence=0.975)
    expected = np.median([strict.update(BettingState(), replay).lower for replay in replays])
    assert Betting().bound(replays).lower == expected


def test_leaks_on_either_side_are_found() -> None:
    """A third of the members have distinct scores, or a third of the non-members."""
    rng = np.random.default_rng(7)
    ones, zeros = rng.normal(0, 1, 300), rng.normal(0, 1, 300)
    out = rng.random(300) < 0.35
    high, low = played(np.where(out, 9.0, ones), zeros), played(ones, np.where(out, -9.0, zeros))
    assert high.lower > 2
    assert low.lower > 2


def test_infinite_scores_are_accepted() -> None:
    """Failed trainings count as infinitely wrong guesses. A leak that outweighs them is still detected."""
    rng = np.random.default_rng(8)
    ones, zeros = rng.normal(8, 1, 100), rng.normal(0, 1, 100)
    ones[5], zeros[9] = -np.inf, np.inf
    assert 1 < played(ones, zeros).lower < played(rng.normal(8, 1, 100), np.zeros(100)).lower
    endless = played(np.full(30, np.inf), np.full(30, -np.inf))
    assert endless.lower > 1


def test_the_bound_comes_close_to_the_truth() -> None:
    """RR(2), 20,000 pairs: at most 0.1 below the truth and not above it (probability < 0.05; the seed is fixed)."""
    state = played(*randomised_response(2.0, 20_000, np.random.default_rng(9)))
    assert 1.9 < state.lower <= 2.0


def test_bound_states_its_validity() -> None:
    bound = Betting(delta=1e-5).bound([pairs_of(np.arange(20.0) + 50, np.arange(20.0))])
    assert bound.validity is Validity.FINITE_SAMPLE
    assert "anytime-valid" in bound.notes[0]
    assert dict(bound.counts) == {"trials": 40, "members": 20, "non_members": 20, "pairs": 20, "replays": 1}


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"delta must be in \[0, 1\), got 1"):
        Betting(delta=1.0)
    with pytest.raises(InputError, match=r"confidence must be in \(0, 1\), got 0"):
        Betting(confidence=0)
    with pytest.raises(InputError, match="trials with and without the member"):
        Betting().bound([Scores(np.ones(3), np.ones(3, np.bool_))])
    with pytest.raises(InputError, match="at least one replay"):
        Betting().bound([])
    with pytest.raises(InputError, match="epsilon must be >= 0, got -1"):
        Betting().log_wealth(BettingState(), -1)
