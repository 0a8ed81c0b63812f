"""Planting rates, slices, exposure and extraction of `estimate_text`, on scores of known privacy."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from scipy.stats import binom, norm

import dpaudit
from dpaudit import Canaries, Claim, Estimate, Relation, TextEstimate, Verdict
from dpaudit.claims import GaussianDP
from dpaudit.engine.answer.sensitivity import detectable_factor
from dpaudit.engine.cli.main import main
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.estimators.extraction.rare_canaries import RareCanaries
from dpaudit.estimators.extraction.sampling import Sampling
from dpaudit.estimators.scores import Scores
from dpaudit.language_models.canary_texts.rates import canaries_needed, maximum_bound
from dpaudit.language_models.canary_texts.source import CanaryText
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from tests import nightly
from tests.language_models.small_language_models import small_model, small_tokenizer
from tests.language_models.test_text_canaries import Characters
from tests.loops import Cases

ADDING = Relation.ADD_REMOVE


def numbered(planted: NDArray[np.bool_], lengths: Sequence[int] = (3,), **fields: object) -> Canaries:
    """Return canaries with secrets of different tokens; their lengths take turns."""
    texts = []
    for number in range(planted.size):
        digits = np.base_repr(number, 36).rjust(4, "0")
        secret = tuple(int(digit, 36) for digit in digits) + (0,) * lengths[number % len(lengths)]
        texts.append((CanaryText(f"x{number}", (99, *secret), 1, 1 + len(secret), "x", str(number)),))
    return Canaries(tuple(texts), planted, **{"kinds": ("random-tokens",), **fields})  # type: ignore[arg-type]


def statistics_of(score: NDArray[np.float64]) -> TokenStatistics:
    """Return log-probabilities whose loss difference to `BASE` is the score: a secret counts as one token."""
    unknown = np.full((score.size, 1), np.nan)
    return TokenStatistics(score[:, None], unknown, unknown)


def audit_of(score: NDArray[np.float64], canaries: Canaries, **options: object) -> TextEstimate:
    base = statistics_of(np.zeros(score.size))
    return dpaudit.estimate_text(
        statistics_of(score),
        base,
        canaries,
        **{"attacks": ["loss-difference"], **options},  # type: ignore[arg-type]
    )


def randomised_response(planted: NDArray[np.bool_], epsilon: object, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return released bits as scores, ties broken at random: exactly epsilon-DP for adding or removing a canary."""
    is_true = rng.random(planted.size) < 1 / (1 + np.exp(-np.asarray(epsilon)))
    return np.asarray((planted == is_true) - 5.0 + 0.1 * rng.random(planted.size), np.float64)


@pytest.mark.parametrize(("rate", "count"), [(0.5, 320), (0.1, 640), (0.01, 1600)])
def test_slices_of_every_rate_exceed_the_truth_as_rarely_as_stated(rate: float, count: int) -> None:
    """At most 5 % of audits have any bound above the truth; false failure < 1e-6.

    Randomised response is the worst mechanism of its epsilon, so bounds come as close to it as they may.
    """
    epsilon, audits, rng = 1.0, nightly.by_day(40, by_night=1000), np.random.default_rng(0)
    exceeded = 0
    for seed in range(audits):
        coins = rng.random(count) < rate
        canaries = numbered(coins, (3, 4, 5, 6, 7, 8, 9, 10), rate=rate, seed=seed)
        audit = audit_of(randomised_response(coins, epsilon, rng), canaries, by="length")
        assert len(audit.slices) == 8
        bounds = [audit.lower, *(bound.lower for bound in audit.slice_bounds.values())]
        exceeded += max(bounds) > epsilon
    assert exceeded <= binom.ppf(1 - 1e-6, audits, 0.05)


def test_the_learned_order_may_be_sliced() -> None:
    """Coins tossed after the scores: at most 5 % of audits have any bound above 0; false failure < 1e-6."""
    audits, rng = nightly.by_day(25, by_night=400), np.random.default_rng(1)
    exceeded = 0
    for seed in range(audits):
        coins = rng.random(240) < 0.5
        score = rng.normal(-5, 1, 240)
        canaries = numbered(coins, (3, 4, 5), seed=seed)
        audit = audit_of(score, canaries, by="length", order="learned", attacks=["loss-difference", "largest-token"])
        exceeded += max([audit.lower, *(bound.lower for bound in audit.slice_bounds.values())]) > 0
    assert exceeded <= binom.ppf(1 - 1e-6, audits, 0.05)
    leaking = numbered(coins, (3, 4, 5))
    audit = audit_of(score + 9 * coins, leaking, by="length", order="learned")
    assert min(bound.lower for bound in audit.slice_bounds.values()) > 1.5
    with pytest.raises(InputError, match="the learned order needs fair coins"):
        audit_of(score[:40], numbered(coins[:40] & coins[40:80], rate=0.25), order="learned")


def with_copies(rng: np.random.Generator, canaries: int = 1200, rate: float = 0.1) -> Canaries:
    repeat = np.resize((1, 4, 16), canaries)
    return numbered(rng.random(canaries) < rate, rate=rate, repeat=repeat)


def test_each_number_of_copies_is_compared_with_its_own_claim() -> None:
    """A mechanism with three times the claimed epsilon is convicted by secrets planted once, not by all together."""
    rng, claim = np.random.default_rng(2), Claim(0.8, 0.0, ADDING)
    canaries = with_copies(rng)
    leaking = randomised_response(canaries.planted, 2.4, rng)
    audit = audit_of(leaking, canaries, claim=claim, by="repeat")
    claims = {name: bound.claim.epsilon for name, bound in audit.slice_bounds.items() if bound.claim is not None}
    assert claims == {"repeat=1": 0.8, "repeat=4": 3.2, "repeat=16": 12.8}
    assert audit.claim is not None
    assert audit.claim.epsilon == 12.8
    assert {name: bound.verdict for name, bound in audit.slice_bounds.items()} == {
        "repeat=1": Verdict.VIOLATION,
        "repeat=4": Verdict.NO_VIOLATION,
        "repeat=16": Verdict.INCONCLUSIVE,
    }
    assert audit.verdict is Verdict.VIOLATION
    assert audit.answer.test is not None
    assert audit.answer.test.name == "repeat=1"
    assert {round(bound.confidence, 6) for bound in audit.slice_bounds.values()} == {0.9875} == {audit.confidence}
    text = str(audit)
    assert "slices; all 4 bounds hold together with confidence 0.9875 each" in text
    assert "  repeat=1: VIOLATION, epsilon >=" in text
    honest = audit_of(
        randomised_response(canaries.planted, 0.8 * canaries.repeat, rng), canaries, claim=claim, by="repeat"
    )
    assert honest.verdict is Verdict.NO_VIOLATION
    together = audit_of(leaking, canaries, claim=claim)
    assert together.verdict is Verdict.INCONCLUSIVE
    assert '`by="repeat"`' in together.answer.next_step


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_saved_tables_give_the_same_bounds_from_the_command_line(rate: float, tmp_path: Path) -> None:
    """Also those of a learned order, which is the default for fair coins and several attacks."""
    rng = np.random.default_rng(3)
    canaries = with_copies(rng, rate=rate)
    audit = audit_of(
        randomised_response(canaries.planted, 3.0, rng),
        canaries,
        claim=Claim(1.5, 1e-6, ADDING),
        by=("kind", "repeat"),
        attacks=["loss-difference", "largest-token"],
    )
    # 16 copies make delta too large for all together
    assert "order of guesses: loss-difference; attacks" in audit.text(verbose=True)
    assert ("a learned order of all canaries is not proved" in str(audit)) == (rate == 0.5)
    once = audit.slice_bounds["kind=random-tokens, repeat=1"]
    assert any("guess_order" in note for note in once.notes) == (rate == 0.5)
    audit.save(tmp_path / "audit")
    whole, sliced, strict, _, extraction = audit.commands.replace("CLAIM", "'1.5, 1e-6'").splitlines()
    printed = []
    for command in (whole, sliced, extraction, strict):
        words = [word.strip("'") for word in command.replace("'1.5, 1e-6'", "1.5,1e-6").split()[1:]]
        words[1] = str(tmp_path / "audit" / words[1])
        printed.append(CliRunner().invoke(main, words, catch_exceptions=False).output)
    assert f"{audit.headline} (98.75 % confidence" in printed[0]
    assert printed[1].splitlines()[:3] == [
        f"{name}: {bound.verdict}, {bound.headline}" for name, bound in audit.slice_bounds.items()
    ]
    assert f"{canaries.planted.sum()} planted texts, {(~canaries.planted).sum()} never trained on" in printed[2]
    assert audit.convicting is not None
    assert f"{audit.convicting.headline} (99.975 % confidence" in printed[3]
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "<h2>kind=random-tokens, repeat=4</h2>" in page
    assert "median exposure" in page
    assert audit.text(verbose=True) in (tmp_path / "audit" / "answer.txt").read_text()
    exposure = pq.read_table(tmp_path / "audit" / "exposure.parquet")
    assert exposure.column_names == ["canary", "rank", "among", "exposure", "p_value"]
    assert exposure.num_rows == canaries.planted.sum()
    slices = json.loads((tmp_path / "audit" / "answer.json").read_text())["slices"]
    assert [bound["lower"] for bound in slices.values()] == [
        audit.lower,
        *(bound.lower for bound in audit.slice_bounds.values()),
    ]
    with pytest.raises(FileExistsError):
        audit.save(tmp_path / "audit")


def test_a_bound_that_exceeds_the_claim_by_chance_convicts_nobody() -> None:
    """The bound exceeds the claim at 95 % and not at 99.9 %: UNDECIDED, with advice that fits texts."""
    rng = np.random.default_rng(0)
    some_canaries = numbered(rng.random(400) < 0.5)
    audit = audit_of(
        randomised_response(some_canaries.planted, 1.5, rng), some_canaries, claim=Claim(1.2, 1e-6, ADDING)
    )
    assert audit.convicting is not None
    assert audit.convicting.lower < 1.2 < audit.lower
    assert audit.verdict is Verdict.UNDECIDED
    assert audit.answer.next_step.startswith("More evidence may decide it: use more canaries")
    strict = audit_of(
        randomised_response(some_canaries.planted, 4.0, rng), some_canaries, claim=Claim(1.2, 1e-6, ADDING)
    )
    assert strict.verdict is Verdict.VIOLATION
    assert "99.9 % confidence" in strict.answer.line("lower bound")


def test_the_learned_order_is_the_default_where_it_is_proved() -> None:
    rng = np.random.default_rng(8)
    coins = rng.random(400) < 0.5
    score = coins + rng.normal(-5, 1, 400)
    pair = ["loss-difference", "largest-token"]
    first = "order of guesses: loss-difference; attacks"
    with Cases() as cases:
        for order, options in {
            "order of guesses: learned; attacks: loss-difference, largest-token": {"attacks": pair, "delta": 1e-5},
            f"{first}: loss-difference, largest-token": {"attacks": pair, "delta": 1e-3},
            f"{first}: loss-difference": {"delta": 1e-5},
        }.items():
            with cases.case(order):
                audit = audit_of(score, numbered(coins), **options)
                assert order in audit.text(verbose=True)
                assert ("guess_order" in audit.scores.column_names) == ("attacks" in options)
                assert ("a learned order of all canaries is not proved" in str(audit)) == (options["delta"] == 1e-3)
    audit = audit_of(score, numbered(coins), attacks=pair)
    assert audit.scores["score"].to_numpy() == pytest.approx(audit.attack_scores["loss-difference"])
    by_score = dpaudit.estimate(score, coins)
    assert [measure for measure in audit.measures if measure.name in ("AUC", "accuracy")] == [
        measure for measure in by_score.measures if measure.name in ("AUC", "accuracy")
    ]


def test_a_table_may_state_an_order_of_guesses() -> None:
    """Guesses follow the column, measures the scores; other scores or rules ignore it."""
    rng = np.random.default_rng(9)
    member = rng.random(300) < 0.5
    table = {"score": rng.normal(size=300), "member": member}
    ordered = {**table, "guess_order": np.where(member, 1, -1) * np.arange(1, 301)}
    perfect = dpaudit.estimate(ordered)
    assert perfect.lower == dpaudit.estimate(ordered["guess_order"], member, guess="signed").lower > 4
    assert perfect.measures[0].value == dpaudit.estimate(table).measures[0].value < 0.6
    assert "guesses in the order of the column guess_order" in str(perfect)
    assert dpaudit.estimate(ordered, claim=2.0).verdict is Verdict.VIOLATION
    for delta in ({"delta": 0.001}, {"claim": (2.0, 0.001)}):
        not_followed = dpaudit.estimate(ordered, **delta)  # type: ignore[arg-type]
        assert not_followed.lower == dpaudit.estimate(table, delta=0.001).lower < 0.2
        assert "needs fair coins, and rows times delta <= 0.1" in str(not_followed)
    few = {name: np.concatenate([values[member][:60], values[~member]]) for name, values in ordered.items()}
    uneven = dpaudit.estimate(few, method="simultaneous-guess-count")
    assert uneven.lower < 0.2
    assert dpaudit.estimate(ordered, method="simultaneous-guess-count").lower == perfect.lower
    assert "needs fair coins" in str(uneven)
    for options in ({"guess": "any-tail"}, {"method": "two-samples"}):
        assert dpaudit.estimate(ordered, **options).lower < 0.2  # type: ignore[arg-type]
    wrong = {**ordered, "guess_order": np.append(np.nan, ordered["guess_order"][1:])}
    with pytest.raises(DataError, match="guess_order"):
        dpaudit.estimate(wrong)


def test_tables_state_the_rate_of_their_coins() -> None:
    rng = np.random.default_rng(4)
    member = rng.random(1000) < 0.1
    table = {"score": member + rng.normal(size=1000), "member": member}
    rare = dpaudit.estimate({**table, "planting_rate": np.full(1000, 0.1)})
    assert rare.method == "rare-canaries"
    assert rare.lower == dpaudit.estimate(table, method="rare-canaries", rate=0.1).lower
    with pytest.raises(DataError, match="planting_rate must hold one probability"):
        dpaudit.estimate({**table, "planting_rate": np.resize((0.1, 0.2), 1000)})
    grouped = dpaudit.estimate({**table, "planted_records": np.full(1000, 4)}, claim=0.5)
    assert grouped.claim is not None
    assert grouped.claim.epsilon == 2.0


def test_a_claim_of_8_is_rejected_with_500_planted_texts() -> None:
    rng, claim = np.random.default_rng(5), Claim(8.0, 1e-5, ADDING)
    fair = numbered(rng.random(1000) < 0.5)
    few = audit_of(40 * fair.planted + rng.normal(-50, 1, 1000), fair, claim=claim)
    assert few.verdict is Verdict.INCONCLUSIVE
    assert "dpaudit plan" not in few.answer.next_step
    assert "`n=26,000` or more, with `rate=0.019`" in few.answer.next_step
    rare = numbered(rng.random(30_000) < 0.016, rate=0.016)
    assert 430 < rare.planted.sum() < 530
    many = audit_of(40 * rare.planted + rng.normal(-50, 1, 30_000), rare, claim=claim)
    assert many.verdict is Verdict.VIOLATION
    assert many.convicting is not None
    assert many.convicting.lower == rare.maximum_epsilon(delta=1e-5) > 8
    assert many.lower == rare.maximum_epsilon(delta=1e-5, confidence=0.95) > 8.5


def test_advice_is_enough_to_reject_the_claim_in_perfect_order() -> None:
    with Cases() as cases:
        for epsilon, canaries, rate in ((4.0, 20, 0.5), (7.0, 500, 0.1), (6.0, 5000, 0.01)):
            with cases.case(epsilon, canaries, rate):
                curve = Claim(epsilon, 1e-5, ADDING).curve
                needed = canaries_needed(curve, canaries=canaries, rate=rate, delta=1e-5, confidence=0.95)
                assert needed is not None
                assert needed[0] * needed[1] == pytest.approx(canaries * rate, rel=0.1)
                planted = np.arange(needed[0]) < needed[0] * needed[1]
                most = maximum_bound(planted, needed[1], delta=1e-5, confidence=0.95)
                assert epsilon < most.lower
    far = Claim(20.0, 1e-5, ADDING).curve
    assert canaries_needed(far, canaries=100, rate=0.5, delta=1e-5, confidence=0.95) is None


def test_the_maximum_depends_on_the_number_of_canaries_and_little_on_the_rate() -> None:
    for canaries in (1000, 9000):
        for rate in (0.5, 0.1, 0.02):
            planted = np.random.default_rng(0).random(canaries) < rate
            most = Canaries(numbered(planted).texts, planted, rate=rate).maximum_epsilon(delta=1e-5)
            assert np.log(canaries) - 2.6 < most < np.log(canaries) - 1.9, (canaries, rate)


def test_less_noise_at_the_detectable_factor_is_detected() -> None:
    """The claim is rejected in nearly all games at the stated factor; false failure < 1e-6 at 90 % power."""
    rng, rate, canaries = np.random.default_rng(6), 0.025, 8000
    estimator, curve = RareCanaries(rate, 1e-5, 0.95), Claim(3.0, 1e-5, ADDING).curve

    def game(mu: float) -> Scores:
        planted = rng.random(canaries) < rate
        return Scores(mu * planted + rng.normal(size=canaries), planted)

    factor = detectable_factor(estimator, [game(1.0)], curve)
    assert factor is not None
    assert 1 < factor < 4
    assert GaussianDP(factor).epsilon(1e-5) > 3
    rejected = sum(
        estimator.bound([estimator.tally(game(factor))]).violation_point(curve) is not None for _ in range(20)
    )
    assert rejected >= binom.ppf(1e-6, 20, 0.9)
    chance = Scores(rng.normal(size=canaries), rng.random(canaries) < rate)
    assert detectable_factor(estimator, [chance], curve) is None


def test_ranks_are_those_among_texts_of_the_same_law_that_were_never_planted() -> None:
    rng = np.random.default_rng(7)
    first, second = (numbered(rng.random(40) < 0.5, seed=seed) for seed in (1, 2))
    texts = tuple(
        (replace(text, tokens=(98, *text.tokens[1:-1], 1), secret=f"b{text.secret}"),) for (text,) in second.texts
    )
    joined = first + replace(second, texts=texts, kinds=("rare-suffix",) * 40)
    score = np.round(rng.normal(-5, 1, 80), 1)  # with ties
    exposed = audit_of(score, joined).exposures
    assert exposed.canary.tolist() == np.flatnonzero(joined.planted).tolist()
    for canary, rank, among, bits, p_value in zip(
        exposed.canary, exposed.rank, exposed.candidates, exposed.bits, exposed.p_value, strict=True
    ):
        others = [score[other] for other in range(80) if not joined.planted[other] and (other < 40) == (canary < 40)]
        assert rank == 1 + sum(other >= score[canary] for other in others)
        assert among == len(others) + 1
        assert (bits, p_value) == pytest.approx((np.log2(among / rank), rank / among))
    of_file = audit_of(score, replace(joined, kinds=("file",) * 80))
    assert of_file.exposures.canary.size == 0


def test_p_values_and_intervals_of_exposure_hold_without_a_leak() -> None:
    """Mean share of p-values <= 0.1 and share of wrong intervals; deterministic by the seed."""
    rng, small, missed, audits = np.random.default_rng(8), [], 0, 40
    for _ in range(audits):
        canaries = numbered(rng.random(200) < 0.25, rate=0.25)
        score = rng.normal(-5, 1, 200)
        audit = audit_of(score, canaries, confidence=0.8)
        small.append(np.mean(audit.exposures.p_value <= 0.1))
        median = next(measure for measure in audit.measures if measure.name == "median exposure")
        secrets = np.sort(score[canaries.planted])
        truth = -norm.logsf(secrets[(secrets.size - 1) // 2], -5, 1) / np.log(2)
        missed += not median.lower <= truth <= median.upper
    assert np.mean(small) < 0.13
    assert missed <= binom.ppf(1 - 1e-6, audits, 0.2)


def word_model(tokens: list[int]) -> NDArray[np.float64]:
    """Return log-probabilities over 5 tokens after each place, which depend on the token there."""
    table = np.log(np.random.default_rng(9).dirichlet(np.ones(5), size=5))
    return np.asarray(table[[token % 5 for token in tokens]])


@pytest.mark.parametrize("sampling", [None, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.8}])
def test_extraction_probabilities_are_those_of_all_texts_that_sampling_can_write(
    sampling: dict[str, float] | None,
) -> None:
    """The probabilities of all 125 texts of 3 tokens sum to 1, and each one equals the product of its steps."""
    secrets = list(itertools.product(range(5), repeat=3))
    texts = tuple((CanaryText("x", (2, *secret), 1, 4, "", str(secret)),) for secret in secrets)
    canaries = Canaries(texts, np.arange(125) % 2 == 0, kinds=("random-tokens",))
    audit = dpaudit.estimate_text(word_model, None, canaries, sampling=sampling)
    logs = audit.texts.column("log_probability").to_numpy()
    assert np.exp(logs).sum() == pytest.approx(1)
    rule = Sampling(**(sampling or {}))  # type: ignore[arg-type]
    steps = rule.log_probabilities(word_model([0, 1, 2, 3, 4]))
    for secret, log in zip(secrets, logs, strict=True):
        assert log == pytest.approx(sum(steps[before, after] for before, after in itertools.pairwise((2, *secret))))
    name = "extracted, n=100"
    measure = next(measure for measure in audit.measures if measure.name == name)
    extracted = 1 - (1 - np.exp(logs[canaries.planted])) ** 100 >= 0.5
    assert measure.value == pytest.approx(extracted.mean())
    assert measure.lower < measure.value < measure.upper
    statistics = dpaudit.text_statistics(word_model, canaries)
    if sampling is not None:
        assert f"n samples, {'temperature 0.7, top-k 3' if 'top_k' in sampling else 'temperature 1, top-p 0.8'}" in str(
            audit
        )
        with pytest.raises(InputError, match=r"text_statistics\(model, canaries, sampling"):
            dpaudit.estimate_text(statistics, None, canaries, sampling=sampling)
        with pytest.raises(InputError, match="log-probabilities of the whole vocabulary"):
            dpaudit.estimate_text(lambda tokens: np.zeros(len(tokens)), None, canaries, sampling=sampling)


def test_a_torch_module_and_a_function_give_the_same_extraction_probabilities() -> None:
    tokenizer = small_tokenizer()
    model = small_model(tokenizer, hidden=16, layers=1)
    canaries = dpaudit.canaries(tokenizer, 12, "random-tokens", length=3, seed=0)

    def function(tokens: list[int]) -> NDArray[np.float64]:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].double()
        return np.asarray(torch.log_softmax(logits, -1))

    rule = {"temperature": 0.5, "top_k": 200, "top_p": 0.99}
    of_module, of_function = (dpaudit.text_statistics(source, canaries, sampling=rule) for source in (model, function))
    assert of_module.sampled is not None
    assert of_function.sampled is not None
    finite = np.isfinite(of_function.sampled)
    assert 0 < finite.sum() < finite.size
    assert np.allclose(of_module.sampled, of_function.sampled, atol=1e-4)
    assert (of_module.sampled[finite] > of_module.log_probability[finite]).any()


def test_measures_decide_nothing() -> None:
    """Secrets that are known by heart without any training on them: exposure 0 bits of evidence for the claim."""
    rng = np.random.default_rng(10)
    canaries = numbered(rng.random(400) < 0.5)
    audit = audit_of(rng.normal(-0.001, 1e-5, 400), canaries, claim=Claim(1.0, 0.0, ADDING))
    shares = {measure.name: measure for measure in audit.measures}
    assert shares["extracted, n=1"].value == 1.0
    assert f"never planted: {(~canaries.planted).sum()} of {(~canaries.planted).sum()}, p = 1" in audit.text(
        verbose=True
    )
    assert audit.verdict is Verdict.NO_VIOLATION


def rare_canaries(**options: object) -> Canaries:
    return dpaudit.canaries(Characters(), 200, "random-tokens", **{"rate": 0.1, **options})  # type: ignore[arg-type]


def test_coins_have_the_stated_rate() -> None:
    """False failure < 1e-6: the number of planted canaries is Binomial(2000, 1/10)."""
    planted = sum(int(rare_canaries(seed=seed).planted.sum()) for seed in range(10))
    assert binom.ppf(5e-7, 2000, 0.1) <= planted <= binom.ppf(1 - 5e-7, 2000, 0.1)
    assert "planted by coins of probability 0.1" in str(rare_canaries(seed=0))


def test_canaries_of_several_kinds_are_joined(tmp_path: Path) -> None:
    first = rare_canaries(seed=1, repeat=(1, 4))
    second = rare_canaries(seed=2, length=5)
    third = rare_canaries(seed=3, length=4)
    joined = first + second + third
    assert joined.texts == first.texts + second.texts + third.texts
    assert joined.planted.tolist() == [*first.planted, *second.planted, *third.planted]
    assert joined.repeat.tolist() == [*first.repeat, *second.repeat, *third.repeat]
    assert joined.lengths.tolist() == [16] * 200 + [5] * 200 + [4] * 200
    assert joined.draw.tolist() == [0] * 200 + [1] * 200 + [2] * 200
    assert joined.rate == 0.1
    joined.save(tmp_path / "canaries.jsonl")
    loaded = Canaries.load(tmp_path / "canaries.jsonl")
    assert loaded.digest == joined.digest
    assert (loaded.kinds, loaded.joined_seeds) == (joined.kinds, (1, 2, 3))
    texts = [f"text {number}" for number in range(50)]
    assert loaded.into(texts) == joined.into(texts)
    for message, others in {
        "different seeds": rare_canaries(seed=2, length=3),
        "one rate": rare_canaries(seed=4, rate=0.2),
        "one unit": rare_canaries(seed=4, unit="user"),
    }.items():
        with pytest.raises(InputError, match=message):
            joined + others


def test_wrong_rates_and_slices_are_explained(tmp_path: Path) -> None:
    canaries = numbered(np.arange(40) % 2 == 0)
    (tmp_path / "old.jsonl").write_text(
        '{"format": "dpaudit-canaries-1"}\n'
        '{"sha256": "87f9ad0d0bbc4a5b64e4d4a2ae1fd0b1fcf7e3b5d36d1d2d6d4de8a7a8b0c7e4"}\n'
    )
    calls: list[tuple[str, type[Exception], Callable[[], object]]] = [
        ("rate must be in", InputError, lambda: rare_canaries(rate=0.6)),
        ("rate must be in", InputError, lambda: replace(canaries, rate=0.0)),
        (
            "`by` must be among repeat, kind, length",
            InputError,
            lambda: audit_of(np.zeros(40), canaries, by="size"),
        ),
        ("has no field 'top'", SpecError, lambda: audit_of(np.zeros(40), canaries, sampling={"top": 3})),
        ("top_k must be >= 1", SpecError, lambda: audit_of(np.zeros(40), canaries, sampling={"top_k": 0})),
        ("kinds must be one value", InputError, lambda: replace(canaries, kinds=("a", "b"))),
        ("must end with the checksum", DataError, lambda: Canaries.load(tmp_path / "old.jsonl")),
    ]
    with Cases() as cases:
        for message, error, call in calls:
            with cases.case(message), pytest.raises(error, match=message):
                call()


def test_a_slice_without_planted_canaries_says_so() -> None:
    planted = np.arange(60) % 2 == 0
    planted[::3] = False  # secrets of the first of three lengths
    audit = audit_of(planted - 5.0, numbered(planted, (3, 4, 5)), by="length")
    assert list(audit.slices) == ["length=7", "length=8", "length=9"]
    assert "must hold both members and non-members" in str(audit.slices["length=7"])
    assert isinstance(audit.slices["length=8"], Estimate)
    assert audit.confidence == pytest.approx(1 - 0.05 / 4)
