"""Environment variables in what a user wrote: their names are kept, their values, which may be secrets, are not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_SHORTEST = 3  # characters of a value that is looked for: a shorter one would be found in any word


def expanded(path: str) -> Path:
    """The path that is meant: `~` is the home folder, `$NAME` the environment's value."""
    return Path(os.path.expandvars(path)).expanduser()


def names_in(text: str) -> list[str]:
    """The names of the variables in a text, as `$NAME` or `${NAME}`."""
    return _VARIABLE.findall(text)


def without_values(message: str, written: object) -> str:
    """A message with names of environment variables in place of their values; `written` names them, however deep."""
    names = {value: name for text in _texts(written) if "$" in text for value, name in _values(text)}
    for value in sorted(names, key=len, reverse=True):  # a value may be a part of another one
        message = message.replace(value, names[value]).replace(repr(value)[1:-1], names[value])
    return message


def _values(text: str) -> Iterator[tuple[str, str]]:
    """What stands for the variables of a text, and what is to stand there: the text as a whole, and each by itself."""
    pairs = [(os.environ.get(name, ""), f"${name}") for name in names_in(text)]
    pairs.append((os.path.expanduser(os.path.expandvars(text)), text))
    return ((value, name) for value, name in pairs if len(value) >= _SHORTEST and value != name)


def _texts(value: object) -> Iterator[str]:
    """Every text in a value: in its fields, its items, its keys, however deep."""
    waiting, seen = [value], set[int]()
    while waiting:
        held = waiting.pop()
        if isinstance(held, str):
            yield held
        elif id(held) not in seen and not isinstance(held, type | ModuleType | FunctionType):
            seen.add(id(held))
            waiting.extend(_parts(held))


def _parts(value: object) -> Iterable[object]:
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
