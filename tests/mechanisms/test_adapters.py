"""Other people's code as models and learners: decided by its seed, described by a spec, refused when not fit."""

from __future__ import annotations

import math
import pickle
import random
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml
from lightgbm import LGBMClassifier
from numpy.random import SeedSequence
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from xgboost import XGBClassifier

from dpaudit import (
    Audit,
    AuditSpec,
    Claim,
    Relation,
    RunOptions,
    audit,
    check,
    from_callable,
    from_opacus,
    from_sklearn,
    from_summary,
    from_torch,
)
from dpaudit.actors.unit import fingerprint
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.request.build import build, describe
from dpaudit.errors import InputError, SpecError
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.adapters.own_torch import OwnOpacus
from dpaudit.mechanisms.adapters.own_training import OwnTraining
from dpaudit.mechanisms.adapters.scikit_learn import Settings, SklearnClassifier
from dpaudit.mechanisms.adapters.user_code import ModelOfUserCode, imported
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.lp_mst import LP1ST
from dpaudit.mechanisms.protocols import Learner, Trainer
from tests.loops import Cases
from tests.mechanisms import user_code

CPU = Compute()
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(200, 4)).astype(np.float32)
NUMBERS = Examples(POINTS, (POINTS[:, 0] > 0).astype(np.int64) + (POINTS[:, 1] > 1), 3)
KINDS = RNG.choice(["a", "b", "c"], 200)
TABLE = Examples(
    pa.table({"x": POINTS[:, 0], "kind": KINDS}), ((KINDS == "a") | (POINTS[:, 0] > 1)).astype(np.int64), 2,
    categorical=("kind",),
)  # fmt: skip


def probabilities(model: Any, data: Examples, seed: int = 0) -> Any:
    return model.fit(data, seed=SeedSequence(seed), compute=CPU).probabilities(data.features)


ESTIMATORS = {
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=5),
    "forest": lambda: RandomForestClassifier(n_estimators=10),
    "pipeline": lambda: make_pipeline(
        make_column_transformer((OneHotEncoder(), [-1]), remainder="passthrough"), LogisticRegression()
    ),
    "lightgbm": lambda: LGBMClassifier(
        verbosity=-1, min_child_samples=5, n_estimators=5, subsample=0.5, subsample_freq=1
    ),
    "xgboost": lambda: XGBClassifier(n_estimators=5, subsample=0.5),
}


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "pipeline"])
def test_numeric_features_are_learned_and_the_seed_determines_the_model(name: str) -> None:
    model = from_sklearn(ESTIMATORS[name]())
    first, again = probabilities(model, NUMBERS), probabilities(model, NUMBERS)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first.sum(1), 1)
    assert (first.argmax(1) == NUMBERS.labels).mean() > 0.8
    if name != "boosting":  # which draws nothing on so few rows
        assert np.abs(first - probabilities(model, NUMBERS, seed=1)).max() > 0.001


@pytest.mark.parametrize("name", ESTIMATORS)
def test_categorical_features_are_learned(name: str) -> None:
    model = from_sklearn(ESTIMATORS[name]())
    answers = probabilities(model, TABLE)
    assert (answers.argmax(1) == TABLE.labels).mean() > 0.9, "x alone gives at most 0.8"
    trained = model.fit(TABLE.take(KINDS != "c"), seed=SeedSequence(0), compute=CPU)
    if name != "pipeline":  # whose own encoder refuses what it has not seen
        assert trained.probabilities(TABLE.take(KINDS == "c").features).shape == ((KINDS == "c").sum(), 2)


def test_xgboost_with_native_categories() -> None:
    native = from_sklearn(XGBClassifier(n_estimators=5, enable_categorical=True), categories="native")
    assert (probabilities(native, TABLE).argmax(1) == TABLE.labels).mean() > 0.9


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "pipeline"])
def test_a_class_that_training_lacks_has_probability_0(name: str) -> None:
    lacking = NUMBERS.take(NUMBERS.labels != 1)
    model = from_sklearn(ESTIMATORS[name]()).fit(lacking, seed=SeedSequence(0), compute=CPU)
    assert isinstance(model, ModelOfUserCode)
    answers = model.probabilities(NUMBERS.features)
    assert answers.shape == (200, 3)
    assert not answers[:, 1].any()
    single_class = NUMBERS.take(NUMBERS.labels == 2)
    shares = from_sklearn(ESTIMATORS[name]()).fit(single_class, seed=SeedSequence(0), compute=CPU).probabilities(POINTS)
    np.testing.assert_allclose(shares[0], np.array([1, 1, len(single_class) + 1]) / (len(single_class) + 3))


@pytest.mark.parametrize(
    "estimator",
    [
        *(pytest.param(make, id=name) for name, make in ESTIMATORS.items()),
        pytest.param(lambda: LogisticRegression(class_weight={0: 1.0, 1: 5.0, 2: 1.0}), id="weights by class"),
        pytest.param(
            lambda: make_pipeline(FunctionTransformer(user_code.squeezed), StandardScaler(), LogisticRegression(C=0.5)),
            id="function",
        ),
    ],
)
def test_a_spec_round_trip_rebuilds_the_model(estimator: Any) -> None:
    model = from_sklearn(estimator())
    words = describe(model)
    assert words["name"] == "sklearn"
    again = build("model", yaml.safe_load(yaml.safe_dump(words)))
    assert fingerprint(again) == fingerprint(model)
    assert fingerprint(cloudpickle.loads(cloudpickle.dumps(model))) == fingerprint(model)
    assert again.make().get_params().keys() == estimator().get_params().keys()
    data = TABLE if "ColumnTransformer" in str(estimator()) else NUMBERS
    np.testing.assert_array_equal(probabilities(again, data), probabilities(model, data))


def test_the_description_is_concise() -> None:
    boosting = from_sklearn(HistGradientBoostingClassifier(max_iter=50, random_state=3), Claim(math.inf))
    assert describe(boosting) == {
        "name": "sklearn",
        "estimator": "sklearn.ensemble:HistGradientBoostingClassifier",
        "parameters": {"max_iter": 50},
        "claimed": {"epsilon": math.inf},
    }
    assert from_sklearn(HistGradientBoostingClassifier) == SklearnClassifier(HistGradientBoostingClassifier)
    assert isinstance(boosting, Learner)
    assert isinstance(LP1ST(1.0, model=from_sklearn(RandomForestClassifier())).model, Trainer)


def test_parameters_change_the_key() -> None:
    keys = {fingerprint(from_sklearn(HistGradientBoostingClassifier(max_iter=n))) for n in (5, 6)}
    assert len(keys) == 2


class KnowsNothing(ClassifierMixin, BaseEstimator):
    """Answers what is no probability."""

    def fit(self, X: Any, y: Any) -> KnowsNothing:
        return self

    def predict_proba(self, X: Any) -> Any:
        return np.full((len(X), 3), math.nan)


class ChangesItsParameter(KnowsNothing):
    """Cannot be cloned."""

    def __init__(self, gap: Any = None) -> None:
        self.gap = list(gap or [])


def test_a_regressor_becomes_a_function_on_rows() -> None:
    """It predicts the last column, draws from the generator of the call, and survives a spec."""
    rows = pd.DataFrame({"x": np.linspace(0, 1, 30), "y": np.linspace(0, 3, 30)})
    for estimator in (Ridge(alpha=1e-9, random_state=5), make_pipeline(StandardScaler(), Ridge(alpha=1e-9)), Ridge):
        function = from_sklearn(estimator, Claim(1.0))
        assert function.claim == Claim(1.0)
        predicted = function(rows, np.random.default_rng(0)).predict(rows[["x"]])
        assert np.abs(predicted - rows["y"]).max() < (1 if estimator is Ridge else 1e-3)
    forest = from_sklearn(RandomForestRegressor(5, random_state=1))
    first, same, other = (forest(rows, np.random.default_rng(seed)).predict(rows[["x"]]) for seed in (0, 0, 1))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    audited = OwnFunction(forest, claimed=Claim(1.0))
    again = build("mechanism", describe(audited))
    assert fingerprint(again) == fingerprint(audited)
    assert imported(location(again.source), field="function").__name__ == "fitted_regressor"


def test_invalid_arguments_are_refused() -> None:
    with Cases() as cases:
        for make, sentence in [
            (lambda: from_sklearn(SVC()), "SVC must have predict_proba with these parameters; choose a loss"),
            (lambda: from_sklearn(SGDClassifier()), "SGDClassifier must have predict_proba"),
            (lambda: from_sklearn(ChangesItsParameter([1])), "ChangesItsParameter must be cloneable"),
            (lambda: from_sklearn(lambda X: X), "needs an estimator with get_params and predict_proba"),
            (lambda: from_sklearn(RandomForestClassifier(n_estimators=-3)), "'n_estimators' parameter"),
            (lambda: from_sklearn(RandomForestClassifier(class_weight=object())), "'class_weight' parameter"),
            (lambda: from_sklearn(KnowsNothing).claim(), r"needs a claim: from_sklearn\(..., claim="),
            (lambda: from_sklearn(KnowsNothing, categories="two-hot"), "'auto', 'one-hot' or 'native'"),
            (lambda: from_callable(lambda X, y: None), r"train must take \(X, y, seed\)"),
            (lambda: from_callable(user_code.shares, push=1.0), r"train must take \(X, y, seed, push=\)"),
            (lambda: from_callable(3), "train must be a function or a class"),
            (lambda: from_torch(user_code.shares, user_code.descend), "module cannot be created from"),
            (
                lambda: from_torch(threading.Event, user_code.descend),
                "module must create a torch.nn.Module, got 'Event'",
            ),
            (lambda: from_torch(user_code.Linear, user_code.shares, inputz=3), "inputz"),
            (lambda: from_torch(user_code.Linear, len), r"train must take \(module, X, y, seed\)"),
            (lambda: from_callable(user_code.shares).claim(), "needs a claim: from_callable"),
            (lambda: from_torch(user_code.Linear, user_code.descend).claim(), "needs a claim: from_torch"),
            (
                lambda: from_opacus(user_code.with_opacus, 1, delta=1e-5, epsilon=1.0),
                "takes the engine of a run, or epsilon",
            ),
            (lambda: from_opacus(user_code.with_opacus, delta=1e-5).claim(), 'needs `claim="accountant"`'),
            (lambda: OwnOpacus(user_code.with_opacus, 0.0, 1e-5), "epsilon must be > 0"),
        ]:
            with cases.case(make, sentence), pytest.raises(InputError, match=sentence):
                make()


def test_code_that_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()

    def train(X: Any, y: Any, seed: int) -> Any:
        with lock:
            return None

    with pytest.raises(InputError, match=r"cannot be sent to a worker: .*train holds an object .*lock"):
        from_callable(train)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"name": "sklearn", "estimator": "sklearn.ensemble:Nothing"}, "must name a class or function"),
        ({"name": "sklearn", "estimator": "math:sqrt"}, "must be a scikit-learn compatible class"),
        (
            {"name": "sklearn", "estimator": "sklearn.svm:SVC", "parameters": {"c": 1}},
            "cannot be created from parameters",
        ),
        ({"name": "callable", "train": "tests.mechanisms.user_code:nothing"}, "must name a class or function"),
    ],
)
def test_invalid_specs_are_refused(words: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        build("mechanism", words)


def test_invalid_probabilities_are_refused() -> None:
    model = from_sklearn(KnowsNothing).fit(NUMBERS, seed=SeedSequence(0), compute=CPU)
    with pytest.raises(TrainingError, match="are not probabilities"):
        model.probabilities(POINTS)


def test_a_user_function_is_seeded_and_global_generators_are_restored() -> None:
    model = from_callable(user_code.shares, Claim(1.0), pull=2.0)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[union-attr,index]
    first, again, other = (probabilities(model, TABLE, seed) for seed in (0, 0, 1))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[union-attr,index]
    assert before == after
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6
    words = describe(model)
    assert words == {
        "name": "callable",
        "train": "tests.mechanisms.user_code:shares",
        "parameters": {"pull": 2.0},
        "claimed": {"epsilon": 1.0},
    }
    assert build("mechanism", words) == model


def test_a_function_may_need_the_parameters_it_is_given() -> None:
    def train(X: Any, y: Any, seed: int, *, factor: float) -> Any:
        return X.sum(0) * factor

    assert from_summary(train, Claim(1.0), factor=2.0).parameters == {"factor": 2.0}


def test_a_user_function_may_return_an_estimator_or_a_function() -> None:
    fitted = from_callable(lambda X, y, seed: LogisticRegression().fit(X, y))
    lacking = NUMBERS.take(NUMBERS.labels != 1)
    answers = fitted.fit(lacking, seed=SeedSequence(0), compute=CPU).probabilities(POINTS)
    assert not answers[:, 1].any(), "the classes of its columns are those it was trained on"
    images = NUMBERS.with_(features=POINTS.reshape(-1, 1, 2, 2))
    shapes: list[tuple[int, ...]] = []

    def train(X: Any, y: Any, seed: int) -> Any:
        X += 1  # one's own copy
        shapes.append(X.shape)
        return lambda rows: np.ones((len(rows), 2))

    with pytest.raises(InputError, match=r"must return one probability for each example and class, .*\(200, 3\)"):
        probabilities(OwnTraining(train), images)
    with pytest.raises(InputError, match=r"an object with predict_proba\(X\), or a function of X, got NoneType"):
        probabilities(from_callable(lambda X, y, seed: None), NUMBERS)


def test_a_user_module_and_training_loop() -> None:
    model = from_torch(user_code.Linear, user_code.descend, Claim(1.0), classes=3)
    first, again, other = (probabilities(model, NUMBERS, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4, "fresh weights for each seed"
    assert (first.argmax(1) == NUMBERS.labels).mean() > 0.8
    assert build("model", describe(model)) == model
    with pytest.raises(InputError, match=r"must return one probability for each example and class"):
        probabilities(from_torch(user_code.Linear, user_code.descend, classes=5), NUMBERS)


class Narrow(torch.nn.Sequential):
    """One layer with weights of any type, after an embedding if there are whole numbers to read."""

    def __init__(self, kind: torch.dtype, embeds: bool = False) -> None:
        super().__init__(*[torch.nn.Embedding(2_000, 4, dtype=kind)] * embeds, torch.nn.Linear(4, 3, dtype=kind))
        self.types: list[torch.dtype] = []

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        self.types.append(X.dtype)
        logits: torch.Tensor = super().forward(X.abs().long()[:, 0] if len(self) > 1 else X)
        return logits


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
def test_a_module_gets_inputs_of_the_type_of_its_weights(kind: torch.dtype) -> None:
    trained = []

    def descend(module: torch.nn.Module, X: torch.Tensor, y: torch.Tensor, seed: int) -> None:
        trained.append(module)
        user_code.descend(module, X, y, seed)

    answers = probabilities(from_torch(Narrow, descend, kind=kind), NUMBERS)
    assert {*trained[0].types} == {kind}
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-6)
    assert (answers.argmax(1) == NUMBERS.labels).mean() > 0.8
    probabilities(from_torch(Narrow, descend, kind=kind, embeds=True), NUMBERS)
    assert {*trained[1].types} == {torch.float32}  # whole numbers above 256 have no bfloat16


def test_predictions_may_be_tensors_of_16_bits_with_a_gradient() -> None:
    for kind in (torch.bfloat16, torch.float16, torch.float32):

        def train(X: Any, y: Any, seed: int) -> Any:
            answers = torch.full((len(X), 3), 0.25, dtype=kind, requires_grad=True)  # noqa: B023
            return lambda rows: answers[: len(rows)]

        np.testing.assert_allclose(probabilities(from_callable(train), NUMBERS), 1 / 3)


def test_a_module_is_copied_with_its_weights() -> None:
    module = user_code.Linear()
    model = from_torch(module, lambda module, X, y, seed: None)
    np.testing.assert_allclose(
        probabilities(model, NUMBERS), module(torch.from_numpy(POINTS)).softmax(-1).detach().numpy(), atol=1e-6
    )
    assert fingerprint(model.module) != fingerprint(from_torch(user_code.Linear(), user_code.descend).module)
    assert model.module == from_torch(module, user_code.descend).module
    words = describe(from_torch(module, user_code.descend))
    assert words["module"] == {"architecture": "Linear", "digest": model.module.digest}
    with pytest.raises(SpecError, match="exists only in the process that created it"):
        build("model", words)


def test_opacus_trainings_must_keep_the_accountants_claim() -> None:
    pytest.importorskip("opacus")
    features = torch.from_numpy(POINTS)
    _, engine = user_code.with_opacus(features, torch.from_numpy(NUMBERS.labels), 0)
    learner = from_opacus(user_code.with_opacus, engine, delta=1e-5)
    assert learner.claim() == Claim(learner.epsilon, 1e-5, Relation.ADD_REMOVE)
    assert 0 <= learner.epsilon - engine.get_epsilon(1e-5) < 1e-4
    first, again, other = (probabilities(learner, NUMBERS, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    with pytest.raises(InputError, match=r"must spend at most the claimed epsilon .* for 100 rows"):
        probabilities(learner, NUMBERS.take(np.arange(100)))
    assert build("mechanism", describe(learner)) == learner

    from opacus import PrivacyEngine

    _, bare = user_code.with_opacus(features, torch.from_numpy(NUMBERS.labels), 0)
    bare.get_epsilon = lambda delta: math.inf
    with pytest.raises(InputError, match="must give a finite epsilon"):
        from_opacus(user_code.with_opacus, bare, delta=1e-5)
    with pytest.raises(InputError, match="its accountant has no steps"):
        from_opacus(user_code.with_opacus, PrivacyEngine(), delta=1e-5)
    with pytest.raises(InputError, match="must be an opacus"):
        from_opacus(user_code.with_opacus, object(), delta=1e-5)
    with pytest.raises(InputError, match="must return the trained module and its PrivacyEngine"):
        probabilities(OwnOpacus(user_code.shares, 1.0, 1e-5), NUMBERS)


def test_epsilon_is_computed_once_for_equal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one, `prv`, takes longer than a small training; of other steps it is asked again."""
    accountants = pytest.importorskip("opacus.accountants")
    deltas: list[float] = []
    say = accountants.RDPAccountant.get_epsilon
    monkeypatch.setattr(
        accountants.RDPAccountant, "get_epsilon", lambda self, delta: deltas.append(delta) or say(self, delta)
    )
    learner = from_opacus(user_code.with_opacus, epsilon=1e4, delta=3e-5)
    for seed in range(3):
        probabilities(learner, NUMBERS, seed)
    assert deltas == [3e-5]
    probabilities(learner, NUMBERS.take(np.arange(100)))
    assert deltas == [3e-5, 3e-5]


def test_the_accountant_claim_uses_the_rows_of_the_audited_training(tmp_path: Path) -> None:
    """A loader of 50 rows a batch takes a larger share of fewer rows; coins leave half of the 240 out."""
    pytest.importorskip("opacus")
    learner = from_opacus(user_code.with_opacus, delta=1e-5)
    many = NUMBERS.take(np.arange(600) % 200)
    requested = Audit(learner, many, game="membership", attack="calibrated-loss", claim="accountant")
    spec = AuditSpec((requested,), run=RunOptions(runner="in-process", figures=False))
    mechanisms = (
        learner.held_to_accountant(many.take(np.arange(rows)), seed=SeedSequence(0)) for rows in (81, 120, 240)
    )
    claims = [mechanism.claim() for mechanism in mechanisms]
    assert claims[0] == spec.audits[0].effective_claim()
    assert claims[0].epsilon > claims[1].epsilon > claims[2].epsilon
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert not result.failures
    assert "on about 120 of 600 rows: the target part has 240" in result.rows_used
    with pytest.raises(SpecError, match=r"check: `claim: accountant` works only with an Opacus mechanism"):
        check({"name": "randomized-response", "epsilon": 1.0}, claim="accountant")
    with pytest.raises(SpecError, match="works only with an Opacus mechanism"):
        AuditSpec((Audit({"name": "randomized-response", "epsilon": 1.0}, NUMBERS, claim="accountant", proxy=None),))


@pytest.mark.parametrize(
    ("game", "relation"),
    [
        ({"name": "ind-mia", "trials": 20, "population": 0, "canary": {"name": "blank", "value": 5.0}}, "add-remove"),
        (
            {"name": "ind-mia", "trials": 20, "population": 70, "canary": {"name": "given-row", "rows": [0, 1, 2]}},
            "add-remove",
        ),
        ({"name": "mia", "trials": 20, "population": 0}, "replace"),
        ({"name": "mia", "trials": 20, "population": 70}, "replace"),
        ({"name": "membership"}, "add-remove"),
        ({"name": "membership", "canaries": 30}, "add-remove"),
        ({"name": "observational-membership", "canaries": 30}, "replace"),
        ({"name": "label-inference"}, "label"),
        ({"name": "label-canaries"}, "label"),
    ],
)
def test_the_reported_rows_are_those_of_a_training(game: dict[str, Any], relation: str, tmp_path: Path) -> None:
    """A claim that the accountant makes for more rows than a training has would convict the honest."""
    user_code.ROWS.clear()
    learner = from_callable(user_code.counts_rows, Claim(3.0, relation=Relation(relation)))
    split = {"target": 0.4, "test": 0.4, "reference": 0.1}
    small_audit = Audit(learner, NUMBERS.take(np.arange(300) % 200), game=game, split=Partition(**split))
    if "trials" in game:
        small_audit = replace(small_audit, attack="loss")
    spec = AuditSpec((small_audit,), run=RunOptions(runner="in-process", figures=False))
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert not result.failures
    played = spec.audits[0].game
    usual, fewest = played.traits.run_on(played, result.rows["target"])
    target_rows = [rows for rows in user_code.ROWS if rows != result.rows["reference"]]
    assert min(target_rows) >= fewest
    assert abs(np.median(target_rows) - usual) <= 5 * np.sqrt(usual) / 2 * (game["name"] == "membership") + 1
    assert result.run_on == usual


def test_missing_opacus_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(InputError, match=r"pip install dpaudit\[opacus\]"):
        from_opacus(user_code.with_opacus, epsilon=1.0, delta=1e-5)


def test_settings_are_plain_values() -> None:
    settings = from_sklearn(make_pipeline(StandardScaler(), LogisticRegression(C=2.0)))
    (_, scaler), (_, regression) = settings.parameters["steps"]
    assert scaler == Settings(StandardScaler, {})
    assert regression == Settings(LogisticRegression, {"C": 2.0})
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_an_object_with_every_attribute_is_no_estimator() -> None:
    class AnyName:
        def __getattr__(self, name: str) -> Any:
            return self

        def __call__(self, *_: object, **__: object) -> Any:
            return self

    with pytest.raises(InputError, match="must return a dictionary of parameters, got 'AnyName'"):
        from_sklearn(AnyName())
