"""Functions whose defect shows on few pairs of tables only, each with an honest twin, and the calls that find them.

All of them claim epsilon 1 about one row more or less, unless a case states another claim. Noise on counts is two-sided
geometric, so that no bit of a float leaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

ALPHA = math.exp(-1)
TREES = ["ash", "elm", "fir", "oak"]
WORDS = {"word": TREES}
AGES = {"age": (0, 100)}
BASKET = {f"item{place}": (0, 1) for place in range(8)}
THRESHOLD = 5
"""Noisy count above which a word is shown."""
DELTA = ALPHA**THRESHOLD / (1 + ALPHA)
"""Probability that the noisy count of a single row exceeds the threshold."""


def noise(rng, size=None, scale=1.0):
    """Return two-sided geometric noise whose probability falls by exp(-1 / scale) with each step from zero."""
    stop = -math.expm1(-1 / scale)
    return rng.geometric(stop, size) - rng.geometric(stop, size)


def counts(rows, rng, scale=1.0):
    return {word: int((rows["word"] == word).sum() + noise(rng, scale=scale)) for word in TREES}


def exact(rows, words=TREES):
    return rows["word"].value_counts().reindex(words, fill_value=0)


# Brackets that overlap: a row in the overlap is counted twice.


APART = ((0, 30), (31, 69), (70, 100))


def brackets(rows, rng, spans=((0, 30), (31, 70), (60, 100))):
    ages = rows["age"].to_numpy(float)
    return [int(((ages >= low) & (ages <= high)).sum() + noise(rng)) for low, high in spans]


def incomes(rows, rng, start=49_000):
    pay = rows["pay"].to_numpy(float)
    spans = ((0, 50_000), (start, 100_000), (100_000.01, 200_000))
    return [int(((pay >= low) & (pay < high)).sum() + noise(rng)) for low, high in spans]


def discounts(rows, rng, youngest=0):
    """Count children, students from an age on, and all others; a student of at most 20 is a child too."""
    age, word = rows["age"].to_numpy(float), rows["word"].to_numpy()
    child, student = age < 20, (word == "oak") & (age < 26) & (age >= youngest)
    return [int(group.sum() + noise(rng)) for group in (child, student, ~child & ~student)]


# Exact tests of a lead or a size


def lead(rows, rng):
    """Name the most common word if it leads by more than 5."""
    first, second = exact(rows).nlargest(2)
    noisy = counts(rows, rng)
    return max(noisy, key=noisy.get) if first - second > 5 else "no clear winner"


def lead_of_noisy(rows, rng):
    noisy = counts(rows, rng)
    second, first = sorted(noisy.values())[-2:]
    return max(noisy, key=noisy.get) if first - second > 5 else "no clear winner"


def majority(rows, rng):
    """Name the noisy winner only if a word has the exact majority of at least 20 rows."""
    largest = int(exact(rows).max())
    noisy = counts(rows, rng)
    return max(noisy, key=noisy.get) if largest * 2 > len(rows) >= 20 else "no majority"


def enough_noisy_rows(rows, rng):
    count = len(rows) + int(noise(rng))
    return count if count >= 37 else None


def two_words_apart(rows, rng):
    """Say whether one word is at least 12 ahead of another one."""
    both = exact(rows)
    return {"total": len(rows) + int(noise(rng)), "ahead": bool(both["elm"] - both["fir"] >= 12)}


# Sparse vectors as numbered by Lyu, Su and Li (2017), over queries that a single row moves in part.


def _answers(rows):
    ages = rows["age"].to_numpy(float)
    return [int((ages >= age).sum()) for age in range(5, 101, 5)]


def sparse_vector(rows, rng, most=2, level=50):
    """Algorithm 1: right."""
    above, threshold = [], level + rng.laplace(0, 2)
    for answer in _answers(rows):
        above.append(bool(answer + rng.laplace(0, 4 * most) >= threshold))
        if sum(above) == most:
            break
    return above


def sparse_vector_3(rows, rng, most=2, level=50):
    """Releases the noisy answer that it compared."""
    answers, threshold = [], level + rng.laplace(0, 2)
    for answer in _answers(rows):
        noisy = answer + rng.laplace(0, 2 * most)
        answers.append(round(float(noisy), 2) if noisy >= threshold else None)
        if sum(each is not None for each in answers) == most:
            break
    return answers


def sparse_vector_4(rows, rng, most=8, level=50):
    """Its noise does not grow with the number of answers above."""
    above, threshold = [], level + rng.laplace(0, 4)
    for answer in _answers(rows):
        above.append(bool(answer + rng.laplace(0, 4 / 3) >= threshold))
        if sum(above) == most:
            break
    return above


def sparse_vector_5(rows, rng, level=50):
    """Adds no noise to answers."""
    threshold = level + rng.laplace(0, 2)
    return [bool(answer >= threshold) for answer in _answers(rows)]


def sparse_vector_6(rows, rng, level=50):
    """Never stops."""
    threshold = level + rng.laplace(0, 2)
    return [bool(answer + rng.laplace(0, 2) >= threshold) for answer in _answers(rows)]


# The largest of noisy values, released with its value; a row adds to all eight counts.


def largest(rows, rng, scale=2.0):
    noisy = rows.to_numpy(float).sum(0) + noise(rng, rows.shape[1], scale)
    return int(np.argmax(noisy)), int(noisy.max())


def largest_place(rows, rng):
    return int(np.argmax(rows.to_numpy(float).sum(0) + rng.laplace(0, 2.0, rows.shape[1])))


def noisy_items(rows, rng):
    return rows.to_numpy(float).sum(0) + noise(rng, rows.shape[1], 2.0)


def two_largest(rows, rng):
    return sorted(noisy_items(rows, rng).astype(int).tolist())[-2:]


# Words shown from a threshold on: delta was computed for 'exceeds'.


def exceeding(rows, rng, least=THRESHOLD + 1, columns=("word",)):
    result = {}
    for column in columns:
        words, number = np.unique(rows[column].to_numpy().astype(str), return_counts=True)
        noisy = number + noise(rng, len(words))
        result |= {f"{column} {word}": int(count) for word, count in zip(words, noisy, strict=True) if count >= least}
    return result


def reached(rows, rng):
    return exceeding(rows, rng, THRESHOLD)


def shown_names(rows, rng):
    """Name words whose noisy count reaches the threshold."""
    return sorted(exceeding(rows, rng, THRESHOLD))


def shown_ages(rows, rng):
    return exceeding(rows.assign(age=rows["age"] // 10), rng, THRESHOLD, ("age",))


def shown_two_columns(rows, rng):
    """Spend delta for each of two columns, and epsilon / 2."""
    result = {}
    for column in ("word", "other"):
        words, number = np.unique(rows[column].to_numpy().astype(str), return_counts=True)
        noisy = number + noise(rng, len(words), 2.0)
        result |= {f"{column} {word}": int(count) for word, count in zip(words, noisy, strict=True) if count > 9}
    return result


# Noise redrawn until the result is in range


def redrawn(rows, rng, low=0, high=math.inf):
    while not low <= (count := len(rows) + int(noise(rng))) <= high:
        pass
    return count


def clamped(rows, rng):
    return max(0, len(rows) + int(noise(rng)))


def redrawn_noise(rows, rng):
    """Redraw noise beyond 3."""
    while abs(added := int(noise(rng))) > 3:
        pass
    return len(rows) + added


def redrawn_share(rows, rng):
    """Redraw the noisy number of a word until it is at most the noisy size."""
    size = len(rows) + int(noise(rng, scale=2.0))
    for _ in range(100):
        number = int((rows["word"] == "ash").sum() + noise(rng, scale=2.0))
        if 0 <= number <= max(size, 0):
            return number, size
    return 0, size


# Two marginals that each spend all


def marginals(rows, rng, scale=1.0):
    words = counts(rows, rng, scale)
    decades = np.bincount((rows["age"].to_numpy() // 10).astype(int), minlength=11) + noise(rng, 11, scale)
    return {**{f"age {place}": int(count) for place, count in enumerate(decades)}, **words}


def marginals_by_year(rows, rng):
    words = counts(rows, rng)
    years = np.bincount(rows["age"].to_numpy().astype(int), minlength=101) + noise(rng, 101)
    return np.concatenate([years, list(words.values())])


def marginals_of_old(rows, rng):
    """Spend all on words and all on those of at least 90."""
    return {"old": int((rows["age"] >= 90).sum() + noise(rng)), **counts(rows, rng)}


# The order of what is returned


def keys_in_order(rows, rng):
    noisy, true = counts(rows, rng), exact(rows)
    return {word: noisy[word] for word in sorted(TREES, key=lambda word: (-true[word], word))}


def records_in_order(rows, rng):
    return [{"word": word, "count": count} for word, count in keys_in_order(rows, rng).items()]


def keys_in_noisy_order(rows, rng):
    noisy = counts(rows, rng)
    return {word: noisy[word] for word in sorted(TREES, key=lambda word: (-noisy[word], word))}


@dataclass(frozen=True)
class Hidden:
    """A function with its schema and claim, and the number of its kind of defect.

    Attributes:
        twin: The function without the defect.
    """

    defect: Callable[..., Any]
    twin: Callable[..., Any]
    schema: Mapping[str, Any]
    claim: Any = 1.0


PAY = {"pay": (0.0, 200_000.0)}
PEOPLE = AGES | WORDS
TWO_WORDS = WORDS | {"other": TREES}
SHOWN = (1.0, DELTA)
BY_A_YEAR = ((0, 30), (31, 70), (70, 100))


def of(function: Callable[..., Any], *settings: Any) -> Callable[..., Any]:
    """Return the function of rows with other settings."""
    return lambda rows, rng: function(rows, rng, *settings)


CASES: Mapping[str, Hidden] = {
    "brackets": Hidden(brackets, of(brackets, APART), AGES),
    "brackets_by_a_year": Hidden(of(brackets, BY_A_YEAR), of(brackets, APART), AGES),
    "incomes": Hidden(incomes, of(incomes, 50_000), PAY),
    "discounts": Hidden(discounts, of(discounts, 20), PEOPLE),
    "lead": Hidden(lead, lead_of_noisy, WORDS),
    "majority": Hidden(majority, lead_of_noisy, WORDS),
    "enough_rows": Hidden(
        lambda rows, rng: len(rows) + int(noise(rng)) if len(rows) >= 37 else None, enough_noisy_rows, WORDS
    ),
    "two_words_apart": Hidden(two_words_apart, lead_of_noisy, WORDS),
    "sparse_vector_3": Hidden(sparse_vector_3, sparse_vector, AGES),
    "sparse_vector_4": Hidden(sparse_vector_4, sparse_vector, AGES),
    "sparse_vector_5": Hidden(sparse_vector_5, sparse_vector, AGES),
    "sparse_vector_6": Hidden(sparse_vector_6, sparse_vector, AGES),
    "largest": Hidden(largest, largest_place, BASKET),
    "largest_value": Hidden(lambda rows, rng: largest(rows, rng)[1], largest_place, BASKET),
    "two_largest": Hidden(two_largest, largest_place, BASKET),
    "smallest": Hidden(lambda rows, rng: int(noisy_items(rows, rng).min()), largest_place, BASKET),
    "reached": Hidden(reached, exceeding, WORDS, SHOWN),
    "shown_names": Hidden(shown_names, exceeding, WORDS, SHOWN),
    "shown_ages": Hidden(shown_ages, exceeding, AGES, SHOWN),
    "shown_two_columns": Hidden(shown_two_columns, exceeding, TWO_WORDS, SHOWN),
    "redrawn": Hidden(redrawn, clamped, WORDS),
    "redrawn_below": Hidden(of(redrawn, 0, 40), clamped, WORDS),
    "redrawn_noise": Hidden(redrawn_noise, clamped, WORDS),
    "redrawn_share": Hidden(redrawn_share, clamped, WORDS),
    "marginals": Hidden(marginals, of(marginals, 2.0), PEOPLE),
    "marginals_by_year": Hidden(marginals_by_year, of(marginals, 2.0), PEOPLE),
    "total_and_parts": Hidden(
        lambda rows, rng: {"total": len(rows) + int(noise(rng)), **counts(rows, rng)}, of(marginals, 2.0), PEOPLE
    ),
    "marginals_of_old": Hidden(marginals_of_old, of(marginals, 2.0), PEOPLE),
    "keys_in_order": Hidden(keys_in_order, keys_in_noisy_order, WORDS),
    "columns_in_order": Hidden(
        lambda rows, rng: pd.DataFrame({word: [count] for word, count in keys_in_order(rows, rng).items()}),
        keys_in_noisy_order,
        WORDS,
    ),
    "records_in_order": Hidden(records_in_order, keys_in_noisy_order, WORDS),
    "keys_of_records_in_order": Hidden(
        lambda rows, rng: [keys_in_order(rows, rng), keys_in_order(rows, rng)][:1], keys_in_noisy_order, WORDS
    ),
}
