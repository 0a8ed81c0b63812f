"""Random pairs of training and holdout canaries, and the attacker's view of them.

If the rows (or persons) were split into training and holdout uniformly at random, and the pairs are drawn without
looking at the data, then, given all unordered pairs, which canary of each pair was trained on is a fair coin,
independently for all pairs: every assignment has the same probability, because exchanging the two canaries of a pair
leads to an equally probable split. Exchanging them replaces one record, or one person.

A stratified split has fixed numbers in each stratum. Exchanging two canaries of one stratum keeps them, so pairs are
then drawn within strata.

Features of pairs lead to the order of guesses. Slices are pairs in which a generator is most likely to leak: outliers,
and rows with rare words. They are chosen by the values of both files together, never by coins. Each is guessed in an
order of its own, and all share the error with the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpaudit.engine.attacks.guess_order import order_of_attacks
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.scores import SharedOrders
from dpaudit.synthetic_tables.games.distances import nearest_real, scaled
from dpaudit.synthetic_tables.games.view import KNOWN_HOLDOUT, KNOWN_TRAINING, MISSING, SECRET, MixedTable, TableView


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
    return replace(
        first,
        numbers=np.concatenate([first.numbers, second.numbers]),
        words=np.concatenate([first.words, second.words]),
    )


def row_codes(table: MixedTable) -> Ints:
    """Return an integer for each row, equal for rows that are equal in every column, shape (rows,)."""
    words = np.nan_to_num(table.numbers, nan=np.inf) + 0.0  # + 0.0 turns -0 into 0
    content = np.ascontiguousarray(np.concatenate([words.view(np.int64), table.words], axis=1))
    whole = content.view(np.dtype((np.void, content.dtype.itemsize * content.shape[1]))).reshape(-1)
    return np.unique(whole, return_inverse=True)[1].reshape(-1).astype(np.int64)


BULK, SHOULDER = 0.5, 0.9
"""Quantiles of a feature whose distance is its unit, so that outliers do not widen it."""
LARGEST_OUTLIER, POWER = 30.0, 3.0
"""Largest distance of a feature from its median in its units, and the power that makes few large distances count more
than many small ones when the attacks are added up.
"""
HINGES = (0.0, 2.0, 4.0)
"""Knots of the learned features, in -log of the share of rows with a larger feature."""


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of pairs that change their sign if the two canaries of a pair are exchanged.

    Attributes:
        opinions: How much more the first canary stands out than the second one, in each feature of the attacks, shape
            (pairs, features).
        summed: Columns of the scores that each attack gives by itself.
        alone: Columns of `opinions` that guess in orders of their own, next to the learned order.
        slots: Number of orders alone that share half of the error, >= that of `alone`.
        learned: Differences of tail ranks, for the model, shape (pairs, k).
    """

    opinions: Floats
    summed: tuple[int, ...]
    alone: tuple[int, ...]
    slots: int
    learned: Floats

    @classmethod
    def of(cls, paired: PairedTables, attacks: Sequence[Floats], *, standard: int | None = None) -> PairFeatures:
        """Return the features of all pairs.

        Args:
            attacks: Features of the real rows by each attack, shapes (rows, k of the attack); the first column is the
                attack's own score. Larger values mean that a row is more likely trained on. The first attack is
                followed before any coin is revealed.
            standard: Number of attacks, the first ones, whose own scores also guess alone and share half of the error
                evenly; the others enter the learned order only, which has the other half. None for all attacks. The
                number must not depend on what was released: the shares of attacks that are missing are lost.
        """
        features = np.concatenate(attacks, axis=1)
        columns = np.cumsum([0, *(attack.shape[1] for attack in attacks[:-1])])
        learned = differences(paired, tails(features))
        opinions = differences(paired, outliers(features))[:, : features.shape[1]]
        attack_scores = tuple(columns.tolist())
        slots = len(attacks) if standard is None else standard
        return cls(opinions, attack_scores, attack_scores[:slots], slots, learned[:, learned.any(axis=0)])

    def order(self, coins: NDArray[np.bool_], guessed: NDArray[np.bool_]) -> SharedOrders:
        """Return predictable orders of guesses of some pairs, which share the error; coins of the others are known."""
        return order_of_attacks(
            self.opinions, self.summed, self.learned, coins, alone=self.alone, slots=self.slots, guessed=guessed
        )


def differences(paired: PairedTables, row_values: Floats) -> Floats:
    """Return the value of the first canary of each pair minus that of the second one, shape (pairs, k).

    For persons of several rows, these are the differences of maxima, and to the right of them those of means.
    """
    largest, mean = paired.of_canaries(row_values)
    return np.concatenate([each[0] - each[1] for each in ((largest,) if mean is largest else (largest, mean))], axis=1)


def outliers(features: Floats) -> Floats:
    """Return how far each value lies above the median of its column, in robust units to the power `POWER`."""
    bulk, shoulder = np.quantile(features, (BULK, SHOULDER), axis=0)
    highest = (features.max(axis=0) - bulk) / LARGEST_OUTLIER
    unit = np.where(shoulder > bulk, shoulder - bulk, np.maximum(highest, np.finfo(np.float64).tiny))
    distances: Floats = np.minimum(np.maximum(features - bulk, 0.0) / unit, LARGEST_OUTLIER)
    return distances**POWER


def tails(features: Floats) -> Floats:
    """Return hinges of -log of the upper tail rank and one of the lower tail rank of each column, shape (rows, 4 k)."""
    ranks = (rankdata(features, axis=0) - 0.5) / features.shape[0]
    upper, lower = -np.log1p(-ranks), np.log(ranks)
    return np.concatenate([*(np.maximum(upper - knot, 0.0) for knot in HINGES), np.minimum(lower + HINGES[1], 0.0)], 1)


LARGEST_SHARE = 0.1
"""Largest share of the pairs in a slice."""
RARE = 0.01
"""Share of the real rows below which a word is rare."""
NEIGHBOURS = 10
"""Rank of the neighbour whose distance measures the local density."""
FEWEST_PAIRS = 20
"""Smallest number of pairs that is looked at alone."""


def slices(paired: PairedTables) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the pairs in each slice that has enough pairs, shape (pairs,), by name."""
    rarity = rarest_word(paired.view)
    named = {
        "outliers": _most(paired, distances_to_neighbours(paired.view)),
        "rare words": _most(paired, np.where(rarity < RARE, 1 - rarity, -np.inf)),
    }
    return {name: pairs for name, pairs in named.items() if pairs.sum() >= FEWEST_PAIRS}


def distances_to_neighbours(view: TableView) -> Floats:
    """Return the distance of each real row to its tenth nearest real row of another pair, shape (rows,)."""
    _, real = scaled(view)
    count = min(NEIGHBOURS, max(1, len(view.real) - 2))
    distances = nearest_real(real, view.pair, count).distances[:, -1]
    return np.where(np.isfinite(distances), distances, 0.0)


def rarest_word(view: TableView) -> Floats:
    """Return the share of real rows that carry the rarest word of each real row, shape (rows,); 1 without words."""
    words, rows = view.real.words, len(view.real)
    share = np.ones(rows)
    for place in range(words.shape[1]):
        present = words[:, place] != MISSING
        counts = np.bincount(words[present, place], minlength=1)
        share[present] = np.minimum(share[present], counts[words[present, place]] / rows)
    return share


def _most(paired: PairedTables, value: Floats) -> NDArray[np.bool_]:
    """Return the tenth of the pairs in which a row has the largest values; pairs of -inf alone are left out."""
    largest = paired.of_canaries(value[:, None])[0][:, :, 0].max(axis=0)
    count = math.ceil(LARGEST_SHARE * paired.pairs)
    chosen = np.argsort(-largest, kind="stable")[:count]
    mask = np.zeros(paired.pairs, bool)
    mask[chosen] = largest[chosen] > -np.inf
    return mask
