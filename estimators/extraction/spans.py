"""Verbatim and near-verbatim copies of texts in generated ones: longest common span, k-grams, edit distance.

Texts are sequences of integers (tokens, or code points). All results are exact. How much of a text that was never
trained on is found in the same way says what chance and common phrases explain, so measure both.

Source: Carlini et al. (2021), arXiv:2012.07805, for spans and k-grams; Ippolito et al. (2023), arXiv:2210.17546, for
    near-verbatim copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints


def longest_spans(texts: Sequence[ArrayLike], generated: Sequence[ArrayLike]) -> Ints:
    """Return the length of the longest run of tokens of each text that stands in a generated one, shape (texts,).

    A run does not cross from one generated text to the next.
    """
    spans = np.zeros(len(texts), np.int64)
    for length, text_number, _, is_in_generated in _windows(texts, generated):
        spans[np.unique(text_number[is_in_generated])] = length
        if not is_in_generated.any():
            break
    return spans


def k_gram_overlap(texts: Sequence[ArrayLike], generated: Sequence[ArrayLike], *, k: int) -> Floats:
    """Return the share of each text's distinct k-grams that stand in a generated text, in [0, 1], shape (texts,).

    It is 0 for a text shorter than k.
    """
    require(k >= 1, "k must be >= 1", k=k)
    for length, text_number, k_gram, is_in_generated in _windows(texts, generated):
        if length == k:
            distinct, first = np.unique(np.stack([text_number, k_gram]), axis=1, return_index=True)
            all_k_grams = np.bincount(distinct[0], minlength=len(texts))
            common = np.bincount(distinct[0], weights=is_in_generated[first], minlength=len(texts))
            return np.asarray(common / np.maximum(all_k_grams, 1), np.float64)
    return np.zeros(len(texts))


def edit_distances(first: Sequence[ArrayLike], second: Sequence[ArrayLike]) -> Floats:
    """Return the edit distance of each pair divided by the length of the longer text, in [0, 1], shape (pairs,).

    An edit inserts, deletes or replaces one token (Levenshtein). Two empty texts have distance 0.
    """
    require(len(first) == len(second), "there must be as many texts as partners", first=len(first), second=len(second))
    rows, columns = _padded(first), _padded(second)
    lengths = np.array(
        [[_tokens(text).size, _tokens(partner).size] for text, partner in zip(first, second, strict=True)]
    )
    if not len(first):
        return np.zeros(0)
    places = np.arange(columns.shape[1] + 1)
    pairs = np.arange(len(first))
    distances = np.broadcast_to(places, (len(first), places.size)).copy()
    result = distances[pairs, lengths[:, 1]].astype(np.float64)
    for row in range(rows.shape[1]):
        replaced = distances[:, :-1] + (columns != rows[:, row, None])
        best = np.concatenate([distances[:, :1] + 1, np.minimum(distances[:, 1:] + 1, replaced)], axis=1)
        # Insertions move along the row: the least of best[j] + (i - j) over j <= i.
        distances = np.minimum.accumulate(best - places, axis=1) + places
        ends = lengths[:, 0] == row + 1
        result[ends] = distances[ends, lengths[ends, 1]]
    return np.asarray(result / np.maximum(lengths.max(axis=1), 1), np.float64)


def _windows(
    texts: Sequence[ArrayLike], generated: Sequence[ArrayLike]
) -> Iterator[tuple[int, Ints, Ints, NDArray[np.bool_]]]:
    """Yield, for each length from 1 to that of the longest text, the windows of all texts.

    Yields (length, number of the window's text, identity of its tokens, True if it stands in a generated text), the
    last three of shape (windows,). Equal windows have equal identities.
    """
    arrays = [_tokens(text) for text in (*texts, *generated)]
    sizes = np.array([array.size for array in arrays], np.int64)
    longest = int(sizes[: len(texts)].max(initial=0))
    if not longest:
        return
    number = np.repeat(np.arange(len(arrays)), sizes)
    remaining = np.concatenate([np.arange(size, 0, -1) for size in sizes.tolist()])  # up to the text's end
    token = np.unique(np.concatenate(arrays), return_inverse=True)[1].astype(np.int64)
    start, identity = np.arange(token.size), np.zeros(token.size, np.int64)
    for length in range(1, longest + 1):
        enough = remaining[start] >= length
        start, identity = start[enough], identity[enough]
        # A window of this length is one that is a token shorter, and the next token.
        identity = np.unique(identity * token.size + token[start + length - 1], return_inverse=True)[1].astype(np.int64)
        is_text = number[start] < len(texts)
        yield length, number[start[is_text]], identity[is_text], np.isin(identity[is_text], identity[~is_text])


def _tokens(text: ArrayLike) -> Ints:
    tokens = np.asarray(text)
    require(tokens.ndim == 1, "a text must be a sequence of integers", shape=tokens.shape)
    require(tokens.size == 0 or tokens.dtype.kind in "iu", "a text must be a sequence of integers", dtype=tokens.dtype)
    return tokens.astype(np.int64)


def _padded(texts: Sequence[ArrayLike]) -> Ints:
    """Return the texts as rows, filled up with -1, which is no token."""
    arrays = [_tokens(text) for text in texts]
    padded = np.full((len(arrays), max((array.size for array in arrays), default=0)), -1, np.int64)
    for row, array in zip(padded, arrays, strict=True):
        row[: array.size] = array
    return padded
