"""The channel of a label mechanism, learned from releases on labels of one's own: what a release says of a label.

Tables are counted on releases whose labels are known: the released label given the planted one, by block and place,
given known rows of the same release and neighbours. Each makes a column, the log-likelihood of a hypothesised label;
how far it is believed is learned too. Of a fresh release no other canary's label is used: given all that is seen the
odds of each canary's bit stay within e^+-epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, softmax

from dpaudit.engine.games.labels.label_releases import (
    HIDDEN,
    NOT_LABELS,
    ChannelView,
    LabelReleases,
    hidden_half,
)
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCKS = (64, 512)
"""Rows of the blocks that have tables of their own."""
MAX_LAGS = 3
"""Distances between rows at which noise is compared."""
CLEAR_LAG = 5.0
"""Standard deviations at which noise at some distance is taken to be related."""
MAX_CLASSES_OF_NEIGHBOURS = 16
"""Classes up to which the released label is counted given the planted one and a neighbour's released one."""
MAX_LEARNED = 40_000
"""Pairs of labels that are learned from at most."""
MAX_CORRELATED = 200_000
"""Rows whose noise is compared at all distances at most."""
MAX_COUNTED = 4_000_000
"""Counts, or rows, of the releases that are looked at together."""
MAX_STAKE = 32
"""Rows at stake up to which one label may show in the whole of a release."""
MAX_PLACES = 32
"""Rows of a release up to which each of them is looked at for what one label changes."""
LEVELS = 8
"""Levels at most that a count over a whole release is read in."""
RARELY = 0.02
"""Share of places, or of things that a release says, that are taken to be unlike the others beforehand."""
AROUND = (1.0, 16.0, 256.0)
"""Rows that a law weighs as much as, around which those that are unlike it lie."""
CLEARLY_BETTER = 0.005
"""Share of its loss by which boosting must better the regression to be taken."""
LEAST_SPREAD = 0.1
"""In nats: a column that hardly moves while one learns may move by much later, and must not weigh hundreds of times."""


@register("attack", "learned-channel", source="Ours; Neyman-Pearson on a law that is learned")
@dataclass(frozen=True)
class LearnedChannel:
    """Log-odds of a canary's two labels under a law learned on other releases; for the game label-channel."""

    view: ClassVar[type[ChannelView]] = ChannelView
    each_release_alone: ClassVar[bool] = True

    def score(self, view: ChannelView) -> NDArray[np.float64]:
        """Shape (canaries,), in nats, positive = the first label."""
        lags = related_lags(
            noise_of(view.search.released, view.search.planted, view.search.classes), view.search.classes
        )
        log_odds, tables = learned_odds(view.search, lags), ChannelTables(view.search, lags)
        of, rows = np.nonzero(view.fresh.canaries)
        whole = tables.whole(view.fresh)
        columns = tables.compared(view.fresh, Hypotheses(of, rows, view.first, view.second), whole)
        # Trees would take what was never seen for what is nearest.
        seen = np.isin(view.fresh.released[of, rows], np.unique(view.search.released))
        return np.where(seen, log_odds(columns), 0.0)


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Two labels that one row may have had; all (m,), in the order of the releases."""

    release: Ints  # number of the release
    row: Ints
    first: Ints
    second: Ints

    def at(self, among: slice, start: int) -> Hypotheses:
        """Some of them, of releases that are counted from another one."""
        return Hypotheses(self.release[among] - start, self.row[among], self.first[among], self.second[among])


class ChannelTables:
    """Counts of releases whose labels are known, and the columns they make of others."""

    def __init__(self, search: LabelReleases, lags: list[int]) -> None:
        """Counts all rows of all releases; `lags` are the distances at which noise is compared."""
        self._classes = k = search.classes
        self._symbols = s = k + NOT_LABELS
        released, planted = search.released, search.planted
        count, n = released.shape
        noise = noise_of(released, planted, k)
        self._law = _shares(_counts((planted, released), (k, s)), 1.0, np.full((k, s), 1 / s))
        self._noise = _shares(_counts((noise,), (s,)), 1.0, np.full(s, 1 / s))
        place = np.broadcast_to(np.arange(n), (count, n))
        self._parts = [(place // size)[0] for size in BLOCKS] + [((n - 1 - place) // BLOCKS[0])[0]]
        self._by_part = [
            _shares(_counts((np.broadcast_to(part, (count, n)), noise), (part.max() + 1, s)), float(k), self._noise)
            for part in self._parts
        ]
        self._by_place = _believed(_counts((place, noise), (n, s)), self._noise)
        self._by_residue = [_believed(_counts((place % lag, noise), (lag, s)), self._noise) for lag in lags]
        at_stake = n if search.at_stake is None else search.at_stake
        self._whole = WholeRelease(search, at_stake) if at_stake <= MAX_STAKE else None
        self._lags = lags
        self._at_lag = [
            _shares(_counts((noise[:, :-lag], noise[:, lag:]), (s, s)), float(k), self._noise) for lag in self._lags
        ]
        self._after_lag = [
            _shares(_counts((noise[:, lag:], noise[:, :-lag]), (s, s)), float(k), self._noise) for lag in self._lags
        ]
        self._neighbours = k <= MAX_CLASSES_OF_NEIGHBOURS and n > 1
        if self._neighbours:
            law = self._law[:, None, :]
            before = _counts((planted[:, 1:], released[:, :-1], released[:, 1:]), (k, s, s))
            after = _counts((planted[:, :-1], released[:, 1:], released[:, :-1]), (k, s, s))
            self._after_released = _shares(before, float(k), law)
            self._before_released = _shares(after, float(k), law)

    def whole(self, releases: LabelReleases) -> Floats:
        """Log-likelihoods of each class of a label at stake by whole releases, shape (releases, columns, K)."""
        if self._whole is None:
            return np.zeros((len(releases.released), 0, self._classes))
        return self._whole.log_likelihoods(releases)

    def compared(self, known: LabelReleases, asked: Hypotheses, whole: Floats) -> Floats:
        """How much likelier releases find the first labels of some rows than the second, given what is known there.

        Returns: Differences of log-likelihoods, then the place (in 0 .. 1), the released label and both hypotheses;
            shape (m, columns).
        """
        count, n = known.released.shape
        together = max(1, MAX_COUNTED // max(n, self._symbols * max(self._classes, *self._lags, 1)))
        told = []
        for start in range(0, count, together):
            among = slice(*np.searchsorted(asked.release, (start, start + together)))
            context = _Context(known.at(slice(start, start + together)), self._lags, self._noise)
            pair = asked.at(among, start)
            told.append(self._columns(context, pair, pair.first) - self._columns(context, pair, pair.second))
        of = asked.release
        by_whole = whole[of, :, asked.first] - whole[of, :, asked.second]
        released = known.released[of, asked.row]
        raw = np.column_stack([asked.row / n, released, asked.first, asked.second])
        return np.column_stack([np.concatenate(told), by_whole, raw])

    def _columns(self, context: _Context, asked: Hypotheses, label: Ints) -> Floats:
        k, n = self._classes, context.released.shape[1]
        of, rows = asked.release, asked.row
        z = context.released[of, rows]
        d = noise_of(z, label, k)
        columns = [self._law[label, z], self._noise[d], self._by_place[rows, d]]
        columns += [table[part[rows], d] for part, table in zip(self._parts, self._by_part, strict=True)]
        columns.append(_shares_at(context.by_label[of, label], z, 2.0, self._law[label, z]))
        columns.append(_shares_at(context.by_noise[of], d, float(k), self._noise[d]))
        columns.append(context.own_noise[of, d])
        for number, lag in enumerate(self._lags):
            columns.append(self._by_residue[number][rows % lag, d])
            residues = context.by_residue[number][of, rows % lag]
            columns.append(_shares_at(residues, d, 2.0, self._noise[d]))
            columns.append(self._given(context, of, rows - lag, self._at_lag[number], d))
            columns.append(self._given(context, of, rows + lag, self._after_lag[number], d))
        if self._neighbours:
            before, after = np.maximum(rows - 1, 0), np.minimum(rows + 1, n - 1)
            follows = self._after_released[label, context.released[of, before], z]
            precedes = self._before_released[label, context.released[of, after], z]
            columns.append(np.where(rows > 0, follows, self._law[label, z]))
            columns.append(np.where(rows < n - 1, precedes, self._law[label, z]))
        return np.asarray(np.log(np.column_stack(columns)))

    def _given(self, context: _Context, of: Ints, neighbours: Ints, table: Floats, d: Ints) -> Floats:
        """Probability of noise given that of a neighbour, where that one is known."""
        inside = (neighbours >= 0) & (neighbours < context.noise.shape[1])
        noise = context.noise[of, np.where(inside, neighbours, 0)]
        told = inside & (noise != HIDDEN)
        return np.where(told, table[np.where(told, noise, 0), d], self._noise[d])


class _Context:
    """What each of some releases says by its known rows."""

    def __init__(self, releases: LabelReleases, lags: list[int], usual: Floats) -> None:
        """Counts of released labels by planted one (R, K, symbols), of noise (R, symbols), and of noise by place modulo
        each lag (R, lag, symbols); shares of noise (R, symbols), so far as they are unlike the usual ones.
        """
        self.released, known, k = releases.released, releases.planted, releases.classes
        self.noise = np.where(known != HIDDEN, noise_of(self.released, known, k), HIDDEN)
        of, row = np.nonzero(known != HIDDEN)
        noise, count, symbols = self.noise[of, row], len(known), k + NOT_LABELS
        self.by_label = _counts((of, known[of, row], self.released[of, row]), (count, k, symbols))
        self.by_noise = _counts((of, noise), (count, symbols))
        self.own_noise = _believed(self.by_noise, usual)
        self.by_residue = [_counts((of, row % lag, noise), (count, lag, symbols)) for lag in lags]


class WholeRelease:
    """What one label at stake changes in a whole release: its form (a failure, a type), counts, other rows."""

    def __init__(self, search: LabelReleases, at_stake: int) -> None:
        """Learns from releases whose labels are all known; the first `at_stake` rows may be at stake."""
        self._classes, self._at_stake = search.classes, at_stake
        self._forms = np.unique(search.form)
        read = self._read(search)
        self._edges = [np.unique(np.quantile(column, np.arange(1, LEVELS) / LEVELS)) for column in read.T]
        planted = search.planted[:, :at_stake]
        self._tables = [self._table(planted, np.repeat(levels, at_stake)) for levels in self._levels(search, read)]

    def log_likelihoods(self, releases: LabelReleases) -> Floats:
        """Given each class of a label at stake: of the form, of each count, of all other rows."""
        levels = self._levels(releases, self._read(releases))
        pairs = zip(self._tables, levels, strict=True)
        logs = np.stack([table[:, np.minimum(level, table.shape[1] - 1)].T for table, level in pairs], axis=1)
        counted = 1 + len(self._edges)
        return np.concatenate([logs[:, :counted], logs[:, counted:].sum(axis=1, keepdims=True)], axis=1)

    def _read(self, releases: LabelReleases) -> Floats:
        """Counts over whole releases: symbols in use, the commonest, rows kept, rows of each; shape (releases, .)."""
        n = releases.released.shape[1]
        counts = np.stack([(releases.released == c).sum(axis=1) for c in range(self._classes + NOT_LABELS)], axis=1)
        rest = slice(self._at_stake, n)
        kept = (releases.released[:, rest] == releases.planted[:, rest]).sum(axis=1)
        return np.column_stack([(counts > 0).sum(axis=1), counts.argmax(axis=1), kept, counts])

    def _levels(self, releases: LabelReleases, read: Floats) -> list[Ints]:
        """Everything that is looked at, as small whole numbers, shape (releases,) each."""
        places = np.searchsorted(self._forms, releases.form)
        new = self._forms[np.minimum(places, len(self._forms) - 1)] != releases.form
        levels = [np.where(new, len(self._forms), places)]
        levels += [
            np.searchsorted(edges, column, side="right") for edges, column in zip(self._edges, read.T, strict=True)
        ]
        n = releases.released.shape[1]
        if self._at_stake == 1 and n <= MAX_PLACES:
            levels += list(releases.released.T[1:])
        return levels

    def _table(self, planted: Ints, levels: Ints) -> Floats:
        """Log-probability of each level given the label, shape (K, levels): the same for all but by evidence."""
        most = int(levels.max()) + 2  # one that was never seen
        counts = _counts((planted, levels), (self._classes, most))
        alike = _shares(counts.sum(axis=0), 1.0, np.full(most, 1 / most))
        return np.asarray(np.log(_believed(counts, alike, together=True)))


def related_lags(noise: Ints, classes: int) -> list[int]:
    """Distances at which noise (released minus planted label, modulo K, shape (releases, n)) is clearly related."""
    n = noise.shape[1]
    noise = noise[(noise != classes).any(axis=1)][: max(1, MAX_CORRELATED // n)]  # those that have not failed
    if not noise.size:
        return []
    shares = np.bincount(noise.ravel(), minlength=classes) / noise.size
    size = 1 << (2 * n - 1).bit_length()
    related = np.zeros(n)
    for value in np.flatnonzero(shares):
        spectrum = np.fft.rfft((noise == value) - shares[value], size, axis=1)
        related += np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n].sum(axis=0)
    # The covariance of the indicators is diag(p) - p p'; of two independent rows, their product has its square's sum.
    spread = np.sum((np.diag(shares) - np.outer(shares, shares)) ** 2)
    lags = np.arange(1, n // 2 + 1)
    if not lags.size or spread <= 0:
        return []
    deviations = related[lags] / np.sqrt(spread * len(noise) * (n - lags))
    clearest = lags[np.argsort(-deviations, kind="stable")[:MAX_LAGS]]
    return [int(lag) for lag in clearest if deviations[lag - 1] > CLEAR_LAG]


LogOdds = Callable[[Floats], Floats]
"""Of the first label against the second: how far columns are believed, shape (m, columns) to (m,)."""
RAW_COLUMNS = 4
"""Columns at the end that are no log-likelihoods."""


def _regression(columns: Floats, bits: NDArray[np.bool_]) -> LogOdds:
    """A weight for each log-likelihood, learned from pairs, some of each bit."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    told = columns[:, :-RAW_COLUMNS]
    scale = np.maximum(told.std(axis=0), LEAST_SPREAD)
    # Without an intercept: a pair the other way round has the opposite score.
    model: Any = LogisticRegression(fit_intercept=False, solver="newton-cholesky").fit(told / scale, bits)
    return lambda columns: model.decision_function(columns[:, :-RAW_COLUMNS] / scale)


def _boosting(columns: Floats, bits: NDArray[np.bool_]) -> LogOdds:
    """Trees over log-likelihoods, place and labels, learned from pairs, some of each bit."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # slow to import

    trees: Any = HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=15, min_samples_leaf=40, early_stopping=False, random_state=0
    )
    log_odds: LogOdds = trees.fit(columns, bits).decision_function
    return log_odds


def learned_odds(search: LabelReleases, lags: list[int]) -> LogOdds:
    """How far the columns are to be believed, learned on releases that the columns' tables were not counted on."""
    count = len(search.released)
    rng = np.random.default_rng(count)  # of the adversary's own
    halves = np.arange(count) % 2
    drawn = [_drawn_pairs(search, lags, halves, half, rng) for half in range(min(2, count))]
    columns = np.concatenate([pairs for pairs, _ in drawn])
    bits = np.concatenate([truth for _, truth in drawn])
    order = rng.permutation(bits.size)
    learned, kept = order[: 3 * bits.size // 4], order[3 * bits.size // 4 :]
    if not (bits[learned].any() and not bits[learned].all() and kept.size):
        return lambda columns: np.zeros(len(columns))
    losses = [
        _loss(learn(columns[learned], bits[learned])(columns[kept]), bits[kept]) for learn in (_regression, _boosting)
    ]
    learn = _boosting if losses[1] < (1 - CLEARLY_BETTER) * losses[0] else _regression
    return learn(columns, bits)


def _drawn_pairs(
    search: LabelReleases, lags: list[int], halves: Ints, half: int, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.bool_]]:
    """Columns and bits of pairs drawn on one half of the releases, with tables counted on the other half."""
    counted = np.flatnonzero(halves != half)
    tables = ChannelTables(search.at(counted if counted.size else slice(None)), lags)
    asked = np.flatnonzero(halves == half)
    each = max(1, MAX_LEARNED // len(halves))
    hidden, pairs, bits = search.planted.copy(), list[Hypotheses](), []
    for release in asked:
        planted = search.planted[release]
        hidden[release], canaries = hidden_half(planted, rng, at_stake=search.at_stake)
        rows = np.sort(rng.permutation(canaries)[:each])
        used = search.used or search.classes
        other = (planted[rows] + rng.integers(1, used, rows.size)) % used
        if search.laws is not None:  # of two labels neither is the likelier one before the release is seen
            law = search.laws[release]
            fair = rng.random(rows.size) * law[planted[rows]] < law[other]
            rows, other = rows[fair], other[fair]
        bit = rng.random(rows.size) < 0.5
        first, second = np.where(bit, planted[rows], other), np.where(bit, other, planted[rows])
        pairs.append(Hypotheses(np.full(rows.size, release), rows, first, second))
        bits.append(bit)
    together = Hypotheses(*(np.concatenate([getattr(one, each.name) for one in pairs]) for each in fields(Hypotheses)))
    return tables.compared(replace(search, planted=hidden), together, tables.whole(search)), np.concatenate(bits)


def _loss(odds: Floats, bits: NDArray[np.bool_]) -> float:
    return float(np.logaddexp(0.0, np.where(bits, -odds, odds)).mean())


def _counts(places: tuple[Ints, ...], shape: tuple[int, ...]) -> Floats:
    flat = np.ravel_multi_index(tuple(np.ravel(place) for place in places), shape)
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape).astype(np.float64)


def _shares(counts: Floats, weight: float, prior: Floats) -> Floats:
    """Shares along the last axis, drawn towards a prior that weighs as much as so many rows."""
    return np.asarray((counts + weight * prior) / (counts.sum(axis=-1, keepdims=True) + weight))


def _shares_at(counts: Floats, at: Ints, weight: float, prior: Floats) -> Floats:
    """The shares of one symbol in each row of counts, shape (m, symbols) to (m,)."""
    own = np.take_along_axis(counts, at[:, None], axis=1)[:, 0]
    return np.asarray((own + weight * prior) / (counts.sum(axis=-1) + weight))


def _believed(counts: Floats, prior: Floats, *, together: bool = False) -> Floats:
    """Shares along the last axis, so far as they are unlike a prior: few are, and chance makes all a little unlike.

    Each is a mixture of the prior and of shares drawn towards it, by the odds of what was counted under the prior
    itself and under Dirichlet laws around it, from wide to narrow. With `together` all are unlike it or none is.
    """
    prior, total = np.broadcast_to(prior, counts.shape), counts.sum(axis=-1, keepdims=True)
    odds, shares = [np.zeros_like(total)], [prior]
    for weight in AROUND:
        drawn = weight * prior
        own = (gammaln(drawn + counts) - gammaln(drawn) - counts * np.log(prior)).sum(axis=-1, keepdims=True)
        evidence = own + gammaln(weight) - gammaln(weight + total)
        odds.append((evidence.sum() if together else evidence) + np.log(RARELY / len(AROUND)) + np.zeros_like(total))
        shares.append(_shares(counts, weight, prior))
    return np.asarray((softmax(np.stack(odds), axis=0) * np.stack(shares)).sum(axis=0))


def noise_of(released: Ints, planted: Ints, classes: int) -> Ints:
    """Released minus planted label, modulo K; what is no label stays as it is."""
    return np.where(released < classes, (released - planted) % classes, released)
