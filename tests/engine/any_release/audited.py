"""Mechanisms and data of the games in this folder: a generator of tables, a model of sequences, data without labels."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from dpaudit import Claim, Relation


@dataclass(frozen=True, eq=False)
class Records:
    table: pa.Table
    name: str = "records"

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.table.to_pydict()).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def take(self, rows: Any, /) -> Records:
        where = np.asarray(rows)
        return Records(self.table.take(pa.array(np.flatnonzero(where) if where.dtype == bool else where)))


@dataclass(frozen=True)
class People:
    rows: int = 400

    def load(self, *, seed: int = 0) -> Records:
        rng = np.random.default_rng(seed)
        return Records(pa.table({"age": rng.normal(40, 9, self.rows), "town": rng.choice(["Bonn", "Ulm"], self.rows)}))


@runtime_checkable
class Generator(Protocol):
    def synthesise(self, table: pa.Table, rng: np.random.Generator) -> pa.Table: ...


@dataclass(frozen=True)
class Copier:
    """A generator that draws ages at random, except for the share `copied` of the records, which it releases
    unchanged."""

    copied: float = 1.0

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)

    def synthesise(self, table: pa.Table, rng: np.random.Generator) -> pa.Table:
        copied, sampled = rng.random(len(table)) < self.copied, rng.normal(40, 9, len(table))
        return pa.table({"age": np.where(copied, table["age"].to_numpy(), sampled), "town": table["town"]})


@dataclass(frozen=True)
class Sequences:
    texts: tuple[str, ...]
    name: str = "sequences"

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.texts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Any, /) -> Sequences:
        return Sequences(tuple(np.array(self.texts, dtype=object)[np.asarray(rows)]))


@dataclass(frozen=True)
class Secrets:
    rows: int = 400

    def load(self, *, seed: int = 0) -> Sequences:
        sampled = np.random.default_rng(seed).integers(0, 10, (self.rows, 12))
        return Sequences(tuple("".join(map(str, digits)) for digits in sampled))


@runtime_checkable
class SequenceModel(Protocol):
    def losses(self, train: tuple[str, ...], candidates: tuple[str, ...], rng: np.random.Generator) -> list[float]: ...


@dataclass(frozen=True)
class Grams:
    """A model that counts the successors of each context of letters, with noise on every count."""

    context: int = 6
    noise: float = 0.0

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)

    def losses(self, train: tuple[str, ...], candidates: tuple[str, ...], rng: np.random.Generator) -> list[float]:
        width = self.context + 1
        counts = Counter(text[at : at + width] for text in train for at in range(len(text) - self.context))
        counts = [[counts[text[at : at + width]] for at in range(len(text) - self.context)] for text in candidates]
        noisy = [np.maximum(np.array(each) + self.noise * rng.laplace(size=len(each)), 0) for each in counts]
        return [float(-np.log(each + 0.1).mean()) for each in noisy]


@dataclass(frozen=True)
class NoRows:
    def load(self, *, seed: int = 0) -> list[int]:
        return [seed]
