"""Seeds of the parts of a training, all from the one seed the plan gave it."""

from __future__ import annotations

from numpy.random import SeedSequence


def spawned(seed: SeedSequence, parts: int) -> list[SeedSequence]:
    """Independent seeds for `parts` parts, the same ones each time it is asked.

    `SeedSequence.spawn` counts its children, so a second call on the same object gives other seeds; a fresh copy does
    not remember, and a training repeated with one seed object is the same training.
    """
    return SeedSequence(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size).spawn(parts)
