"""Words of free text that a real row shares with one synthetic row, weighed by their rarity.

Two rare words of one text that stand together in a synthetic text again are as telling as a rare cell. Free text is a
column of words whose cells mostly hold several of them, and are mostly different.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpaudit.synthetic_tables.games.distances import pair_groups
from dpaudit.synthetic_tables.games.view import MixedTable, TableView

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_WORDS = 3
"""Mean number of words of a text from which a column is free text."""
DIFFERENT = 0.2
"""Share of different cells from which a column is free text."""
MOST_PRODUCTS = 2e7
"""Largest number of pairs of rows with one word in common that are added up; the commonest words are left out."""
BLOCK = 1_000
"""Number of rows that are compared with all others together."""
LARGEST = 500.0
"""Largest evidence in nats."""
WORD = re.compile(r"\w+")


def shared_words(view: TableView) -> Iterator[tuple[str, Floats]]:
    """Yield the name of each column of free text, with features of the real rows, shape (rows, 3).

    The first one weighs what a row shares with a synthetic row against what real rows of other pairs share with either.
    The others are the difference of both and what is shared, in nats.
    """
    for place, name in enumerate(view.real.word_names):
        parts = _words(view.synthetic, place), _words(view.real, place)
        if parts[0] is None or parts[1] is None:
            continue
        yield name, _features(parts[0], parts[1], pair_groups(view.pair))


def _words(rows: MixedTable, place: int) -> csr_array | None:
    """Return which words each row's text holds, shape (rows, words); None if the column is no free text."""
    texts = rows.vocabularies[place] if rows.vocabularies else ()
    present = rows.words[:, place]
    if len(texts) < DIFFERENT * len(present):
        return None
    split = [set(WORD.findall(text)) for text in texts]
    counts = np.array([len(words) for words in split])
    if counts.mean() < FEWEST_WORDS:
        return None
    ranks = {word: rank for rank, word in enumerate(sorted(set().union(*split)))}
    columns = np.array([ranks[word] for words in split for word in sorted(words)], np.int64)
    ends = np.concatenate([[0], np.cumsum(counts), [columns.size]])  # the last row stands for a missing text
    of_texts = csr_array((np.ones(columns.size), columns, ends), shape=(len(texts) + 1, len(ranks)))
    return of_texts[np.where(present < 0, len(texts), present)]


def _features(synthetic: csr_array, real: csr_array, groups: Ints) -> Floats:
    count = real.shape[0]
    with_word = np.asarray(real.sum(axis=0))
    products = with_word * (with_word + 2 * np.asarray(synthetic.sum(axis=0)))
    order = np.argsort(products, kind="stable")
    rare = np.sort(order[np.cumsum(products[order]) <= MOST_PRODUCTS])
    weight = np.sqrt(np.log((count + 1) / (with_word[rare] + 1)))  # the product of two rows has the square
    synthetic, real = (csr_array(words[:, rare] * weight) for words in (synthetic, real))
    none = np.full(synthetic.shape[0], -1)
    best, at = most_shared(real, synthetic, groups, none)[:2]
    around = most_shared(real, real, groups, groups)[0]
    first, row, second = most_shared(synthetic, real, none, groups)
    usual = np.maximum(around, np.where(groups[row[at]] == groups, second[at], first[at]))
    evidence = np.log1p(np.exp(np.minimum(best - usual, LARGEST)) / 10)
    return np.column_stack([evidence, best - usual, best])


def most_shared(query: csr_array, searched: csr_array, query_groups: Ints, groups: Ints) -> tuple[Floats, Ints, Floats]:
    """Return the largest weight that each row shares with one of another group, that row, and the largest of others.

    The last one is over the rows that are not of the group of the row before. Groups below 0 are no groups.
    """
    largest, rows, second = np.zeros(query.shape[0]), np.zeros(query.shape[0], np.int64), np.zeros(query.shape[0])
    transposed = searched.T.tocsr()
    for start in range(0, query.shape[0], BLOCK):
        shared = csr_array(query[start : start + BLOCK] @ transposed)
        filled = np.flatnonzero(np.diff(shared.indptr))
        if not filled.size:
            continue
        starts, at = shared.indptr[filled], np.repeat(np.arange(shared.shape[0]), np.diff(shared.indptr))
        other = groups[shared.indices]
        values = np.where(other == query_groups[start + at], 0.0, shared.data)
        best = np.zeros(shared.shape[0])
        best[filled] = np.maximum.reduceat(values, starts)
        places = np.flatnonzero((values == best[at]) & (values > 0))
        rows[start + at[places]] = shared.indices[places]
        largest[start + filled] = best[filled]
        second[start + filled] = np.maximum.reduceat(np.where(other == groups[rows[start + at]], 0.0, values), starts)
    return largest, rows, second
