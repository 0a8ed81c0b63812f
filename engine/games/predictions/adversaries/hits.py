"""How often a record votes in Private-kNN: the sum over the natural queries of its chances to be a near neighbour."""

from __future__ import annotations

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.engine.games.predictions.adversaries.protocol import Target, required
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn
from dpaudit.mechanisms.predictors.protocol import Added
from dpaudit.mechanisms.predictors.vote_laws import inclusion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def neighbours_of(target: Target, *, adversary: str) -> PrivateKnn:
    """The predictor.

    Raises: SpecError where its voters are no neighbours.
    """
    return required(target, PrivateKnn, adversary=adversary)


def expected_hits(predictor: PrivateKnn, target: Target, candidates: Examples) -> Floats:
    """E(x) of each candidate, shape (n,): at most rate x queries.

    Source: Chadha et al. (2024), appendix D.3.
    """
    more = Added.alone(target.data, candidates)
    ranks = predictor.votes_with_canary(more, target.queries.features, seed=SeedSequence(0), compute=target.compute)
    # Few ranks are different: a table spares an incomplete beta function for each of millions.
    chance = inclusion(np.arange(1, ranks.max() + 1), neighbours=predictor.neighbours, rate=predictor.rate)
    return np.asarray(chance[ranks - 1].sum(axis=1))


def least_expected(target: Target, queries: Ints | slice = slice(None)) -> int:
    """The class with the most votes but one on some queries together."""
    votes = target.votes[queries].sum(axis=0)
    return int(np.argsort(votes, kind="stable")[-2])
