"""Signs that the three files of an audit were exchanged, or that one was given twice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats

from dpaudit.estimators.arguments import Floats
from dpaudit.synthetic_tables.games.equal_values import across, p_of_too_many
from dpaudit.synthetic_tables.games.pairs import PairedTables, row_codes, stacked

BY_CHANCE = 1e-5
"""P-value, for files in their places, below which they count as exchanged."""
MOST = 0.9
"""Share of the holdout rows in the synthetic table above which it seems to be that file."""


def exchanged(pairs: PairedTables, own_scores: Mapping[str, Floats]) -> str:
    """Return a sentence on files that seem to be exchanged; "" without such a sign.

    Args:
        own_scores: Score of each real row by each attack, larger if more likely trained on, shapes (rows,).
    """
    codes = row_codes(stacked(pairs.view.real, pairs.view.synthetic))
    rows = np.unique(pairs.canary, return_index=True)[1]  # one of each canary, because its rows share their file
    real, trained, released = codes[rows], pairs.trained[rows], codes[pairs.trained.size :]
    copied = np.isin(real, released)
    again = np.isin(real[trained], real[~trained])
    held_out, of = int(copied[~trained].sum()), int((~trained).sum())
    more_copied = stats.hypergeom.sf(held_out - 1, trained.size, copied.sum(), of) < BY_CHANCE
    if more_copied and held_out > MOST * of:
        return f"the holdout file seems to be the synthetic table: {held_out:,} of {of:,} holdout rows are in both"
    if p_of_too_many(real, trained, across) < BY_CHANCE:
        return f"the holdout file seems to hold training rows, or copies: {again.sum():,} of {again.size:,} are in it"
    for name, score in own_scores.items():
        ahead = pairs.ahead(score)
        right, wrong = int((ahead > 0).sum()), int((ahead < 0).sum())
        if more_copied or len(own_scores) * stats.binom.cdf(right, right + wrong, 0.5) < BY_CHANCE:
            return (
                "the training and the holdout file seem to be exchanged, or synthetic rows near training rows were "
                f"removed: the attack {name} is right in {right:,} of {right + wrong:,} pairs"
            )
    return ""
