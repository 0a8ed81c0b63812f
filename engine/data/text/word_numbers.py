"""Texts as rows of word numbers, for models that learn words themselves."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray


def word_numbers(texts: list[str], *, length: int, vocabulary: int) -> NDArray[np.float32]:
    """Hashed words of texts, 1 .. vocabulary - 1, and 0 behind their ends; shape (n, length).

    Words are what blanks separate, in lower case. A word's number is a hash of its letters, so it depends on no other
    text: nothing of the data is looked at beforehand. Two words may share one.
    """
    numbers = np.zeros((len(texts), length), np.float32)
    known: dict[str, int] = {}
    for row, text in enumerate(texts):
        for place, word in enumerate(text.lower().split()[:length]):
            number = known.get(word)
            if number is None:
                number = known[word] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
            numbers[row, place] = number
    return numbers
