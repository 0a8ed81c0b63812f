"""Attack that learns the channel of a label mechanism (the law of released labels) from releases with known labels.

The attack counts tables on search releases: the released label given the planted label, the block, the position, known
rows of the same release, and neighbours. Each table gives a column: the log-likelihood of a hypothesised label. A
classifier learns the weight of each column. The score of a canary uses no label of another canary in the same release,
so the odds of its bit given the view stay within e^(+-epsilon).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, softmax

from dpaudit.engine.attacks.classifiers import Odds, boosting, symmetric
from dpaudit.engine.attacks.learn import HeldOut, Runs, learn
from dpaudit.engine.games.labels.label_designs import (
    HIDDEN,
    NOT_LABELS,
    ChannelView,
    LabelReleases,
    hide_half,
)
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCKS = (64, 512)
"""Sizes, in rows, of blocks with separate tables."""
MAX_LAGS = 3
"""Largest number of lags (distances between rows) at which noise is compared."""
MIN_LAG_DEVIATIONS = 5.0
"""Standard deviations above which noise counts as correlated at a lag."""
MAX_NEIGHBOUR_CLASSES = 16
"""Largest number of classes for tables of the released label given the planted and a neighbour's released label."""
MAX_PAIRS = 40_000
"""Largest number of label pairs that the classifier learns from."""
MAX_LAG_ROWS = 200_000
"""Largest number of rows whose noise is compared at all lags."""
MAX_BATCH_COUNTS = 4_000_000
"""Largest number of counts, or of rows, of releases that are processed together; bounds the memory."""
MAX_WHOLE_CANARY_ROWS = 32
"""Largest number of canary rows for which whole releases are compared."""
MAX_WHOLE_ROWS = 32
"""Largest number of rows for which each other row is compared when there is one canary row."""
COUNT_LEVELS = 8
"""Largest number of levels of a count over a whole release."""
UNUSUAL_SHARE = 0.02
"""Prior probability that a row of counts follows another law than the usual one."""
PRIOR_WEIGHTS = (1.0, 16.0, 256.0)
"""Weights of Dirichlet priors around the usual law, in rows."""
MIN_IMPROVEMENT = 0.005
"""Relative decrease of the loss that boosting needs to be preferred to the regression."""


@register("attack", "learned-channel", source="Ours; Neyman-Pearson on a law that is learned")
@dataclass(frozen=True)
class LearnedChannel:
    """Score the two labels of each canary by log-odds under a law learned on other releases."""

    view: ClassVar[type[ChannelView]] = ChannelView
    each_release_alone: ClassVar[bool] = True

    def score(self, view: ChannelView) -> NDArray[np.float64]:
        """Return log-odds of the first label, in nats, shape (canaries,)."""
        lags = related_lags(
            noise_of(view.search.released, view.search.planted, view.search.classes), view.search.classes
        )
        log_odds, tables = learned_odds(view.search, lags), ChannelTables(view.search, lags)
        release, rows = np.nonzero(view.fresh.canaries)
        whole_logs = tables.whole_release_logs(view.fresh)
        columns = tables.compare(view.fresh, Hypotheses(release, rows, view.first, view.second), whole_logs)
        # Trees would treat a symbol that no search release contains like the nearest one that occurs.
        observed = np.isin(view.fresh.released[release, rows], np.unique(view.search.released))
        return np.where(observed, log_odds(columns), 0.0)


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Pairs of possible labels of rows, in the order of the releases; all arrays have shape (m,)."""

    release: Ints  # position of the release
    row: Ints
    first: Ints
    second: Ints

    def subset(self, pairs: slice, start: int) -> Hypotheses:
        """Return the selected pairs, with releases numbered from `start`."""
        return Hypotheses(self.release[pairs] - start, self.row[pairs], self.first[pairs], self.second[pairs])


class ChannelTables:
    """Tables counted on releases with known labels, which give columns for other releases."""

    def __init__(self, search: LabelReleases, lags: list[int]) -> None:
        """Count all rows of all releases; `lags` are the distances between rows at which noise is compared."""
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
        self._by_place = _unusual_shares(_counts((place, noise), (n, s)), self._noise)
        self._by_residue = [_unusual_shares(_counts((place % lag, noise), (lag, s)), self._noise) for lag in lags]
        canary_rows = n if search.at_stake is None else search.at_stake
        self._whole = WholeRelease(search, canary_rows) if canary_rows <= MAX_WHOLE_CANARY_ROWS else None
        self._lags = lags
        self._at_lag = [
            _shares(_counts((noise[:, :-lag], noise[:, lag:]), (s, s)), float(k), self._noise) for lag in self._lags
        ]
        self._after_lag = [
            _shares(_counts((noise[:, lag:], noise[:, :-lag]), (s, s)), float(k), self._noise) for lag in self._lags
        ]
        self._neighbours = k <= MAX_NEIGHBOUR_CLASSES and n > 1
        if self._neighbours:
            law = self._law[:, None, :]
            before = _counts((planted[:, 1:], released[:, :-1], released[:, 1:]), (k, s, s))
            after = _counts((planted[:, :-1], released[:, 1:], released[:, :-1]), (k, s, s))
            self._after_released = _shares(before, float(k), law)
            self._before_released = _shares(after, float(k), law)

    def whole_release_logs(self, releases: LabelReleases) -> Floats:
        """Return log-likelihoods of whole releases for each class of a canary's label, shape (releases, columns, K)."""
        if self._whole is None:
            return np.zeros((len(releases.released), 0, self._classes))
        return self._whole.log_likelihoods(releases)

    def compare(self, releases: LabelReleases, hypotheses: Hypotheses, whole_logs: Floats) -> Floats:
        """Return the columns of label pairs, given the known labels of the same releases, shape (m, columns).

        They are the differences of log-likelihoods, then the relative position (in 0 .. 1), the released label, and
        both labels.
        """
        count, n = releases.released.shape
        batch = max(1, MAX_BATCH_COUNTS // max(n, self._symbols * max(self._classes, *self._lags, 1)))
        differences = []
        for start in range(0, count, batch):
            pairs = slice(*np.searchsorted(hypotheses.release, (start, start + batch)))
            context = _Context(releases.at(slice(start, start + batch)), self._lags, self._noise)
            pair = hypotheses.subset(pairs, start)
            differences.append(self._columns(context, pair, pair.first) - self._columns(context, pair, pair.second))
        release = hypotheses.release
        whole_differences = whole_logs[release, :, hypotheses.first] - whole_logs[release, :, hypotheses.second]
        released = releases.released[release, hypotheses.row]
        raw = np.column_stack([hypotheses.row / n, released, hypotheses.first, hypotheses.second])
        return np.column_stack([np.concatenate(differences), whole_differences, raw])

    def _columns(self, context: _Context, hypotheses: Hypotheses, label: Ints) -> Floats:
        k, n = self._classes, context.released.shape[1]
        release, rows = hypotheses.release, hypotheses.row
        symbol = context.released[release, rows]
        d = noise_of(symbol, label, k)
        columns = [self._law[label, symbol], self._noise[d], self._by_place[rows, d]]
        columns += [table[part[rows], d] for part, table in zip(self._parts, self._by_part, strict=True)]
        columns.append(_shares_at(context.by_label[release, label], symbol, 2.0, self._law[label, symbol]))
        columns.append(_shares_at(context.by_noise[release], d, float(k), self._noise[d]))
        columns.append(context.unusual_noise[release, d])
        for number, lag in enumerate(self._lags):
            columns.append(self._by_residue[number][rows % lag, d])
            residues = context.by_residue[number][release, rows % lag]
            columns.append(_shares_at(residues, d, 2.0, self._noise[d]))
            columns.append(self._given_neighbour(context, release, rows - lag, self._at_lag[number], d))
            columns.append(self._given_neighbour(context, release, rows + lag, self._after_lag[number], d))
        if self._neighbours:
            before, after = np.maximum(rows - 1, 0), np.minimum(rows + 1, n - 1)
            follows = self._after_released[label, context.released[release, before], symbol]
            precedes = self._before_released[label, context.released[release, after], symbol]
            columns.append(np.where(rows > 0, follows, self._law[label, symbol]))
            columns.append(np.where(rows < n - 1, precedes, self._law[label, symbol]))
        return np.asarray(np.log(np.column_stack(columns)))

    def _given_neighbour(self, context: _Context, release: Ints, neighbours: Ints, table: Floats, d: Ints) -> Floats:
        """Return the probability of noise given the noise of a neighbour, unconditional if the neighbour is unknown."""
        inside = (neighbours >= 0) & (neighbours < context.noise.shape[1])
        noise = context.noise[release, np.where(inside, neighbours, 0)]
        is_known = inside & (noise != HIDDEN)
        return np.where(is_known, table[np.where(is_known, noise, 0), d], self._noise[d])


class _Context:
    """Counts over the known rows of each release."""

    def __init__(self, releases: LabelReleases, lags: list[int], usual_noise: Floats) -> None:
        """Count the known rows of R releases.

        `by_label` counts released labels by planted label, shape (R, K, symbols). `by_noise` counts noise, shape
        (R, symbols), and `unusual_noise` holds its shares, close to `usual_noise` unless the counts differ clearly.
        `by_residue` counts noise by the position modulo each lag, shape (R, lag, symbols).
        """
        self.released, planted, k = releases.released, releases.planted, releases.classes
        self.noise = np.where(planted != HIDDEN, noise_of(self.released, planted, k), HIDDEN)
        of, row = np.nonzero(planted != HIDDEN)
        noise, count, symbols = self.noise[of, row], len(planted), k + NOT_LABELS
        self.by_label = _counts((of, planted[of, row], self.released[of, row]), (count, k, symbols))
        self.by_noise = _counts((of, noise), (count, symbols))
        self.unusual_noise = _unusual_shares(self.by_noise, usual_noise)
        self.by_residue = [_counts((of, row % lag, noise), (count, lag, symbols)) for lag in lags]


class WholeRelease:
    """Effect of a canary's label on its whole release: the form (failure, type), counts, and other rows."""

    def __init__(self, search: LabelReleases, canary_rows: int) -> None:
        """Count releases with known labels, in which only the first `canary_rows` rows may be canaries."""
        self._classes, self._canary_rows = search.classes, canary_rows
        self._forms = np.unique(search.form)
        counts = self._release_counts(search)
        self._edges = [np.unique(np.quantile(column, np.arange(1, COUNT_LEVELS) / COUNT_LEVELS)) for column in counts.T]
        planted = search.planted[:, :canary_rows]
        self._tables = [self._table(planted, np.repeat(levels, canary_rows)) for levels in self._levels(search, counts)]

    def log_likelihoods(self, releases: LabelReleases) -> Floats:
        """Return log-likelihoods of the form, each count and all other rows, for each class of a canary's label."""
        levels = self._levels(releases, self._release_counts(releases))
        pairs = zip(self._tables, levels, strict=True)
        logs = np.stack([table[:, np.minimum(level, table.shape[1] - 1)].T for table, level in pairs], axis=1)
        counted = 1 + len(self._edges)
        return np.concatenate([logs[:, :counted], logs[:, counted:].sum(axis=1, keepdims=True)], axis=1)

    def _release_counts(self, releases: LabelReleases) -> Floats:
        """Return the number of symbols in use, the commonest one, unchanged rows, and rows of each symbol."""
        n = releases.released.shape[1]
        counts = np.stack([(releases.released == c).sum(axis=1) for c in range(self._classes + NOT_LABELS)], axis=1)
        rest = slice(self._canary_rows, n)
        unchanged = (releases.released[:, rest] == releases.planted[:, rest]).sum(axis=1)
        return np.column_stack([(counts > 0).sum(axis=1), counts.argmax(axis=1), unchanged, counts])

    def _levels(self, releases: LabelReleases, counts: Floats) -> list[Ints]:
        """Return each feature of whole releases as small integers, shape (releases,)."""
        places = np.searchsorted(self._forms, releases.form)
        new = self._forms[np.minimum(places, len(self._forms) - 1)] != releases.form
        levels = [np.where(new, len(self._forms), places)]
        levels += [
            np.searchsorted(edges, column, side="right") for edges, column in zip(self._edges, counts.T, strict=True)
        ]
        n = releases.released.shape[1]
        if self._canary_rows == 1 and n <= MAX_WHOLE_ROWS:
            levels += list(releases.released.T[1:])
        return levels

    def _table(self, planted: Ints, levels: Ints) -> Floats:
        """Return log-probabilities of levels given the label, shape (K, levels); they differ only on clear evidence."""
        most = int(levels.max()) + 2  # one more for new levels
        counts = _counts((planted, levels), (self._classes, most))
        alike = _shares(counts.sum(axis=0), 1.0, np.full(most, 1 / most))
        return np.asarray(np.log(_unusual_shares(counts, alike, together=True)))


def related_lags(noise: Ints, classes: int) -> list[int]:
    """Return lags at which noise (released minus planted label, modulo K, shape (releases, n)) is correlated."""
    n = noise.shape[1]
    noise = noise[(noise != classes).any(axis=1)][: max(1, MAX_LAG_ROWS // n)]  # no failures
    if not noise.size:
        return []
    shares = np.bincount(noise.ravel(), minlength=classes) / noise.size
    size = 1 << (2 * n - 1).bit_length()
    related = np.zeros(n)
    for value in np.flatnonzero(shares):
        spectrum = np.fft.rfft((noise == value) - shares[value], size, axis=1)
        related += np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n].sum(axis=0)
    # The covariance of the class indicators is diag(p) - p p'. For independent rows, their summed product has the sum
    # of its squared entries as variance.
    spread = np.sum((np.diag(shares) - np.outer(shares, shares)) ** 2)
    lags = np.arange(1, n // 2 + 1)
    if not lags.size or spread <= 0:
        return []
    deviations = related[lags] / np.sqrt(spread * len(noise) * (n - lags))
    clearest = lags[np.argsort(-deviations, kind="stable")[:MAX_LAGS]]
    return [int(lag) for lag in clearest if deviations[lag - 1] > MIN_LAG_DEVIATIONS]


RAW_COLUMNS = 4
"""Number of last columns that are not log-likelihoods; only trees use them."""


def learned_odds(search: LabelReleases, lags: list[int]) -> Odds:
    """Learn the log-odds from columns of releases on which their tables were not counted."""
    count = len(search.released)
    rng = np.random.default_rng(count)  # randomness of the attacker
    halves = np.arange(count) % 2
    parts = [_draw_pairs(search, lags, halves == half, rng) for half in range(min(2, count))]
    columns, bits = map(np.concatenate, zip(*parts, strict=True))
    order = rng.permutation(bits.size)
    learning, held_out = order[: 3 * bits.size // 4], order[3 * bits.size // 4 :]
    if not (bits[learning].any() and not bits[learning].all() and held_out.size):
        return lambda columns: np.zeros(len(columns))
    classifiers = (_regression, lambda runs: boosting(runs.features, runs.coins))
    return learn(columns, bits, HeldOut(classifiers, learning, held_out, MIN_IMPROVEMENT))


def _regression(runs: Runs) -> Odds:
    """Learn a weight for each log-likelihood; the score of a swapped pair must have the opposite sign."""
    odds = symmetric(runs.features[:, :-RAW_COLUMNS], runs.coins)
    return lambda columns: odds(columns[:, :-RAW_COLUMNS])


def _draw_pairs(
    search: LabelReleases, lags: list[int], chosen: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return columns and bits of label pairs from the chosen releases, with tables counted on the others."""
    counted = np.flatnonzero(~chosen)
    tables = ChannelTables(search.at(counted if counted.size else slice(None)), lags)
    pairs_each = max(1, MAX_PAIRS // len(chosen))
    hidden, pairs, bits = search.planted.copy(), list[Hypotheses](), []
    for release in np.flatnonzero(chosen):
        planted = search.planted[release]
        hidden[release], canaries = hide_half(planted, rng, canary_rows=search.at_stake)
        rows = np.sort(rng.permutation(canaries)[:pairs_each])
        used = search.used or search.classes
        other = (planted[rows] + rng.integers(1, used, rows.size)) % used
        if search.laws is not None:  # a priori, both labels must be equally likely
            law = search.laws[release]
            fair = rng.random(rows.size) * law[planted[rows]] < law[other]
            rows, other = rows[fair], other[fair]
        bit = rng.random(rows.size) < 0.5
        first, second = np.where(bit, planted[rows], other), np.where(bit, other, planted[rows])
        pairs.append(Hypotheses(np.full(rows.size, release), rows, first, second))
        bits.append(bit)
    parts = zip(*((pair.release, pair.row, pair.first, pair.second) for pair in pairs), strict=True)
    hypotheses = Hypotheses(*map(np.concatenate, parts))
    columns = tables.compare(replace(search, planted=hidden), hypotheses, tables.whole_release_logs(search))
    return columns, np.concatenate(bits)


def _counts(places: tuple[Ints, ...], shape: tuple[int, ...]) -> Floats:
    flat = np.ravel_multi_index(tuple(np.ravel(place) for place in places), shape)
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape).astype(np.float64)


def _shares(counts: Floats, weight: float, prior: Floats) -> Floats:
    """Return shares along the last axis, shrunk towards a prior that weighs as much as `weight` rows."""
    return np.asarray((counts + weight * prior) / (counts.sum(axis=-1, keepdims=True) + weight))


def _shares_at(counts: Floats, symbol: Ints, weight: float, prior: Floats) -> Floats:
    """Return the share of one symbol in each row of counts, shape (m, symbols) to (m,)."""
    count = np.take_along_axis(counts, symbol[:, None], axis=1)[:, 0]
    return np.asarray((count + weight * prior) / (counts.sum(axis=-1) + weight))


def _unusual_shares(counts: Floats, prior: Floats, *, together: bool = False) -> Floats:
    """Return shares along the last axis that differ from a prior only as far as the counts are evidence for it.

    They are posterior means: a mixture of the prior and of shares shrunk towards it, weighted by the evidence for the
    prior itself and for Dirichlet laws around it. With `together`, either all rows differ from the prior or none.
    """
    prior, total = np.broadcast_to(prior, counts.shape), counts.sum(axis=-1, keepdims=True)
    odds, shares = [np.zeros_like(total)], [prior]
    for weight in PRIOR_WEIGHTS:
        pseudo_counts = weight * prior
        ratio = (gammaln(pseudo_counts + counts) - gammaln(pseudo_counts) - counts * np.log(prior)).sum(
            axis=-1, keepdims=True
        )
        evidence = ratio + gammaln(weight) - gammaln(weight + total)
        odds.append(
            (evidence.sum() if together else evidence)
            + np.log(UNUSUAL_SHARE / len(PRIOR_WEIGHTS))
            + np.zeros_like(total)
        )
        shares.append(_shares(counts, weight, prior))
    return np.asarray((softmax(np.stack(odds), axis=0) * np.stack(shares)).sum(axis=0))


def noise_of(released: Ints, planted: Ints, classes: int) -> Ints:
    """Return the released minus the planted label, modulo K; symbols that are not labels stay unchanged."""
    return np.where(released < classes, (released - planted) % classes, released)
