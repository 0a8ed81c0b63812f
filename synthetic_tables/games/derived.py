"""Further views of a table: few columns, differences and ratios, numbers on the real scale, persons, free text.

A row that is fresh in most columns may still give a place or the length of a stay away. Whole rows hide it. Views show
a few columns, or columns that are computed from others, and the attacks read them like a table of their own.

Views are chosen by how much nearer the synthetic rows of a view are to single real rows than other real rows are. The
real rows of both files are read unordered, and rows of the same pair never count for each other. So an exchange of the
two canaries of a pair changes no choice: it is a function of what is shown, and it costs no error. Whether a chosen
view tells training from holdout rows is left to the order of guesses, which learns it from revealed coins only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.stats import ks_2samp, rankdata

from dpaudit.synthetic_tables.games.distances import nearest, scaled
from dpaudit.synthetic_tables.games.pairs import PairedTables
from dpaudit.synthetic_tables.games.view import MixedTable, TableView

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FINE = 20
"""Smallest number of different values of a column that is looked at with few others."""
MOST_CANDIDATES = 240
"""Largest number of pairs and triples of columns that are compared, evenly spaced ones of more."""
ASKED = 200, 2_000
"""Pairs whose rows are compared with their nearest rows: in the comparison of all views, and of the best ones."""
BEST = 12
"""Number of views that are compared again with more rows."""
MOST_VIEWS = 4
"""Largest number of views of few columns that are attacked."""
SURPLUS = 3.5
"""Deviations by which synthetic rows must be nearer than real rows are, for a view to be attacked."""
MOST_COMPUTED = 60
"""Largest number of differences, and of ratios, of two columns."""
FEWEST_WORDS = 5
"""Smallest number of different words of a column that is looked at together with a number."""
FEWEST_POINTS = 20
"""Smallest number of synthetic rows, and of real rows of either half, for a comparison."""
LARGEST_RATIO = 1_000.0
"""Ratio of distances beyond which evidence does not grow."""
CHANCE = 0.03
"""Distance that counts as none, as a share of the median distance to the nearest real row."""
TELLING = 0.02
"""Share of real rows that have most evidence by chance."""
OVERLAP = 0.3
"""Share of the smaller of two ranges of numbers that must be common, for differences and ratios to be taken."""
LIKE_SIZE = 0.1
"""Smallest ratio of two ranges of numbers of like size."""
VARIATION = 0.2
"""Smallest range of numbers, as a share of their median, from which ratios say more than differences."""
OFF = 3.0
"""Deviations of two distributions from which a column of the synthetic table is put on the scale of the real rows."""


@dataclass(frozen=True, eq=False)
class Derived:
    """A view of other columns or of other records, as a table that attacks read.

    Attributes:
        name: Columns, in words: "latitude, longitude", "ended - begun".
        view: The table.
        record: Row of the view for each real row of the table, shape (real rows,).
        is_narrow: True if the other views, or the table itself, show the attacks on densities and marginals as much.
    """

    name: str
    view: TableView
    record: Ints
    is_narrow: bool = True


@dataclass(frozen=True, eq=False)
class _Columns:
    """Numbers of the synthetic and of the real rows, column by column, with their names."""

    synthetic: list[Floats] = field(default_factory=list)
    real: list[Floats] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, name: str, synthetic: Floats, real: Floats) -> int:
        """Add a column; return its place."""
        self.synthetic.append(synthetic)
        self.real.append(real)
        self.names.append(name)
        return len(self.names) - 1

    @property
    def both(self) -> tuple[list[Floats], list[Floats]]:
        """The numbers of the synthetic rows, and those of the real rows."""
        return self.synthetic, self.real

    def view(self, view: TableView, places: Sequence[int], word: int | None) -> TableView:
        """Return the view of some columns, and of a column of words if one is named."""
        words = [] if word is None else [word]
        names = tuple(self.names[place] for place in places)

        def table(numbers: list[Floats], rows: MixedTable) -> MixedTable:
            chosen = np.column_stack([numbers[place] for place in places])
            word_names = tuple(rows.word_names[place] for place in words)
            return MixedTable(chosen, rows.words[:, words], rows.levels[words], names, word_names)

        return replace(view, synthetic=table(self.synthetic, view.synthetic), real=table(self.real, view.real))


def derived_views(pairs: PairedTables) -> list[Derived]:
    """Return the views that show more of single real rows than chance, and the views of persons and of other scales."""
    view = pairs.view
    rows = np.arange(len(view.real))
    moved = on_the_real_scale(view)
    whole = [Derived("numbers on the scale of the real rows", moved, rows)] if moved is not view else []
    if pairs.canary.max() + 1 < rows.size:
        whole.append(means_of_canaries(pairs))
    columns, candidates = _candidates(view, moved)
    if not candidates:
        return whole
    scales = scaled(columns.view(view, range(len(columns.names)), None))
    points = [
        np.where(np.isnan(np.column_stack(numbers)), np.nan, each.numbers)
        for numbers, each in zip((columns.synthetic, columns.real), scales, strict=True)
    ]

    def surplus(candidate: _Candidate, first_pairs: int) -> float:
        chosen = [each[:, candidate.places] for each in points]
        if candidate.word is not None:
            words = [table.words[:, candidate.word] for table in (view.synthetic, view.real)]
            chosen = [np.column_stack([each, APART * code]) for each, code in zip(chosen, words, strict=True)]
        return nearness_surplus(chosen[0], chosen[1], view.pair, first_pairs)

    first = np.array([surplus(candidate, ASKED[0]) for candidate in candidates])
    best = [candidates[place] for place in np.argsort(-first, kind="stable")[:BEST]]
    again = np.array([surplus(candidate, ASKED[1]) for candidate in best])
    chosen: list[_Candidate] = []
    for place in np.argsort(-again, kind="stable"):
        if again[place] > SURPLUS and len(chosen) < MOST_VIEWS and not any(best[place].like(other) for other in chosen):
            chosen.append(best[place])
    tables = [columns.view(view, candidate.places, candidate.word) for candidate in chosen]
    return [Derived(", ".join((*each.real.number_names, *each.real.word_names)), each, rows) for each in tables] + whole


APART = 1_000.0
"""Distance of two words, in units of the range of a number."""


@dataclass(frozen=True)
class _Candidate:
    """Places of numbers among all columns, and the place of a column of words, that may be a view."""

    places: tuple[int, ...]
    word: int | None = None

    def like(self, other: _Candidate) -> bool:
        """Return True if one of both views holds the columns of the other one."""
        small, large = sorted((self, other), key=lambda each: len(each.places))
        return set(small.places) <= set(large.places) and small.word in (None, large.word)


def _candidates(view: TableView, source: TableView) -> tuple[_Columns, list[_Candidate]]:
    """Return all columns of numbers, own and computed, and the sets of them that may be a view.

    Args:
        view: The table.
        source: The same table with its numbers on the scale of the real rows.
    """
    columns, computed = _Columns(), list[_Candidate]()
    fine = [place for place, values in enumerate(view.real.numbers.T) if np.unique(values).size >= FINE]
    for place in fine:
        columns.add(view.real.number_names[place], source.synthetic.numbers[:, place], source.real.numbers[:, place])
    base = range(len(fine))
    for sign, compare in (("-", _differences), ("/", _log_ratios)):
        pairs = list(combinations(base, 2))
        of_pair = {}
        for first, second in pairs[:: -(-len(pairs) // MOST_COMPUTED) or 1]:
            values = compare([each[first] for each in columns.both], [each[second] for each in columns.both])
            if values is not None:
                name = f"{columns.names[second]} {sign} {columns.names[first]}"
                of_pair[first, second] = columns.add(name, *values)
        computed += [_Candidate((place,)) for place in of_pair.values()]
        ends = [[place for (first, _), place in of_pair.items() if first == begin] for begin in base]
        computed += [_Candidate(two) for places in ends for two in combinations(places, 2)]
        computed += [_Candidate(tuple(places)) for places in ends[:1] if len(places) > 2]
    words = [place for place, levels in enumerate(view.real.levels) if levels >= FEWEST_WORDS]
    given_columns = [_Candidate(places) for size in (1, 2, 3) for places in combinations(base, size)]
    given_columns += [_Candidate((place,), word) for place in base for word in words]
    return columns, [*_thinned(given_columns), *_thinned(computed)]


def _thinned(candidates: list[_Candidate]) -> list[_Candidate]:
    """Return all candidates, or evenly spaced ones if there are too many."""
    places = np.linspace(0, len(candidates) - 1, min(len(candidates), MOST_CANDIDATES)).astype(int)
    return [candidates[place] for place in places]


def _differences(first: Sequence[Floats], second: Sequence[Floats]) -> list[Floats] | None:
    """Return second - first in the synthetic and in the real rows; None if the ranges have little in common."""
    ends = [np.nanquantile(values[1], (0.05, 0.95)) for values in (first, second)]
    small, large = sorted(high - low for low, high in ends)
    common = min(high for _, high in ends) - max(low for low, _ in ends)
    if small < LIKE_SIZE * large or common < OVERLAP * small:
        return None
    return [_rounded(b - a) for a, b in zip(first, second, strict=True)]


def _log_ratios(first: Sequence[Floats], second: Sequence[Floats]) -> list[Floats] | None:
    """Return log(second / first) in the synthetic and in the real rows; None unless both are positive and vary."""
    for values in (first[1], second[1]):
        low, middle, high = np.nanquantile(values, (0.05, 0.5, 0.95))
        if not (low > 0 and high - low > VARIATION * middle):
            return None
    positive = [[np.log(np.where(each > 0, each, np.nan)) for each in values] for values in (first, second)]
    return [_rounded(b - a) for a, b in zip(*positive, strict=True)]


def _rounded(values: Floats) -> Floats:
    """Return values without the last digits, which differ between equal differences of decimal numbers."""
    unit = 10.0 ** np.floor(np.log10(np.nanmax(np.abs(values), initial=1e-300) + 1e-300) - 12)
    rounded: Floats = np.round(values / unit) * unit
    return rounded


def nearness_surplus(synthetic: Floats, real: Floats, pair: Ints, first_pairs: int) -> float:
    """Return by how many deviations synthetic rows are nearer to single real rows than real rows are.

    For the comparison, the rows of every second pair take the place of the synthetic rows. Pairs come in random order.

    Args:
        synthetic, real: Points of the rows, shapes (rows, k); rows with missing numbers count for nothing.
        pair: Pair of each real row, shape (rows,).
        first_pairs: Largest number of pairs whose rows are compared with their nearest ones.
    """
    synthetic = synthetic[~np.isnan(synthetic).any(axis=1)]
    present = ~np.isnan(real).any(axis=1)
    real, pair = real[present], pair[present]
    played = (pair >= 0) & (pair % 2 == 0)
    played &= np.cumsum(np.bincount(pair[played], minlength=pair.max(initial=0) + 1))[pair] <= len(synthetic)
    if min(len(synthetic), played.sum(), (~played).sum()) < FEWEST_POINTS:
        return -np.inf
    evidence = nearness_evidence(synthetic, real, pair, first_pairs)
    usual = nearness_evidence(real[played], real[~played], pair[~played], 2 * first_pairs)
    sizes = 1 / evidence.size + 1 / usual.size
    deviation = np.sqrt(evidence.var() / evidence.size + usual.var() / usual.size)
    usually = float(np.quantile(usual, 1 - TELLING))
    on_average = (evidence.mean() - usual.mean()) / max(deviation, 1e-9)
    # A leak of few rows moves the mean less than the share of rows with much evidence.
    of_few = (float(np.mean(evidence > usually)) - max(TELLING, float(np.mean(usual > usually)))) / np.sqrt(
        TELLING * sizes
    )
    return float(max(on_average, of_few))


def nearness_evidence(synthetic: Floats, real: Floats, pair: Ints, first: int) -> Floats:
    """Return how much nearer a real row of the first pairs is to a synthetic row than a row of another pair is."""
    rows_of_first = np.flatnonzero((pair >= 0) & (pair < first))
    among_synthetic, among_real = (
        cKDTree(each, balanced_tree=False, compact_nodes=False) for each in (synthetic, real)
    )
    distance, at = among_synthetic.query(real[rows_of_first], k=1, p=1)

    def to_another(points: Floats) -> Floats:
        away, rows = among_real.query(points, k=min(3, len(real)), p=1)
        return np.asarray(np.where(pair[rows] == pair[rows_of_first][:, None], np.inf, away).min(axis=1))

    local = to_another(real[rows_of_first])
    other = np.minimum(to_another(synthetic[at]), distance + local)
    least = CHANCE * float(np.median(local[np.isfinite(local)])) + 1e-9
    return np.log1p(np.minimum((other + least) / (distance + least), LARGEST_RATIO) ** 2 / 10)


def means_of_canaries(pairs: PairedTables) -> Derived:
    """Return the view of one row for each person: the mean of each number, and the most frequent word.

    Persons are numbered as they come in the view, whose order does not depend on the file of a person.
    """
    view = pairs.view
    _, first, person = np.unique(pairs.canary, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    order = np.argsort(first)
    rank[order] = np.arange(first.size)
    person, first = rank[person], first[order]
    present = ~np.isnan(view.real.numbers)
    sums = [np.bincount(person, column, first.size) for column in np.nan_to_num(view.real.numbers).T]
    counts = [np.bincount(person, column, first.size) for column in present.T]
    numbers = [
        np.where(count > 0, total / np.maximum(count, 1), np.nan) for total, count in zip(sums, counts, strict=True)
    ]
    words = [_most_frequent(person, column, first) for column in view.real.words.T]
    means = replace(
        view.real,
        numbers=np.column_stack([np.empty((first.size, 0)), *numbers]),
        words=np.column_stack([np.empty((first.size, 0), np.int64), *words]),
    )
    return Derived(
        "means of persons",
        TableView(view.synthetic, means, view.pair[first], view.file[first]),
        person,
        is_narrow=False,
    )


def _most_frequent(person: Ints, codes: Ints, first: Ints) -> Ints:
    """Return the most frequent code of each person, the smallest of equally frequent ones, shape (persons,)."""
    kinds, counts = np.unique(np.stack([person, codes]), axis=1, return_counts=True)
    order = np.lexsort([kinds[1], -counts, kinds[0]])
    of_person = order[np.unique(kinds[0][order], return_index=True)[1]]
    return np.asarray(kinds[1][of_person], np.int64)


def on_the_real_scale(view: TableView) -> TableView:
    """Return the view with numbers of the synthetic rows on the scale of the real rows; `view` if no column is off.

    A column is off if its distribution differs from that of the real rows. Its quantiles are mapped to those of the
    real rows. Then the nearest real row of each synthetic one shows whether all were moved or multiplied alike.
    """
    synthetic, real = view.synthetic.numbers, view.real.numbers
    off = [place for place in range(real.shape[1]) if _is_off(synthetic[:, place], real[:, place])]
    if not off:
        return view
    mapped = synthetic.copy()
    for place in off:
        mapped[:, place] = _by_quantiles(synthetic[:, place], real[:, place])
    by_quantiles = replace(view, synthetic=replace(view.synthetic, numbers=mapped))
    for _ in range(2):
        released, rows = (each.without_words() for each in scaled(by_quantiles))
        near = nearest(released, rows, 1).rows[:, 0]
        exact = mapped.copy()
        for place in off:
            exact[:, place] = _moved_alike(synthetic[:, place], real[near, place], mapped[:, place], real[:, place])
        by_quantiles = replace(view, synthetic=replace(view.synthetic, numbers=exact))
    return by_quantiles


def _is_off(synthetic: Floats, real: Floats) -> bool:
    synthetic, real = synthetic[~np.isnan(synthetic)], real[~np.isnan(real)]
    if not (synthetic.size and real.size):
        return False
    distance = float(ks_2samp(synthetic, real, method="asymp").statistic)
    return bool(distance > OFF * np.sqrt(0.25 / synthetic.size + 0.25 / real.size))


def _by_quantiles(synthetic: Floats, real: Floats) -> Floats:
    """Return the numbers of the real rows at the quantiles of the synthetic ones, NaN where missing."""
    present, ordered = ~np.isnan(synthetic), np.sort(real[~np.isnan(real)])
    mapped = np.full(synthetic.size, np.nan)
    share = (rankdata(synthetic[present]) - 0.5) / present.sum()
    mapped[present] = ordered[(share * ordered.size).astype(np.int64)]
    return mapped


def _moved_alike(synthetic: Floats, matched: Floats, mapped: Floats, real: Floats) -> Floats:
    """Return the numbers divided by a factor, or moved by a distance, if that gives the real law; else `mapped`.

    Args:
        matched: Number of the nearest real row of each synthetic one, from which factor and distance are taken.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ways = [synthetic / _commonest(synthetic / matched), synthetic - _commonest(synthetic - matched)]
    if np.array_equal(real, np.round(real), equal_nan=True):
        ways = [np.round(way) for way in ways]
    return next((way for way in ways if np.isfinite(way).any() and not _is_off(way, real)), mapped)


def _commonest(values: Floats) -> float:
    """Return the middle of the narrowest interval that holds a twentieth of the finite values; NaN for few values."""
    ordered = np.sort(values[np.isfinite(values)])
    count = ordered.size // 20
    if count < 2:
        return np.nan
    start = int(np.argmin(ordered[count:] - ordered[:-count]))
    return float(ordered[start + count // 2])
