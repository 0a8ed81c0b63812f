"""How sure trained models are of labels: phi = log p_y - log(sum of the other probabilities).

phi is close to normal over models, which the likelihood-ratio attack lives on; it keeps its precision at both ends,
where 1 - p is rounded to 0. Both p_y and log p_y follow from it.

Source: Carlini et al. (2022), arXiv:2112.03570, section VI-B.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_PROBABILITY = 1e-45


def phi_of_logits(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """phi from logits of shape (..., n, classes) and labels (n,); shape (..., n)."""
    wide = logits.astype(np.float64)
    at_label = np.broadcast_to(labels[:, None], (*wide.shape[:-1], 1))
    own = np.take_along_axis(wide, at_label, -1)[..., 0]
    np.put_along_axis(wide, at_label, -np.inf, -1)
    largest = wide.max(-1)
    others = largest + np.log(np.exp(wide - largest[..., None]).sum(-1))
    phi: NDArray[np.float64] = own - others
    return phi


def phi_of_probabilities(probabilities: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """phi from probabilities of shape (n, classes) and labels (n,), those below 1e-45 raised to it; shape (n,)."""
    with np.errstate(divide="ignore"):
        return phi_of_logits(np.log(np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY)), labels)


def log_probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """log p_y = -log(1 + e^-phi), in nats."""
    return -np.logaddexp(0.0, -phi.astype(np.float64))


def probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """p_y = 1 / (1 + e^-phi); 0 below e^-709."""
    with np.errstate(over="ignore"):
        found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-phi.astype(np.float64)))
    return found
