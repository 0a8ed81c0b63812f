"""Canaries in a release of texts: generators that copy are found, and generators that never saw a canary are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import binom

import dpaudit
from dpaudit import TextEstimate, Verdict
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.mechanisms.word_sequences import LONGEST, WordSequences, words_of
from tests.language_models.small_language_models import domain_texts, small_tokenizer

TOKENIZER = small_tokenizer()
CLAIM = (1.0, 1e-5)
PRIVATE = domain_texts(300, seed=1)


@cache
def secrets(seed: int, count: int = 200) -> Canaries:
    texts = domain_texts(200, seed=2)
    return dpaudit.canaries(TOKENIZER, count, "rare-suffix", length=4, context=5, texts=texts, seed=seed)


def copying(texts: Sequence[str], count: int, rate: float, rng: np.random.Generator) -> list[str]:
    """Return new texts of the domain, each replaced by a private text with probability `rate`."""
    fresh = domain_texts(count, seed=int(rng.integers(2**31)))
    return [
        texts[int(rng.integers(len(texts)))] if copy else text
        for text, copy in zip(fresh, rng.random(count) < rate, strict=True)
    ]


def test_probabilities_are_those_of_a_slow_twin_and_sum_to_1() -> None:
    texts = ["a b a c", "a b d", "b a b a c c", "d"]

    def twin(history: tuple[str, ...], word: str) -> float:
        """Witten and Bell's recursion, written from its definition."""
        shorter = twin(history[1:], word) if history else 1 / (len({w for text in texts for w in text.split()}) + 1)
        after = []
        for words in (text.split() for text in texts):
            places = range(len(words) - len(history))
            after += [words[place + len(history)] for place in places if (*words[place:][: len(history)],) == history]
        kinds = len(set(after))
        return (after.count(word) + kinds * shorter) / (len(after) + kinds) if after else shorter

    model = WordSequences(texts)
    for context in ((), ("a",), ("a", "b"), ("c", "c", "a", "b", "a"), ("d", "d")):
        every = np.exp([model.log_probabilities(context, (word,))[0] for word in ("a", "b", "c", "d", "new")])
        assert np.allclose(every, [twin(context[-(LONGEST - 1) :], word) for word in ("a", "b", "c", "d", "new")])
        assert np.isclose(every.sum(), 1)
    assert model.holds([("b", "a", "b", "a", "c"), ("c", "d"), ("d",), ("new",)]).tolist() == [True, False, True, False]
    assert words_of("No, <canary-1f> 3.") == ("No", ",", "<", "canary", "-", "1f", ">", "3", ".")


def test_a_generator_that_copies_some_private_texts_is_found() -> None:
    """One text in ten is a copy: some 400 of 4,000, of which every fourth is a canary."""
    canaries, rng = secrets(1), np.random.default_rng(0)
    result = dpaudit.estimate_text(
        release=copying(canaries.into(PRIVATE), 4_000, 0.1, rng), canaries=canaries, claim=CLAIM
    )
    assert result.verdict is Verdict.VIOLATION
    copied = next(measure for measure in result.measures if measure.name == "copied")
    assert copied.value > 0.2
    assert "never planted: 0 of" in copied.method
    assert "4,000 released texts" in "".join(result.notes)


def honest(number: int, *, peeking: bool = False) -> TextEstimate:
    """Return the audit of a generator that copies some private texts, with canaries that it never saw."""
    canaries, rng = secrets(1_000 + number, 60), np.random.default_rng(number)
    release = copying(PRIVATE, 300, 0.3, rng)
    return dpaudit.estimate_text(release=canaries.into(release) if peeking else release, canaries=canaries, claim=CLAIM)


def test_a_generator_that_never_saw_the_canaries_shows_nothing() -> None:
    """At most 5 % of audits exceed 0; false failure < 1e-6: the limit is a quantile of Binomial(25, 0.05).

    The same audits with a model that also counts the planted texts, which peeks at the coins, exceed the limit.
    `benchmarks.text_honest` has more of them.
    """
    limit = binom.ppf(1 - 1e-6, 25, 0.05)
    audits = [honest(number) for number in range(25)]
    assert sum(audit.lower > 0 for audit in audits) <= limit
    assert not any(audit.verdict is Verdict.VIOLATION for audit in audits)
    assert sum(honest(number, peeking=True).lower > 0 for number in range(25)) > limit


def test_other_texts_as_base_and_a_file(tmp_path: Path) -> None:
    canaries, rng = secrets(2), np.random.default_rng(1)
    texts = copying(canaries.into(PRIVATE), 3_000, 0.3, rng)
    path = tmp_path / "release.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    result = dpaudit.estimate_text(None, domain_texts(500, seed=9), canaries, release=path, claim=CLAIM, by="length")
    assert list(result.attack_scores) == ["calibrated-loss", "loss-difference", "largest-token"]
    assert result.verdict is Verdict.VIOLATION
    result.save(tmp_path / "audit")
    assert not (tmp_path / "audit" / "texts.parquet").exists()
    assert "texts.parquet" not in (tmp_path / "audit" / "answer.txt").read_text(encoding="utf-8")


def test_the_scores_do_not_depend_on_the_coins() -> None:
    canaries = secrets(3)
    other = Canaries(canaries.texts, ~canaries.planted, kinds=canaries.kinds)
    release = copying(PRIVATE, 500, 0.1, np.random.default_rng(2))
    first, second = (dpaudit.estimate_text(release=release, canaries=coins) for coins in (canaries, other))
    assert np.array_equal(first.attack_scores["calibrated-loss"], second.attack_scores["calibrated-loss"])
