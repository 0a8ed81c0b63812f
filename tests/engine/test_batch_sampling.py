"""Sampling of batches: Poisson sampling is told from shuffling, fixed sizes, another rate and missing texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chisquare

from dpaudit.engine.observer.batch_sampling import SAID_BELOW, BatchSampling, by_step
from tests.loops import Cases

TEXTS, OTHERS, STEPS, BATCH = 40, 220, 80, 26
Rng = np.random.Generator


def recorded(batches: Sequence[NDArray[np.int64]], copies: int = 1) -> BatchSampling:
    """Return the sampling of batches of rows, of which the first `copies` times `TEXTS` are planted copies of texts."""
    times = [(step, int(row) % TEXTS) for step, rows in enumerate(batches) for row in rows if row < copies * TEXTS]
    return by_step(times, [len(rows) for rows in batches], np.full(TEXTS, copies))


def poisson(rng: Rng, rate: float = 0.1, rows: int = TEXTS + OTHERS, steps: int = STEPS) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(rng.random(rows) < rate) for _ in range(steps)]


def epochs(rng: Rng, *, once: bool = False, rows: int = TEXTS + OTHERS) -> Iterator[NDArray[np.int64]]:
    order = rng.permutation(rows)
    for _ in range(STEPS * BATCH // rows):
        yield from (order[first : first + BATCH] for first in range(0, rows, BATCH))
        order = order if once else rng.permutation(rows)


def test_poisson_sampling_is_reported_as_often_as_stated() -> None:
    """False failure < 1e-6: the limit is a quantile of Binomial(30, 3 tests times SAID_BELOW)."""
    reports = sum(
        bool(recorded(poisson(np.random.default_rng(seed), steps=30)).remarks(sampling_rate=0.1)) for seed in range(30)
    )
    assert reports <= binom.ppf(1 - 1e-6, 30, 3 * SAID_BELOW)


def test_p_values_of_poisson_sampling_are_uniform() -> None:
    """False failure < 1e-6, by a chi-square test over fifths."""
    values = [recorded(poisson(np.random.default_rng(seed), steps=20)).spread.below for seed in range(60)]
    assert chisquare(np.histogram(values, np.linspace(0, 1, 6))[0]).pvalue > 1e-6


def test_shuffled_batches_and_batches_of_one_size_are_reported() -> None:
    rng = np.random.default_rng(0)
    shuffled, once = recorded(list(epochs(rng))), recorded(list(epochs(rng, once=True)))
    (counts, sizes) = shuffled.remarks()
    assert counts.startswith("not Poisson sampling (p <= 0.001): each copy of a planted text came 8 times in 80 steps;")
    assert sizes.startswith("not Poisson sampling: each of 80 batches held 26 sequences;")
    assert "in the same order each time" in once.remarks()[0]
    assert "in the same order" not in counts
    subsets = recorded([rng.choice(TEXTS + OTHERS, BATCH, replace=False) for _ in range(STEPS)])
    (remark,) = subsets.remarks()
    assert remark.startswith("not Poisson sampling: each of 80 batches held 26 sequences;")


def test_a_last_batch_of_another_size_and_an_unfinished_epoch_are_shuffling_too() -> None:
    rng = np.random.default_rng(1)
    short_last = recorded(list(epochs(rng, rows=TEXTS + OTHERS + 10))[: STEPS - 4])
    assert len(short_last.remarks()) == 2
    assert "held 10 or 26 sequences" in short_last.remarks()[1]


def test_steps_of_several_batches_are_not_called_shuffled() -> None:
    """Poisson batches that are cut into parts of at most 8 count as steps if the optimizer is not known."""
    rng = np.random.default_rng(2)
    parts = [part for rows in poisson(rng, steps=200) for part in np.split(rows, range(8, len(rows), 8))]
    assert recorded(parts).remarks() == []


def test_another_rate_is_reported() -> None:
    sampling = recorded(poisson(np.random.default_rng(3), rate=0.15))
    assert sampling.remarks() == []
    (remark,) = sampling.remarks(sampling_rate=0.1)
    assert remark.startswith("not the stated sampling rate of 0.1 (p = ")
    assert recorded(poisson(np.random.default_rng(4), rate=0.1)).remarks(sampling_rate=0.1) == []


def test_texts_that_poisson_sampling_missed_are_explained_and_others_are_not() -> None:
    rng = np.random.default_rng(5)
    few = poisson(rng, rate=0.03, steps=60)  # each text comes 1.8 times on average
    some = recorded(few)
    assert np.count_nonzero(some.counts == 0) > 2
    assert some.explains_missing_texts
    many = poisson(rng)
    filtered = [rows[rows >= 5] for rows in many]
    with Cases() as cases:
        for name, batches in {
            "a third of an epoch": poisson(rng, rate=0.005, steps=60),
            "five of forty filtered": filtered,
            "most texts filtered": [rows[rows >= TEXTS // 2 + 2] for rows in few],
            "shuffled, half an epoch": list(epochs(rng))[:14],
        }.items():
            with cases.case(name):
                assert not recorded(batches).explains_missing_texts
    assert recorded(many).explains_missing_texts  # nothing is missing


def test_copies_are_sampled_apart() -> None:
    sampling = recorded(poisson(np.random.default_rng(6)), copies=4)
    assert sampling.counts.mean() > 20
    assert sampling.remarks(sampling_rate=0.1) == []


def test_short_trainings_are_not_judged() -> None:
    batches = list(epochs(np.random.default_rng(7)))
    assert recorded(batches[:9]).remarks(sampling_rate=0.9) == []
    assert by_step([], [], np.ones(TEXTS, dtype=np.int64)).remarks() == []
