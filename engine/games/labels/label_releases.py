"""Releasing labels again and again, each time by a mechanism that has released nothing before."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.one_run.answers import checked_release
from dpaudit.mechanisms.examples import Examples

Ints = NDArray[np.int64]


def released_anew(mechanism: Any, labels: Ints, target: Examples, noise: Seed) -> Ints:
    """What a copy of the mechanism that has released nothing before releases.

    Args:
        mechanism: What is audited.
        labels: What it is given, shape (n,).
        target: The rows that the labels belong to.
        noise: The release's seed.
    """
    rng = np.random.default_rng(noise.child("noise").sequence())
    given = Examples(target.features, labels, target.classes)
    released = copy.deepcopy(mechanism).release(labels.copy(), classes=target.classes, rng=rng)
    return checked_release(released, given, type(mechanism).__qualname__).labels


@dataclass(frozen=True, eq=False)
class PairedReleases:
    """Releases in which some labels are at stake, each one of a pair that a fair coin chose; all (releases, n).

    Attributes:
        released: What was released.
        known: Labels that everyone knows, `HIDDEN` at stake.
        first: The label that each row has if its coin fell True.
        second: The other one.
        truth: The coins.
    """

    released: Ints
    known: Ints
    first: Ints
    second: Ints
    truth: NDArray[np.bool_]


def joined(parts: tuple[PairedReleases, ...]) -> PairedReleases:
    """Several one after another; those without a release are left out, where there are others."""
    some = [part for part in parts if len(part.released)] or list(parts[:1])
    columns = ([getattr(part, field.name) for part in some] for field in fields(PairedReleases))
    return PairedReleases(*(np.concatenate(column) for column in columns))
