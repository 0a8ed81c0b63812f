"""Units of work: a task defined by values alone, its resources, and the key that identifies its result."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

import dpaudit
from dpaudit.actors.fingerprint import NOT_IN_KEY, UserCode, fingerprint, imported_packages, read_once
from dpaudit.errors import require, shortened
from dpaudit.field_checks import check_fields
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


class AnswerTask(Task, Protocol):
    """Task of a unit whose result is not stored: it follows from stored results, and the driver gets it as a value."""

    def following(self, metadata: Mapping[str, Mapping[bytes, bytes]]) -> AnswerTask:
        """Return the task with the metadata of the results of `Unit.follows`, by key."""

    def value(self, table: pa.Table) -> Any:
        """Return the value in the table that `run` returned."""


RAY_NAMES = ("CPU", "GPU", "memory", "object_store_memory")
"""Ray's names of resources that are not custom ones."""
LEAST_AMOUNT = 0.0001
"""Ray counts resources in units of this amount."""


@dataclass(frozen=True)
class Resources:
    """Resources that one unit occupies.

    CPUs and GPUs are part of the unit's key, because results may depend on them. Memory and custom resources only say
    where the unit runs.
    """

    cpus: int = 1  # CPU threads, >= 1; the last digits of results may depend on it
    # Share of a GPU in [0, 1], or a whole number of GPUs of one node, among which the unit divides its training
    gpus: float = 0.0
    # Bytes of memory that Ray counts as taken on the node, >= 0; the unit may use more
    memory: int = field(default=0, metadata=NOT_IN_KEY)
    # Amounts of other resources of the node, sorted by name: each in [0.0001, 1], or a whole number
    custom: tuple[tuple[str, float], ...] = field(default=(), metadata=NOT_IN_KEY)

    def __post_init__(self) -> None:
        require(self.cpus >= 1, "cpus of a unit must be >= 1", cpus=self.cpus)
        in_range = 0 <= self.gpus <= 1 or (self.gpus > 1 and float(self.gpus).is_integer())
        require(in_range, "gpus of a unit must be in [0, 1] or a whole number", gpus=self.gpus)
        require(self.memory >= 0, "memory of a unit must be >= 0 bytes", memory=self.memory)
        object.__setattr__(self, "custom", tuple(sorted(self.custom)))
        for name, amount in self.custom:
            is_custom = bool(name) and name not in RAY_NAMES
            require(
                is_custom, "a custom resource must have a name of its own", do="state cpus, gpus or memory", name=name
            )
            in_range = LEAST_AMOUNT <= amount <= 1 or (amount > 1 and float(amount).is_integer())
            must = f"the custom resource {shortened(name)} must be in [{LEAST_AMOUNT}, 1] or a whole number"
            require(in_range, must, amount=amount)

    @property
    def without_gpu(self) -> Resources:
        """Same CPUs, but no GPU, memory or custom resource, for a unit that scores or counts while others train."""
        return Resources(self.cpus)

    @cached_property
    def amounts(self) -> dict[str, float]:
        """Amounts above 0 by Ray's name of the resource."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **dict(self.custom)}
        return {name: amount for name, amount in amounts.items() if amount}

    @property
    def custom_text(self) -> str:
        """Custom resources as text, "" for none."""
        return ", ".join(_amount_text(name, amount) for name, amount in self.custom)

    @property
    def need_ray(self) -> bool:
        """True if only Ray can reserve them: a GPU, memory or a custom resource."""
        return self != self.without_gpu

    @property
    def scarcity(self) -> tuple[float, ...]:
        """Sort key: resources that few nodes have come last."""
        return self.gpus, len(self.custom), self.memory, self.cpus

    def may_run(self, unit: Resources) -> bool:
        """True if a worker with these resources can run units with `unit`: same threads, and no less of the others."""
        has = self.amounts
        return self.cpus == unit.cpus and all(has.get(name, 0) >= amount for name, amount in unit.amounts.items())

    def compute(self, scratch: Path | None = None) -> Compute:
        """Return these resources as the `Compute` argument of mechanisms, with `scratch` as checkpoint folder."""
        if not self.gpus:
            return Compute(threads=self.cpus, scratch=scratch)
        share, processes = min(1.0, self.gpus), max(1, int(self.gpus))
        return Compute(self.cpus, "cuda:0", scratch, device_share=share, processes=processes)

    def __str__(self) -> str:
        return resource_text(self.amounts, self.amounts)


def resource_text(amounts: Mapping[str, float], names: Iterable[str]) -> str:
    """Return the amounts with these names as text: "2 CPUs, 8 GB of memory and 0.5 GPUs"."""
    *others, last = [_amount_text(name, amounts.get(name, 0)) for name in names]
    return f"{', '.join(others)} and {last}" if others else last


def _amount_text(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / 1e9:.4g} GB of memory"
    return f"{amount:g} {name}{'s' if name in ('CPU', 'GPU') and amount != 1 else ''}"


@dataclass(frozen=True)
class Unit:
    """One schedulable piece of work."""

    task: Task
    label: str  # for users: "target training 1/1"
    shared: tuple[str, ...] = ()  # names of its shared inputs
    needs: tuple[str, ...] = ()  # keys of the units whose results it needs
    resources: Resources = Resources()
    key: str = ""  # hash of everything that determines the result; name of its file in the run folder
    follows: tuple[str, ...] = ()  # keys of further units that must finish first; the task gets their metadata only
    is_answer: bool = False  # True if the task is an `AnswerTask`
    user_code: tuple[UserCode, ...] = field(default=(), repr=False)  # the user's code in the key

    @cached_property
    def function_name(self) -> str:
        """Name of the function that the unit calls."""
        return str(getattr(self.task, "name", type(self.task).__name__))

    @cached_property
    def kind_of_work(self) -> str:
        """The function, its mechanism and its model: units of one kind take similar times."""
        return str(getattr(self.task, "kind_of_work", self.function_name))

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
    mechanisms = [
        package / folder for folder in ("mechanisms", "language_models/mechanisms", "synthetic_tables/mechanisms")
    ]
    identity = hash_of_sources(package), imported_packages(*mechanisms)
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


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class ResourceRequest:
    """Resources that one unit requests. Ray gets them as they stand; None states nothing.

    Attributes:
        cpus: CPU threads, >= 1. Default: 1.
        gpus: Share of one GPU in [0, 1]; units with a share below 1 share it. Or a whole number of GPUs of one node,
            among which the unit divides each batch of a training. Default: none.
        memory: Memory that Ray counts as taken on the unit's node: bytes, or text such as "8GB" or "512MiB". It limits
            how many units run on a node, not what a unit uses. Default: none.
        custom: Amounts of other resources of nodes by name, such as `{"accelerator_type:H100": 0.001}`: each in
            [0.0001, 1], or a whole number. Default: none.
    """

    cpus: int | None = None
    gpus: float | None = None
    memory: int | str | None = None
    custom: dict[str, float] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", _bytes_in(self.memory))
        self.per_unit()  # refuses amounts that are out of range

    def over(self, other: ResourceRequest) -> ResourceRequest:
        """Return this request; fields that it does not state are those of `other`."""
        unstated = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(other, name) for name in unstated})

    def per_unit(self) -> Resources:
        """Return the resources of a unit."""
        assert not isinstance(self.memory, str)
        return Resources(
            1 if self.cpus is None else self.cpus,
            self.gpus or 0.0,
            self.memory or 0,
            tuple((self.custom or {}).items()),
        )


def _bytes_in(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    require(match is not None, 'memory must be a number of bytes, or text such as "8GB" or "512MiB"', memory=text)
    assert match is not None
    number, prefix, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _POWERS[prefix.upper()]
    return round(float(number) * scale)
