"""The attack by gradient times update, and audits of LoRA fine-tunings of a million parameters with it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from scipy.stats import rankdata
from transformers import LlamaConfig, LlamaForCausalLM

import dpaudit
from dpaudit import Verdict
from dpaudit.language_models.attacks.text_attacks import GradientUpdate
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.language_models.mechanisms.fine_tuning.records import TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.update_products import UpdateProducts
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from dpaudit.mechanisms.compute import Compute
from tests.language_models.small_language_models import domain_texts, small_tokenizer, trained


def view_of(products: UpdateProducts) -> TextView:
    values = np.zeros((products.product.size, 1))
    return TextView(TokenStatistics(values, values, values), update=products)


def test_orthogonal_gradients_leave_the_order_of_the_products() -> None:
    rng = np.random.default_rng(0)
    products, norms = rng.normal(size=50), rng.uniform(1, 2, 50)
    view = view_of(UpdateProducts(products * norms, norms, np.eye(50)))
    for attack in (GradientUpdate(), GradientUpdate(separate=False)):
        assert np.array_equal(np.argsort(attack.score(view)), np.argsort(products))
    np.testing.assert_allclose(GradientUpdate().score(view_of(UpdateProducts(products * norms, norms))), products)


def test_gradients_of_other_texts_are_taken_out() -> None:
    """The score is nearer to the coins than the product, and near the best predictor, which knows the noise."""
    texts, width, noise = 200, 400, 0.4
    correlations = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        directions = rng.normal(size=(texts, width)) + 0.7 * rng.normal(size=width)
        directions += 0.7 * rng.normal(size=(texts, 8)) @ rng.normal(size=(8, width))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        cosine = directions @ directions.T
        coins = rng.random(texts) < 0.5
        products = directions @ (coins @ directions + noise * rng.normal(size=width))
        view = view_of(UpdateProducts(products, np.ones(texts), cosine))
        best = np.linalg.solve(cosine + 4 * noise**2 * np.eye(texts), products - cosine @ np.full(texts, 0.5))
        scores = (GradientUpdate().score(view), GradientUpdate(separate=False).score(view), best)
        correlations.append([np.corrcoef(score, coins)[0, 1] for score in scores])
    separated, plain, largest = np.mean(correlations, axis=0)
    assert separated > plain + 0.2
    assert separated > largest - 0.05


def test_a_parameter_that_all_texts_move_counts_little() -> None:
    """The row of a canary's own token has the noise alone, the adapter also what other texts add.

    The sum of all products is the same for both parameters. The score by parameter is near that of the row alone.
    """
    rng, texts = np.random.default_rng(3), 4_000
    coins = rng.random(texts) < 0.1
    norms = np.tile([3.0, 2.0, 0.0], (texts, 1))  # the last parameter is not moved by these texts
    shares = norms / np.linalg.norm(norms, axis=1, keepdims=True)
    noise = rng.normal(size=(texts, 3)) * [1.0, 6.0, 1.0]  # in units of the row's
    products = norms * (2 * coins[:, None] * shares + noise + [0.0, 20.0, 0.0])
    whole = UpdateProducts(products.sum(1), np.linalg.norm(norms, axis=1), by_parameter=np.stack([products, norms]))
    row = products[:, 0]
    weighted, plain = (GradientUpdate(separate=separate).score(view_of(whole)) for separate in (True, False))
    correlations = [np.corrcoef(score, coins)[0, 1] for score in (weighted, row, plain)]
    assert correlations[0] > correlations[1] - 0.01
    assert correlations[0] > correlations[2] + 0.2
    without = replace(whole, by_parameter=None)
    assert np.array_equal(GradientUpdate().score(view_of(without)), plain)
    order = rng.permutation(texts)
    mixed = UpdateProducts(whole.product[order], whole.norm[order], by_parameter=np.stack([products, norms])[:, order])
    np.testing.assert_allclose(GradientUpdate().score(view_of(mixed)), weighted[order])
    few = UpdateProducts(
        whole.product[:300], whole.norm[:300], np.eye(300), by_parameter=np.stack([products, norms])[:, :300]
    )
    by_parameter = GradientUpdate().score(view_of(replace(few, cosine=None)))
    assert np.array_equal(GradientUpdate().score(view_of(few)), by_parameter)  # nothing to take out
    overlapping = replace(few, cosine=0.5 * np.eye(300) + 0.5)
    separated = GradientUpdate().score(view_of(replace(overlapping, by_parameter=None)))
    assert np.array_equal(GradientUpdate().score(view_of(overlapping)), separated)


@cache
def base_model(is_tied: bool = True) -> Any:
    """Return a transformer of 1.1 million parameters that knows the domain; copy it before new tokens are added."""
    torch.set_num_threads(1)
    tokenizer = small_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=is_tied,
        )
        return trained(LlamaForCausalLM(config), tokenizer, domain_texts(200, seed=9), epochs=4)


def lora_audit(
    canaries: Canaries, tokenizer: Any, settings: LoraFineTuning, attack: str, *, is_tied: bool = True
) -> dpaudit.TextEstimate:
    """Return the audit of a LoRA fine-tuning of a transformer of 1.1 million parameters."""
    base = copy.deepcopy(base_model(is_tied))
    assert sum(value.numel() for value in base.parameters()) > 1e6
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    planted = [TrainingText(text.tokens) for row, text in canaries.all_texts if canaries.planted[row]]
    texts = [*planted, *(TrainingText(tuple(tokenizer.encode(text))) for text in domain_texts(60, seed=1))]
    new_tokens = tuple(text.tokens[-1] for _, text in canaries.all_texts)
    settings = replace(settings, trained_tokens=new_tokens, batch_size=min(settings.batch_size, len(texts)))
    model = settings.train(base, [[text] for text in texts], seed=SeedSequence(3), compute=Compute())
    claim = settings.claim(len(texts))
    return dpaudit.estimate_text(model, None, canaries, claim=claim, delta=1e-5, attacks=[attack])


def new_token_canaries(tokenizer: Any, count: int) -> Canaries:
    return dpaudit.canaries(tokenizer, count, texts=domain_texts(400, seed=2), context=4, seed=11)


@pytest.mark.nightly
def test_without_tied_embeddings_a_new_token_must_be_followed_by_one() -> None:
    """The input of a token at the end of a text has no gradient. DP-SGD then hides it; the ideal AUC is 0.88.

    The standard error of an AUC is about 0.02.
    """
    settings = LoraFineTuning(
        epsilon=8.0, delta=1e-5, epochs=4, batch_size=10**6, learning_rate=0.3, optimizer="sgd", accountant="pld"
    )
    areas = []
    for length in (1, 4):
        tokenizer = small_tokenizer()
        texts = domain_texts(300, seed=2)
        canaries = dpaudit.canaries(tokenizer, 300, texts=texts, context=1, length=length, seed=12)
        score = lora_audit(canaries, tokenizer, settings, "gradient-update", is_tied=False).attack_scores
        ranks = rankdata(score["gradient-update"])[canaries.planted]
        areas.append((ranks.mean() - (ranks.size + 1) / 2) / (len(canaries) - ranks.size))
    assert areas[0] < 0.65
    assert areas[1] > 0.77


def test_lora_without_privacy_shows_most_of_what_can_be_shown() -> None:
    tokenizer = small_tokenizer()
    canaries = new_token_canaries(tokenizer, 300)
    settings = LoraFineTuning(epochs=5, batch_size=32, learning_rate=5e-3)
    result = lora_audit(canaries, tokenizer, settings, "calibrated-loss")
    assert result.lower > 0.5 * canaries.maximum_epsilon(delta=1e-5)


def test_lora_with_privacy_stays_below_its_claim_and_above_0() -> None:
    """The mean bound for 400 coins and the Gaussian of this claim (mu 1.67) is 2.3."""
    tokenizer = small_tokenizer()
    canaries = new_token_canaries(tokenizer, 400)
    settings = LoraFineTuning(
        epsilon=8.0, delta=1e-5, epochs=8, batch_size=10**6, learning_rate=0.3, optimizer="sgd", accountant="pld"
    )
    result = lora_audit(canaries, tokenizer, settings, "gradient-update")
    assert result.claim is not None
    assert result.claim.epsilon == 8.0
    assert 1.0 < result.lower < 4.0
    assert result.verdict is not Verdict.VIOLATION
