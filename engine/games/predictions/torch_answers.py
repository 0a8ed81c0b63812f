"""The plain twin of the exact laws: every answer of its own, noise drawn on every count, on a CPU or a GPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.mechanisms.predictors.vote_laws import VoteLaw

Ints = NDArray[np.int64]

CHUNK = 1_000_000
"""Answers drawn at once."""


def torch_counts(law: VoteLaw, sigma: float, answers: int, seed: Seed, *, device: str) -> Ints:
    """How often each class is the argmax of votes plus Gaussian noise, in so many answers; shape (K,).

    Args:
        law: Each answer has a histogram of its own.
        sigma: Standard deviation of the noise on each count, > 0.
        answers: How many, >= 1.
        seed: Decides all draws.
        device: A device name of torch.
    """
    import torch

    rng = seed.child("votes").rng()
    noise = torch.Generator(device).manual_seed(int(seed.child("noise").sequence().generate_state(1)[0]))
    counts = np.zeros(law.classes, np.int64)
    for first in range(0, answers, CHUNK):
        votes = torch.tensor(law.draw(min(CHUNK, answers - first), rng), dtype=torch.float32, device=device)
        drawn = torch.randn(votes.shape, generator=noise, device=device)
        given = (votes + sigma * drawn).argmax(dim=1)
        counts += np.asarray(torch.bincount(given, minlength=law.classes).cpu())
    return counts
