"""Bounds of arXiv:2511.14084 as published, and without their assumption, from the counts of one-run games.

The paper reports each replay's best of 100 guess fractions, chosen on the samples that it is measured on, and the mean
over replays. It converts by Algorithm 3 for the Gaussian family (section 9). Neither step is valid for the mechanisms
that it audits. No training is repeated: the counts of the valid audit hold every guess fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpaudit.claims import GaussianDP
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunEstimator, OneRunFDP
from dpaudit.estimators.replays import MeanAndDeviation, mean_and_deviation
from dpaudit.estimators.selection import AsPublished

DELTA = 1e-5
"""The delta of the paper's tables; a pure claim is a claim at every delta."""
PUBLISHED = OneRunFDP(DELTA, selection=AsPublished(), family="gaussian")
"""The paper's estimator: the best guess fraction, for mechanisms of the Gaussian family."""
BEST_FRACTION = OneRun(DELTA, selection=AsPublished())
"""The best guess fraction, for every mechanism: the same choice without the family."""

LARGEST_NOISE = 9.991
"""Last noise that the authors' package tries (PrivacyGuard, `FDPAnalysisNode`: 0.001 + 0.01 i for i < 1,000)."""
RELEASED_FLOOR = GaussianDP(1 / LARGEST_NOISE).epsilon(DELTA)
"""Epsilon that their package reports where nothing is shown."""


def uncorrected(estimator: OneRunEstimator, replays: Sequence[OneRunTally]) -> MeanAndDeviation:
    """Return mean and deviation over replays of the best bound at 1 %, 2 %, ..., 100 % of guesses; not a bound.

    Args:
        estimator: `PUBLISHED` or `BEST_FRACTION`.
        replays: Tallies of an audit by any one-run estimator; at least one.
    """
    sweeps = [replace(tally, guesses=tally.sweep_guesses, correct=tally.sweep_correct) for tally in replays]
    return mean_and_deviation(estimator.best(sweeps, 1)[0])
