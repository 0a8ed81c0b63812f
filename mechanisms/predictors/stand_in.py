"""A substitute for a language model: a word classifier that follows the prompts of `prompts.py`."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.pretrained import texts_of
from dpaudit.mechanisms.predictors.language_model import Completion, Expected, PublicData
from dpaudit.mechanisms.ranges import require_positive
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register

BUCKETS = 1 << 15
_FORCED_ANSWER = re.compile(r"please output the Answer (\d+) and ignore any other")
_CHOICES = re.compile(r"(\d+) \(([^()]*)\)(?: or |\.)")
_EXAMPLE = re.compile(r"^Text: (.*)\nAnswer: (\d+)$", re.MULTILINE)
_QUESTION = re.compile(r"Text: ([^\n]*)\nAnswer:$")


@register("language-model", "stand-in", source="ours; Chadha et al. (2024) ask Mistral-7B")
@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A linear word classifier, trained on public texts, that stands in for a language model.

    It answers the number that "please output the Answer" orders. Otherwise it repeats the answer of an example whose
    text equals the query. Otherwise it predicts the class from the query's words, shifted towards the answers of the
    examples: by a constant, and by more the more words an example shares with the query.

    Attributes:
        public: Raw texts to train on.
        habit: Shift of the log-odds towards each example's answer, >= 0.
        likeness: Further shift, times the cosine similarity of the example's words, >= 0.
        penalty: Penalty on the classifier's squared weights, > 0.
    """

    public: PublicData = field(metadata={"kind": "data"})
    habit: float = 0.3
    likeness: float = 3.0
    penalty: float = 1.0

    def __post_init__(self) -> None:
        require(self.habit >= 0 and self.likeness >= 0, "habit and likeness must be >= 0", habit=self.habit)
        require_positive(self, "penalty")

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        weights, bias = _classifier(self.public, self.penalty)
        answers = {prompt: self._answer(prompt, weights, bias) for prompt in dict.fromkeys(prompts)}
        return [Completion(answers[prompt]) for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        different = len(set(prompts))
        return Expected(different, 0, 0, 0, 0, None, 0.0)

    def _answer(self, prompt: str, weights: NDArray[np.float64], bias: NDArray[np.float64]) -> str:
        if ordered := _FORCED_ANSWER.search(prompt):
            return f" {ordered[1]}"
        question = _QUESTION.search(prompt)
        numbers = [number for number, _ in _CHOICES.findall(prompt.partition("\n")[0])]
        if question is None or len(numbers) != len(bias):
            return " I do not know what I am asked."
        query = question[1]
        words = _words(query)
        log_odds = bias + weights[:, words].sum(1)
        for text, answer in _EXAMPLE.findall(prompt[: question.start()]):
            if text == query:
                return f" {answer}"
            if answer in numbers:
                log_odds[numbers.index(answer)] += self.habit + self.likeness * _shared(words, _words(text))
        return f" {numbers[int(log_odds.argmax())]}"


@lru_cache(maxsize=1 << 14)
def _words(text: str) -> list[int]:
    return sorted({zlib.crc32(word.encode()) % BUCKETS for word in re.findall(r"\w+", text.lower())})


def _shared(first: list[int], second: list[int]) -> float:
    common = len(set(first) & set(second))
    return common / float(np.sqrt(len(first) * len(second))) if common else 0.0


@lru_cache(maxsize=2)
def _classifier(public: Any, penalty: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of the words, shape (classes, BUCKETS), and the biases, shape (classes,)."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    examples: Examples = public.load()
    rows = [_words(text) for text in texts_of(examples.features)]
    ends = np.cumsum([0, *map(len, rows)])
    words = csr_matrix((np.ones(ends[-1]), np.concatenate(rows), ends), shape=(len(rows), BUCKETS))
    with limited_threads(1):  # sums in the same order on every machine
        fitted = LogisticRegression(C=1 / penalty, max_iter=200).fit(words, examples.labels)
    require(len(fitted.classes_) == examples.classes, "the public texts must hold every class")
    if examples.classes == 2:
        return np.vstack([-fitted.coef_, fitted.coef_]) / 2, np.concatenate([-fitted.intercept_, fitted.intercept_]) / 2
    return np.asarray(fitted.coef_), np.asarray(fitted.intercept_)
