"""Classes and functions by where they are: "package.module:name", the words a spec has for one's own code."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

from dpaudit.consent import may_import_from, require_code
from dpaudit.errors import UnknownNameError, shortened

_SEARCHED_LAST: list[str] = []


def search_last(folder: str) -> None:
    """Has the code that specs name looked for in a folder too, behind everything installed, once some is named."""
    _SEARCHED_LAST[:] = [folder]


def located(location: str) -> Any:
    """What "package.module:name" names, imported; UnknownNameError when it cannot be, SpecError without consent."""
    require_code(location)
    left_out = _extend_path()
    module, _, attribute = location.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as err:  # whatever a module does while it is imported may raise anything
        where = "its folder must be the current one or in PYTHONPATH"
        if left_out:
            where = (
                "its folder must be in PYTHONPATH: the current one, with a stranger's run in or around it, is not used"
            )
        raise UnknownNameError(
            f"{shortened(location)!r} must name a class or function that can be imported here, as `module:name`: "
            f"{shortened(err)}; {where}"
        ) from err
    return found


def _extend_path() -> list[str]:
    """Puts the folders to be searched last on the import path; gives those that must not be there."""
    allowed = [folder for folder in _SEARCHED_LAST if may_import_from(folder)]
    sys.path.extend(folder for folder in allowed if folder not in sys.path)
    return [folder for folder in _SEARCHED_LAST if folder not in allowed]


def location(thing: Any) -> str:
    """Where a class or function is, by the shortest public way: "sklearn.ensemble:RandomForestClassifier".

    A method of an object has "<object>" in it, as nothing that can be imported tells what the object holds.
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
    """Whether it is a class, a function, or another callable that was given a name where it was defined."""
    return callable(value) and isinstance(getattr(value, "__qualname__", None), str)
