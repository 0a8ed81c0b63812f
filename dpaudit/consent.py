"""What the spec of a folder that somebody else made may do with the reader's rights: import, send, read.

It is decided once, where a folder is opened, and asked where something would be imported, sent or read. A spec of one's
own may do all of it: it is code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.errors import SpecError, printable, shortened
from dpaudit.given import argument

# Metadata of a field, by what it holds.
PATH: Mapping[str, str] = {"holds": "path"}  # of a file or folder; in these alone `$NAME` and `~` are looked up
ADDRESS: Mapping[str, str] = {"holds": "address"}  # of a server that is sent requests
VARIABLE: Mapping[str, str] = {"holds": "variable"}  # the name of an environment variable whose value is sent
CLUSTER: Mapping[str, str] = {"holds": "cluster"}  # the address of a Ray cluster, which can run code in the driver


@dataclass(frozen=True)
class Consent:
    """What a spec may do."""

    code: bool = False  # have code imported and run that is no registered part of dpaudit
    network: bool = False  # have requests sent, and the values of environment variables with them
    files: bool = False  # have files read, and answers kept, outside of its folder
    spec: Path | None = None  # the file of somebody else's spec; None for one's own, which may do everything

    def __post_init__(self) -> None:
        for name in ("code", "network", "files"):
            object.__setattr__(self, name, argument(f"allow_{name}", getattr(self, name), bool))


OWN = Consent(code=True, network=True, files=True)
_GIVEN: ContextVar[Consent] = ContextVar("consent", default=OWN)


@contextlib.contextmanager
def under(consent: Consent) -> Iterator[None]:
    """What is built, planned and run in a `with` block has this consent."""
    token = _GIVEN.set(consent)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def given() -> Consent:
    return _GIVEN.get()


def require_code(name: str) -> None:
    """Refuses to import what a spec names without consent, whatever it is."""
    if not given().code:
        raise SpecError(
            f"{given().spec} names code ({printable(shortened(name))}), and you did not make this folder here; look at "
            "that code, then add --allow-code"
        )


def require_file(path: str) -> None:
    """Refuses a path, as the spec has it, outside of the spec's folder without consent; nothing is opened."""
    consent = given()
    if consent.files or consent.spec is None or not path or _lies_in(path, consent.spec.parent):
        return
    raise SpecError(
        f"{consent.spec} names a file or folder of yours outside of it ({printable(shortened(path))}), and you did not "
        "make this folder here; its content would be part of what is run and reported; add --allow-files if it may be"
    )


def _lies_in(path: str, folder: Path) -> bool:
    if "$" in path or path.startswith("~") or "\0" in path:
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@dataclass(frozen=True)
class Contact:
    """Whom a part sends requests to."""

    address: str  # as the spec has it
    variables: tuple[str, ...] = ()  # the environment variables whose values go with them
    cluster: bool = False  # whether it is a Ray cluster that is joined

    def __str__(self) -> str:
        named = printable(shortened(self.address))
        if self.cluster:
            return f"the Ray cluster at {named}, which can run code here"
        sent = " and ".join(f"${name}" for name in self.variables)
        return named + (f" with the value of {sent}" if sent else "")


def contacts(value: object) -> tuple[Contact, ...]:
    """Everybody whom a part, or a part in it however deep, sends requests to."""
    return tuple(dict.fromkeys(_contacts(value)))


def _contacts(value: Any) -> Iterator[Contact]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _contacts(item)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    held: dict[str, list[str]] = {"address": [], "variable": [], "cluster": []}
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name, None)
        holds = field.metadata.get("holds")
        if holds in held and inner:
            held[holds].append(str(inner))
        else:
            yield from _contacts(inner)
    yield from (Contact(address, tuple(held["variable"])) for address in held["address"])
    yield from (Contact(address, cluster=True) for address in held["cluster"])


def require_contacts(value: object, price: Callable[[], str]) -> None:
    """Refuses to run what sends requests without consent; `price` tells in words what they cost, "" where it cannot."""
    consent, found = given(), contacts(value)
    if not consent.network and found:
        told = price()
        raise SpecError(
            f"{consent.spec} would send requests to {shortened(', '.join(map(str, found)), 400)}"
            f"{f' ({told})' if told else ''}, and you did not make this folder here; look whether you want that, then "
            "add --allow-network"
        )
    for one in found:
        if one.cluster:
            require_code(str(one))


def may_import_from(folder: str) -> bool:
    """Whether code may be looked for in the folder one works in; for a stranger's spec only with consent."""
    consent = given()
    if consent.spec is None:
        return True
    # Never where that folder is, lies in or holds the stranger's: what bears the name of a module would be imported.
    here, theirs = Path(os.path.realpath(folder)), Path(os.path.realpath(consent.spec.parent))
    return consent.code and not (here.is_relative_to(theirs) or theirs.is_relative_to(here))
