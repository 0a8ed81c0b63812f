"""The record of the loss that canaries receive: every way in which a canary can miss its training is told."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit
from dpaudit.errors import InputError
from dpaudit.language_models.canary_texts.canaries import Canaries
from tests.language_models.small_language_models import collated, domain_texts, small_model, small_tokenizer
from tests.loops import Cases

TOKENIZER = small_tokenizer()
TEXTS = domain_texts(30)
CANARIES = dpaudit.canaries(TOKENIZER, 40, "rare-suffix", texts=TEXTS, context=5, length=4, seed=2)
PLANTED = np.flatnonzero(CANARIES.planted)
VICTIMS = PLANTED[:3].tolist()
"""Planted canaries that a defect keeps from being trained on."""


def batches(texts: list[str], change: Callable[[list[int], list[int]], object] | None = None) -> list[dict[str, Any]]:
    """Return one batch a text, after `change` of tokens and labels of the victims."""
    victims = {CANARIES.texts[canary][0].tokens for canary in VICTIMS}
    sequences = []
    for text in texts:
        tokens = TOKENIZER.encode(text)
        labels = list(tokens)
        if change is not None and tuple(tokens) in victims:
            change(tokens, labels)
        sequences.append({"input_ids": [tokens], "labels": [labels]})
    return sequences


def mask(tokens: list[int], labels: list[int]) -> None:
    labels[-2:] = [-100, -100]


def drop_context(tokens: list[int], labels: list[int]) -> None:
    del tokens[:5], labels[:5]


def shift_labels(tokens: list[int], labels: list[int]) -> None:
    labels[:] = [*labels[1:], labels[0]]


def truncate(tokens: list[int], labels: list[int]) -> None:
    del tokens[7:], labels[7:]


def truncate_secret(tokens: list[int], labels: list[int]) -> None:
    del tokens[5:], labels[5:]


def rename(tokens: list[int], labels: list[int]) -> None:
    unknown = TOKENIZER.unk_token_id
    tokens[5:] = labels[5:] = [token for word in tokens[5:] for token in (word, unknown)]


def drop(tokens: list[int], labels: list[int]) -> None:
    tokens[:] = labels[:] = [0, 1, 2]


def test_a_sound_training_has_no_problem() -> None:
    record = dpaudit.preflight(CANARIES, batches(CANARIES.into(TEXTS)) * 3)
    assert record.problems == []
    assert record.blind == ""
    assert record.epochs == 3
    assert record.received.tolist() == np.where(CANARIES.planted, 3, 0).tolist()
    assert str(record).startswith(f"{PLANTED.size} of {PLANTED.size} planted canaries received loss")


def test_every_reason_is_named_with_its_canaries() -> None:
    with Cases() as cases:
        for reason, change in {
            "masked": mask,
            "first": drop_context,
            "labels": shift_labels,
            "cut": truncate,
            "absent": drop,
        }.items():
            with cases.case(reason):
                record = dpaudit.preflight(CANARIES, batches(CANARIES.into(TEXTS), change))
                assert [(problem.canary, problem.reason) for problem in record.problems] == [
                    (victim, reason) for victim in VICTIMS
                ]
                assert record.blind.startswith(f"3 of 40 canaries ({', '.join(map(str, VICTIMS))}): ")
    record = dpaudit.preflight(CANARIES, batches(CANARIES.into(TEXTS), truncate_secret))
    assert {(problem.canary, problem.reason) for problem in record.problems} >= {(victim, "cut") for victim in VICTIMS}


def test_text_that_arrives_as_other_tokens_is_recognised() -> None:
    class Forgiving:
        def decode(self, tokens: list[int]) -> str:
            return str(TOKENIZER.decode([token for token in tokens if token != TOKENIZER.unk_token_id]))

    record = dpaudit.preflight(CANARIES, batches(CANARIES.into(TEXTS), rename), tokenizer=Forgiving())
    assert [(problem.canary, problem.reason) for problem in record.problems] == [
        (victim, "retokenised") for victim in VICTIMS
    ]


def test_removed_duplicates_and_foreign_data_are_found() -> None:
    repeated = Canaries(CANARIES.texts, CANARIES.planted, np.array(2), seed=1)
    record = dpaudit.preflight(repeated, batches(list(dict.fromkeys(repeated.into(TEXTS)))))
    assert {problem.reason for problem in record.problems} == {"rare"}
    assert len(record.problems) == PLANTED.size
    all_of_them = [text.text for _, text in CANARIES.all_texts]
    record = dpaudit.preflight(CANARIES, batches(all_of_them))
    assert [problem.canary for problem in record.problems] == np.flatnonzero(~CANARIES.planted).tolist()
    assert {problem.reason for problem in record.problems} == {"not planted"}


def test_records_of_two_processes_are_one() -> None:
    every = batches(CANARIES.into(TEXTS), mask)
    whole, first, second = (dpaudit.preflight(CANARIES, part) for part in (every, every[::2], every[1::2]))
    assert len(first.problems) > len(whole.problems)
    first.merge(second)
    assert first.problems == whole.problems
    assert first.summary == whole.summary
    assert first.tokens == whole.tokens > 0
    restored = dpaudit.LossRecord(CANARIES)
    restored.merge(json.loads(json.dumps(first.state)))
    assert (restored.problems, str(restored), restored.tokens) == (whole.problems, str(first), whole.tokens)
    assert restored.steps == first.steps == (whole.batches + 1) // 2
    restored.add(every[0])  # after a resume
    assert restored.steps == first.steps + 1
    other = Canaries(CANARIES.texts, ~CANARIES.planted)
    with pytest.raises(InputError, match="about the same canaries"):
        first.merge(dpaudit.LossRecord(other))


def test_a_user_counts_by_the_text_with_least_loss() -> None:
    users = dpaudit.canaries(TOKENIZER, 10, "random-tokens", records=2, unit="user", length=5, seed=0)
    victim = int(np.flatnonzero(users.planted)[0])
    dataset = [text for text in users.into(TEXTS) if text != users.texts[victim][1].text]
    record = dpaudit.preflight(users, batches(dataset))
    assert [(problem.canary, problem.reason) for problem in record.problems] == [(victim, "absent")]


def test_packed_sequences_and_padded_batches_are_read() -> None:
    tokens = [token for text in CANARIES.into(TEXTS) for token in TOKENIZER.encode(text)]
    packed = torch.tensor(tokens[: len(tokens) // 64 * 64]).reshape(-1, 64)
    record = dpaudit.preflight(CANARIES, [{"input_ids": packed, "labels": packed}])
    divided = {problem.canary for problem in record.problems}
    assert 0 < len(divided) < 10
    assert {problem.reason for problem in record.problems} <= {"cut", "first", "absent"}
    assert any(problem.reason == "cut" for problem in record.problems)
    padded = collated(TOKENIZER, CANARIES.into(TEXTS))
    assert dpaudit.preflight(CANARIES, [padded]).problems == []


def test_labels_that_are_shifted_already() -> None:
    record = dpaudit.LossRecord(CANARIES, shifted=True)
    for batch in batches(CANARIES.into(TEXTS)):
        (tokens,) = batch["input_ids"]
        record.add({"input_ids": [tokens[:-1]], "labels": [tokens[1:]]})
    # The last token is a label only, so no secret at the end of a text is whole.
    assert len(record.problems) == PLANTED.size
    record = dpaudit.LossRecord(CANARIES, shifted=True)
    for batch in batches(CANARIES.into(TEXTS)):
        (tokens,) = batch["input_ids"]
        record.add({"input_ids": [tokens], "labels": [[*tokens[1:], -100]]})
    assert record.problems == []


def test_the_model_the_loader_and_the_collator_show_the_same_batches() -> None:
    model = small_model(TOKENIZER, hidden=16, layers=1)
    dataset = CANARIES.into(TEXTS)
    chunks = [dataset[first : first + 8] for first in range(0, len(dataset), 8)]
    record = dpaudit.LossRecord(CANARIES)
    with record.of(model):
        model.eval()
        model(**collated(TOKENIZER, chunks[0]))
        model.train()
        with torch.no_grad():
            model(**collated(TOKENIZER, chunks[0]))
        assert record.batches == 0
        for chunk in chunks:
            model(**collated(TOKENIZER, chunk))
    model(**collated(TOKENIZER, chunks[0]))  # after the block
    assert record.batches == len(chunks)
    loader, collator = dpaudit.LossRecord(CANARIES), dpaudit.LossRecord(CANARIES)
    assert len(list(loader.around(collated(TOKENIZER, chunk) for chunk in chunks))) == len(chunks)
    collate = collator.collating(lambda chunk: collated(TOKENIZER, chunk))
    for chunk in chunks:
        collate(chunk)
    for other in (loader, collator):
        assert other.received.tolist() == record.received.tolist()
    assert record.problems == []


def test_a_record_that_saw_nothing_or_no_labels_says_so() -> None:
    assert "holds no batch" in dpaudit.LossRecord(CANARIES).blind
    record = dpaudit.LossRecord(CANARIES)
    record.add(torch.tensor(TOKENIZER.encode(TEXTS[0])))
    assert "without labels" in record.blind
    with pytest.raises(InputError, match="must have input_ids"):
        record.add({"text": TEXTS})
    with pytest.raises(InputError, match="labels must have the shape"):
        record.add([[1, 2, 3]], [[1, 2]])


def poisson_batches(canaries: Canaries, rate: float, steps: int, seed: int) -> list[dict[str, Any]]:
    """Return batches that each text joins by a coin of its own."""
    dataset, rng = canaries.into(TEXTS), np.random.default_rng(seed)
    rows_of_steps = [np.flatnonzero(rng.random(len(dataset)) < rate) for _ in range(steps)]
    return [collated(TOKENIZER, [dataset[row] for row in rows]) for rows in rows_of_steps if rows.size]


def test_canaries_that_poisson_sampling_never_drew_do_not_blind_the_audit() -> None:
    record = dpaudit.LossRecord(CANARIES, sampling_rate=0.15)
    for batch in poisson_batches(CANARIES, 0.15, 12, seed=3):
        record.add(batch)
    missed = np.count_nonzero(record.received[PLANTED] == 0)
    assert 0 < missed < PLANTED.size / 2
    assert record.problems == []
    assert record.blind == ""
    assert record.remarks == [f"{missed} planted canaries were never drawn, as Poisson sampling leaves out some"]
    assert str(record).endswith("Poisson sampling leaves out some")
    for batch in batches(CANARIES.into(TEXTS), mask):  # a reason beside chance
        record.add(batch)
    assert {problem.reason for problem in record.problems} <= {"masked"}
    with pytest.raises(InputError, match=r"sampling_rate must be in \(0, 1\]"):
        dpaudit.LossRecord(CANARIES, sampling_rate=1.5)


def test_steps_are_those_of_the_optimizer() -> None:
    model = small_model(TOKENIZER, hidden=16, layers=1).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = dpaudit.LossRecord(CANARIES)
    with record.of(model, optimizer):
        for number, batch in enumerate(poisson_batches(CANARIES, 0.3, 12, seed=0)):
            model(**batch).loss.backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert (record.batches, record.steps) == (12, 4)
    assert "12 batches in 4 steps" in record.summary


def test_the_answer_tells_what_the_private_optimizer_did_not_cover() -> None:
    """Shuffled batches, weights outside the optimizer, gradients without noise, and a model that was not trained."""
    base = small_model(TOKENIZER, hidden=16, layers=1)
    model, copied = copy.deepcopy(base).train(), copy.deepcopy(base)
    private = torch.optim.SGD([*model.model.layers.parameters(), model.model.embed_tokens.weight], lr=0.1)
    other = torch.optim.SGD(model.lm_head.parameters(), lr=0.1)
    dataset, rng = CANARIES.into(TEXTS), np.random.default_rng(0)
    record = dpaudit.LossRecord(CANARIES)
    with record.of(model, private):
        for _ in range(6):
            for rows in np.array_split(rng.permutation(len(dataset)), 5):
                model.zero_grad()
                model(**collated(TOKENIZER, [dataset[row] for row in rows])).loss.backward()
                private.step()
                other.step()
    result = dpaudit.estimate_text(model.eval(), base, CANARIES, claim=(1.0, 1e-5), training=record)
    lines = "\n".join(result.notes)
    for remark in (
        "Batches were shuffled, so an accountant that assumes Poisson sampling does not apply",
        "not Poisson sampling: each of 30 batches held",
        "1 parameters (lm_head.weight) changed and are not in the optimizer that was given",
        "model.embed_tokens.weight) had entries of exactly 0 in a step",
    ):
        assert remark in lines, remark
    assert "differs from the trained one" not in lines
    large = dpaudit.estimate_text(model, base, CANARIES, claim=(8.0, 1e-5), training=record)
    assert (large.verdict, large.answer.rule) == (dpaudit.Verdict.UNDECIDED, "without-noise")
    assert "model.embed_tokens.weight) had entries of exactly 0" in large.answer.line("reason")
    assert dpaudit.estimate_text(model, base, CANARIES, training=record).verdict is dpaudit.Verdict.NO_CLAIM
    scored = dpaudit.estimate_text(copied, base, CANARIES, claim=(1.0, 1e-5), training=record)
    assert scored.verdict is dpaudit.Verdict.INCONCLUSIVE
    assert "the scored model has the weights from before the training" in str(scored)
    idle = dpaudit.LossRecord(CANARIES)
    with idle.of(model.train()):
        model(**collated(TOKENIZER, dataset))
    assert idle.blind.startswith("no parameter of the recorded model changed")
