"""Functions of rows whose defect shows on few pairs of tables, or in few results on them, each with an honest twin.

Six kinds, and functions as a stranger writes them: a row counts by its place; digits below the steps of the noise; one
draw for several numbers; one draw of query noise in a sparse vector; a choice or a number of steps by exact data; an
exact test of many different rows. All claim epsilon = 1. Honest functions accept every cell. Noise on integers is
two-sided geometric, so that no bit of a float leaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bank import Case
from tests.bank.hidden_pairs import TREES, noise
from tests.bank.numbers import COMES, REPLACE

PEOPLE = {"age": (0, 100), "word": TREES}
MONEY = {"value": (0.0, 1e3)}
ITEMS = {f"item{place}": (0, 1) for place in range(16)}
FEW_ITEMS = {f"item{place}": (0, 1) for place in range(5)}
TIMES = {"time": (1_600_000_000, 1_700_000_000)}
LABELLED = {"x": (0, 100), "label": (0, 1)}
DAY = 86_400


def whole(rows, name="age", low=0, high=100):
    """Return whole numbers of a column, clipped."""
    cells = np.nan_to_num(np.asarray(rows[name], float), nan=low, posinf=high, neginf=low)
    return np.rint(np.clip(cells, low, high)).astype(np.int64)


def words(rows):
    """Return the places of the words; other cells get the next one."""
    return np.array([TREES.index(cell) if cell in TREES else len(TREES) for cell in rows["word"]], np.int64)


def decades(ages, rng, scale=1.0):
    """Return the noisy number of ages below 25, 50 and 75, and of others."""
    return (np.bincount(np.minimum(ages // 25, 3), minlength=4) + noise(rng, 4, scale)).tolist()


def count(rows, rng):
    return int(len(rows) + noise(rng))


# Rows count by their place


def every_second(rows, rng):
    return decades(whole(rows)[::2], rng)


def some_at_random(rows, rng):
    ages = whole(rows)
    return decades(ages[rng.random(len(ages)) < 0.5], rng)


def from_tenth_to_fiftieth(rows, rng, scale=1.0):
    return decades(whole(rows)[10:50], rng, scale)


def first_of_each_word(rows, rng, scale=1.0):
    return decades(whole(rows.drop_duplicates("word", keep="first")), rng, scale)


def changes(rows, rng, scale=1.0):
    """Return the noisy number of rows whose word differs from that of the row before."""
    return int(np.count_nonzero(np.diff(words(rows))) + noise(rng, None, scale))


def three_of_each_word(rows, rng, scale=1.0):
    return decades(whole(rows.groupby("word", sort=False, dropna=False).head(3)), rng, scale)


def fixed_sample(rows, rng):
    chosen = np.random.default_rng(0).permutation(len(rows))[: len(rows) // 2]
    return decades(whole(rows)[chosen], rng)


def from_the_first(rows, rng):
    """Return the noisy sum of distances from the first row."""
    ages = whole(rows)
    return int(np.abs(ages - ages[0]).sum() + noise(rng, None, 100)) if len(ages) else int(noise(rng, None, 100))


def from_fifty(rows, rng):
    return int(np.abs(whole(rows) - 50).sum() + noise(rng, None, 50))


def longest_streak(rows, rng):
    """Return the noisy length of the longest streak of rows with one word."""
    ends = np.flatnonzero(np.diff(words(rows), prepend=-1, append=-1))
    return int(np.diff(ends).max(initial=0) + noise(rng))


# Digits below the steps of the noise


def amounts(rows, digits):
    cells = np.nan_to_num(np.asarray(rows["value"], float), nan=0.0, posinf=1e3, neginf=0.0)
    return np.round(np.clip(cells, 0, 1e3), digits)


def mean_with_cents(rows, rng, digits=2):
    return float((round(float(amounts(rows, digits).sum()), 2) + int(noise(rng, None, 1e3))) / max(len(rows), 1))


def other_currency(rows, rng, digits=1):
    return float(1.17 * (round(float(amounts(rows, digits).sum()), 1) + int(noise(rng, None, 1e3))))


def seconds(rows, unit=1):
    return (whole(rows, "time", *TIMES["time"]) - TIMES["time"][0]) // unit * unit


def seconds_with_noise_of_days(rows, rng, unit=1):
    return int(seconds(rows, unit).sum() + DAY * noise(rng, None, 1e8 / DAY))


def noise_in_tens(rows, rng, step=10):
    return int(whole(rows).sum() + step * noise(rng, None, 100 / step))


def count_with_even_noise(rows, rng):
    return int(len(rows) + 2 * noise(rng, None, 0.5))


# One draw for several numbers


def nested(rows, rng, same=True):
    counts = np.array([(whole(rows) > age).sum() for age in (30, 31, 33)])
    return (counts + noise(rng, None if same else 3, 3.0)).tolist()


def histogram_and_total(rows, rng, again=True):
    """Return four noisy counts and their total, with the noise of the first one again."""
    counts, added = np.bincount(words(rows), minlength=5), noise(rng, 5)
    noisy = counts + added
    return [*noisy.tolist(), int(counts.sum() + added[0] if again else noisy.sum())]


def balance(rows, rng, exact=True):
    """Return noisy numbers of the young and the old, and their difference."""
    young, old = (whole(rows) < 40).sum(), (whole(rows) > 60).sum()
    first, second = young + noise(rng), old + noise(rng)
    return {"young": int(first), "old": int(second), "more": int(first - (old if exact else second))}


def sum_and_mean(rows, rng):
    total = int(whole(rows).sum() + noise(rng, None, 100))
    return {"sum": total, "mean": total / max(len(rows), 1)}


def sum_and_noisy_size(rows, rng):
    return [int(whole(rows).sum() + noise(rng, None, 200)), int(len(rows) + noise(rng, None, 2.0))]


def moments_of_one_draw(rows, rng, same=True):
    ages = whole(rows)
    added = noise(rng, None if same else 2, 200)
    return (np.array([ages.sum(), (ages**2 // 100).sum()]) + added).tolist()


def opposite(rows, rng):
    added = noise(rng, None, 2.0)
    return [int((whole(rows) > 70).sum() + added), int((whole(rows) > 75).sum() - added)]


# Sparse vectors over columns


def _sums(rows):
    return [int(whole(rows, name, 0, 1).sum()) for name in ITEMS]


def above_by_one_draw(rows, rng, level=20):
    """Compare sums with a noisy threshold; all have one draw of noise."""
    threshold, added = level + rng.laplace(0, 2), rng.laplace(0, 4)
    return [bool(each + added >= threshold) for each in _sums(rows)]


def above_until_the_first(rows, rng, level=20):
    threshold = level + rng.laplace(0, 2)
    for place, each in enumerate(_sums(rows)):
        if each + rng.laplace(0, 4) >= threshold:
            return place
    return -1


def first_above_with_its_answer(rows, rng, level=20):
    """Return the first noisy sum above a noisy threshold, with the noise that was compared."""
    threshold = level + rng.laplace(0, 2)
    for place, each in enumerate(_sums(rows)):
        noisy = each + rng.laplace(0, 2)
        if noisy >= threshold:
            return place, round(float(noisy), 1)
    return -1, 0.0


def above_without_stop(rows, rng, level=20):
    threshold = level + rng.laplace(0, 2)
    return [bool(each + rng.laplace(0, 2) >= threshold) for each in _sums(rows)]


def largest_by_one_draw(rows, rng):
    added = rng.laplace(0, 2)
    return int(np.argmax([each + added for each in _sums(rows)]))


def largest(rows, rng):
    return int(np.argmax([each + rng.laplace(0, 2) for each in _sums(rows)]))


# Choices and numbers of steps by the exact data


def nearest_neighbours(rows, rng, fixed=0):
    """Return the number of neighbours with most right labels, leaving one out, and a noisy count."""
    x, label = whole(rows, "x"), whole(rows, "label", 0, 1)
    order = np.argsort(np.abs(x[:, None] - x) + 1_000 * np.eye(len(x), dtype=int), axis=1, kind="stable")
    right = {k: int(((label[order[:, :k]].mean(1) > 0.5) == label).sum()) if len(x) > k else 0 for k in (1, 3, 5, 9)}
    return {"k": fixed or max(right, key=lambda k: right[k]), "rows": count(rows, rng)}


def target_encoding(rows, rng):
    """Return the word with the largest mean age, and noisy counts."""
    means = {word: whole(rows)[words(rows) == place].mean() for place, word in enumerate(TREES) if place in words(rows)}
    return {"word": max(means, key=lambda word: means[word], default=""), "rows": count(rows, rng)}


def word_of_the_old(rows, rng):
    counts = np.bincount(words(rows)[whole(rows) > 50], minlength=5)
    return {
        "word": [*TREES, ""][int(np.argmax(counts + rng.gumbel(0, 4, 5)))],
        "rows": int(len(rows) + noise(rng, None, 2.0)),
    }


def descent(rows, rng, steps=0):
    """Return noisy steps towards the mean label, until the exact loss is small; a row moves a sum by at most 1."""
    label, value, path = whole(rows, "label", 0, 1), 0.0, []
    for _ in range(steps or 12):
        value = min(1.0, max(0.0, value + 0.5 * float((label - value).sum() + rng.laplace(0, 12)) / 40))
        path.append(round(value, 3))
        if not steps and len(label) and float(((label - value) ** 2).mean()) < 0.26:
            break
    return path


def stump(rows, rng, fixed=-1):
    """Return the best split by exact errors, and noisy counts of both sides."""
    x, label = whole(rows, "x"), whole(rows, "label", 0, 1)
    errors = [
        min((label[x < cut] == side).sum() + (label[x >= cut] != side).sum() for side in (0, 1))
        for cut in range(10, 100, 10)
    ]
    cut = fixed if fixed >= 0 else 10 * (1 + int(np.argmin(errors)))
    return [cut, int((x < cut).sum() + noise(rng)), int((x >= cut).sum() + noise(rng))]


def bins_by_cross_validation(rows, rng, fixed=0, scale=1.0):
    """Return a noisy histogram with the number of bins of the largest exact likelihood."""
    x = whole(rows, "x")

    def likelihood(bins):
        place = np.minimum(x * bins // 101, bins - 1)
        return np.log((np.bincount(place, minlength=bins)[place] - 1 + 0.5) * bins / (len(x) + 0.5 * bins)).sum()

    bins = fixed or max((2, 4, 8, 16), key=likelihood)
    return (np.bincount(np.minimum(x * bins // 101, bins - 1), minlength=bins) + noise(rng, bins, scale)).tolist()


def significance(rows, rng, exact=True):
    """Say whether labels differ between small and large numbers."""
    x, label = whole(rows, "x") > 50, whole(rows, "label", 0, 1) == 1
    table = np.array([[(x & label).sum(), (x & ~label).sum()], [(~x & label).sum(), (~x & ~label).sum()]])
    noisy = table + noise(rng, (2, 2))
    used = (table if exact else np.maximum(noisy, 0)).astype(float)
    expected = used.sum(1, keepdims=True) * used.sum(0) / max(used.sum(), 1)
    return bool(((used - expected) ** 2 / np.maximum(expected, 1)).sum() > 3.84), *map(int, noisy.ravel())


def frequent_pairs(rows, rng, exact=True):
    """Return noisy numbers of rows with both items, for pairs in at least ten rows."""
    table = np.column_stack([whole(rows, name, 0, 1) for name in FEW_ITEMS])
    both = {(a, b): int((table[:, a] * table[:, b]).sum()) for a in range(5) for b in range(a)}
    noisy = {pair: number + int(noise(rng, None, 10.0)) for pair, number in both.items()}
    return {str(pair): noisy[pair] for pair in both if (both if exact else noisy)[pair] >= 10}


# Exact tests that copies of one row do not change


def count_if(enough, rows, rng):
    """Return a noisy count if an exact test holds."""
    return int(len(rows) + noise(rng)) if enough else None


def enough_ages(rows, rng):
    return count_if(len(set(whole(rows).tolist())) >= 50, rows, rng)


def enough_noisy_ages(rows, rng):
    """Spend a half on the number of different ages and a half on the count."""
    enough = len(set(whole(rows).tolist())) + noise(rng, None, 2.0) >= 50
    return int(len(rows) + noise(rng, None, 2.0)) if enough else None


def enough_pairs(rows, rng):
    return count_if(len(set(zip(whole(rows).tolist(), words(rows).tolist(), strict=True))) >= 60, rows, rng)


def enough_of_each_word(rows, rng):
    return count_if(np.bincount(words(rows), minlength=5)[:4].min() >= 16, rows, rng)


def enough_in_each_cell(rows, rng):
    """Return a count if both labels have at least 16 rows with small and with large numbers."""
    cells = 2 * (whole(rows, "x") > 50) + whole(rows, "label", 0, 1)
    return count_if(np.bincount(cells, minlength=4).min() >= 16, rows, rng)


# Sums and counts


def total(rows, rng):
    return int(whole(rows).sum() + noise(rng, None, 100))


def weekdays(rows, rng, twice=True):
    """Count days of the week; midnight counts for both days."""
    seconds_of_week = whole(rows, "time", *TIMES["time"]) % (7 * DAY)
    counts = np.bincount(seconds_of_week // DAY, minlength=7)
    midnight = seconds_of_week % DAY == 0
    counts = counts + (np.bincount((seconds_of_week[midnight] // DAY - 1) % 7, minlength=7) if twice else 0)
    return (counts + noise(rng, 7)).tolist()


def running_totals(rows, rng, scale=1.0):
    counts = np.bincount(np.minimum(whole(rows) // 10, 9), minlength=10)
    return (counts.cumsum() + noise(rng, 10, scale)).tolist()


def sketch(rows, rng, scale=1.0):
    """Return a count sketch: three hashes with a sign each."""
    place, table = words(rows), np.zeros((3, 4), np.int64)
    for row in range(3):
        np.add.at(table[row], (place * (2 * row + 3) + row) % 4, 1 - 2 * ((place >> row) & 1))
    return (table + noise(rng, (3, 4), scale)).ravel().tolist()


def equal_pairs(rows, rng):
    counts = np.bincount(words(rows), minlength=5)
    return int((counts * (counts - 1) // 2).sum() + noise(rng))


def noise_by_groups(rows, rng):
    """Return sums by word; all words that are there share the noise of one."""
    groups = max(len(set(words(rows).tolist())), 1)
    return (np.bincount(words(rows), whole(rows), 5).astype(int) + noise(rng, 5, 100 / groups)).tolist()


def sums_by_word(rows, rng):
    return (np.bincount(words(rows), whole(rows), 5).astype(int) + noise(rng, 5, 100)).tolist()


def first_hundred(rows, rng, scale=1.0):
    return decades(whole(rows)[:100], rng, scale)


def sums_so_far(rows, rng, scale=100):
    """Return the noisy sum of the first 10, 20, 30, 40 and 50 rows."""
    return [int(whole(rows)[:size].sum() + noise(rng, None, scale)) for size in range(10, 51, 10)]


def ups_and_downs(rows, rng, scale=100):
    """Return the noisy sum of the differences between rows that follow each other."""
    return int(np.abs(np.diff(whole(rows))).sum() + noise(rng, None, scale))


def sessions(rows, rng, scale=100):
    """Return the noisy sum of ages; that of consecutive rows with one word is clipped to 100."""
    starts = np.cumsum(np.diff(words(rows), prepend=-1) != 0)
    return int(np.minimum(np.bincount(starts, whole(rows)), 100).sum() + noise(rng, None, scale))


def noise_of_few_levels(rows, rng):
    """Return a sum with Laplace noise by inversion of 256 levels."""
    level = (rng.integers(256) + 0.5) / 256 - 0.5
    return round(float(whole(rows).sum() - 100 * np.sign(level) * np.log1p(-2 * abs(level))), 6)


def three_draws_in_turn(rows, rng, draws=3):
    counts = np.bincount(np.minimum(whole(rows) // 10, 8), minlength=9)
    return (counts + np.resize(noise(rng, draws, 1.0), 9)).tolist()


def small_integers(rows, rng, kind=np.int8):
    return int(np.array([len(rows)]).astype(kind)[0]) + int(noise(rng))


def changes_by_decade(rows, rng, scale=1.0):
    counts = np.bincount(np.minimum(whole(rows) // 10, 9), minlength=10)
    return (np.diff(counts) + noise(rng, 9, scale)).tolist()


def one_response_for_equal_words(rows, rng, each=False):
    """Count randomised responses; rows with the same word have the same one."""
    place = words(rows) % 4
    flips = (rng.random(len(place)) if each else rng.random(4)[place]) > np.e / (np.e + 3)
    moved = rng.integers(1, 4, len(place)) if each else rng.integers(1, 4, 4)[place]
    return np.bincount((place + flips * moved) % 4, minlength=4).tolist()


def largest_age(rows, rng, local=True):
    """Return the largest age with noise for the distance to the next one."""
    ages = np.sort(np.append(whole(rows), [0, 0]))
    return int(ages[-1] + noise(rng, None, max(int(ages[-1] - ages[-2]), 1) if local else 100))


def hadamard(rows, rng, scale=1.0):
    counts = np.bincount(words(rows) % 4, minlength=4)
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    return (signs @ counts + noise(rng, 4, scale)).tolist()


def winner_with_margin(rows, rng, exact=True):
    """Return the word of the largest noisy count, and the lead over the second one in tens."""
    counts = np.bincount(words(rows), minlength=5)[:4]
    noisy = counts + noise(rng, 4)
    last = np.sort(counts if exact else noisy)
    return {"word": TREES[int(noisy.argmax())], "lead": int((last[-1] - last[-2]) // 10)}


def of(function: Callable[..., Any], **settings: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: lambda rows, rng: function(rows, rng, **settings)


def case(defect: Any, twin: Any, schema: Any, claim: Any = COMES) -> Case:
    return Case(defect, twin, claim=claim, schema=schema)


BANK: dict[str, Case] = {
    # places
    "every-second-row": case(of(every_second), of(some_at_random), PEOPLE),
    "rows-10-to-50": case(of(from_tenth_to_fiftieth), of(from_tenth_to_fiftieth, scale=2.0), PEOPLE),
    "first-of-each-word": case(of(first_of_each_word), of(first_of_each_word, scale=2.0), PEOPLE),
    "changes-of-word": case(of(changes), of(changes, scale=2.0), PEOPLE),
    # digits
    "mean-with-cents": case(of(mean_with_cents), of(mean_with_cents, digits=0), MONEY, REPLACE),
    "other-currency": case(of(other_currency), of(other_currency, digits=0), MONEY),
    "seconds-noise-of-days": case(of(seconds_with_noise_of_days), of(seconds_with_noise_of_days, unit=DAY), TIMES),
    # joint noise
    "three-nested-counts": case(of(nested), of(nested, same=False), PEOPLE),
    "total-with-noise-again": case(of(histogram_and_total), of(histogram_and_total, again=False), PEOPLE),
    "balance-of-exact-count": case(of(balance), of(balance, exact=False), PEOPLE),
    "sum-and-mean": case(of(sum_and_mean), of(sum_and_noisy_size), PEOPLE),
    # above a threshold
    "above-by-one-draw": case(of(above_by_one_draw), of(above_until_the_first), ITEMS),
    "above-with-its-answer": case(of(first_above_with_its_answer), of(above_until_the_first), ITEMS),
    "above-without-stop": case(of(above_without_stop), of(above_until_the_first), ITEMS),
    "largest-by-one-draw": case(of(largest_by_one_draw), of(largest), ITEMS),
    # choices by exact data
    "neighbours-left-out": case(of(nearest_neighbours), of(nearest_neighbours, fixed=3), LABELLED),
    "target-encoding": case(of(target_encoding), of(word_of_the_old), PEOPLE),
    "steps-until-exact-loss": case(of(descent), of(descent, steps=6), LABELLED),
    "neighbour-replaced": case(of(nearest_neighbours), of(nearest_neighbours, fixed=3), LABELLED, REPLACE),
    # exact tests of many different rows
    "enough-ages": case(of(enough_ages), of(enough_noisy_ages), PEOPLE),
    "enough-pairs": case(of(enough_pairs), of(enough_noisy_ages), PEOPLE),
    "enough-of-each-word": case(of(enough_of_each_word), of(enough_noisy_ages), PEOPLE),
    "enough-in-each-cell": case(of(enough_in_each_cell), of(bins_by_cross_validation, fixed=8), LABELLED),
    # as a stranger writes them
    "three-of-each-word": case(of(three_of_each_word), of(three_of_each_word, scale=2.0), PEOPLE),
    "fixed-sample": case(of(fixed_sample), of(some_at_random), PEOPLE),
    "distances-from-first-row": case(of(from_the_first), of(from_fifty), PEOPLE),
    "longest-streak": case(of(longest_streak), of(count), PEOPLE),
    "noise-in-tens": case(of(noise_in_tens), of(noise_in_tens, step=1), PEOPLE),
    "count-with-even-noise": case(of(count_with_even_noise), of(count), PEOPLE),
    "moments-of-one-draw": case(of(moments_of_one_draw), of(moments_of_one_draw, same=False), PEOPLE),
    "opposite-noise": case(of(opposite), of(nested, same=False), PEOPLE),
    "stump-by-exact-errors": case(of(stump), of(stump, fixed=50), LABELLED),
    "bins-by-cross-validation": case(of(bins_by_cross_validation), of(bins_by_cross_validation, fixed=8), LABELLED),
    "exact-significance": case(of(significance), of(significance, exact=False), LABELLED),
    "frequent-pairs": case(of(frequent_pairs), of(frequent_pairs, exact=False), FEW_ITEMS),
    "midnight-counts-twice": case(of(weekdays), of(weekdays, twice=False), TIMES),
    "running-totals": case(of(running_totals), of(running_totals, scale=10.0), PEOPLE),
    "count-sketch": case(of(sketch), of(sketch, scale=3.0), PEOPLE),
    "pairs-of-equal-words": case(of(equal_pairs), of(count), PEOPLE),
    "noise-by-number-of-groups": case(of(noise_by_groups), of(sums_by_word), PEOPLE),
    "as-many-distances": case(of(from_the_first), of(from_fifty), PEOPLE, REPLACE),
    "stump-replaced": case(of(stump), of(bins_by_cross_validation, fixed=8, scale=2.0), LABELLED, REPLACE),
    "first-hundred-rows": case(of(first_hundred), of(first_hundred, scale=2.0), PEOPLE),
    "sums-so-far": case(of(sums_so_far), of(sums_so_far, scale=500), PEOPLE),
    "ups-and-downs": case(of(ups_and_downs), of(ups_and_downs, scale=200), PEOPLE),
    "sessions": case(of(sessions), of(sessions, scale=200), PEOPLE),
    "noise-of-few-levels": case(of(noise_of_few_levels), of(total), PEOPLE),
    "three-draws-in-turn": case(of(three_draws_in_turn), of(three_draws_in_turn, draws=9), PEOPLE),
    "small-integers": case(of(small_integers), of(count), PEOPLE),
    "changes-by-decade": case(of(changes_by_decade), of(changes_by_decade, scale=2.0), PEOPLE),
    "one-response-for-equal-words": case(
        of(one_response_for_equal_words), of(one_response_for_equal_words, each=True), PEOPLE, REPLACE
    ),
    "largest-age-by-local-noise": case(of(largest_age), of(largest_age, local=False), PEOPLE),
    "hadamard-noise-of-one": case(of(hadamard), of(hadamard, scale=4.0), PEOPLE),
    "winner-with-exact-margin": case(of(winner_with_margin), of(winner_with_margin, exact=False), PEOPLE),
}
