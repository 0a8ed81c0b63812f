"""Functions of diffprivlib with calls from its documentation, for a Python with diffprivlib."""

import numpy as np
from diffprivlib import tools
from diffprivlib.mechanisms import Laplace


def mean(rows, rng):
    """Return the noisy mean of a table of public size, at epsilon 1."""
    return tools.mean(rows[:, 0], epsilon=1.0, bounds=(0.0, 1.0))


def laplace(rows, rng):
    """Return a sum with the noise of diffprivlib's Laplace mechanism, at epsilon 1."""
    return Laplace(epsilon=1.0, sensitivity=1.0).randomise(float(np.clip(rows[:, 0], 0, 1).sum()))
