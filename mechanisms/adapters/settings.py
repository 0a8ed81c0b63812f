"""An estimator as its class and its parameters: what a run folder can write down, hash, and make again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.errors import InputError, require
from dpaudit.locations import has_location
from dpaudit.mechanisms.adapters.user_code import code_of


@dataclass(frozen=True)
class Settings:
    """An object with `get_params`, by its class and those parameters that are not the class's defaults.

    Attributes:
        estimator: The class.
        parameters: By name; see `as_settings`.
    """

    estimator: Callable[..., Any]
    parameters: Mapping[str, Any]

    def make(self) -> Any:
        """A new object."""
        return self.estimator(**{name: _made(value) for name, value in self.parameters.items()})


@dataclass(frozen=True)
class Imported:
    """A function or class as the value of a parameter.

    Attributes:
        imported: It, or where it is.
    """

    imported: Any


@dataclass(frozen=True)
class Pairs:
    """A dictionary whose keys are no words, such as weights by class.

    Attributes:
        pairs: Keys with their values.
    """

    pairs: tuple[tuple[Any, Any], ...]


def settings_of(estimator: Any) -> Settings:
    """An estimator's class and parameters; the seeds are left out, they come from the plan.

    Raises: InputError when it does not name its parameters, or one is neither plain nor an estimator, a function or a
        class.
    """
    name = type(estimator).__name__
    parameters = estimator.get_params(deep=False)
    require(
        isinstance(parameters, Mapping),
        f"{name}.get_params must give a dictionary of parameters",
        given=type(parameters).__name__,
    )
    defaults = _defaults(type(estimator))
    return Settings(
        type(estimator),
        {
            parameter: as_settings(value, f"parameter {parameter} of {name}")
            for parameter, value in parameters.items()
            if parameter != "random_state" and not (parameter in defaults and _same(value, defaults[parameter]))
        },
    )


def as_settings(value: Any, at: str) -> Any:
    """A parameter in words: numbers, text, lists and dictionaries of them, `Settings`, `Imported`, `Pairs`.

    Raises: InputError for anything else.
    """
    match value:
        case None | bool() | int() | float() | str() | Settings() | Imported() | Pairs():
            return value
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.tolist()
        case list() | tuple():
            return type(value)(as_settings(item, at) for item in value)
        case {"estimator": estimator, "parameters": Mapping() as parameters, **rest} if not rest:
            return Settings(code_of(estimator, field=at), {n: as_settings(v, at) for n, v in parameters.items()})
        case {"imported": code, **rest} if not rest:
            return Imported(code_of(code, field=at))
        case {"pairs": pairs, **rest} if not rest:
            return Pairs(tuple((key, as_settings(item, at)) for key, item in pairs))
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: as_settings(item, at) for key, item in value.items()}
        case Mapping():
            return Pairs(tuple((as_settings(key, at), as_settings(item, at)) for key, item in value.items()))
    if has_location(value):
        return Imported(code_of(value, field=at))
    if callable(getattr(value, "get_params", None)):
        return settings_of(value)
    raise InputError(
        f"{at} must be plain (a number, text, a list), an estimator or a function, got {type(value).__name__}; make it "
        "inside a function of your own and use from_callable"
    )


def _made(value: Any) -> Any:
    match value:
        case Settings():
            return value.make()
        case Imported():
            return value.imported
        case Pairs():
            return {_made(key): _made(item) for key, item in value.pairs}
        case list() | tuple():
            return type(value)(_made(item) for item in value)
        case Mapping():
            return {key: _made(item) for key, item in value.items()}
    return value


def _defaults(kind: type) -> dict[str, Any]:
    """The parameters of an object made without any; none where it must be given some."""
    try:
        defaults: dict[str, Any] = kind().get_params(deep=False)
    except TypeError:
        return {}
    return defaults


def _same(value: Any, default: Any) -> bool:
    if type(value) is not type(default):
        return False
    if isinstance(value, bool | int | float | str):
        return bool(value == default) or value != value  # NaN, which XGBoost has for missing
    return value is default


def check_estimator_class(estimator: Any) -> None:
    """Refuses what is no class of scikit-learn's kind."""
    require(
        isinstance(estimator, type) and all(hasattr(estimator, name) for name in ("fit", "get_params", "set_params")),
        "estimator must be a scikit-learn compatible class (fit, predict_proba, get_params, set_params)",
        do="for any other code use from_callable",
        estimator=getattr(estimator, "__qualname__", estimator),
    )
