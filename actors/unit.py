"""Units of work: what is run, decided by values alone, and the key that names the result."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

import dpaudit
from dpaudit.actors.fingerprint import UserCode, fingerprint, one_reading, packages_behind
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute


@dataclass(frozen=True)
class Inputs:
    """What a task is given beside its own values."""

    shared: Mapping[str, Any]  # large inputs by name, read-only; each was put into the object store once
    tables: Mapping[str, pa.Table] = field(default_factory=dict)  # results by key, in the order of `Unit.needs`


class Task(Protocol):
    """A frozen dataclass whose fields decide the result of `run`, on any worker, in any order."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Does the work; a TrainingError is a failure of this piece alone: it is tried again, then recorded."""


@dataclass(frozen=True)
class Resources:
    """What one unit occupies while it runs."""

    cpus: int = 1  # CPU threads, >= 1; results may depend on it in the last digits, so it is part of the plan
    gpus: float = 0.0  # GPUs, >= 0; a fraction shares one, more than one are whole ones

    def __post_init__(self) -> None:
        require(self.cpus >= 1, "cpus of a unit must be >= 1", cpus=self.cpus)
        whole = self.gpus <= 1 or float(self.gpus).is_integer()
        require(self.gpus >= 0 and whole, "gpus of a unit must be in [0, 1] or a whole number", gpus=self.gpus)

    @property
    def on_cpus(self) -> Resources:
        """The same without a GPU: for a unit that scores or counts beside others that train."""
        return Resources(self.cpus)

    def may_run(self, unit: Resources) -> bool:
        """Whether a worker that occupies this can run units of that: as many threads, and no less of a GPU."""
        return self.cpus == unit.cpus and self.gpus >= unit.gpus

    def compute(self, scratch: Path | None = None) -> Compute:
        """The same for the code that runs: threads, a device name with its share, and a folder for checkpoints."""
        if self.gpus > 0:
            return Compute(threads=self.cpus, device="cuda:0", scratch=scratch, device_share=min(1.0, self.gpus))
        return Compute(threads=self.cpus, scratch=scratch)

    def __str__(self) -> str:
        cpus = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        return f"{cpus} and {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else cpus


@dataclass(frozen=True)
class Unit:
    """One schedulable piece of work."""

    task: Task
    label: str  # for people: "target training 1/1"
    shared: tuple[str, ...] = ()  # names of the shared inputs it takes
    needs: tuple[str, ...] = ()  # keys of the units whose tables it takes
    resources: Resources = Resources()
    key: str = ""  # hash of everything that decides the result; names the file in the run folder
    own: tuple[UserCode, ...] = field(default=(), repr=False)  # the user's code that the key speaks of

    @cached_property
    def does(self) -> str:
        """What it does: the name of the function that it calls."""
        return str(getattr(self.task, "name", type(self.task).__name__))

    @property
    def own_version(self) -> str:
        """A short name for the user's code as it is; "" where there is none, "unread" where some cannot be read."""
        digests = [f"{code.label}={code.digest}" for code in self.own]
        if any(code.unseen for code in self.own):
            return "unread"
        return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()[:12] if digests else ""

    def __post_init__(self) -> None:
        if not self.key:
            # Shared inputs are named by their content, so the names stand for them here.
            found = fingerprint((self.task, self.shared, self.needs, self.resources, code_version()))
            object.__setattr__(self, "key", found.digest[:32])
            object.__setattr__(self, "own", found.own)


def user_code(units: Iterable[Unit]) -> dict[str, UserCode]:
    """The user's code behind some units, by its label."""
    found = {code.label: code for unit in units for code in unit.own}
    return dict(sorted(found.items()))


_RECORDED: ContextVar[str | None] = ContextVar("recorded code version", default=None)


@contextlib.contextmanager
def as_of(version: str | None, own: Mapping[str, str] | None = None) -> Iterator[None]:
    """Keys inside the block are those of earlier code: to read what it left, not to run anything."""
    token = _RECORDED.set(version)
    try:
        with one_reading(own):
            yield
    finally:
        _RECORDED.reset(token)


def code_version() -> str:
    """Version of dpaudit's code: the release, and a hash of its sources and of the packages its mechanisms import."""
    return _RECORDED.get() or f"{dpaudit.__version__}+{_hash_of_sources()[:12]}"


@cache
def _hash_of_sources() -> str:
    package = Path(dpaudit.__file__).parent
    both = hash_of_sources(package), packages_behind(package / "mechanisms")
    return hashlib.sha256(repr(both).encode()).hexdigest()


def hash_of_sources(package: Path) -> str:
    """SHA-256 of every source file of a package: any of them may decide what a unit gives."""
    hasher = hashlib.sha256()
    for folder, folders, names in os.walk(package, followlinks=True):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".py")):
            path = Path(folder, name)
            hasher.update(f"{path.relative_to(package)} {path.stat().st_size}\n".encode())
            hasher.update(path.read_bytes())
    return hasher.hexdigest()
