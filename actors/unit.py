"""Units of work: what is run, decided by values alone, and the key that names the result."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

import dpaudit
from dpaudit.errors import require
from dpaudit.mechanisms.protocols import Compute


@dataclass(frozen=True)
class Inputs:
    """What a task is given beside its own values.

    Attributes:
        shared: Large inputs by name, read-only; each was put into the object store once.
        tables: Results of the units this one needs, in the order of `Unit.needs`.
    """

    shared: Mapping[str, Any]
    tables: tuple[pa.Table, ...] = ()


class Task(Protocol):
    """A frozen dataclass whose fields decide the result of `run`, on any worker, in any order."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Does the work.

        Raises: TrainingError for a failure of this piece alone; it is tried again, then recorded as failed.
        """
        ...


@dataclass(frozen=True)
class Resources:
    """What one unit occupies while it runs.

    Attributes:
        cpus: CPU threads, >= 1; results may depend on it in the last digits, so it is part of the plan.
        gpus: GPUs, >= 0; a fraction shares one.
    """

    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        require(self.cpus >= 1, "cpus of a unit must be >= 1", cpus=self.cpus)
        require(self.gpus >= 0, "gpus of a unit must be >= 0", gpus=self.gpus)

    def compute(self, scratch: Path | None = None) -> Compute:
        """The same for the code that runs: threads, a device name, and a folder for checkpoints."""
        return Compute(threads=self.cpus, device="cuda:0" if self.gpus > 0 else "cpu", scratch=scratch)


@dataclass(frozen=True)
class Unit:
    """One schedulable piece of work.

    Attributes:
        task: What to do.
        label: For people: "target training 1/1".
        shared: Names of the shared inputs it takes.
        needs: Keys of the units whose tables it takes, in order.
        resources: What it occupies.
        key: Hash of everything that decides the result; names the file in the run folder.
    """

    task: Task
    label: str
    shared: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    resources: Resources = Resources()
    key: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            # Shared inputs are named by their content, so the names stand for them here.
            parts = (self.task, self.shared, self.needs, self.resources, code_version())
            object.__setattr__(self, "key", fingerprint(parts)[:32])


_RECORDED: ContextVar[str | None] = ContextVar("recorded code version", default=None)


@contextlib.contextmanager
def as_of(version: str | None) -> Iterator[None]:
    """Keys inside the block are those of an earlier code version: to read what it left, not to run anything."""
    token = _RECORDED.set(version)
    try:
        yield
    finally:
        _RECORDED.reset(token)


def code_version() -> str:
    """Version of the code that produces results: the release and a hash of its sources."""
    return _RECORDED.get() or _version_of_sources()


@cache
def _version_of_sources() -> str:
    root = Path(dpaudit.__file__).parent
    hasher = hashlib.sha256(dpaudit.__version__.encode())
    of_engine = ("engine/games", "engine/attacks", "engine/canaries", "engine/proxies")
    for folder in ("claims", "actors", *of_engine, "mechanisms", "estimators"):
        for path in sorted((root / folder).rglob("*.py")):
            hasher.update(path.read_bytes())
    return f"{dpaudit.__version__}+{hasher.hexdigest()[:12]}"


def fingerprint(value: object) -> str:
    """SHA-256 of a value made of dataclasses, containers, numbers, strings, enums and arrays."""
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()


def _feed(hasher: hashlib._Hash, value: object) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed_class(hasher, type(value))
        for field in dataclasses.fields(value):
            hasher.update(f"{field.name}=".encode())
            _feed(hasher, getattr(value, field.name))
    elif isinstance(value, Enum):
        _feed(hasher, value.value)
    elif isinstance(value, np.ndarray):
        hasher.update(f"<array {value.dtype.str} {value.shape}>".encode())
        hasher.update(np.ascontiguousarray(value).data)
    elif isinstance(value, Mapping):
        hasher.update(b"{")
        for name in sorted(value, key=str):
            _feed(hasher, (name, value[name]))
        hasher.update(b"}")
    elif isinstance(value, list | tuple):
        hasher.update(b"(")
        for item in value:
            _feed(hasher, item)
            hasher.update(b",")
        hasher.update(b")")
    elif value is None or isinstance(value, str | bytes | bool | int | float | np.generic):
        hasher.update(f"{type(value).__name__}:{value!r}".encode())
    elif callable(value) and hasattr(value, "__qualname__"):
        hasher.update(f"<{value.__module__}.{value.__qualname__}>".encode())
    else:  # an object of the user's own
        require(
            hasattr(value, "__dict__"), "a unit's values must be plain data or objects made of it", value=type(value)
        )
        _feed_class(hasher, type(value))
        _feed(hasher, vars(value))


def _feed_class(hasher: hashlib._Hash, kind: type) -> None:
    hasher.update(f"<{kind.__module__}.{kind.__qualname__}>".encode())
    if not kind.__module__.startswith("dpaudit."):  # `code_version` knows nothing of the user's code
        with contextlib.suppress(OSError, TypeError):  # typed at a prompt: its name has to do
            hasher.update(inspect.getsource(kind).encode())
