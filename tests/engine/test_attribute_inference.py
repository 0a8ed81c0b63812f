"""Attribute inference: the information the adversary has, and audits with a known result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, AuditResult, AuditSpec, Claim, Examples, Relation, RunOptions, audit, load_spec
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.attacks import AttributeInferenceScore
from dpaudit.engine.games.one_run.attribute_inference import LABEL, AttributeInference, protected_column
from dpaudit.engine.games.one_run.membership import ObservationalMembership
from dpaudit.engine.games.proxies import ModelProxy
from dpaudit.engine.planning.plan import make_plan
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.recalled_labels import Recall
from dpaudit.mechanisms.models.tables import ConstantModel, LogisticRegression
from dpaudit.mechanisms.protocols import Model

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "protected-attribute.yaml"


@dataclass(frozen=True)
class Census:
    """A table whose column `sex` is independent of the others; `age` makes every record unique."""

    rows: int = 3_000

    def load(self, *, seed: int = 0) -> Examples:
        rng = np.random.default_rng(seed)
        sex = np.where(rng.random(self.rows) < 0.5, "female", "male")
        table = pa.table({"age": rng.normal(40, 10, self.rows).astype(np.float32), "sex": sex.tolist()})
        return Examples(table, rng.integers(0, 2, self.rows), 2, "census", ("sex",))


@dataclass(frozen=True)
class Forgets:
    """A mechanism that ignores its data: epsilon = 0."""

    def claim(self) -> Claim:
        return Claim(0.01, relation=Relation.REPLACE)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return ConstantModel((0.3, 0.7))


@dataclass(frozen=True)
class Generator:
    """A source of fresh census records."""

    def sample(self, count: int, rng: np.random.Generator) -> Examples:
        return Census(count).load(seed=int(rng.integers(2**31)))


@dataclass(frozen=True)
class NoGenerator:
    """A generator without `sample`."""


def audited(folder: Path, mechanism: Any, **fields: Any) -> AuditResult:
    entry = Audit(
        mechanism=mechanism,
        **{
            "data": Census(),
            "game": AttributeInference(replays=5, columns=("sex",)),
            "proxy": ModelProxy(LogisticRegression()),
            "attack": AttributeInferenceScore(),
            "split": Partition(target=0.5, reference=0.3, test=0.2),
            **fields,
        },
    )
    return audit(AuditSpec((entry,), seed=4, run=RunOptions(runner="in-process")), output=folder).results[0]


def test_a_learner_that_recalls_its_records_reveals_the_attribute(tmp_path: Path) -> None:
    """All guesses on 1,500 fair bits are correct, except if the proxy draws the true value, which it does half of
    the time."""
    result = audited(tmp_path, NonPrivate(Recall()))
    assert result.comparison is not None
    assert result.comparison.observed > 0.5
    assert result.observational
    assert result.control is not None
    assert not result.control.shift_detected


def test_a_mechanism_that_ignores_its_data_is_not_rejected(tmp_path: Path) -> None:
    result = audited(tmp_path, Forgets())
    assert result.comparison is not None
    assert result.comparison.observed == 0


def test_several_columns_and_bins_make_one_attribute() -> None:
    game = AttributeInference(columns=("sex", "age"), bins=3)
    reference = Census(999).load(seed=1)
    rows = Census(200).load(seed=2)
    posed = game.proxy_task(rows, reference)
    assert posed.classes == 6
    assert isinstance(posed.features, pa.Table)
    assert isinstance(rows.features, pa.Table)
    assert posed.features.column_names == [LABEL]
    assert posed.categorical == (LABEL,)
    assert isinstance(reference.features, pa.Table)
    ages = np.asarray(reference.features["age"], np.float64)
    edges = np.quantile(ages, [1 / 3, 2 / 3], method="higher")
    ages, sexes = np.asarray(rows.features["age"]), rows.features["sex"].to_pylist()
    want = [3 * (sex == "male") + int((age >= edges).sum()) for sex, age in zip(sexes, ages, strict=True)]
    assert posed.labels.tolist() == want
    counts = np.bincount(game.proxy_task(reference, reference).labels % 3)
    assert counts.tolist() == [333, 333, 333]


def test_the_model_is_queried_with_each_value_and_bin_but_no_exact_number() -> None:
    game = AttributeInference(columns=("age",), bins=2)
    reference, rows = Census(500).load(seed=1), Census(50).load(seed=2)
    collected: list[set[float]] = []

    def predict(examples: Examples) -> NDArray[np.float64]:
        assert isinstance(examples.features, pa.Table)
        assert isinstance(rows.features, pa.Table)
        assert examples.features["sex"] == rows.features["sex"]
        assert examples.features.schema == rows.features.schema
        collected.append(set(examples.features["age"].to_pylist()))
        return np.tile([0.2, 0.8], (len(examples), 1))

    answers = game.model_answers(predict, rows, reference)
    assert answers.shape == (50, 2)
    assert answers[:, 0].tolist() == np.where(rows.labels == 1, 0.8, 0.2).tolist()
    assert [len(ages) for ages in collected] == [1, 1]
    # The middle of each bin is used for every record, independent of its age.
    assert isinstance(reference.features, pa.Table)
    ages = np.asarray(reference.features["age"], np.float64)
    middle = np.sort(ages)[250]  # the "higher" median of 500 in numpy
    want = [np.median(ages[ages < middle]), np.median(ages[ages >= middle])]
    assert sorted(next(iter(values)) for values in collected) == pytest.approx(want, rel=1e-6)


def test_values_missing_in_the_reference_become_its_most_frequent_one() -> None:
    values = protected_column("country", pa.chunked_array([["a", "b", "b", "c"]]), 4)
    assert values.codes(pa.chunked_array([["c", "z", "a"]])).tolist() == [2, 1, 0]
    constant = protected_column("n", pa.chunked_array([[1.0, 1.0, 1.0]]), 4)
    assert constant.size == 1
    skewed = protected_column("n", pa.chunked_array([[0.0] * 7 + [5.0, 9.0, 9.0]]), 4)
    assert skewed.codes(pa.chunked_array([[-1.0, 0.0, 4.9, 5.0, 100.0]])).tolist() == [0] * 3 + [1] * 2


def test_the_score_is_bayes_rule_against_the_proxy() -> None:
    """By hand: prior (.5, .25, .25), likelihoods (.1, .4, .2): posterior (.25, .5, .25)."""
    view = CanaryView(
        np.array([[0.1, 0.4, 0.2]] * 3, np.float32),
        np.array([[0.5, 0.25, 0.25]] * 3, np.float32),
        np.array([0, 1, 2]),
    )
    assert AttributeInferenceScore(t=0).score(view) == pytest.approx([-0.25, 0.25, 0.0], abs=1e-7)
    assert AttributeInferenceScore(t=2).score(view) == pytest.approx([-0.0625, 0.140625, 0.0], abs=1e-7)
    silent = CanaryView(np.zeros((3, 3), np.float32), view.reference, view.labels)
    assert AttributeInferenceScore().score(silent).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"game": AttributeInference(columns=("race",))}, "'race' is none; there are age, sex"),
        ({"split": Partition(target=0.8, reference=0.0, test=0.2)}, r"split\.reference"),
        (
            {"game": AttributeInference(columns=("age",), bins=500)},
            r"must have 2\.\.200 combined values, they have 500",
        ),
        (
            {"mechanism": RandomizedResponse(1.0), "claim": Claim(1.0, relation=Relation.REPLACE)},
            "attribute-inference needs learners .* got randomized-response",
        ),
        ({"mechanism": RandomizedResponse(1.0)}, "says nothing about a game with replace neighbours"),
    ],
)
def test_invalid_games_are_refused_before_anything_runs(fields: dict[str, Any], message: str) -> None:
    spec = {"mechanism": NonPrivate(Recall()), "game": AttributeInference(columns=("sex",)), **fields}
    with pytest.raises(SpecError, match=message):
        make_plan(AuditSpec((Audit(data=Census(3_000), **spec),)))


def test_a_column_named_twice_is_refused() -> None:
    with pytest.raises(InputError, match="columns must name at least one"):
        AttributeInference()
    with pytest.raises(InputError, match="columns must differ"):
        AttributeInference(columns=("sex", "sex"))


def test_the_example_protects_columns_of_adult() -> None:
    spec = load_spec(EXAMPLE)
    assert [getattr(entry.game, "columns", ()) for entry in spec.audits] == [("sex",), ("sex", "age"), ()]


def test_fresh_records_come_from_the_given_generator(tmp_path: Path) -> None:
    """The whole record is protected, so no test part is needed; the model is certain on training rows only."""
    split = Partition(target=0.5, reference=0.5, test=0.0)
    game = ObservationalMembership(replays=3, fresh=Generator())
    # A recalled label has probability 1, any other 1/2, so all information is in the highest scores.
    fields = {"split": split, "game": game, "estimator": {"name": "one-run", "guess": "both-tails"}}
    result = audited(tmp_path, NonPrivate(Recall()), **{**fields, "attack": "calibrated-loss"})
    assert result.comparison is not None
    assert result.comparison.observed > 2
    assert audited(tmp_path / "forgets", Forgets(), **fields).comparison.observed == 0  # type: ignore[union-attr]
    plan = make_plan(AuditSpec((Audit(NonPrivate(Recall()), Census(), game=game, split=split),)))
    assert sum(name.startswith("fresh:") for name in plan.shared) == 1
    bad = Audit(NonPrivate(Recall()), Census(), game=ObservationalMembership(fresh=NoGenerator()), split=split)
    with pytest.raises(SpecError, match=r"needs a method `sample\(count, rng\)"):
        make_plan(AuditSpec((bad,)))


def test_a_generator_is_named_in_a_spec() -> None:
    words = {
        "data": "iris",
        "mechanism": "non-private",
        "game": {
            "name": "observational-membership",
            "fresh": {"name": "tests.engine.test_attribute_inference:Generator"},
        },
    }
    spec = load_spec(words)
    assert spec.audits[0].game.fresh == Generator()
    assert load_spec(words).to_yaml() == spec.to_yaml()
    assert "test_attribute_inference:Generator" in spec.to_yaml()
