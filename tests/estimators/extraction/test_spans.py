"""Spans, k-grams and edit distances against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.estimators.extraction.shares import VerbatimExtraction
from dpaudit.estimators.extraction.spans import edit_distances, k_gram_overlap, longest_spans
from dpaudit.estimators.proportions.binomial import clopper_pearson


def random_texts(rng: np.random.Generator, count: int) -> list[list[int]]:
    return [rng.integers(0, 3, rng.integers(0, 9)).tolist() for _ in range(count)]


def runs(text: list[int], length: int) -> set[tuple[int, ...]]:
    return {tuple(text[start : start + length]) for start in range(len(text) - length + 1)}


@pytest.mark.parametrize("seed", range(5))
def test_spans_and_k_grams_equal_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts, generated = random_texts(rng, 12), random_texts(rng, 3)
    common = [
        [sum(bool(runs(text, k) & runs(other, k)) for other in generated) > 0 for k in range(1, 10)] for text in texts
    ]
    assert longest_spans(texts, generated).tolist() == [sum(lengths) for lengths in common]
    for k in (1, 2, 3):
        in_generated = set.union(*(runs(other, k) for other in generated))
        shares = [len(runs(text, k) & in_generated) / max(len(runs(text, k)), 1) for text in texts]
        assert k_gram_overlap(texts, generated, k=k).tolist() == pytest.approx(shares)


def test_a_run_does_not_cross_from_one_generated_text_to_the_next() -> None:
    assert longest_spans([[1, 2, 3, 4]], [[1, 2], [3, 4]]).tolist() == [2]
    assert longest_spans([[1, 2, 3, 4]], [[9, 1, 2, 3, 4, 9]]).tolist() == [4]
    assert longest_spans([[7, 7]], []).tolist() == [0]


def levenshtein(first: list[int], second: list[int]) -> int:
    if not first or not second:
        return len(first) + len(second)
    return min(
        levenshtein(first[1:], second) + 1,
        levenshtein(first, second[1:]) + 1,
        levenshtein(first[1:], second[1:]) + (first[0] != second[0]),
    )


def test_edit_distances_equal_the_recursion() -> None:
    rng = np.random.default_rng(0)
    first = [text[:6] for text in random_texts(rng, 30)]
    second = [text[:6] for text in random_texts(rng, 30)]
    expected = [levenshtein(a, b) / max(len(a), len(b), 1) for a, b in zip(first, second, strict=True)]
    assert edit_distances(first, second).tolist() == pytest.approx(expected)
    assert edit_distances([], []).size == 0


def test_shares_of_copies_and_of_the_control() -> None:
    """Six planted texts and six others; the limits of four rows and two groups share the error."""
    span = [40, 33, 20, 9, 8, 3, 9, 2, 1, 0, 0, 7]
    distance = [0.0, 0.05, 0.1, 0.2, 0.9, 0.9, 0.3, 0.9, 0.9, 0.9, 0.9, 0.09]
    table = VerbatimExtraction().read({"longest_span": span, "planted": [1] * 6 + [0] * 6, "edit_distance": distance})[
        0
    ]
    assert table.column("copy") == ("span >= 8", "span >= 16", "span >= 32", "distance <= 0.1")
    assert table.column("planted") == (5 / 6, 0.5, 2 / 6, 0.5)
    assert table.column("control") == (1 / 6, 0.0, 0.0, 1 / 6)
    assert table.columns[2].values[1] == pytest.approx(clopper_pearson(3, 6, confidence=1 - 0.05 / 8).lower)
    assert table.column("p")[0] == pytest.approx(0.0400432900)  # Fisher's test of 5 of 6 against 1 of 6
    without = VerbatimExtraction(lengths=(5,)).read({"longest_span": span, "planted": [1] * 6 + [0] * 6})[0]
    assert without.column("copy") == ("span >= 5",)
    with pytest.raises(InputError, match="lengths must be"):
        VerbatimExtraction(lengths=())
    with pytest.raises(InputError, match="others as control"):
        VerbatimExtraction().read({"longest_span": [1], "planted": [1]})


def test_bad_texts_are_refused() -> None:
    with pytest.raises(InputError, match="sequence of integers"):
        longest_spans([[0.5]], [[1]])
    with pytest.raises(InputError, match="as many texts as partners"):
        edit_distances([[1]], [])
    with pytest.raises(InputError, match="k must be"):
        k_gram_overlap([[1]], [[1]], k=0)
