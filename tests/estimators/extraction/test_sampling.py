"""Probabilities of texts equal those of an enumerated model under every rule of sampling; shares of extracted texts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.extraction.sampling import Sampling, extraction_probability, queries_needed
from dpaudit.estimators.extraction.shares import DiscoverableExtraction, Share, larger_share_p_value
from tests.estimators.extraction.enumerated_model import TEXTS, EnumeratedModel

RULES = [
    (1.0, None, 1.0),
    (0.7, None, 1.0),
    (2.0, 3, 1.0),
    (1.0, 1, 1.0),
    (1.0, None, 0.8),
    (0.5, 4, 0.6),
    (1.3, 2, 0.95),
    (1.0, 5, 1e-9),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), RULES)
def test_every_text_has_its_enumerated_probability(temperature: float, top_k: int | None, top_p: float) -> None:
    model = EnumeratedModel(1)
    exact = model.probabilities(temperature, top_k, top_p)
    sampling = Sampling(temperature, top_k, top_p)
    logs = np.asarray(sampling.text_log_probability(model.teacher_forced(TEXTS), np.array(TEXTS)))
    assert np.exp(logs) == pytest.approx([exact[text] for text in TEXTS], rel=1e-12)
    assert np.exp(logs).sum() == pytest.approx(1.0, rel=1e-12)


def test_a_filter_that_is_not_renormalised_would_be_detected() -> None:
    """Planted defect: top-k filters the plain distribution without renormalising; the probabilities lose mass."""
    model = EnumeratedModel(1)
    plain = np.asarray(Sampling().text_log_probability(model.teacher_forced(TEXTS), np.array(TEXTS)))
    filtered = np.asarray(Sampling(top_k=2).text_log_probability(model.teacher_forced(TEXTS), np.array(TEXTS)))
    assert np.exp(plain[filtered > -np.inf]).sum() < 0.9


def test_samples_contain_a_text_as_often_as_computed() -> None:
    """2,000 games of 20 samples of a filtered model. False failure < 1e-6; the unfiltered probability is refused."""
    model, sampling, rng, games = EnumeratedModel(2), Sampling(0.8, 3, 0.9), np.random.default_rng(0), 2_000
    exact = model.probabilities(0.8, 3, 0.9)
    text = sorted(TEXTS, key=lambda candidate: abs(exact[candidate] - 0.03))[0]
    samples = rng.choice(len(TEXTS), p=np.array([exact[candidate] for candidate in TEXTS]), size=(games, 20))
    hits = int((samples == TEXTS.index(text)).any(axis=1).sum())
    logs = sampling.text_log_probability(model.teacher_forced([text])[0], np.array(text))
    expected = extraction_probability(logs, 20)
    assert binom.ppf(5e-7, games, expected) <= hits <= binom.ppf(1 - 5e-7, games, expected)
    unfiltered = extraction_probability(Sampling().text_log_probability(model.teacher_forced([text])[0], text), 20)
    assert not binom.ppf(5e-7, games, unfiltered) <= hits <= binom.ppf(1 - 5e-7, games, unfiltered)


def test_ties_are_kept_and_greedy_sampling_shares_them() -> None:
    logits = np.array([2.0, 1.0, 1.0, 0.0])
    assert (np.exp(Sampling(top_k=2).log_probabilities(logits)) > 0).tolist() == [True, True, True, False]
    assert np.exp(Sampling(0.0).log_probabilities([3.0, 3.0, 1.0])).tolist() == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.75, 0.999])
@pytest.mark.parametrize("chance", [Fraction(1, 2), Fraction(1, 3), Fraction(9, 10), Fraction(1, 4096)])
def test_queries_needed_is_the_smallest_number(chance: Fraction, wanted: float) -> None:
    needed = int(queries_needed(math.log(chance), wanted))
    reached = [1 - (1 - chance) ** n >= Fraction(wanted) for n in (needed - 1, needed)]
    assert reached == [False, True]
    assert extraction_probability(math.log(chance), needed) == pytest.approx(float(1 - (1 - chance) ** needed))


def test_the_smallest_and_largest_probabilities() -> None:
    assert queries_needed(-np.inf, 0.5) == np.inf
    assert queries_needed(0.0, 0.99) == 1
    assert queries_needed(-600.0, 0.5) == pytest.approx(math.log(2) * math.exp(600), rel=1e-9)
    assert extraction_probability([-50.0, 0.0, -np.inf], 10).tolist() == pytest.approx(  # type: ignore[union-attr]
        [10 * math.exp(-50), 1.0, 0.0], rel=1e-9
    )


def test_shares_of_extractable_texts_and_of_the_control() -> None:
    """Twelve planted texts, nine of them easy; a control of twelve with one; the p-value is Fisher's."""
    logs = np.log([0.9] * 9 + [1e-9] * 3 + [0.9] + [1e-9] * 11)
    planted = np.arange(24) < 12
    table = DiscoverableExtraction(queries=(1, 10**10)).shares(logs, planted)
    assert table.column("planted") == (0.75, 1.0)
    assert table.column("control") == (pytest.approx(1 / 12), 1.0)
    from scipy.stats import fisher_exact

    assert table.column("p")[0] == pytest.approx(fisher_exact([[9, 3], [1, 11]], "greater").pvalue)
    assert table.column("p")[1] == 1.0
    share = Share.of(planted[:16], confidence=0.95)
    assert (share.hits, share.texts) == (12, 16)
    assert larger_share_p_value(share, share) > 0.5


def test_texts_that_a_filter_excludes_count_as_not_extractable() -> None:
    table = DiscoverableExtraction().read({"log_probability": [-np.inf, -0.1, -np.inf], "planted": [1, 1, 0]})[0]
    assert table.column("planted") == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature must be"),
        ({"top_k": 0}, "top_k must be"),
        ({"top_p": 0.0}, "top_p must be"),
    ],
)
def test_bad_rules_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**arguments)  # type: ignore[arg-type]


def test_bad_tables_are_refused() -> None:
    with pytest.raises(InputError, match="planted must be 0 or 1"):
        DiscoverableExtraction().read({"log_probability": [-1.0, -2.0], "planted": [1, 2]})
    with pytest.raises(InputError, match="others as control"):
        DiscoverableExtraction().read({"log_probability": [-1.0, -2.0], "planted": [1, 1]})
    with pytest.raises(InputError, match="must be <= 0"):
        DiscoverableExtraction().read({"log_probability": [1.0, -2.0], "planted": [1, 0]})
    with pytest.raises(InputError, match="in \\[0, vocabulary\\)"):
        Sampling().text_log_probability(np.zeros((2, 3)), np.array([0, 3]))
