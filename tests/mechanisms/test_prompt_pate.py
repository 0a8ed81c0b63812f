"""PromptPATE: whose record is where, what its votes are, and what happens to answers that are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence

from dpaudit.claims import Relation
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.endpoint import Endpoint
from dpaudit.mechanisms.predictors.language_model import Completion, Expected, Teacher
from dpaudit.mechanisms.predictors.prompt_pate import PromptPate
from dpaudit.mechanisms.predictors.protocol import AddedRecords, VotingPredictor
from dpaudit.mechanisms.predictors.vote_laws import KnownVotes
from tests.http_servers import Does, chat, prompt_of, serving

CPU, SEED = Compute(), SeedSequence(0)


@dataclass(frozen=True)
class Parrot:
    """Says the label of the last example it is shown; of a whole prompt the number in it; nothing readable of "odd"."""

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        return [Completion(self.say(prompt)) for prompt in prompts]

    def say(self, prompt: str) -> str:
        if prompt.endswith("Text: odd\nAnswer:"):
            return "who knows"
        parts = prompt.split("\nAnswer: ")
        return parts[-1].split("\n")[0] if len(parts) > 1 else prompt.partition("the Answer ")[2][:1]

    def expected(self, prompts: Sequence[str]) -> Expected:
        return Expected(len(set(prompts)), 0, 0, 0, 0, None, 0.0)


def texts(*words: str, labels: Sequence[int] | None = None) -> Examples:
    classes = np.zeros(len(words), np.int64) if labels is None else np.array(labels, np.int64)
    return Examples(pa.table({"text": list(words)}), classes, 3, "t", ("text",), ("low", "mid", "high"))


DATA = texts("a", "b", "c", "d", "e", "f", "g", labels=[0, 1, 2, 1, 0, 2, 2])


def test_each_teacher_shows_different_records() -> None:
    predictor = PromptPate(model=Parrot(), teachers=3, shots=2)
    assert isinstance(predictor, VotingPredictor)
    prompts = [teacher.about("q") for teacher in predictor.prompts(DATA)]
    assert [[line[6:] for line in prompt.split("\n") if line.startswith("Text")] for prompt in prompts] == [
        ["a", "b", "q"],
        ["c", "d", "q"],
        ["e", "f", "q"],
    ]
    assert "as 0 (low) or 1 (mid) or 2 (high)." in prompts[0]
    votes = predictor.votes(DATA, texts("q", "r").features, seed=SEED, compute=CPU)
    assert votes.tolist() == [[1, 1], [1, 1], [2, 2]]
    assert predictor.claim().relation is Relation.REPLACE
    assert predictor.claim().curve.renyi(2.0) == pytest.approx(2 / 20**2)
    assert predictor.expected(DATA, texts("q", "r").features).prompts == 6


def test_a_point_takes_the_place_of_its_teachers_first_record() -> None:
    predictor = PromptPate(model=Parrot(), teachers=3, shots=2)
    points = texts("p", "p", labels=[0, 2])
    prompts = [teacher.head for teacher in predictor.moved_prompts(AddedRecords(DATA, points, np.array([0, 2])))]
    assert prompts[0].endswith("Text: p\nAnswer: 0\nText: b\nAnswer: 1")
    assert prompts[1].endswith("Text: p\nAnswer: 2\nText: f\nAnswer: 2")


def test_the_law_is_the_histogram_and_a_point_moves_one_vote() -> None:
    predictor = PromptPate(model=Parrot(), teachers=7)
    queries = texts("q", "odd").features
    votes = predictor.votes(DATA, queries, seed=SEED, compute=CPU)
    assert votes[:, 1].tolist() == [3] * 7, "no class: no vote, and no class is guessed"
    np.testing.assert_array_equal(
        predictor.histograms(votes, classes=3, rng=np.random.default_rng(0)), [[2, 2, 3], [0, 0, 0]]
    )
    moved = predictor.votes_with_canary(
        AddedRecords.alone(DATA, texts("p", labels=[2])), queries, seed=SEED, compute=CPU
    )
    for query, (without, with_it) in enumerate((([2, 2, 3], [1, 2, 4]), ([0, 0, 0], [0, 0, 0]))):
        for added, counts in ((False, without), (True, with_it)):
            law = predictor.law(votes[None, :, query], moved[None, 0, [query]], np.array([2]), added=added, classes=3)
            assert isinstance(law, KnownVotes)
            assert law.counts.tolist() == counts


def test_a_record_may_replace_the_whole_prompt() -> None:
    predictor = PromptPate(model=Parrot(), teachers=2)
    point = texts(Teacher.all_same(1).as_record(), labels=[0])
    (teacher,) = predictor.moved_prompts(AddedRecords.alone(DATA, point))
    assert teacher == Teacher.all_same(1)
    moved = predictor.votes_with_canary(AddedRecords.alone(DATA, point), texts("q").features, seed=SEED, compute=CPU)
    assert moved.tolist() == [[1]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="8 teachers need 8 records, got 7"):
        PromptPate(model=Parrot(), teachers=8).prompts(DATA)
    with pytest.raises(InputError, match="names must be those of the 3 classes"):
        PromptPate(model=Parrot(), teachers=2, names=("x", "y")).prompts(DATA)


def test_after_a_server_failure_only_missing_answers_are_requested(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> object:
        return chat(Parrot().say(prompt_of(body)))

    with serving(answer) as server:
        model = Endpoint(url=server.url, model_name="m", cache=str(tmp_path), attempts=2, first_wait_s=0.01, parallel=1)
        predictor = PromptPate(model=model, teachers=7)
        server.faults = [Does(status=503)] * 4
        with pytest.raises(
            TrainingError, match=r"2 of 14 prompts have no answer \(2 of HTTP 503\)\. The other answers"
        ):
            predictor.votes(DATA, texts("q", "odd").features, seed=SEED, compute=CPU)
        assert len(server.bodies) == 16
        votes = predictor.votes(DATA, texts("q", "odd").features, seed=SEED, compute=CPU)
        assert len(server.bodies) == 18
        assert predictor.expected(DATA, texts("q", "odd").features).requests == 0
    direct = PromptPate(model=Parrot(), teachers=7).votes(DATA, texts("q", "odd").features, seed=SEED, compute=CPU)
    np.testing.assert_array_equal(votes, direct)
