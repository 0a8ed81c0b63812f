"""Units of work: a task defined by values alone, its resources, and the key that identifies its result."""

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
from dpaudit.actors.fingerprint import UserCode, fingerprint, imported_packages, read_once
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute


@dataclass(frozen=True)
class Inputs:
    """Inputs of a task in addition to its fields."""

    shared: Mapping[str, Any]  # large inputs by name, read-only; each is in the object store once
    tables: Mapping[str, pa.Table] = field(default_factory=dict)  # results by key, in the order of `Unit.needs`


class Task(Protocol):
    """A frozen dataclass whose fields determine the result of `run`, on any worker and in any order."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Return the result. After a TrainingError the unit is retried, then recorded as failed."""


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that one unit occupies."""

    cpus: int = 1  # CPU threads, >= 1; part of the plan, because the last digits of results may depend on it
    gpus: float = 0.0  # GPUs: a fraction of one, or an integer

    def __post_init__(self) -> None:
        require(self.cpus >= 1, "cpus of a unit must be >= 1", cpus=self.cpus)
        whole_gpus = self.gpus <= 1 or float(self.gpus).is_integer()
        require(self.gpus >= 0 and whole_gpus, "gpus of a unit must be in [0, 1] or a whole number", gpus=self.gpus)

    @property
    def without_gpu(self) -> Resources:
        """Same CPUs without a GPU, for a unit that scores or counts while others train."""
        return Resources(self.cpus)

    def may_run(self, unit: Resources) -> bool:
        """True if a worker with these resources can run units with `unit`: same threads, at least the same GPU."""
        return self.cpus == unit.cpus and self.gpus >= unit.gpus

    def compute(self, scratch: Path | None = None) -> Compute:
        """Return these resources as the `Compute` argument of mechanisms, with `scratch` as checkpoint folder."""
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
    label: str  # for users: "target training 1/1"
    shared: tuple[str, ...] = ()  # names of its shared inputs
    needs: tuple[str, ...] = ()  # keys of the units whose results it needs
    resources: Resources = Resources()
    key: str = ""  # hash of everything that determines the result; name of its file in the run folder
    user_code: tuple[UserCode, ...] = field(default=(), repr=False)  # the user's code in the key

    @cached_property
    def function_name(self) -> str:
        """Name of the function that the unit calls."""
        return str(getattr(self.task, "name", type(self.task).__name__))

    @property
    def user_code_version(self) -> str:
        """Short hash of the user's code; "" if there is none, "unread" if part of it cannot be read."""
        digests = [f"{code.label}={code.digest}" for code in self.user_code]
        if any(code.unseen for code in self.user_code):
            return "unread"
        return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()[:12] if digests else ""

    def __post_init__(self) -> None:
        if not self.key:
            # Names of shared inputs contain a hash of their content, so the content need not be hashed again.
            identity = fingerprint((self.task, self.shared, self.needs, self.resources, code_version()))
            object.__setattr__(self, "key", identity.digest[:32])
            object.__setattr__(self, "user_code", identity.user_code)


def user_code_by_label(units: Iterable[Unit]) -> dict[str, UserCode]:
    """Return the user's code that `units` depend on, by label, sorted."""
    codes = {code.label: code for unit in units for code in unit.user_code}
    return dict(sorted(codes.items()))


_RECORDED_VERSION: ContextVar[str | None] = ContextVar("recorded code version", default=None)


@contextlib.contextmanager
def use_recorded_code(version: str | None, user_code: Mapping[str, str] | None = None) -> Iterator[None]:
    """Make keys in a block those of recorded code versions, to read earlier results. Nothing may run in the block."""
    token = _RECORDED_VERSION.set(version)
    try:
        with read_once(user_code):
            yield
    finally:
        _RECORDED_VERSION.reset(token)


def code_version() -> str:
    """Return dpaudit's version: its release, and a hash of its sources and of the packages its mechanisms import."""
    return _RECORDED_VERSION.get() or f"{dpaudit.__version__}+{_hash_of_sources()[:12]}"


@cache
def _hash_of_sources() -> str:
    package = Path(dpaudit.__file__).parent
    identity = hash_of_sources(package), imported_packages(package / "mechanisms")
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def hash_of_sources(package: Path) -> str:
    """Return the SHA-256 of all source files of a package, since any of them may change the results of units."""
    hasher = hashlib.sha256()
    for folder, folders, names in os.walk(package, followlinks=True):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".py")):
            path = Path(folder, name)
            hasher.update(f"{path.relative_to(package)} {path.stat().st_size}\n".encode())
            hasher.update(path.read_bytes())
    return hasher.hexdigest()
