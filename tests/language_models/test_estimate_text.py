"""Bounds from a transformer of a million parameters, trained from scratch with canaries."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

import dpaudit
from dpaudit import Claim, Relation, Verdict
from dpaudit.engine.request.build import build
from dpaudit.errors import InputError, SpecError
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.view import TextView, attack_scores
from dpaudit.language_models.front_door.estimating import ATTACKS
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics, sampled_tokens
from tests.language_models.small_language_models import collated, domain_texts, small_model, small_tokenizer, trained
from tests.loops import Cases

TOKENIZER = small_tokenizer()


@cache
def small_audit() -> tuple[Canaries, TokenStatistics, TokenStatistics]:
    """Return canaries, and their log-probabilities under a small model after and before training without privacy."""
    canaries = dpaudit.canaries(TOKENIZER, 100, "random-tokens", length=5, seed=0)
    base = small_model(TOKENIZER, hidden=64, layers=2)
    model = trained(base, TOKENIZER, canaries.into(domain_texts(40)), epochs=10, batch=16)
    return canaries, dpaudit.text_statistics(model, canaries), dpaudit.text_statistics(base, canaries)


def test_a_million_parameters_without_privacy_are_found_out() -> None:
    """The bound comes within 15 % of the maximum detectable epsilon, and all canaries were trained on."""
    canaries = dpaudit.canaries(TOKENIZER, 300, "random-tokens", length=6, context=3, seed=5)
    base = small_model(TOKENIZER)
    assert sum(parameter.numel() for parameter in base.parameters()) > 1e6
    record = dpaudit.LossRecord(canaries)
    model = copy.deepcopy(base).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    dataset, rng = canaries.into(domain_texts(100, seed=1)), np.random.default_rng(0)
    with record.of(model):
        for _ in range(6):
            order = rng.permutation(len(dataset))
            for first in range(0, len(dataset), 32):
                optimizer.zero_grad()
                model(**collated(TOKENIZER, [dataset[row] for row in order[first : first + 32]])).loss.backward()
                optimizer.step()
    result = dpaudit.estimate_text(model, base, canaries, claim=Claim(3.0, 1e-5), training=record)
    assert result.verdict is Verdict.VIOLATION
    assert result.lower > 0.85 * 4.31  # the maximum for 300 canaries in perfect order
    assert record.epochs == 6
    assert record.problems == []
    text = result.text(verbose=True)
    assert text.startswith("VIOLATION  300 text canaries")
    assert "planted canaries received loss on their whole secret, 6 time(s)" in text


def test_canaries_that_were_never_planted_show_nothing() -> None:
    """At most 5 % of audits exceed 0; false failure < 1e-6: the limit is a quantile of Binomial(audits, 0.05).

    The model was trained on some of the canaries, but the coins of these audits are tossed after the training.
    """
    canaries, trained_statistics, base = small_audit()
    rng = np.random.default_rng(0)
    with Cases() as cases:
        for order, audits in (("calibrated-loss", 200), ("learned", 60)):
            with cases.case(order):
                bounds = []
                for seed in range(audits):
                    tossed = replace(canaries, planted=rng.random(len(canaries)) < 0.5, seed=seed)
                    audit = dpaudit.estimate_text(trained_statistics, base, tossed, order=order, delta=1e-5)
                    bounds.append(audit.lower)
                assert np.count_nonzero(bounds) <= binom.ppf(1 - 1e-6, audits, 0.05)
    leaky = dpaudit.estimate_text(trained_statistics, base, canaries, delta=1e-5)
    assert leaky.lower > 1.5


def test_every_attack_sees_the_leak_in_its_direction() -> None:
    canaries, trained_statistics, base = small_audit()
    view = TextView(trained_statistics, base, base)
    scores = attack_scores(canaries, view, {name: build("text-attack", name) for name in ATTACKS})
    assert scores.keys() == set(ATTACKS)
    for name, score in scores.items():
        difference = np.median(score[canaries.planted]) - np.median(score[~canaries.planted])
        assert difference > np.std(score[~canaries.planted]), name
    assert np.allclose(scores["loss-difference"], scores["reference-ratio"])
    assert "reference-ratio" not in dpaudit.estimate_text(trained_statistics, base, canaries).attack_scores


def statistics_of(rows: list[list[float]], mean: float = -3.0, deviation: float = 2.0) -> TokenStatistics:
    values = np.array(rows)
    finite = np.isfinite(values)
    return TokenStatistics(values, np.where(finite, mean, np.nan), np.where(finite, deviation, np.nan))


def test_scores_of_the_attacks_are_those_of_their_formulas() -> None:
    nan = np.nan
    view = TextView(
        statistics_of([[-1.0, -2.0, -9.0], [-1.0, -1.0, nan]]),
        statistics_of([[-2.0, -2.5, -9.0], [-5.0, -5.0, nan]]),
        statistics_of([[-1.0, -1.0, -1.0], [0.0, 0.0, nan]]),
    )
    expected = {
        "loss-difference": [1.5, 8.0],
        "reference-ratio": [-9.0, -2.0],
        "largest-token": [1.0, 4.0],
        "min-k-plus-plus": [-3.0, 1.0],
    }
    for name, scores in expected.items():
        assert build("text-attack", name).score(view).tolist() == scores, name
    assert build("text-attack", {"name": "min-k-plus-plus", "share": 1.0}).score(view).tolist() == [-0.5, 1.0]


def test_calibration_uses_as_much_of_the_base_model_as_helps() -> None:
    rng = np.random.default_rng(0)
    base, leak = rng.normal(-20, 5, 200), rng.normal(0, 1, 200)
    attack = build("text-attack", "calibrated-loss")
    for slope in (1.0, 0.0):
        trained_values = slope * base + leak - 5
        score = attack.score(TextView(statistics_of(trained_values[:, None]), statistics_of(base[:, None])))
        assert np.corrcoef(score, leak)[0, 1] > 0.98
    alone = attack.score(TextView(statistics_of(leak[:, None])))
    assert np.allclose(alone, leak - leak.mean())


def test_loss_masked_on_canaries_is_inconclusive_and_names_them() -> None:
    canaries, _, base = small_audit()
    record = dpaudit.LossRecord(canaries)
    tokens = collated(TOKENIZER, canaries.into(domain_texts(40)))
    masked = tokens["labels"].clone()
    masked[:, 6:] = -100
    record.add({"input_ids": tokens["input_ids"], "labels": masked})
    result = dpaudit.estimate_text(base, copy.copy(base), canaries, claim=Claim(1.0, 1e-5), training=record)
    assert result.verdict is Verdict.INCONCLUSIVE
    planted = np.flatnonzero(canaries.planted)
    named = ", ".join(map(str, planted[:5].tolist()))
    assert f"{planted.size} of 100 canaries ({named}, ...): the labels of the secret were masked" in str(result)
    sound = dpaudit.preflight(canaries, [tokens])
    result = dpaudit.estimate_text(base, copy.copy(base), canaries, claim=Claim(1.0, 1e-5), training=sound)
    assert result.verdict is Verdict.INCONCLUSIVE  # the model is its base: all losses are equal
    assert result.answer.line("reason").startswith("all scores are equal")
    with pytest.raises(InputError, match="record of the same canaries"):
        dpaudit.estimate_text(base, base, replace(canaries, repeat=np.array(2)), training=record)


def test_the_maximum_detectable_epsilon_is_known_before_training() -> None:
    canaries, _, base = small_audit()
    result = dpaudit.estimate_text(base, None, canaries, claim=Claim(1.0, 1e-5))
    assert result.maximum is not None
    assert canaries.maximum_epsilon(delta=1e-5) == result.maximum.lower
    assert 2.5 < canaries.maximum_epsilon() < 3 < canaries.maximum_epsilon(confidence=0.95) < 4
    alone = dpaudit.estimate_text(base, None, canaries, claim=Claim(1.0, 1e-5), order="min-k-plus-plus")
    assert alone.maximum is not None
    assert alone.maximum.lower <= result.maximum.lower  # both have half of the error for their main order


def test_the_page_audits_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of docs/guides/language-models.md run as one program; test_trainers.py has those that need a trainer."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "language-models.md"
    sections = page.read_text(encoding="utf-8").split("\n## ")
    own_loop = [text for text in sections if not text.startswith(("In a trainer", "Chat templates"))]
    blocks = [part.partition("```")[0] for text in own_loop for part in text.split("```python\n")[1:]]
    assert len(blocks) == 5
    monkeypatch.chdir(tmp_path)
    model = small_model(TOKENIZER, hidden=64, layers=2)

    def batches(texts: list[str]) -> Iterator[dict[str, Any]]:
        yield from (collated(TOKENIZER, texts[first : first + 16]) for first in range(0, len(texts), 16))

    def train(model: Any, texts: list[str]) -> None:
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=2e-3)
        for _ in range(10):
            for batch in batches(texts):
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()

    def generate(model: Any, count: int) -> list[str]:
        context = TOKENIZER.encode("the")
        ordinary = range(2, len(TOKENIZER))
        tokens = sampled_tokens(model, [context] * count, 12, temperature=1.0, seed=0, allowed=ordinary)
        return [TOKENIZER.decode([*context, *sample]) for sample in tokens]

    names = {"tokenizer": TOKENIZER, "model": model, "train": train, "loader": batches, "generate": generate}
    names |= {"train_texts": domain_texts(40), "other_texts": domain_texts(60, seed=1)}
    exec(compile("\n".join(blocks), str(page), "exec"), names)
    assert names["record"].problems == []
    assert names["result"].verdict is Verdict.VIOLATION
    assert names["slower"].lower > 0
    assert names["changed"].lower > 0
    assert names["released"].lower > 0.5
    assert "copied" in [measure.name for measure in names["released"].measures]
    assert list(names["sliced"].slices) == ["repeat=1, kind=rare-suffix"]
    assert (tmp_path / "audit" / "scores.parquet").exists()


def test_without_a_record_the_answer_says_that_nothing_was_checked() -> None:
    canaries, trained_statistics, base = small_audit()
    assert "not checked that every planted canary received loss" in str(
        dpaudit.estimate_text(trained_statistics, base, canaries)
    )


def test_claims_about_records_and_users_are_told_apart() -> None:
    canaries, trained_statistics, base = small_audit()

    def claim_of(audited: Canaries, claim: object) -> Claim:
        compared = dpaudit.estimate_text(trained_statistics, base, audited, claim=claim).claim  # type: ignore[arg-type]
        assert compared is not None
        return compared

    assert claim_of(canaries, Claim(2.0, 1e-5)) == Claim(2.0, 1e-5, Relation.ADD_REMOVE)
    assert claim_of(canaries, (2.0, 1e-5)) == Claim(2.0, 1e-5, Relation.ADD_REMOVE)
    grouped = claim_of(replace(canaries, repeat=np.array(4)), Claim(0.5, 1e-6, Relation.ADD_REMOVE))
    assert grouped.epsilon == pytest.approx(2.0)
    assert grouped.delta == pytest.approx(1e-6 * sum(np.exp(0.5 * step) for step in range(4)))
    assert claim_of(replace(canaries, repeat=np.array(4), unit="user"), 0.5).epsilon == 0.5
    with pytest.raises(InputError, match="records must be 1, 2, 4"):
        claim_of(replace(canaries, repeat=np.array(3)), 0.5)


def test_the_adapter_is_switched_off_for_the_base_model() -> None:
    canaries, _, _ = small_audit()
    base, model = (small_model(TOKENIZER, hidden=16, layers=1, seed=seed) for seed in (0, 1))

    class Adapted(torch.nn.Module):
        """A stand-in for a PEFT model."""

        def __init__(self) -> None:
            super().__init__()
            self.base, self.adapted, self.enabled = base, model, True

        def forward(self, input_ids: Any) -> Any:
            return (self.adapted if self.enabled else self.base)(input_ids)

        @contextlib.contextmanager
        def disable_adapter(self) -> Iterator[None]:
            self.enabled = False
            yield
            self.enabled = True

    expected = dpaudit.estimate_text(model, base, canaries).attack_scores
    scores = dpaudit.estimate_text(Adapted(), None, canaries).attack_scores
    for name, values in expected.items():
        assert np.allclose(values, scores[name], atol=1e-3), name


def test_a_base_with_trained_parameters_is_told() -> None:
    """Parameters outside of the adapter keep their training when PEFT switches the adapter off."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    canaries, _, _ = small_audit()
    config = transformers.GPT2Config(vocab_size=len(TOKENIZER), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    base = transformers.GPT2LMHeadModel(config)
    lora = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}

    def unfrozen(model: Any) -> Any:
        model.base_model.model.transformer.ln_f.weight.requires_grad_(True)
        return model

    def frozen(model: Any) -> Any:
        return model.requires_grad_(False)

    def same(model: Any) -> Any:
        return model

    with Cases() as cases:
        for name, settings, change, named in [
            ("usual", peft.LoraConfig(**lora), same, ""),
            ("bias=all", peft.LoraConfig(bias="all", **lora), same, "7 parameters"),
            (
                "bias=lora_only",
                peft.LoraConfig(bias="lora_only", **lora),
                same,
                "1 parameters outside of the adapter (model.transformer.h.0.attn.c_att",
            ),
            ("loaded for inference", peft.LoraConfig(bias="all", **lora), frozen, "biases"),
            (
                "unfrozen",
                peft.LoraConfig(**lora),
                unfrozen,
                "1 parameters outside of the adapter (model.transformer.ln_f.weight)",
            ),
            ("copies of modules", peft.LoraConfig(modules_to_save=["lm_head", "wte"], **lora), same, ""),
            ("DoRA", peft.LoraConfig(use_dora=True, **lora), same, ""),
            ("prompt", peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2), same, ""),
        ]:
            with cases.case(name):
                model = change(peft.get_peft_model(copy.deepcopy(base), settings)).eval()
                result = dpaudit.estimate_text(model, None, canaries, claim=1.0)
                notes = [note for note in result.notes if "with its adapter off" in note]
                assert len(notes) == bool(named)
                assert named in "".join(notes)
                assert (result.helps == "pass a copy of the model from before the training as `base`") is bool(named)
                copied = dpaudit.estimate_text(model, base, canaries)
                assert not any("with its adapter off" in note for note in copied.notes)


def test_wrong_arguments_are_explained() -> None:
    canaries, trained_statistics, base = small_audit()
    many, alone = (Canaries(canaries.texts[:count], canaries.planted[:count].copy()) for count in (50, 1))
    with Cases() as cases:
        for message, error, arguments in [
            ("order must be 'learned' or one of", InputError, {"order": "lost"}),
            ("did you mean 'largest-token'", Exception, {"attacks": ["largest-tokens"]}),
            ("has no field 'part'", SpecError, {"attacks": [{"name": "min-k-plus-plus", "part": 1}]}),
            ("none of the attacks reference-ratio", InputError, {"attacks": ["reference-ratio"]}),
            ("those of the texts of these canaries", InputError, {"canaries": many}),
            ("some canaries must be planted and some not", InputError, {"canaries": alone}),
            ("must be the trained model, got None", InputError, {"model": None}),
            ("must be the canaries that were planted", InputError, {"canaries": None}),
            ("either the trained `model` or a `release`", InputError, {"release": ["a text"]}),
            ("`release` must be a list of texts", InputError, {"model": None, "release": [b"a text"]}),
            ("`release` must hold at least one text", InputError, {"model": None, "release": [" "]}),
            ("`base` must be a list of texts", InputError, {"model": None, "release": ["a text"], "base": [3]}),
            ("`base` must be the model before training", InputError, {"model": base}),
        ]:
            with cases.case(message), pytest.raises(error, match=message):
                dpaudit.estimate_text(**{"model": trained_statistics, "base": base, "canaries": canaries, **arguments})
