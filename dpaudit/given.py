"""What a caller in Python hands over: arguments and fields held to their types, once, at the front door.

What is no such thing is refused in one sentence. Numbers of NumPy and of `fractions` and `decimal` are numbers; text is
never one, since `"1e-5"` given in Python is a mistake.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import Any

from dpaudit.errors import InputError, SpecError, shortened

MAX_DEPTH = 40  # levels of mappings and lists in a spec
LARGEST_WHOLE = 2**64  # Python does not write out every larger whole number


def argument(name: str, value: object, hint: Any) -> Any:
    """An argument as its type, an annotation, has it: numbers as Python's own, lists as tuples.

    Raises: InputError, with `name`, when it is something else.
    """
    fits, taken = fitted(value, hint)
    if not fits:
        raise InputError(f"{name} must be {type_in_words(hint)}, got {_shown(value)}")
    return taken


def fitted(value: object, hint: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and how that type has it."""
    return next((found for found in (_taken(value, option) for option in options_of(hint)) if found[0]), (False, None))


def type_in_words(hint: Any) -> str:
    """What a value of a type must be."""
    return " or ".join(dict.fromkeys(_words(option) for option in options_of(hint) if option is not type(None)))


def check_fields(made: Any) -> None:
    """Holds each field of a new dataclass to its type, or raises InputError; its default is fine whatever it is."""
    for name, (hint, default) in _fields(made.__class__).items():
        value = getattr(made, name)
        if value is not default:
            taken = argument(name, value, hint)
            if taken is not value:
                object.__setattr__(made, name, taken)


def is_number(value: object) -> bool:
    """Whether it is a real number; NumPy's spans of time say they are, booleans too."""
    kind = getattr(value, "dtype", None)
    real = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    return real and (kind is None or kind.kind in "iuf")


def path(name: str, value: object) -> str:
    """The name of a file or folder, or a URI; InputError for all else, and for what no file can be called."""
    try:
        found = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    except Exception:  # a class of the caller's own may raise anything
        found = None
    if not isinstance(found, str) or "\0" in found or not _is_unicode(found):
        raise InputError(f"{name} must be a path or a URI as text, got {_shown(value)}")
    return str.__str__(found)


def require_words(value: object, at: str, *, depth: int = 0) -> None:
    """Refuses contents of a spec that YAML could not hold, at any depth below `at`: other objects pass."""
    if depth > MAX_DEPTH:
        raise SpecError(f"{at} must be at most {MAX_DEPTH} levels deep")
    if isinstance(value, str) and not _is_unicode(value):
        raise SpecError(f"{at} must hold text that can be written as UTF-8, got {shortened(repr(value))}")
    if isinstance(value, int) and abs(value) >= LARGEST_WHOLE:
        raise SpecError(f"{at} must hold whole numbers of at most 64 bits, got {shortened(value)}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise SpecError(f"the name of a field must be text, got {_shown(name)}")
            require_words(name, at, depth=depth)
            require_words(inner, shortened(f"{at}.{name}"), depth=depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            require_words(inner, at, depth=depth + 1)


@cache
def _fields(made: Any) -> dict[str, tuple[Any, Any]]:
    hints = typing.get_type_hints(made)
    return {field.name: (hints[field.name], field.default) for field in dataclasses.fields(made)}


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a field may have."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _taken(value: Any, hint: Any) -> tuple[bool, Any]:
    """`fitted`, of a type that is no union."""
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return _text(value) if isinstance(value, str) and value in inner else (False, None)
    if origin is Callable:
        return callable(value), value
    if origin in (tuple, Sequence, list):
        return _items(value, inner or (Any, ...))
    if origin in (dict, Mapping):
        return _mapping(value, inner or (Any, Any))
    if isinstance(origin, type) and issubclass(origin, Enum):
        known = isinstance(value, str) and value in {member.value for member in origin}
        return known, origin(value) if known else None
    if not isinstance(origin, type):
        return True, value  # what such a type means, its class checks
    return isinstance(value, origin), value


def _number(value: Any) -> tuple[bool, Any]:
    if not is_number(value):
        return False, None
    try:
        number = float(value)
    except (ValueError, OverflowError):  # a whole number beyond the largest float, a signalling NaN
        return False, None
    if math.isinf(number) and value != number:
        return False, None
    return True, value if type(value) is int else number


def _whole(value: Any) -> tuple[bool, Any]:
    fits = is_number(value) and isinstance(value, Integral) and abs(int(value)) < LARGEST_WHOLE
    return fits, int(value) if fits else None


def _flag(value: Any) -> tuple[bool, Any]:
    kind = type(value)
    fits = kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))
    return fits, bool(value) if fits else None


def _text(value: Any) -> tuple[bool, Any]:
    fits = isinstance(value, str) and _is_unicode(value)
    return fits, str.__str__(value) if fits else None


def _items(value: Any, hints: tuple[Any, ...]) -> tuple[bool, Any]:
    """A list as a tuple; the last of the types may stand for any number of them."""
    several = len(hints) == 1 or hints[-1] is ...
    if not isinstance(value, list | tuple) or not (several or len(value) == len(hints)):
        return False, None
    each = [hints[0]] * len(value) if several else hints
    taken = [fitted(item, hint) for item, hint in zip(value, each, strict=True)]
    same = isinstance(value, tuple) and all(one is item for (_, one), item in zip(taken, value, strict=True))
    return all(fits for fits, _ in taken), value if same else tuple(one for _, one in taken)


def _mapping(value: Any, hints: tuple[Any, Any]) -> tuple[bool, Any]:
    if not isinstance(value, Mapping):
        return False, None
    names, inner = hints
    return _items(list(value.keys()), (names,))[0] and _items(list(value.values()), (inner,))[0], value


_PLAIN: dict[Any, Callable[[Any], tuple[bool, Any]]] = {
    Any: lambda value: (True, value),
    object: lambda value: (True, value),
    type(None): lambda value: (value is None, None),
    float: _number,
    int: _whole,
    bool: _flag,
    str: _text,
}
_WORDS = {
    float: "a number",
    int: "a whole number of at most 64 bits",
    bool: "True or False",
    str: "text that UTF-8 can write",
}


def _words(hint: Any) -> str:
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _WORDS:
        return _WORDS[origin]
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is Callable:
        return "a function"
    if origin in (tuple, Sequence, list):
        return f"a list, each {' or '.join(_words(option) for option in options_of(inner[0]))}" if inner else "a list"
    if origin in (dict, Mapping):
        return f"a mapping from {_words(inner[0])} to {_words(inner[1])}" if inner else "a mapping"
    if isinstance(origin, type) and issubclass(origin, Enum):
        return f"one of {', '.join(str(member.value) for member in origin)}"
    return f"of the type {origin.__name__}" if isinstance(origin, type) else "anything"


def _shown(value: object) -> str:
    """A plain value as it is; of any other its type, for what it would print is nobody's business here."""
    if isinstance(value, str):
        return shortened(repr(value))
    if isinstance(value, type):
        return shortened(f"the class {value.__name__}")
    plain = isinstance(value, bytes | None) or (isinstance(value, Real | Decimal) and not isinstance(value, Collection))
    return shortened(value if plain else f"of the type {type(value).__name__}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
