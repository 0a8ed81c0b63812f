"""Seeds for code that takes one number, or none at all and draws from a library's global generator."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.random import SeedSequence


def whole_number(seed: SeedSequence) -> int:
    """A seed as a number in 0..2^31 - 1, which every library takes."""
    return int(seed.generate_state(1)[0] >> 1)


@contextmanager
def global_randomness(seed: SeedSequence) -> Iterator[None]:
    """Inside, what draws from the global generators of Python, NumPy and torch (once imported) draws from `seed`.

    Their states are put back afterwards, so that nobody else's draws depend on what ran here.
    """
    python, numpy, torch_seed = (int(word) for word in seed.generate_state(3))
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    random.seed(python)
    np.random.seed(numpy)
    if torch is not None:
        torch.manual_seed(torch_seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])
