"""Random pairs of training and holdout canaries, and the attacker's view of them.

If the rows (or persons) were split into training and holdout uniformly at random, and the pairs are drawn without
looking at the data, then, given all unordered pairs, which canary of each pair was trained on is a fair coin,
independently for all pairs: every assignment has the same probability, because exchanging the two canaries of a pair
leads to an equally probable split. Exchanging them replaces one record, or one person.

A stratified split has fixed numbers in each stratum. Exchanging two canaries of one stratum keeps them, so pairs are
then drawn within strata.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.synthetic_tables.games.view import KNOWN_HOLDOUT, KNOWN_TRAINING, SECRET, MixedTable, TableView


@dataclass(frozen=True, eq=False)
class Canaries:
    """Persons and strata of the rows of one file, as codes that both files share.

    Attributes:
        person: Code of the person of each row, shape (rows,); rows of one person are one canary.
        stratum: Code of the stratum of each row, shape (rows,); that of a person is the stratum of the first row.
    """

    person: Ints
    stratum: Ints

    @classmethod
    def of_rows(cls, rows: int, first: int) -> Canaries:
        """Return canaries of one row each, numbered from `first`, in one stratum."""
        return cls(np.arange(first, first + rows), np.zeros(rows, np.int64))

    def without(self, both: Ints) -> Canaries:
        """Return each person once who is not in `both`, in ascending order."""
        person, first = np.unique(self.person, return_index=True)
        alone = ~np.isin(person, both)
        return Canaries(person[alone], self.stratum[first[alone]])


@dataclass(frozen=True, eq=False)
class PairedTables:
    """The attacker's view, and what it does not hold: the coins of the pairs and the file of each row.

    Attributes:
        view: The attacker's view.
        side: Place of the canary of each real row within its pair, shape (rows,): 0 for the canary shown first, 1 for
            the second one, -1 for rows outside all pairs.
        first_trained: Coin of each pair, shape (pairs,): True if the canary shown first is the one trained on.
        trained: True for the real rows of the training file, shape (rows,).
        canary: Number of the canary of each real row, shape (rows,), in 0 .. canaries - 1.
        persons_in_both: Number of persons with rows in both files, who are left out of the pairs.
        training_canaries, holdout_canaries: Numbers of canaries of the files, without those in both.
    """

    view: TableView
    side: NDArray[np.int8]
    first_trained: NDArray[np.bool_]
    trained: NDArray[np.bool_]
    canary: Ints
    persons_in_both: int
    training_canaries: int
    holdout_canaries: int

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return self.first_trained.size

    @cached_property
    def recognisable(self) -> NDArray[np.bool_]:
        """True for canaries with a row that no other canary has, shape (2, pairs): those trained on, then held out."""
        codes = row_codes(self.view.real)
        canaries = np.bincount(np.unique(np.stack([codes, self.canary]), axis=1)[0])
        first, second = self.of_canaries((canaries[codes] == 1).astype(np.float64)[:, None])[0][:, :, 0] > 0
        return np.stack([np.where(self.first_trained, first, second), np.where(self.first_trained, second, first)])

    def ahead(self, score: Floats) -> Floats:
        """Return how much larger the score of the canary trained on is than that of the other one, shape (pairs,)."""
        first, second = self.of_canaries(score[:, None])[0][:, :, 0]
        return np.asarray(np.where(self.first_trained, first - second, second - first))

    def of_canaries(self, row_values: Floats) -> tuple[Floats, Floats]:
        """Return maximum and mean of row values over the rows of each canary of the pairs.

        Args:
            row_values: Values of the real rows, shape (rows, k).
        Returns: Two arrays of shape (2, pairs, k): the canaries shown first, then the second ones.
        """
        secret = self.side >= 0
        cell = self.side[secret].astype(np.int64) * self.pairs + self.view.pair[secret]
        order = np.argsort(cell, kind="stable")
        starts = np.searchsorted(cell[order], np.arange(2 * self.pairs))
        ordered = row_values[secret][order]
        shape = 2, self.pairs, row_values.shape[1]
        largest = np.maximum.reduceat(ordered, starts, axis=0)
        if starts.size == ordered.shape[0]:
            return largest.reshape(shape), largest.reshape(shape)
        counts = np.diff(np.append(starts, ordered.shape[0]))
        mean = np.add.reduceat(ordered, starts, axis=0) / counts[:, None]
        return largest.reshape(shape), mean.reshape(shape)


def paired(
    train: MixedTable,
    holdout: MixedTable,
    synthetic: MixedTable,
    *,
    seed: int,
    canaries: tuple[Canaries, Canaries] | None = None,
) -> PairedTables:
    """Return random pairs of a training and a holdout canary, as many as the smaller file allows.

    The pairs depend on the seed, on the persons and on the strata, never on the values of the rows. Canaries outside
    the pairs are known to the attacker.

    Args:
        train, holdout, synthetic: Encoded tables with the same columns.
        seed: Seed of the pairs, of the canary of each pair that is shown first, and of the order of the rows.
        canaries: Canaries of the training and of the holdout rows; None if each row is a canary.
    """
    rng = np.random.default_rng(seed)
    of_train, of_holdout = canaries or (
        Canaries.of_rows(len(train), 0),
        Canaries.of_rows(len(holdout), len(train)),
    )
    both = np.intersect1d(of_train.person, of_holdout.person)
    inside, outside = of_train.without(both), of_holdout.without(both)
    matched = [np.zeros((2, 0), np.int64)]
    for stratum in np.intersect1d(inside.stratum, outside.stratum):
        alike = [each.person[each.stratum == stratum] for each in (inside, outside)]
        matched.append(np.stack([rng.permutation(each)[: min(map(len, alike))] for each in alike]))
    trained_on, held_out = np.concatenate(matched, axis=1)
    order = rng.permutation(trained_on.size)
    trained_on, held_out = trained_on[order], held_out[order]
    require(
        trained_on.size > 0,
        "each file must have rows of its own",
        training=inside.person.size,
        holdout=outside.person.size,
    )
    first_trained = rng.random(trained_on.size) < 0.5
    real = stacked(train, holdout)
    trained = np.arange(len(real)) < len(train)
    person = np.concatenate([of_train.person, of_holdout.person])
    pair = np.full(person.size, -1, np.int64)
    for canary in (trained_on, held_out):
        sorter = np.argsort(canary)
        at = sorter[np.minimum(np.searchsorted(canary, person, sorter=sorter), canary.size - 1)]
        pair = np.where(canary[at] == person, at, pair)
    side = np.where(pair < 0, -1, np.where(trained == first_trained[pair], 0, 1)).astype(np.int8)
    file = np.where(pair >= 0, SECRET, np.where(trained, KNOWN_TRAINING, KNOWN_HOLDOUT)).astype(np.int8)
    order = rng.permutation(len(real))
    view = TableView(synthetic, real.take(order), pair[order], file[order])
    # A person with rows in both files is two canaries, so that no canary has rows of both.
    canary = np.unique(np.stack([person, trained]), axis=1, return_inverse=True)[1].reshape(-1)
    return PairedTables(
        view,
        side[order],
        first_trained,
        trained[order],
        canary[order],
        both.size,
        inside.person.size,
        outside.person.size,
    )


def stacked(first: MixedTable, second: MixedTable) -> MixedTable:
    """Return the rows of one table and below them those of another with the same columns."""
    return MixedTable(
        np.concatenate([first.numbers, second.numbers]),
        np.concatenate([first.words, second.words]),
        first.levels,
        first.number_names,
        first.word_names,
    )


def row_codes(table: MixedTable) -> Ints:
    """Return an integer for each row, equal for rows that are equal in every column, shape (rows,)."""
    words = np.nan_to_num(table.numbers, nan=np.inf) + 0.0  # + 0.0 turns -0 into 0
    content = np.ascontiguousarray(np.concatenate([words.view(np.int64), table.words], axis=1))
    whole = content.view(np.dtype((np.void, content.dtype.itemsize * content.shape[1]))).reshape(-1)
    return np.unique(whole, return_inverse=True)[1].reshape(-1).astype(np.int64)
