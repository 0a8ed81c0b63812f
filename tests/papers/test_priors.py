"""Data whose labels are drawn from known priors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dpaudit.errors import DataError
from papers.data.priors import OnePrior, OwnPriors


def test_drawn_labels_follow_their_priors_and_own_ones_are_read(tmp_path: Path) -> None:
    """False failure < 1e-6 by the normal law, 5 deviations."""
    data = OnePrior(0.03, 40_000).load(seed=1)
    assert abs(data.labels.mean() - 0.03) < 5 * math.sqrt(0.03 * 0.97 / 40_000)
    path = tmp_path / "priors.csv"
    path.write_text("prior,other\n0.25,a\n1,b\n0,c\n", encoding="utf-8")
    source = OwnPriors(str(path))
    assert source.load(seed=0).labels[1:].tolist() == [1, 0]
    assert source.posterior(source.load(seed=0).features)[:, 1].tolist() == [0.25, 1.0, 0.0]
    for column, message in (("other", "must hold a column of numbers"), ("absent", "must hold a column of numbers")):
        with pytest.raises(DataError, match=message):
            OwnPriors(str(path), column).load()
    path.write_text("prior\n1.25\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"must hold probabilities in \[0, 1\]"):
        source.load()
