"""Functions of diffprivlib as its documentation calls them, for a Python in which it is installed."""

import numpy as np
from diffprivlib import tools
from diffprivlib.mechanisms import Laplace


def mean(rows, rng):
    """The noisy mean of a table whose size is public, at epsilon 1."""
    return tools.mean(rows[:, 0], epsilon=1.0, bounds=(0.0, 1.0))


def laplace(rows, rng):
    """A sum with the noise of diffprivlib's own Laplace mechanism, at epsilon 1."""
    return Laplace(epsilon=1.0, sensitivity=1.0).randomise(float(np.clip(rows[:, 0], 0, 1).sum()))
