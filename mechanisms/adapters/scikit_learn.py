"""Any scikit-learn compatible classifier: HistGradientBoosting, LightGBM, XGBoost, a pipeline, or a user's class.

An estimator is described by its class and parameters, which a run folder can store, hash and rebuild.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence

from dpaudit.claims import Claim
from dpaudit.errors import InputError, require
from dpaudit.locations import has_location, location
from dpaudit.mechanisms.adapters.user_code import (
    ClaimedByUser,
    ModelOfUserCode,
    code_of,
    global_randomness,
    take_code,
    whole_number,
)
from dpaudit.mechanisms.compute import Compute, limited_threads, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.tables import constant_model, tabular_input
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register

if TYPE_CHECKING:
    import pandas as pd

_READS_CATEGORIES = ("HistGradientBoostingClassifier", "LGBMClassifier", "Pipeline")
"""Classes that support pandas' categories, and pipelines, whose steps name the columns."""
_MAX_CATEGORIES = 100  # most one-hot columns for a categorical column; rare categories share one


@dataclass(frozen=True)
class Settings:
    """Description of an object with `get_params`: its class, and the parameters that differ from the defaults."""

    estimator: Callable[..., Any]
    parameters: Mapping[str, Any]  # as `_as_settings` returns them

    def make(self) -> Any:
        return self.estimator(**{name: _from_settings(value) for name, value in self.parameters.items()})


@dataclass(frozen=True)
class _Imported:
    """A function or class as the value of a parameter."""

    imported: Any  # the object, or its import path


@dataclass(frozen=True)
class _Pairs:
    """A dictionary whose keys are not text, such as weights by class."""

    pairs: tuple[tuple[Any, Any], ...]


def _settings_of(estimator: Any) -> Settings:
    """Return the class and parameters of an estimator, without seeds, which come from the plan."""
    name = type(estimator).__name__
    parameters = estimator.get_params(deep=False)
    kind = type(parameters).__name__
    require(isinstance(parameters, Mapping), f"{name}.get_params must return a dictionary of parameters", given=kind)
    try:
        defaults = type(estimator)().get_params(deep=False)
    except TypeError:  # it has required parameters
        defaults = {}
    described = {
        parameter: _as_settings(value, f"parameter {parameter} of {name}")
        for parameter, value in parameters.items()
        if parameter != "random_state" and not (parameter in defaults and _same(value, defaults[parameter]))
    }
    return Settings(type(estimator), described)


def _as_settings(value: Any, at: str) -> Any:
    """Describe a parameter by numbers, text, lists and dictionaries of them, `Settings`, `_Imported` and `_Pairs`."""
    match value:
        case None | bool() | int() | float() | str() | Settings() | _Imported() | _Pairs():
            return value
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.tolist()
        case list() | tuple():
            return type(value)(_as_settings(item, at) for item in value)
        case {"estimator": estimator, "parameters": Mapping() as parameters, **rest} if not rest:
            return Settings(code_of(estimator, field=at), {n: _as_settings(v, at) for n, v in parameters.items()})
        case {"imported": code, **rest} if not rest:
            return _Imported(code_of(code, field=at))
        case {"pairs": pairs, **rest} if not rest:
            return _Pairs(tuple((key, _as_settings(item, at)) for key, item in pairs))
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: _as_settings(item, at) for key, item in value.items()}
        case Mapping():
            return _Pairs(tuple((_as_settings(key, at), _as_settings(item, at)) for key, item in value.items()))
    if has_location(value):
        return _Imported(code_of(value, field=at))
    if callable(getattr(value, "get_params", None)):
        return _settings_of(value)
    raise InputError(
        f"{at} must be plain (a number, text, a list), an estimator or a function, got {type(value).__name__}; create "
        "it inside a function of yours and use from_callable"
    )


def _from_settings(value: Any) -> Any:
    match value:
        case Settings():
            return value.make()
        case _Imported():
            return value.imported
        case _Pairs():
            return {_from_settings(key): _from_settings(item) for key, item in value.pairs}
        case list() | tuple():
            return type(value)(_from_settings(item) for item in value)
        case Mapping():
            return {key: _from_settings(item) for key, item in value.items()}
    return value


def _as_plain(value: Any) -> Any:
    """Return described parameters as a spec holds them; code that no other process can import stays itself."""
    match value:
        case Settings():
            return {"estimator": _place(value.estimator), "parameters": _as_plain(value.parameters)}
        case _Imported():
            return {"imported": _place(value.imported)}
        case _Pairs():
            return {"pairs": [[_as_plain(key), _as_plain(item)] for key, item in value.pairs]}
        case list() | tuple():
            return [_as_plain(item) for item in value]
        case Mapping():
            return {key: _as_plain(item) for key, item in value.items()}
    return value


def _place(code: Any) -> Any:
    return code if code.__module__ == "__main__" or "<" in location(code) else location(code)


def _same(value: Any, default: Any) -> bool:
    if type(value) is not type(default):
        return False
    if isinstance(value, bool | int | float | str):
        return bool(value == default) or value != value  # NaN, XGBoost's value for missing
    return value is default


@register("mechanism", "sklearn", source="the package of the estimator; Pedregosa et al. (2011) for the interface")
@register("model", "sklearn", source="the package of the estimator; Pedregosa et al. (2011) for the interface")
@dataclass(frozen=True)
class SklearnClassifier(ClaimedByUser):
    """A scikit-learn compatible classifier: a model inside any learner, or with a claim a learner itself.

    Each fit creates a new estimator. Every `random_state` in it is seeded from the plan's seed, and every `n_jobs` is
    set to the unit's threads. A class that a training set lacks has probability 0. A training set of a single class
    is not fitted; its class shares are the prediction.

    Attributes:
        estimator: Its class, or the import path "sklearn.ensemble:HistGradientBoostingClassifier".
        parameters: Its parameters; a nested estimator is `{estimator: ..., parameters: {...}}`.
        categories: Encoding of categorical columns: "one-hot", or "native" as pandas' categories. "auto" is native for
            HistGradientBoosting, LightGBM and pipelines, one-hot for others (XGBoost supports native categories only
            with enable_categorical=True).
    """

    made_by = "from_sklearn"

    estimator: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    categories: Literal["auto", "one-hot", "native"] = "auto"
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        take_code(self, "estimator")
        estimator = self.estimator
        require(
            isinstance(estimator, type)
            and all(hasattr(estimator, word) for word in ("fit", "get_params", "set_params")),
            "estimator must be a scikit-learn compatible class (fit, predict_proba, get_params, set_params)",
            do="for any other code use from_callable",
            estimator=getattr(estimator, "__qualname__", estimator),
        )
        parameters = {name: _as_settings(value, f"parameters.{name}") for name, value in self.parameters.items()}
        object.__setattr__(self, "parameters", parameters)
        _check(self.make())

    def make(self) -> Any:
        try:
            return Settings(self.estimator, self.parameters).make()
        except (TypeError, ValueError) as err:
            name = self.estimator.__qualname__
            raise InputError(f"{name} cannot be created from parameters {dict(self.parameters)}: {err}") from err

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        from sklearn.exceptions import ConvergenceWarning

        constant = constant_model(train)
        if constant is not None:
            return constant
        estimator = self._prepared(train, seed, compute)
        convert = partial(_converted, categorical=train.categorical, types=self._types(train))
        present, labels = np.unique(train.labels, return_inverse=True)  # XGBoost needs classes without gaps
        with global_randomness(seed), limited_threads(compute.threads), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FutureWarning)  # from estimators that deprecate n_jobs
            estimator.fit(convert(train.features), labels)
        code = f"{type(estimator).__name__}.predict_proba"
        return ModelOfUserCode(partial(_answer, estimator, convert), train.classes, code, present)

    def _native(self) -> bool:
        names = {kind.__name__ for kind in self.estimator.__mro__}
        return self.categories == "native" or (self.categories == "auto" and bool(names & set(_READS_CATEGORIES)))

    def _types(self, train: Examples) -> Mapping[str, Any]:
        """Return pandas types of categorical columns, with the training's categories; none unless they are native."""
        if not self._native() or not isinstance(train.features, pa.Table):
            return {}
        import pandas as pd

        frame = tabular_input(train.features, train.categorical)
        assert isinstance(frame, pd.DataFrame)
        return {name: pd.CategoricalDtype(sorted(frame[name].unique())) for name in train.categorical}

    def _prepared(self, train: Examples, seed: SeedSequence, compute: Compute) -> Any:
        estimator = self.make()
        names = sorted(estimator.get_params())
        seeded = [name for name in names if name.rpartition("__")[2] == "random_state"]
        settings = {
            name: whole_number(child) for name, child in zip(seeded, spawned(seed, len(seeded)), strict=True)
        } | {name: compute.threads for name in names if name.rpartition("__")[2] == "n_jobs"}
        estimator.set_params(**settings)
        if self._native() or not train.categorical:
            return estimator
        from sklearn.compose import make_column_transformer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder

        encoder = OneHotEncoder(
            max_categories=_MAX_CATEGORIES, handle_unknown="infrequent_if_exist", sparse_output=False
        )
        return make_pipeline(
            make_column_transformer((encoder, list(train.categorical)), remainder="passthrough"), estimator
        )


def _answer(estimator: Any, convert: Callable[[Features], Any], features: Features) -> object:
    return estimator.predict_proba(convert(features))


def _converted(features: Features, *, categorical: tuple[str, ...], types: Mapping[str, Any]) -> Any:
    """Return a float32 array of shape (n, d) or a data frame, where categories unknown in training are missing."""
    frame = tabular_input(features, categorical)
    if isinstance(frame, np.ndarray):
        return frame
    known_categories = {name: frame[name].where(frame[name].isin(kind.categories)) for name, kind in types.items()}
    return frame.assign(**known_categories).astype(dict(types))


def _check(estimator: Any) -> None:
    """Refuse, before any training, estimators that would fail after minutes."""
    from sklearn.base import BaseEstimator, clone

    name = type(estimator).__name__
    require(
        hasattr(estimator, "predict_proba"),
        f"{name} must have predict_proba with these parameters",
        do="choose a loss or option with probabilities, or wrap the classifier in "
        "sklearn.calibration.CalibratedClassifierCV; `from_sklearn` takes a regressor "
        "itself, and makes a function on rows of it, for `check` with a schema",
    )
    try:
        clone(estimator)
    except (TypeError, RuntimeError) as err:
        raise InputError(f"{name} must be cloneable by scikit-learn's `clone`: {err}") from err
    if isinstance(estimator, BaseEstimator) and "_parameter_constraints" in vars(type(estimator)):
        try:
            estimator._validate_params()
        except ValueError as err:
            raise InputError(" ".join(str(err).split())) from err


def from_sklearn(
    estimator: Any, claim: Claim | None = None, *, categories: Literal["auto", "one-hot", "native"] = "auto"
) -> Any:
    """Return a `SklearnClassifier` for `LP1ST(1.0, model=from_sklearn(...))`, or as a mechanism.

    A regressor becomes a function on rows for `dpaudit.check(from_sklearn(Ridge()), claim=..., schema=...)`: it is
    fitted to predict the last column of the schema from the others, and the fitted regressor is what the attacker sees.

    Args:
        estimator: An unfitted classifier with `predict_proba`, a regressor, or its class. It is not changed, and its
            `random_state` is not used, because seeds come from the plan.
        claim: The claim of the estimator, if it is the mechanism. None to measure how much a classifier leaks.
        categories: Encoding of categorical columns; see `SklearnClassifier`. A regressor gets them unencoded.
    Raises: InputError for other objects.
    """
    from sklearn.base import RegressorMixin

    if not isinstance(estimator, type):
        require(
            callable(getattr(estimator, "get_params", None)),
            "from_sklearn needs an estimator with get_params and predict_proba",
            do="for any other code use from_callable",
            given=type(estimator).__name__,
        )
    kind = estimator if isinstance(estimator, type) else type(getattr(estimator, "_final_estimator", estimator))
    if issubclass(kind, RegressorMixin):
        settings = Settings(estimator, {}) if isinstance(estimator, type) else _settings_of(estimator)
        function = partial(fitted_regressor, estimator=_as_plain(settings))
        if claim is not None:
            function.claim = claim  # type: ignore[attr-defined]  # where `check` looks for the claim of a function
        return function
    if isinstance(estimator, type):
        return SklearnClassifier(estimator, {}, categories, claim)
    _check(estimator)
    settings = _settings_of(estimator)
    return SklearnClassifier(settings.estimator, settings.parameters, categories, claim)


def fitted_regressor(rows: pd.DataFrame, rng: np.random.Generator, *, estimator: Any) -> Any:
    """Return a new regressor, fitted to predict the last column of `rows` from the others.

    Args:
        estimator: Its class and parameters, as `from_sklearn` describes them.
    """
    regressor = _as_settings(estimator, "estimator").make()
    seeded = [name for name in sorted(regressor.get_params()) if name.rpartition("__")[2] == "random_state"]
    regressor.set_params(**{name: int(rng.integers(2**31)) for name in seeded})
    return regressor.fit(rows.iloc[:, :-1], rows.iloc[:, -1])
