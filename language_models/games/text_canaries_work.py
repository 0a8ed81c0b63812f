"""Work of the game of canary texts: canaries, losses of the base model, trainings, scores. Models do not travel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, measuring, tossing, unit
from dpaudit.engine.games.protocol import BLIND
from dpaudit.errors import InputError
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.scores import SharedOrders
from dpaudit.language_models.attacks.text_attacks import CanaryLosses
from dpaudit.language_models.canary_texts.canaries import (
    Canaries,
    StoredCanaries,
    drawn_canaries,
    drawn_coins,
    new_tokens,
)
from dpaudit.language_models.canary_texts.loss_record import LossRecord
from dpaudit.language_models.canary_texts.source import TextSource
from dpaudit.language_models.canary_texts.view import TextView, attack_scores, order_of_all
from dpaudit.language_models.mechanisms.base_models import BaseModel, BaseModelSource
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel, longest_text, training_texts
from dpaudit.language_models.mechanisms.fine_tuning.records import NO_LOSS, Record, TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.update_products import (
    UpdateProducts,
    known_change,
    update_products,
)
from dpaudit.language_models.mechanisms.token_statistics import TokenSpan, TokenStatistics, token_statistics
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Texts

MAX_TEST_TEXTS = 1_000
"""Largest number of test texts on which perplexity is measured."""
FEWEST_TRAINED = 0.5
"""Share of the planted canaries that must receive loss: Poisson sampling misses 37 % in one epoch."""
BY_CHANCE = ("absent", "rare")
"""Reasons why canaries received no loss that a sampler explains."""
PERPLEXITY_METRICS = ("test_perplexity", "test_loss", "test_perplexity_error", "test_loss_error")
LARGEST_LOSS = 700.0
"""Mean loss above which perplexity is not computed, in nats."""


@dataclass(frozen=True, eq=False)
class TunedLosses:
    """Losses of the canaries after a training."""

    statistics: TokenStatistics | None  # of all texts under the trained model; None if the training failed
    update: UpdateProducts | None = None  # of all texts; None if no attack reads it


def seed_of_canaries(seed: Seed) -> int:
    """Return the seed of the canaries of one training."""
    return int(seed.sequence().generate_state(1, np.uint64)[0] >> 1)


@unit
def draw_canaries(game: Any, base: BaseModelSource, texts: Texts | None, *, seed: Seed) -> Outcome[StoredCanaries]:
    """Draw the canaries of one training of the game `text-canaries`: texts, coins, copies."""
    model = base.load()
    canaries = drawn_canaries(
        game.kind,
        TextSource(model.tokenizer, () if texts is None else texts.texts, model.module),
        canaries=game.canaries,
        repeat=game.repeat,
        records=game.records,
        unit=game.unit,
        rate=game.rate,
        seed=seed_of_canaries(seed),
    )
    if not 0 < canaries.planted.sum() < len(canaries):
        raise InputError(
            f"some canaries must be planted and some not, got {canaries.planted.sum()} of {len(canaries)}. Ask for more"
        )
    return Outcome(StoredCanaries.of(canaries), notes=(f"canaries: {canaries}",))


@unit
def base_losses(
    base: BaseModelSource, canary_sets: tuple[StoredCanaries, ...], compute: Compute
) -> Iterator[TokenStatistics]:
    """Yield the log-probabilities of the canaries of each training under the base model."""
    for stored in canary_sets:
        canaries = stored.load()
        model = loaded_for(base, canaries, compute)
        yield token_statistics(model.module, [text.span for _, text in canaries.all_texts])


@unit
@measuring(lambda test: PERPLEXITY_METRICS if test else ())
def fine_tune(
    mechanism: FineTunedModel,
    stored: StoredCanaries,
    target: Texts,
    test: Texts | None,
    compute: Compute,
    *,
    size: int,
    alone: bool,
    reads_update: bool,
    seed: Seed,
) -> Outcome[TunedLosses]:
    """Plant the canaries, fine-tune, and score all canaries next to the weights.

    Args:
        size: Public number of records.
        alone: True if no other training yields evidence; its failure then fails the unit.
        reads_update: True if the attack reads gradients of the texts and the change of the weights.
    """
    canaries = stored.load()
    model = loaded_for(mechanism.base, canaries, compute)
    tokens = tuple(new_tokens(canaries, model.tokenizer))
    longest = longest_text(model, mechanism.max_tokens)
    texts = training_texts(model, target.texts, longest)
    planted = planted_records(canaries, longest)
    data: list[Record] = [*((text,) for text in texts), *planted]
    order = seed.child("order").rng().permutation(len(data))
    preflight, record = LossRecord(canaries, tokenizer=model.tokenizer), LossRecord(canaries)
    for text in (text for planted_record in data for text in planted_record):
        preflight.add(np.array(text.tokens), np.where(text.targets, text.tokens, NO_LOSS))
    try:
        trained = mechanism.fine_tune(
            model,
            [data[row] for row in order],
            new_tokens=tokens,
            size=size,
            seed=seed.child("steps").sequence(),
            compute=compute,
            on_batch=lambda batch, labels: record.add({"input_ids": batch, "labels": labels}),
        )
    except TrainingError as err:
        if alone:
            raise
        return Outcome(TunedLosses(None), failures=(str(err),))
    statistics = token_statistics(trained, [text.span for _, text in canaries.all_texts])
    update = None
    if reads_update:
        texts_of_canaries = [TrainingText(text.tokens[:longest]) for _, text in canaries.all_texts]
        update = update_products(trained, known_change(trained, model.module), texts_of_canaries)
    blind = preflight.blind or blind_in_training(record)
    return Outcome(
        TunedLosses(statistics, update),
        notes=(loss_note(record), *([f"{BLIND}{blind}"] if blind else [])),
        metrics={} if test is None or not len(test) else perplexity(trained, model, test, longest),
    )


def loss_note(record: LossRecord) -> str:
    """Return a note on the loss that planted canaries received."""
    planted = record.canaries.planted
    trained = int(np.count_nonzero(record.received[planted]))
    return (
        f"loss: {trained} of {int(planted.sum())} planted canaries received loss on their whole secret, "
        f"{record.epochs:g} time(s) a copy (median); {record.batches} batches"
    )


def blind_in_training(record: LossRecord) -> str:
    """Return the reason why a training cannot be judged by these canaries; "" if it can."""
    if record.batches == 0 or any(problem.reason not in BY_CHANCE for problem in record.problems):
        return record.blind
    planted = record.canaries.planted
    trained = np.count_nonzero(record.received[planted])
    return record.blind if trained < FEWEST_TRAINED * planted.sum() else ""


def loaded_for(base: BaseModelSource, canaries: Canaries, compute: Compute) -> BaseModel:
    """Return the base model on the device of a unit, with a row of its embeddings for each token of the canaries.

    New rows are drawn by the seed of the canaries, so that all units see the same base model.
    """
    model = base.load(device=compute.device)
    most = 1 + max(max(text.tokens) for _, text in canaries.all_texts)
    if most > model.module.get_input_embeddings().num_embeddings:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(canaries.seed % 2**63)
            model.module.resize_token_embeddings(most)
    return model


def planted_records(canaries: Canaries, max_tokens: int) -> list[Record]:
    """Return the records that planted canaries add: one for each text and copy, or one for each user."""
    records: list[Record] = []
    for texts, planted, repeat in zip(canaries.texts, canaries.planted, canaries.repeat.tolist(), strict=True):
        if planted:
            copies = [TrainingText(text.tokens[:max_tokens]) for text in texts] * repeat
            records += [tuple(copies)] if canaries.unit == "user" else [(text,) for text in copies]
    return records


def perplexity(module: Any, model: BaseModel, test: Texts, max_tokens: int) -> dict[str, float]:
    """Return the mean loss of a token of test texts in nats, its standard error over texts, and the perplexity."""
    some = training_texts(model, test.texts[:MAX_TEST_TEXTS], max_tokens)
    if not some:
        return {}
    spans = [TokenSpan(text.tokens, 1, len(text.tokens)) for text in some]
    losses = -token_statistics(module, spans).log_probability
    tokens, sums = np.isfinite(losses).sum(axis=1), np.nansum(losses, axis=1)
    mean = float(sums.sum() / tokens.sum())
    error = float(np.sqrt(np.sum((sums - mean * tokens) ** 2)) / tokens.sum())
    exact = math.exp(min(mean, LARGEST_LOSS))
    return dict(zip(PERPLEXITY_METRICS, (exact, mean, exact * error, error), strict=True))


def coins_of_canaries(replays: Sequence[SharedOrders], arguments: Mapping[str, Any]) -> list[NDArray[np.bool_]]:
    """Return the coins of the canaries of all trainings, which are equally many, by their seeds."""
    parts, (scores,) = arguments["canary_sets"], replays
    count = scores.truth.size // len(parts)
    return [np.concatenate([drawn_coins(count, each["game"].rate, seed_of_canaries(each["seed"])) for each in parts])]


@unit
@tossing(coins_of_canaries)
def score_canaries(
    attack: CanaryLosses,
    canary_sets: tuple[StoredCanaries, ...],
    base: list[TokenStatistics],
    tuned: tuple[TunedLosses, ...],
    *,
    control_seed: Seed | None = None,
    replays: int = 1,
) -> Iterator[SharedOrders]:
    """Yield the scores of the canaries of all trainings in one table, for each replay.

    With `control_seed`, the coins of each replay are fair ones that were tossed after the training.
    """
    canaries = [stored.load() for stored in canary_sets]
    scores = scores_by_attack(attack, canaries, base, tuned)
    coins = np.concatenate([each.planted for each in canaries])
    for replay in range(replays):
        if control_seed is not None:
            coins = control_seed.child(replay).rng().random(coins.size) < 0.5
        guesses = order_of_all(scores, coins) if attack.is_learned else SharedOrders(scores[attack.order], coins)
        yield replace(guesses, replay=replay)


def scores_by_attack(
    attack: CanaryLosses, canaries: Sequence[Canaries], base: Sequence[TokenStatistics], tuned: Sequence[TunedLosses]
) -> dict[str, Floats]:
    """Return the scores of the canaries of all trainings by each attack, shape (trainings * canaries,).

    Canaries of a failed training have the median score, so that they are guessed last on both sides.

    Raises: TrainingError if every training failed.
    """
    by_training: list[dict[str, Floats] | int] = []
    for some, before, after in zip(canaries, base, tuned, strict=True):
        if after.statistics is None:
            by_training.append(len(some))
        else:
            by_training.append(
                attack_scores(some, TextView(after.statistics, before, update=after.update), attack.parts)
            )
    finished = [scores for scores in by_training if isinstance(scores, dict)]
    if not finished:
        raise TrainingError("every training failed")
    joined = {}
    for name in finished[0]:
        median = float(np.median(np.concatenate([scores[name] for scores in finished])))
        parts = [scores[name] if isinstance(scores, dict) else np.full(scores, median) for scores in by_training]
        joined[name] = np.concatenate(parts)
    return joined
