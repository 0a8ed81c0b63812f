"""A language model that is counted from texts in seconds: what a release of texts says about other texts.

The probability of a word is interpolated over the lengths of the words before it by the rule of Witten and Bell: a
history with many different followers passes more of its mass on to the shorter one.

Source: Witten and Bell (1991), IEEE Transactions on Information Theory 37(4); for canaries in releases Meeus et al.
(2025), arXiv:2502.14921.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 4
"""Words of the longest sequence that is counted, the predicted one included."""
WORD = re.compile(r"\w+|[^\w\s]+")
"""A word, or signs between words."""
Words = tuple[str, ...]


def words_of(text: str) -> Words:
    """Return the words of a text and the signs between them, in their order."""
    return tuple(WORD.findall(text))


def sequences_of(words: Words, size: int) -> Iterator[Words]:
    """Yield all sequences of `size` neighbouring words."""
    return zip(*(words[first:] for first in range(size)), strict=False)


class WordSequences:
    """Counts of the sequences of up to `LONGEST` words in texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [words_of(text) for text in texts]
        self._counts = Counter(
            sequence
            for words in self._texts
            for size in range(1, LONGEST + 1)
            for sequence in sequences_of(words, size)
        )
        self._followed: Counter[Words] = Counter()  # occurrences of a history before any word
        self._followers: Counter[Words] = Counter()  # different words after it
        for sequence, count in self._counts.items():
            self._followed[sequence[:-1]] += count
            self._followers[sequence[:-1]] += 1

    def log_probabilities(self, context: Words, secret: Words) -> list[float]:
        """Return the log-probability of each word of the secret given those before it, in nats."""
        words = context + secret
        ends = range(len(context) + 1, len(words) + 1)
        return [float(np.log(self._probability(words[max(0, end - LONGEST) : end]))) for end in ends]

    def _probability(self, sequence: Words) -> float:
        """Return the probability of the last word after the others; all words that no text has count as one."""
        probability = 1 / (self._followers[()] + 1)
        for size in range(1, len(sequence) + 1):
            history = sequence[len(sequence) - size : -1]
            followers = self._followers[history]
            if followers == 0:
                break
            count = self._counts[sequence[len(sequence) - size :]]
            probability = (count + followers * probability) / (self._followed[history] + followers)
        return probability

    def holds(self, sequences: Sequence[Words]) -> NDArray[np.bool_]:
        """Return True for each sequence of words that stands in a text, shape (sequences,)."""
        sizes = {len(sequence) for sequence in sequences}
        every = {size: {each for words in self._texts for each in sequences_of(words, size)} for size in sizes}
        return np.array([sequence in every[len(sequence)] for sequence in sequences], dtype=np.bool_)
