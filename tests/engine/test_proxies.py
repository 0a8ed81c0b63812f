"""Proxies: a model of other rows, an earlier model, the truth; and the parts of data in order of time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from dpaudit import Audit, AuditSpec, Examples, RunOptions, audit, load_spec
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.proxies import CalibratedModel, Calibration, Checkpoint, ModelProxy, TruePosterior
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


@dataclass(frozen=True)
class Overconfident:
    """Training method whose model knows the true law of generated data, with log-probabilities times `power`."""

    data: GaussianMixture
    power: float = 1.0

    def fit(self, train: Examples, **_: Any) -> Overconfident:
        return self

    def probabilities(self, features: Any) -> NDArray[np.float64]:
        powers = self.data.posterior(features) ** self.power
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("classes", [2, 4])
def test_a_constant_predictor_shows_nothing_with_a_calibrated_reference(classes: int, tmp_path: Path) -> None:
    """A model that answers the same for all rows leaks nothing; all that an audit of it shows is the proxy's error."""
    data = GaussianMixture(classes=classes, rows=6000)
    constant = Overconfident(data, power=0.0)
    observed = {}
    for proxy in (ModelProxy(Overconfident(data, 4.0)), CalibratedModel(Overconfident(data, 4.0))):
        entry = Audit(
            NonPrivate(constant),
            data=data,
            game=LabelInference(replays=20),
            proxy=proxy,
            estimator="one-run",
            split=Partition(target=0.4, reference=0.3, test=0.3),
        )
        (result,) = audit(AuditSpec((entry,), seed=1, run=RunOptions(runner="in-process")), output=tmp_path).results
        assert result.control is not None
        observed[type(proxy)] = result.epsilon, result.control.epsilon
    assert min(observed[ModelProxy]) > 0.5
    assert max(observed[CalibratedModel]) < 0.05


def test_the_correction_is_that_of_slow_code() -> None:
    """The minimum of the smoothed loss, one row and one class at a time, by a search without derivatives."""
    rng = np.random.default_rng(3)
    law = rng.dirichlet([1.0, 1.0, 1.0], 60)
    labels = np.array([rng.choice(3, p=row) for row in law])
    raw = law**3 / (law**3).sum(axis=1, keepdims=True)

    def loss(parameters: NDArray[np.float64]) -> float:
        slope, shifts, total = parameters[0], (0.0, parameters[1], parameters[2]), 0.0
        for row, label in zip(raw, labels, strict=True):
            logits = [slope * math.log(max(p, 1e-9)) + shift for p, shift in zip(row, shifts, strict=True)]
            norm = math.log(sum(math.exp(value) for value in logits))
            smoothing = sum(norm - value for value in logits) / 3 / 60
            total += norm - logits[label] + smoothing
        return total

    slow = minimize(loss, [1.0, 0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x
    fast = Calibration.fitted(raw, labels)
    assert [fast.slope, *fast.shifts[1:]] == pytest.approx(slow, abs=1e-3)
    assert fast.slope == pytest.approx(1 / 3, abs=0.15)
    assert fast.apply(raw).sum(axis=1) == pytest.approx(1.0)
    assert fast.apply(np.eye(3)).min() == pytest.approx(1 / 63, rel=0.1)


def test_separable_rows_and_classes_without_rows_have_a_finite_correction() -> None:
    separable = Calibration.fitted(np.array([[0.9, 0.1], [0.2, 0.8]] * 5), np.array([0, 1] * 5))
    absent = Calibration.fitted(np.full((8, 3), 1 / 3), np.zeros(8, np.int64))
    for correction in (separable, absent):
        assert np.isfinite([correction.slope, *correction.shifts]).all()
    assert absent.apply(np.full((1, 3), 1 / 3))[0] == pytest.approx([9 / 11, 1 / 11, 1 / 11], abs=0.05)


def test_the_calibrated_model_is_the_default_and_the_correction_sees_no_row_of_the_training() -> None:
    rows = {"data": "iris", "mechanism": {"name": "lp-1st", "epsilon": 1.0}}
    (entry,) = load_spec(rows).audits
    assert entry.proxy == CalibratedModel()
    (named,) = load_spec({**rows, "proxy": "model"}).audits
    assert named.proxy == ModelProxy()
    # Labels are random, so a regression that fits them is worth nothing for other rows, and those correct it.
    rng = np.random.default_rng(0)
    noise = Examples(rng.standard_normal((200, 100)).astype(np.float32), rng.integers(0, 2, 200), 2)
    fits = LogisticRegression(inverse_penalty=1e4)
    raw, corrected = (predictions(proxy(fits), noise, noise) for proxy in (ModelProxy, CalibratedModel))
    assert np.abs(raw - 0.5).mean() > 0.4
    assert np.abs(corrected - 0.5).mean() < 0.2


def test_a_calibrated_model_refuses_what_it_cannot_use() -> None:
    with pytest.raises(SpecError, match=r"got 2 of both\. Give `split\.reference` a larger share"):
        predictions(CalibratedModel(held_out=0.1), in_time(), in_time(2))
    with pytest.raises(InputError, match=r"held_out must be in \(0, 1\), got 1"):
        CalibratedModel(held_out=1.0)


@pytest.mark.parametrize("proxy", [ModelProxy(), CalibratedModel(), Checkpoint()])
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
