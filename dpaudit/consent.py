"""Permissions of a spec from a folder that another person made: import code, send requests, read files.

Consent is set once, when a folder is opened, and checked before each import, request or read. A user's own spec may do
all of it, because it is as trusted as code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from dpaudit.errors import SpecError, printable, shortened
from dpaudit.field_checks import checked_argument

# Metadata of a dataclass field, by the kind of text that it holds.
PATH: Mapping[str, str] = {"holds": "path"}  # of a file or folder; only here are `$NAME` and `~` expanded
ADDRESS: Mapping[str, str] = {"holds": "address"}  # of a server that receives requests
VARIABLE: Mapping[str, str] = {"holds": "variable"}  # name of an environment variable whose value is sent
CLUSTER: Mapping[str, str] = {"holds": "cluster"}  # address of a Ray cluster, which can run code in the driver


@dataclass(frozen=True)
class Consent:
    """Permissions of a spec."""

    code: bool = False  # import and run code that is not registered in dpaudit
    network: bool = False  # send requests, including the values of environment variables
    files: bool = False  # read files, and store answers, outside its folder
    spec: Path | None = None  # path of another person's spec; None for the user's own, which may do everything

    def __post_init__(self) -> None:
        for name in ("code", "network", "files"):
            object.__setattr__(self, name, checked_argument(f"allow_{name}", getattr(self, name), bool))


FULL_CONSENT = Consent(code=True, network=True, files=True)
_CURRENT: ContextVar[Consent] = ContextVar("consent", default=FULL_CONSENT)


@contextlib.contextmanager
def apply_consent(consent: Consent) -> Iterator[None]:
    """Apply `consent` to everything that is built, planned and run in a `with` block."""
    token = _CURRENT.set(consent)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_consent() -> Consent:
    return _CURRENT.get()


def require_code(name: str) -> None:
    """Raise SpecError unless the spec may import the code that it names as `name`."""
    consent = current_consent()
    if not consent.code:
        raise SpecError(
            f"{consent.spec} names code ({printable(shortened(name))}), and this folder was not created here. "
            "Review that code, then add --allow-code"
        )


def require_file(path: str) -> None:
    """Raise SpecError if the spec may not use `path` because it lies outside the spec's folder. Opens nothing."""
    consent = current_consent()
    if consent.files or consent.spec is None or not path or _is_inside(path, consent.spec.parent):
        return
    raise SpecError(
        f"{consent.spec} names a path outside its folder ({printable(shortened(path))}), and this folder was not "
        "created here. The run would use and report what that path holds. To permit this, add --allow-files"
    )


def _is_inside(path: str, folder: Path) -> bool:
    if "$" in path or path.startswith("~") or "\0" in path:
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@dataclass(frozen=True)
class Endpoint:
    """A server or cluster that a part of a spec sends requests to."""

    address: str  # as written in the spec
    variables: tuple[str, ...] = ()  # environment variables whose values are sent with the requests
    cluster: bool = False  # True for a Ray cluster that the run joins

    def __str__(self) -> str:
        address = printable(shortened(self.address))
        if self.cluster:
            return f"the Ray cluster at {address}, which can run code here"
        variables = " and ".join(f"${name}" for name in self.variables)
        return address + (f" with the value of {variables}" if variables else "")


def endpoints(value: object) -> tuple[Endpoint, ...]:
    """Return every endpoint named in `value`, at any depth."""
    return tuple(dict.fromkeys(_find_endpoints(value)))


def _find_endpoints(value: Any) -> Iterator[Endpoint]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _find_endpoints(item)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    values_by_kind: dict[str, list[str]] = {"address": [], "variable": [], "cluster": []}
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name, None)
        holds = field.metadata.get("holds")
        if holds in values_by_kind and inner:
            values_by_kind[holds].append(str(inner))
        else:
            yield from _find_endpoints(inner)
    yield from (Endpoint(address, tuple(values_by_kind["variable"])) for address in values_by_kind["address"])
    yield from (Endpoint(address, cluster=True) for address in values_by_kind["cluster"])


def require_network(value: object, describe_cost: Callable[[], str]) -> None:
    """Raise SpecError if `value` would send requests without consent.

    Args:
        value: The part of a spec, or a sequence of parts, that would run.
        describe_cost: Returns the price of the requests in words, "" if it is unknown.
    """
    consent, recipients = current_consent(), endpoints(value)
    if not consent.network and recipients:
        cost = describe_cost()
        raise SpecError(
            f"{consent.spec} would send requests to {shortened(', '.join(map(str, recipients)), 400)}"
            f"{f' ({cost})' if cost else ''}, and this folder was not created here. To permit this, add --allow-network"
        )
    for endpoint in recipients:
        if endpoint.cluster:
            require_code(str(endpoint))


def may_import_from(folder: str) -> bool:
    """True if code may be imported from `folder`, the working folder; another person's spec needs consent for it."""
    consent = current_consent()
    if consent.spec is None:
        return True
    # Folders that contain each other are refused even with consent: a file there could take the name of any module.
    working_folder, spec_folder = Path(os.path.realpath(folder)), Path(os.path.realpath(consent.spec.parent))
    return consent.code and not (
        working_folder.is_relative_to(spec_folder) or spec_folder.is_relative_to(working_folder)
    )


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
