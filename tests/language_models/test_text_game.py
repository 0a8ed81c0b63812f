"""The game `text-canaries`: a fine-tuning is audited from a spec."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binom

import dpaudit
from dpaudit import Claim, Relation, Report, Verdict, audit, load_spec
from dpaudit.actors.seed import Seed
from dpaudit.engine.answer.sensitivity import planned_outlook
from dpaudit.engine.games.reference import RareCoinResponse
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.errors import AuditError, DataError, InputError, SpecError
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.language_models.attacks.text_attacks import CanaryLosses
from dpaudit.language_models.canary_texts.canaries import StoredCanaries
from dpaudit.language_models.data.plain_texts import MadeSentences, TextsFile
from dpaudit.language_models.games.text_canaries import TextCanaries
from dpaudit.language_models.games.text_canaries_work import TunedLosses, planted_records, score_canaries
from dpaudit.language_models.mechanisms.base_models import PretrainedModel, TinyTransformer, made_sentences
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel, training_texts
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from tests.language_models.own_text_trainers import ByHeart
from tests.loops import Cases

TINY = {"name": "tiny-transformer", "hidden": 32, "layers": 1, "steps": 20}
BY_HEART = "tests.language_models.own_text_trainers:ByHeart"
SPEC: dict[str, Any] = {
    "seed": 3,
    "data": {"name": "made-sentences", "rows": 100},
    "split": {"target": 0.3, "reference": 0.6, "test": 0.1},
    "mechanism": {"name": "fine-tuning", "base": TINY, "trainer": {"name": BY_HEART}},
    "game": {"name": "text-canaries", "canaries": 60, "kind": {"name": "rare-suffix", "context": 6, "length": 4}},
    "run": {"runner": "in-process", "figures": False, "repeats": 0},
}


def spec(trainer: Mapping[str, Any] = {}, game: Mapping[str, Any] = {}, **more: Any) -> dict[str, Any]:
    mechanism = {**SPEC["mechanism"], "trainer": {"name": BY_HEART, **trainer}}
    return {**SPEC, "mechanism": mechanism, "game": {**SPEC["game"], **game}, **more}


def planned(trainer: Mapping[str, Any] = {}, game: Mapping[str, Any] = {}, **more: Any) -> Plan:
    return make_plan(load_spec(spec(trainer, game, **more)))


def lower(result: Any) -> float:
    return float(result.finding.lower)


FULL = {"name": "full", "epochs": 8, "batch_size": 32, "learning_rate": 0.01, "optimizer": "adamw"}


@cache
def report_of(epsilon: float, folder: Path) -> Report:
    return audit(spec({**FULL, "epsilon": epsilon}), output=folder / f"{epsilon}", quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def test_a_tiny_model_is_audited_from_a_spec(folder: Path) -> None:
    """Without privacy the bound is at least half of the largest that 60 canaries can show."""
    (result,) = report_of(math.inf, folder).results
    largest = planned_outlook(make_plan(load_spec(spec(FULL))).audits[0])
    assert largest is not None
    assert lower(result) > largest.ceiling / 2 > 1
    assert result.verdict is Verdict.NO_CLAIM
    assert 1 < result.metrics["test_perplexity"] < 20
    labels = dict(result.choices)
    assert labels["canaries"].startswith("60 canaries of the kind rare-suffix")
    assert "planted canaries received loss on their whole secret" in labels["loss"]
    assert not result.warnings
    assert result.control is not None
    assert not result.control.shift_detected
    auc = next(measure.value for measure in result.measures if measure.name == "AUC")
    assert auc > 0.9


def test_with_privacy_the_bound_stays_below_the_claim_of_the_accountant(folder: Path) -> None:
    (result,) = report_of(1.0, folder).results
    assert result.verdict is Verdict.NO_VIOLATION
    assert lower(result) < 1
    assert result.sensitivity.maximum is not None
    assert result.sensitivity.noiseless
    assert result.sensitivity.maximum.lower > 1.2  # type: ignore[attr-defined]
    mechanism = load_spec(spec({**FULL, "epsilon": 1.0})).audits[0].mechanism
    assert result.claimed == mechanism.claim(TextCanaries(canaries=60).size(30))
    assert "maximum detectable epsilon" in str(result)
    assert "(measured without noise)" in str(result)


def test_an_interrupted_training_resumes_with_equal_scores(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = report_of(math.inf, folder).results[0].scores()
    monkeypatch.setattr("dpaudit.mechanisms.training.checkpoint.CHECKPOINT_EVERY_S", 0.0)
    step, steps = FineTuning.step, []

    def interrupted(self: FineTuning, number: int) -> None:
        steps.append(number)
        if steps.count(number) == 1 and number == 9:
            raise RuntimeError("the machine is switched off")
        step(self, number)

    monkeypatch.setattr(FineTuning, "step", interrupted)
    (failed,) = audit(spec(FULL), output=tmp_path / "run", quiet=True).results
    assert failed.verdict is Verdict.FAILED
    (result,) = audit(spec(FULL), output=tmp_path / "run", quiet=True).results
    assert steps[:12] == [*range(10), 9, 10]
    assert result.scores().equals(expected)


def test_scores_are_the_same_in_another_process(folder: Path, tmp_path: Path) -> None:
    in_process = report_of(math.inf, folder).results[0].scores()
    run = {"runner": "processes", "workers": 1, "figures": False, "repeats": 0}
    (result,) = audit(spec(FULL, run=run), output=tmp_path / "run", quiet=True).results
    assert result.scores().equals(in_process)


def test_a_leak_of_everything_is_a_violation(tmp_path: Path) -> None:
    (result,) = audit(spec(), output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.VIOLATION
    assert result.claimed == Claim(1.0, 1e-5, Relation.ADD_REMOVE)
    assert "AUC 1.0000" in result.text(verbose=True)
    (again,) = audit(spec(game={"rate": 0.25}), output=tmp_path / "rare", quiet=True).results
    assert again.verdict is Verdict.VIOLATION
    assert again.finding.method == "rare-canaries"  # type: ignore[union-attr]


def test_the_canaries_of_all_trainings_are_guessed_together(tmp_path: Path) -> None:
    """A failed training is counted, and its canaries are guessed last."""
    (result,) = audit(spec(game={"trainings": 3}), output=tmp_path / "all", quiet=True).results
    assert len(result.scores()) == 180
    (some,) = audit(spec({"fails_at": 1}, game={"trainings": 3}), output=tmp_path / "some", quiet=True).results
    assert some.failed_trials == ("the loss is not finite",)
    assert 1 < lower(some) < lower(result)
    (alone,) = audit(spec({"fails_at": 0}), output=tmp_path / "alone", quiet=True).results
    assert alone.verdict is Verdict.FAILED


def test_secrets_without_loss_are_inconclusive(tmp_path: Path) -> None:
    """The model forgets what it is trained on, so that the bound does not exceed the claim."""
    (result,) = audit(spec({"epsilon": 0.4, "masked": True}), output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "the labels of the secret were masked" in str(result)
    (unmasked,) = audit(spec({"epsilon": 0.4}), output=tmp_path / "seen", quiet=True).results
    assert unmasked.verdict is Verdict.NO_VIOLATION
    mechanism = {"name": "fine-tuning", "base": TINY, "trainer": {"name": BY_HEART, "epsilon": 0.4}, "max_tokens": 8}
    (cut,) = audit({**SPEC, "mechanism": mechanism}, output=tmp_path / "cut", quiet=True).results
    assert cut.verdict is Verdict.INCONCLUSIVE
    assert "a sequence ended before the end of the secret" in str(cut)


def test_coins_tossed_after_the_training_show_nothing() -> None:
    """At most 5 % of bounds exceed 0; false failure < 1e-6: the limit is a quantile of Binomial(replays, 0.05)."""
    tokenizer = TinyTransformer(hidden=32, layers=1, steps=0).load().tokenizer
    canaries = dpaudit.canaries(tokenizer, 60, "random-tokens", length=4, seed=1)
    rng = np.random.default_rng(0)
    width = max(len(text.secret_tokens) for _, text in canaries.all_texts)

    def statistics(shift: float) -> TokenStatistics:
        values = rng.normal(-5, 1, (60, width)) + shift * canaries.planted[:, None]
        return TokenStatistics(values, np.full_like(values, -5.0), np.ones_like(values))

    with Cases() as cases:
        for attack in (CanaryLosses(), CanaryLosses("learned")):
            with cases.case(attack.order):
                guess = "signed" if attack.is_learned else "any-tail"
                estimator = SimultaneousGuessCount(1e-5, 0.95, guess=guess)
                replays = score_canaries(
                    attack,
                    (StoredCanaries.of(canaries),),
                    [statistics(0.0)],
                    (TunedLosses(statistics(3.0)),),
                    control_seed=Seed(5),
                    replays=100,
                )
                bounds = [estimator.bound([estimator.tally(scores)]).lower for scores in replays]
                assert np.count_nonzero(bounds) <= binom.ppf(1 - 1e-6, 100, 0.05)


def test_stored_canaries_are_the_same() -> None:
    tokenizer = TinyTransformer(hidden=32, layers=1, steps=0).load().tokenizer
    canaries = dpaudit.canaries(tokenizer, 20, "random-tokens", length=4, seed=1, rate=0.25, repeat=(1, 4))
    assert StoredCanaries.of(canaries).load().digest == canaries.digest


def test_configurations_of_a_sweep_share_all_but_the_trainings() -> None:
    sweeping = {"grid": {"mechanism.trainer.epsilon": [1.0, 2.0, 4.0]}}
    content = spec({**FULL})
    plan = make_plan(load_spec({**content, **sweeping}))
    labels = [unit.label for unit in plan.units]
    assert labels.count("canaries 1 of 1") == labels.count("base model on all canaries") == 1
    assert labels.count("a training without privacy") == 1
    assert labels.count("training") == 3


def test_a_sweep_compares_the_bound_with_perplexity(tmp_path: Path) -> None:
    sweeping = {"grid": {"mechanism.trainer.epsilon": [0.4, 1.0]}, "sweep": {"minimise": "test perplexity"}}
    result = dpaudit.sweep({**spec(name="swept"), **sweeping}, output=tmp_path / "sweep", quiet=True)
    forgetful, by_heart = sorted(result.summary.rows, key=lambda row: row.claimed)
    assert by_heart.audited > 1 > forgetful.audited
    assert {"test_perplexity", "test_loss"} <= by_heart.metrics.keys()


def test_the_public_size_of_the_training_data_depends_on_no_coin() -> None:
    assert TextCanaries(canaries=100).size(50) == 100
    assert TextCanaries(canaries=100, rate=0.1, repeat=(1, 4), records=2).size(50) == 50 + 50
    assert TextCanaries(canaries=100, repeat=(16,), unit="user").size(50) == 100


def test_a_user_is_one_record_and_a_record_is_converted_by_group_privacy() -> None:
    tokenizer = TinyTransformer(hidden=32, layers=1, steps=0).load().tokenizer
    user = dpaudit.canaries(tokenizer, 10, "random-tokens", records=2, repeat=2, unit="user", length=4, seed=1)
    count = int(user.planted.sum())
    assert [len(record) for record in planted_records(user, 100)] == [4] * count
    single = dpaudit.canaries(tokenizer, 10, "random-tokens", records=2, repeat=2, length=4, seed=1)
    assert [len(record) for record in planted_records(single, 100)] == [1] * 4 * count
    claim = Claim(1.0, 1e-5, Relation.ADD_REMOVE)
    assert TextCanaries(records=2, repeat=(1, 2)).traits.compared(claim).claim.epsilon == 4
    assert TextCanaries(records=2, repeat=(3,), unit="user").traits.compared(claim).claim.epsilon == 1
    with pytest.raises(InputError, match=r"records times the largest repeat must be a power of two.*unit: user"):
        TextCanaries(records=3)


def test_rare_coins_have_the_odds_of_bayes() -> None:
    """A rare coin and one answer of randomised response, against the four joint probabilities."""
    rate, epsilon = 0.1, 1.3
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    heads, tails = rate * right, (1 - rate) * (1 - right)
    levels = RareCoinResponse(rate).levels(epsilon)
    assert np.allclose(levels.share, [heads + tails, 1 - heads - tails])
    assert np.allclose(levels.log_odds, [math.log(heads / tails), math.log(rate * (1 - right) / ((1 - rate) * right))])
    certain = RareCoinResponse(rate).levels(math.inf)
    assert np.allclose(certain.share, [rate, 1 - rate])
    outlook = planned_outlook(planned(game={"rate": 0.1}).audits[0])
    assert outlook is not None
    assert outlook.ceiling > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"split": {"target": 0.9, "reference": 0.0, "test": 0.1}},
            r"continue texts of the reference part, which is em",
        ),
        ({"game": {**SPEC["game"], "canaries": 1}}, r"canaries must be >= 2"),
        ({"game": {**SPEC["game"], "rate": 0.7}}, r"rate must be in \(0, 1/2\]"),
        (
            {"game": {**SPEC["game"], "rate": 0.1}, "attack": {"name": "canary-losses", "order": "learned"}},
            "fair coins",
        ),
        ({"attack": {"name": "canary-losses", "order": "loss"}}, r"text-attack must be one of .*calibrated-loss"),
        ({"attack": "loss"}, r"attack loss sees .*attacks that fit: canary-losses"),
        (
            {
                "attack": {"name": "canary-losses", "order": "learned"},
                "estimator": {"name": "simultaneous-guess-count", "guess": "any-tail"},
            },
            "estimator must have guess: signed",
        ),
        ({"data": "iris"}, r"needs rows of class Texts, got Examples"),
        ({"mechanism": {"name": "dp-sgd", "epsilon": 1}}, r"needs fine-tunings of a language model"),
        ({"mechanism": {"name": "fine-tuning", "trainer": "lorra"}}, r"text-trainer must be one of .*lora"),
    ],
)
def test_a_spec_that_cannot_be_audited_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        make_plan(load_spec({**SPEC, **change}))


def test_the_learned_order_has_signed_scores(tmp_path: Path) -> None:
    attack = {"name": "canary-losses", "order": "learned"}
    (result,) = audit(spec(attack=attack), output=tmp_path / "run", quiet=True).results
    assert lower(result) > 1
    assert not result.measures  # its scores depend on coins


def test_gradients_are_compared_with_the_change_of_the_weights(tmp_path: Path) -> None:
    attack = {"name": "canary-losses", "order": "gradient-update"}
    (result,) = audit(spec({**FULL, "epochs": 3}, attack=attack), output=tmp_path / "run", quiet=True).results
    assert lower(result) > 1


def test_new_tokens_get_rows_of_the_embeddings(tmp_path: Path) -> None:
    content = spec(game={"kind": {"name": "new-token", "context": 6, "length": 2}})
    (result,) = audit(content, output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.VIOLATION


def test_check_confirms_a_violation_with_fresh_canaries(tmp_path: Path) -> None:
    mechanism = FineTunedModel(base=TinyTransformer(hidden=32, layers=1, steps=0), trainer=ByHeart())
    run = dpaudit.RunOptions("in-process", figures=False, repeats=0)
    report = dpaudit.check(mechanism, MadeSentences(60), output=tmp_path / "run", run=run, quiet=True)
    assert [answer.verdict for answer in report.answers] == [Verdict.VIOLATION]
    first, again = report.results
    assert len(again.scores()) == 2 * len(first.scores()) == 1_000
    assert not np.array_equal(again.scores().truth[:500], first.scores().truth)


def test_texts_come_from_files(tmp_path: Path) -> None:
    texts = ["one text", "", "zwei Wörter"]
    (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, texts)))
    pq.write_table(pa.table({"body": texts, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    for name, column in (("a.txt", "text"), ("a.jsonl", "body"), ("b.jsonl", "text"), ("a.parquet", "body")):
        loaded = TextsFile(str(tmp_path / name), column).load()
        assert loaded.texts == ("one text", "zwei Wörter"), name
        assert loaded.name == name
    assert len(TextsFile(str(tmp_path / "a.txt"), rows=1).load()) == 1
    assert loaded.take([1]).texts == loaded.take(np.array([False, True])).texts == ("zwei Wörter",)
    assert loaded.digest != loaded.take([1, 0]).digest


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.jsonl",
            b'{"text": "a"}\n{"body": "b"}',
            r"line 2: must hold a text under 'text'; its keys are body; set `col",
        ),
        ("x.jsonl", b'{"text": "a"', r"line 1: must hold JSON in each line"),
        ("x.txt", b"a\n\xff\xfe", r"line 2: must be text in UTF-8"),
        ("x.txt", b"\n  \n", r"must hold at least one text that is not empty"),
        ("x.parquet", b"PAR1", r"is not a whole Parquet file"),
    ],
)
def test_a_file_that_holds_no_texts_is_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        TextsFile(str(tmp_path / name)).load()


def test_a_column_of_numbers_holds_no_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="must have a column of texts 'text', has text; set `column`"):
        TextsFile(str(tmp_path / "x.parquet")).load()


def test_base_models_are_loaded_from_folders(tmp_path: Path) -> None:
    tiny = TinyTransformer(hidden=32, layers=1, steps=20).load()
    tiny.module.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    loaded = PretrainedModel(path=str(tmp_path / "model")).load()
    texts = made_sentences(3, np.random.default_rng(1))
    assert training_texts(tiny, texts, 100) == training_texts(loaded, texts, 100)
    assert max(len(text.tokens) for text in training_texts(loaded, texts, 7)) == 7
    first, second = (dict(model.module.named_parameters()) for model in (tiny, loaded))
    assert all(first[name].equal(second[name]) for name in first)
    assert tiny.tokenizer.decode(tiny.tokenizer(texts[0])["input_ids"]) == texts[0]
    with pytest.raises(InputError, match="path must be the folder of a pre-trained model"):
        PretrainedModel(path=str(tmp_path)).load()


def test_a_loaded_base_model_is_a_copy() -> None:
    source = TinyTransformer(hidden=32, layers=1, steps=0)
    first = source.load()
    first.module.resize_token_embeddings(600)
    first.tokenizer.add_tokens(["<new>"])
    second = source.load()
    assert second.module.get_input_embeddings().num_embeddings == 512
    assert len(second.tokenizer) == 512


def test_a_game_without_reference_texts_takes_random_tokens() -> None:
    split = {"target": 0.9, "reference": 0.0, "test": 0.1}
    assert len(planned(game={"kind": "random-tokens"}, split=split).audits) == 1
    with pytest.raises(SpecError, match="the reference part"):
        planned(split=split)
