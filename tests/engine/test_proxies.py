"""Proxies: a model of other rows, an earlier model, the truth; and the parts of data in order of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpaudit import Examples, load_spec
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.proxies import Checkpoint, ModelProxy, TruePosterior
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.lp_mst import LP1ST
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.recalled_labels import Recall
from dpaudit.mechanisms.models.tables import LogisticRegression


def in_time(rows: int = 100) -> Examples:
    """Return rows whose only feature is the time."""
    return Examples(np.arange(rows, dtype=np.float32)[:, None], np.arange(rows) % 2, 2)


def predictions(proxy: Any, examples: Examples, reference: Examples | None = None, data: Any = None) -> Any:
    predict = proxy.predictor(reference=reference, data=data, seed=np.random.SeedSequence(1), compute=Compute())
    return predict(examples)


def test_in_the_given_order_the_reference_part_is_oldest_and_the_test_part_newest() -> None:
    split = Partition(target=0.3, reference=0.4, test=0.2, validation=0.1, order="given")
    parts = split.divide(in_time(), np.random.default_rng(0))
    times = [part.features[:, 0] for part in (parts.reference, parts.validation, parts.target, parts.test)]
    assert np.array_equal(np.concatenate(times), np.arange(100))
    assert [len(part) for part in times] == [40, 10, 30, 20]


def test_a_random_order_mixes_the_times_and_keeps_all_rows() -> None:
    parts = Partition(target=0.5, reference=0.5, test=0.0).divide(in_time(), np.random.default_rng(0))
    both = np.concatenate([parts.reference.features[:, 0], parts.target.features[:, 0]])
    assert np.array_equal(np.sort(both), np.arange(100))
    assert parts.reference.features.max() > parts.target.features.min()


def test_a_checkpoint_is_trained_on_the_oldest_rows_only() -> None:
    rows = in_time()
    recalled = predictions(Checkpoint(NonPrivate(Recall()), share=0.3), rows, reference=rows.take(np.arange(50)))
    is_recalled = recalled.max(axis=1) == 1
    assert np.flatnonzero(is_recalled).tolist() == list(range(15))
    assert np.array_equal(recalled[:15].argmax(axis=1), rows.labels[:15])


def test_a_checkpoint_of_the_whole_reference_is_a_model_of_it() -> None:
    rows = Iris().load()
    parts = Partition(target=0.5, reference=0.5, test=0.0).divide(rows, np.random.default_rng(0))
    model = predictions(ModelProxy(LogisticRegression()), parts.target, parts.reference)
    checkpoint = predictions(Checkpoint(NonPrivate(LogisticRegression())), parts.target, parts.reference)
    assert np.array_equal(model, checkpoint)


def test_a_private_learner_makes_a_private_checkpoint() -> None:
    """Its labels are released as the learner does: at epsilon 0.01 half of them are wrong.

    False failure < 1e-9: outside of 500 +- 6.2 standard deviations of Binomial(1000, 1 / (1 + e^0.01)).
    """
    rows = in_time(1_000)
    recalled = predictions(Checkpoint(LP1ST(0.01, Recall())), rows, reference=rows)
    assert 400 <= int((recalled.argmax(axis=1) == rows.labels).sum()) <= 600


@pytest.mark.parametrize("proxy", [ModelProxy(), Checkpoint()])
def test_trained_proxies_need_the_reference_part(proxy: Any) -> None:
    with pytest.raises(SpecError, match=r"split\.reference"):
        predictions(proxy, in_time())


def test_the_true_posterior_needs_generated_data() -> None:
    data = GaussianMixture(classes=3, rows=20)
    rows = data.load(seed=1)
    assert np.array_equal(predictions(TruePosterior(), rows, data=data), data.posterior(rows.features))
    with pytest.raises(SpecError, match="must have a method `posterior`"):
        predictions(TruePosterior(), rows, data=Iris())


def test_a_spec_can_name_a_checkpoint() -> None:
    words = {
        "data": "iris",
        "mechanism": {"name": "lp-1st", "epsilon": 1.0},
        "split": {"target": 0.5, "reference": 0.5, "test": 0.0, "order": "given"},
        "proxy": {"name": "checkpoint", "learner": {"name": "lp-1st", "epsilon": 1.0}, "share": 0.5},
    }
    (entry,) = load_spec(words).audits
    assert entry.proxy == Checkpoint(LP1ST(1.0), share=0.5)
    assert load_spec(words) == load_spec({**words, "proxy": {**words["proxy"]}})  # type: ignore[dict-item]
    with pytest.raises(InputError, match=r"share must be in \(0, 1\], got 0"):
        Checkpoint(share=0)
    with pytest.raises(InputError, match="must train a model"):
        Checkpoint(RandomizedResponse(1.0))  # type: ignore[arg-type]
