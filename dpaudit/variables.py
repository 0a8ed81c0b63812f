"""Environment variables in paths and specs. Messages show their names, never their values, which may be secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_MIN_VALUE_LENGTH = 3  # characters; a shorter value occurs in ordinary words by chance


def expand_path(path: str) -> Path:
    """Return `path` with `~` and `$NAME` expanded."""
    return Path(os.path.expandvars(path)).expanduser()


def variable_names(text: str) -> list[str]:
    """Return the names of the variables in `text`, written `$NAME` or `${NAME}`."""
    return _VARIABLE.findall(text)


def hide_variable_values(message: str, source: object) -> str:
    """Return `message` with the values of environment variables replaced by their names.

    Args:
        source: Value, such as a spec, whose texts at any depth name the variables.
    """
    names: dict[str, str] = {}
    for text in _strings_in(source):
        if "$" in text:
            pairs = [(os.environ.get(name, ""), f"${name}") for name in variable_names(text)]
            pairs.append((os.path.expanduser(os.path.expandvars(text)), text))
            names |= {value: name for value, name in pairs if len(value) >= _MIN_VALUE_LENGTH and value != name}
    for value in sorted(names, key=len, reverse=True):  # longest first: one value may contain another
        message = message.replace(value, names[value]).replace(repr(value)[1:-1], names[value])
    return message


def _strings_in(value: object) -> Iterator[str]:
    """Yield every string in the fields, items and keys of `value`, at any depth."""
    pending, visited = [value], set[int]()
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif id(item) not in visited and not isinstance(item, type | ModuleType | FunctionType):
            visited.add(id(item))
            pending.extend(_children(item))


def _children(value: object) -> Iterable[object]:
    if isinstance(value, os.PathLike):
        return (os.fsdecode(value),)
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    try:
        return vars(value).values()
    except TypeError:  # numbers, arrays
        return ()
