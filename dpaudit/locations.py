"""Code that a spec names: locations of classes and functions, "package.module:name", and packages of extras."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

from dpaudit.consent import may_import_from, require_code
from dpaudit.errors import InputError, UnknownNameError, did_you_mean, shortened

_EXTRA_FOLDERS: list[str] = []


def search_last(folder: str) -> None:
    """Add `folder` to the end of the import path the first time that a spec names code."""
    _EXTRA_FOLDERS[:] = [folder]


def import_object(location: str) -> Any:
    """Return the object at "package.module:name".

    Raises: UnknownNameError if it cannot be imported, SpecError without consent.
    """
    require_code(location)
    allowed = [folder for folder in _EXTRA_FOLDERS if may_import_from(folder)]
    sys.path.extend(folder for folder in allowed if folder not in sys.path)
    module, _, attribute = location.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except Exception as err:  # the module's own code may raise anything
        where = "its folder must be the current one or in PYTHONPATH"
        if len(allowed) < len(_EXTRA_FOLDERS):
            where = (
                "its folder must be in PYTHONPATH: the current folder is not searched, because it contains, or lies "
                "in, a run folder that was not created here"
            )
        raise UnknownNameError(
            f"{shortened(location)!r} must name a class or function that can be imported here, as `module:name`: "
            f"{shortened(err)}; {where}"
        ) from err
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except Exception as err:  # a module may compute its attributes
            nearest = did_you_mean(part, vars(value)) if hasattr(value, "__dict__") else ""
            raise UnknownNameError(
                f"{shortened(location)!r} must name a class or function, as `module:name`: {shortened(err)}{nearest}"
            ) from err
    return value


def location(thing: Any) -> str:
    """Return the shortest public location of a class or function: "sklearn.ensemble:RandomForestClassifier".

    The location of a method of an object contains "<object>": it cannot be imported, because the object's state is not
    part of it.
    """
    if inspect.ismethod(thing) and not isinstance(thing.__self__, type):
        return f"{location(type(thing.__self__))}.<object>.{thing.__name__}"
    parts, name = thing.__module__.split("."), thing.__qualname__
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        if module in sys.modules and vars(sys.modules[module]).get(name) is thing:
            return f"{module}:{name}"
    return f"{thing.__module__}:{name}"


def has_location(value: object) -> bool:
    """True for a class, a function, or another callable with a `__qualname__`."""
    return callable(value) and isinstance(getattr(value, "__qualname__", None), str)


Packages: TypeAlias = Mapping[str, str]
"""Packages that a part of an audit imports, each with the extra that installs it; the class attribute `packages`."""


def imported(package: str, extra: str) -> Any:
    """Return the imported package. Raises: InputError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as err:
        raise InputError(_missing(package, extra)) from err


def require_packages(part: object) -> None:
    """Raise InputError if a part, or a part in its fields, needs a package that is not installed."""
    for package, extra in getattr(type(part), "packages", {}).items():
        if importlib.util.find_spec(package) is None:
            raise InputError(_missing(package, extra))
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            require_packages(getattr(part, field.name))


def _missing(package: str, extra: str) -> str:
    return f"this needs the package {package}; install it with `pip install dpaudit[{extra}]`"
