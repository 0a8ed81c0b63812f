"""Functions of rows as developers write them: honest functions that accept any row, and one defect in each variant.

All claim epsilon = 1. Rows are a DataFrame of people, with an age from 0 to 100 and one of three cities. Honest
functions accept every cell: a cell that is not a number counts as age 0, and other cities form a separate category.
They add integer noise to integers, so that no bit of a float leaks. Private values pass through `laplace`, `normal`,
`chosen` or `answered`, and later computations use no rows. Only functions under `replace` use the number of rows, which
is public there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpaudit import Claim, Relation
from tests.bank import Case
from tests.bank.numbers import CLASSIC, COMES, GAUSSIAN, REPLACE

CITIES = ("north", "south", "west")
PEOPLE = {"age": (0, 100), "city": list(CITIES)}
OLDEST = 100
STEPS = 7
"""Steps of a binary search among 128 numbers."""
APPROXIMATE = Claim(1.0, 1e-5, Relation.ADD_REMOVE)
ENOUGH = 13
"""Threshold for groups; a group of one row passes with probability exp(-12) / (1 + exp(-1)) < 1e-5."""


# Private primitives


def laplace(exact, rate, rng):
    """Return integers plus two-sided geometric noise; its probability falls by exp(-rate) with each step from zero."""
    exact = np.asarray(exact, np.int64)
    stop = -math.expm1(-rate)
    return exact + rng.geometric(stop, exact.shape) - rng.geometric(stop, exact.shape)


def normal(exact, deviation, rng):
    """Return integers plus rounded normal noise."""
    exact = np.asarray(exact, np.int64)
    return np.rint(exact + rng.normal(0, deviation, exact.shape)).astype(np.int64)


def chosen(utilities, rate, rng):
    """Return the index of one of the utilities, by the exponential mechanism."""
    weights = np.exp(rate * (utilities - utilities.max()))
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def answered(places, kinds, keep, rng):
    """Return randomised responses: each category, or one of the others."""
    return np.where(rng.random(len(places)) < keep, places, (places + rng.integers(1, kinds, len(places))) % kinds)


# Reading rows


def ages(rows):
    """Return integers from 0 to 100."""
    cells = np.nan_to_num(np.asarray(rows["age"], float), nan=0.0, posinf=OLDEST, neginf=0.0)
    return np.rint(np.clip(cells, 0, OLDEST)).astype(np.int64)


def places(rows):
    """Return the numbers of the cities; other cells get the next number."""
    return np.array([CITIES.index(cell) if cell in CITIES else len(CITIES) for cell in rows["city"]], np.int64)


def by_city(rows, weights=None):
    """Return the number of rows, or the sum of weights, of each city and of other cells; four integers."""
    return np.rint(np.bincount(places(rows), weights, len(CITIES) + 1)).astype(np.int64)


# Sums: an added or replaced row changes them by up to 100.


def mean(rows, rng, rate=1.0):
    return float(laplace([ages(rows).sum()], rate / OLDEST, rng)[0] / len(rows))


def mean_of_noisy_size(rows, rng):
    total, size = laplace([ages(rows).sum()], 0.5 / OLDEST, rng)[0], laplace([len(rows)], 0.5, rng)[0]
    return float(total / max(size, 1))


def mean_of_known_ages(rows, rng):
    known_ages = rows["age"].dropna()
    return float(laplace([ages(rows).sum()], 1 / OLDEST, rng)[0] / len(known_ages))


def mean_clipped_after(rows, rng):
    noise = laplace([0], 1 / OLDEST, rng)[0]
    return float(np.clip(np.rint(rows["age"].sum() / len(rows)), 0, OLDEST) + noise / len(rows))


def mean_in_own_bounds(rows, rng):
    numbers = ages(rows)
    width = max(int(numbers.max() - numbers.min()), 1)
    return float(laplace([numbers.sum()], 1 / width, rng)[0] / len(rows))


def mean_normal(rows, rng, multiplier=CLASSIC):
    return float(normal([ages(rows).sum()], OLDEST * multiplier, rng)[0] / len(rows))


def total(rows, rng, select=ages):
    return int(laplace([select(rows).sum()], 1 / OLDEST, rng)[0])


def clipped_but_nan(rows):
    return np.clip(np.asarray(rows["age"], float), 0, OLDEST)


def clipped_above(rows):
    return np.minimum(np.nan_to_num(np.asarray(rows["age"], float), nan=0, neginf=-1e15), OLDEST)


def total_shows_nan(rows, rng):
    return float(clipped_but_nan(rows).sum() + laplace([0], 1 / OLDEST, rng)[0])


def total_of_the_columns_type(rows, rng):
    return rows["age"].dtype.type(total(rows, rng))


def total_float_noise(rows, rng):
    return float(ages(rows).sum()) + rng.laplace(0, OLDEST)


def total_fixed_seed(rows, rng):
    return total(rows, np.random.default_rng(1))


def total_seed_of_size(rows, rng):
    return total(rows, np.random.default_rng([len(rows), int(rng.integers(3))]))


def total_and_size(rows, rng, rate=0.5):
    """Return a list of total and size, which share epsilon."""
    return [int(laplace([ages(rows).sum()], rate / OLDEST, rng)[0]), int(laplace([len(rows)], rate, rng)[0])]


def total_and_size_one_draw(rows, rng):
    noise = laplace([0], 0.5 / OLDEST, rng)[0]
    return [int(ages(rows).sum() + noise), int(len(rows) + noise)]


def totals_by_city(rows, rng):
    return laplace(by_city(rows, ages(rows)), 1 / OLDEST, rng).tolist()


def totals_of_cities_there(rows, rng):
    return {city: total(some, rng) for city, some in rows[rows["city"].isin(CITIES)].groupby("city")}


def totals_one_draw(rows, rng):
    return (by_city(rows, ages(rows)) + laplace([0], 1 / OLDEST, rng)).tolist()


# Counts: an added row counts once; a replaced row moves from one category to another.


def count(rows, rng, rate=1.0):
    return int(laplace([len(rows)], rate, rng)[0])


def count_refuses_few(rows, rng):
    if len(rows) < 10:
        raise ValueError("the answer would be of too few rows")
    return count(rows, rng)


def count_zero_of_none(rows, rng):
    return count(rows, rng) if len(rows) else 0


def histogram(rows, rng, rate=1.0):
    return laplace(by_city(rows), rate, rng).tolist()


def histogram_of_cities_there(rows, rng):
    counts = Counter(map(str, rows["city"]))
    return {city: int(laplace([counts[city]], 1.0, rng)[0]) for city in sorted(counts)}


def histogram_fails_elsewhere(rows, rng):
    counts = dict.fromkeys(CITIES, 0)
    for city in rows["city"]:
        counts[city] += 1
    return laplace(list(counts.values()), 1.0, rng).tolist()


def histogram_zeros_left(rows, rng):
    counts = by_city(rows)
    return np.where(counts > 0, laplace(counts, 1.0, rng), 0).tolist()


def large_groups(rows, rng, enough=ENOUGH, exactly=0):
    """Return words of any kind with large noisy counts."""
    counts = Counter(cell for cell in rows["city"] if isinstance(cell, str))
    words = sorted(word for word in counts if counts[word] >= exactly)
    noisy = laplace([counts[word] for word in words], 1.0, rng).tolist()
    return {word: size for word, size in zip(words, noisy, strict=True) if size >= enough}


def top_city_by_exact_count(rows, rng):
    counts = by_city(rows)
    place = int(counts.argmax())
    return {[*CITIES, ""][place]: int(laplace([counts[place]], 1.0, rng)[0])}


# Choices: an added row changes each utility by at most 1, so a choice at rate 1/2 spends epsilon 1.


def commonest_city(rows, rng, rate=0.5):
    return [*CITIES, ""][chosen(by_city(rows), rate, rng)]


def commonest_word(rows, rng):
    counts = Counter(map(str, rows["city"]))
    words = sorted(counts)
    return words[chosen(np.array([counts[word] for word in words]), 0.5, rng)] if words else ""


def in_the_middle(numbers, candidates):
    """Return a utility of each candidate as the median."""
    return -np.abs(np.sign(numbers[:, None] - candidates).sum(0))


def median(rows, rng, rate=0.5):
    return chosen(in_the_middle(ages(rows), np.arange(OLDEST + 1)), rate, rng)


def median_among_rows(rows, rng):
    numbers = ages(rows)
    return int(numbers[chosen(in_the_middle(numbers, numbers), 0.5, rng)]) if len(numbers) else 0


def median_by_search(rows, rng, rate=1 / STEPS):
    numbers, low = ages(rows), 0
    for step in reversed(range(STEPS)):
        middle = low + 2**step
        more = laplace([np.where(numbers >= middle, 1, -1).sum()], rate, rng)[0]
        low = middle if more > 0 else low
    return low


# Local answers: one for each row; the number of rows is public.


def response(rows, rng, keep=math.e / (math.e + 3)):
    return answered(places(rows), len(CITIES) + 1, keep, rng).tolist()


def response_passes_others(rows, rng):
    answers = answered(places(rows), len(CITIES) + 1, math.e / (math.e + 3), rng)
    return [[*CITIES, ""][k] if cell in CITIES else cell for k, cell in zip(answers, rows["city"], strict=True)]


def response_without_the_missing(rows, rng):
    return response(rows.dropna(), rng)


def rows_of(function: Callable[..., Any], claim: Claim = COMES, **settings: Any) -> dict[str, Any]:
    """Return the fields of a case that calls `function`."""
    return {"defect": lambda: partial(function, **settings), "claim": claim, "schema": PEOPLE}


def twin(function: Callable[..., Any], **settings: Any) -> Callable[[], Any]:
    return lambda: partial(function, **settings)


BANK: dict[str, Case] = {
    "mean-half-noise": Case(**rows_of(mean, REPLACE, rate=2.0), twin=twin(mean), true=2),
    "mean-scaled-by-private-size": Case(**rows_of(mean), twin=twin(mean_of_noisy_size), true=math.inf),
    "mean-of-known-ages": Case(**rows_of(mean_of_known_ages, REPLACE), true=math.inf),
    "mean-clipped-after": Case(**rows_of(mean_clipped_after, REPLACE), true=math.inf),
    "mean-in-own-bounds": Case(**rows_of(mean_in_own_bounds, REPLACE), true=math.inf),
    "normal-without-log": Case(**rows_of(mean_normal, GAUSSIAN, multiplier=1.0), twin=twin(mean_normal), true=4.4),
    "total-fails-at-nan": Case(**rows_of(total, select=clipped_but_nan), twin=twin(total), true=math.inf),
    "total-shows-nan": Case(**rows_of(total_shows_nan), true=math.inf),
    "total-clipped-above": Case(**rows_of(total, select=clipped_above), true=math.inf),
    "total-of-the-columns-type": Case(**rows_of(total_of_the_columns_type), true=math.inf),
    "total-float-noise": Case(**rows_of(total_float_noise), true=math.inf),
    "total-fixed-seed": Case(**rows_of(total_fixed_seed), true=math.inf),
    "total-seed-of-size": Case(**rows_of(total_seed_of_size), true=math.inf),
    "total-and-size-spend-twice": Case(**rows_of(total_and_size, rate=1.0), twin=twin(total_and_size), true=2),
    "total-and-size-one-draw": Case(**rows_of(total_and_size_one_draw), true=math.inf),
    "empty-city-left-out": Case(**rows_of(totals_of_cities_there), twin=twin(totals_by_city), true=math.inf),
    "one-draw-for-all-cities": Case(**rows_of(totals_one_draw), true=math.inf),
    "count-half-noise": Case(**rows_of(count, rate=2.0), twin=twin(count), true=2),
    "count-refuses-few": Case(**rows_of(count_refuses_few), true=math.inf),
    "count-zero-of-none": Case(**rows_of(count_zero_of_none), true=math.inf),
    "histogram-of-cities-there": Case(**rows_of(histogram_of_cities_there), twin=twin(histogram), true=math.inf),
    "histogram-fails-elsewhere": Case(**rows_of(histogram_fails_elsewhere), true=math.inf),
    "histogram-zeros-left": Case(**rows_of(histogram_zeros_left), true=math.inf),
    "histogram-of-one-that-moves": Case(**rows_of(histogram, REPLACE), twin=twin(histogram, rate=0.5), true=2),
    "groups-shown-too-soon": Case(
        **rows_of(large_groups, APPROXIMATE, enough=3), twin=twin(large_groups), true=math.inf
    ),
    "groups-of-five-exactly": Case(**rows_of(large_groups, APPROXIMATE, enough=0, exactly=5), true=math.inf),
    "top-city-by-exact-count": Case(**rows_of(top_city_by_exact_count), true=math.inf),
    "commonest-word-there": Case(**rows_of(commonest_word), twin=twin(commonest_city), true=math.inf),
    "median-among-rows": Case(**rows_of(median_among_rows), true=math.inf),
    "median-sensitivity-halved": Case(**rows_of(median, rate=1.0), twin=twin(median)),
    "median-each-step-spends-all": Case(**rows_of(median_by_search, rate=1.0), twin=twin(median_by_search)),
    "response-as-for-two": Case(
        **rows_of(response, REPLACE, keep=math.e / (math.e + 1)), twin=twin(response), true=1 + math.log(3)
    ),
    "response-passes-others": Case(**rows_of(response_passes_others, REPLACE), true=math.inf),
    "response-without-the-missing": Case(**rows_of(response_without_the_missing, REPLACE), true=math.inf),
}
