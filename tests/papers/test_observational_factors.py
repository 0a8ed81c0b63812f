"""Factors behind the bounds of tables 1 and 2 of arXiv:2511.14084."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
import pytest

from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.request.audit_spec import RunOptions
from papers.observational_factors import RedrawnLabels, factors
from papers.reproduction import Options


@pytest.mark.nightly
def test_what_rows_never_seen_show_is_not_left_of_a_bound(tmp_path: Path) -> None:
    run = RunOptions(runner="in-process")
    options = Options(tmp_path, run=run, say=lambda text: None, only=("images, no privacy",))
    reproduction = factors(options)
    assert reproduction.files[2].stat().st_size > 10_000, "a picture"
    by_setting = {row["setting"]: row for row in pacsv.read_csv(reproduction.files[1]).to_pylist()}
    good, off = by_setting["images, no privacy"], by_setting["images, no privacy, proxy of one epoch, not calibrated"]
    assert off["as published"] > good["as published"] > 2
    assert min(good["rows never seen"], off["rows never seen"]) > 2  # digits are too few for either proxy
    assert good["beyond those"] == off["beyond those"] == 0


def test_redrawn_labels_follow_their_law() -> None:
    share = 0.3
    data = RedrawnLabels(Digits(), share)
    examples, classes = data.load(seed=1), Digits().load().labels
    law = data.posterior(examples.features)
    rows = np.arange(len(law))
    assert np.allclose(law.sum(axis=1), 1)
    assert np.allclose(law[rows, classes], 1 - share)
    unchanged = (examples.labels == classes).mean()
    assert abs(unchanged - (1 - share)) < 4 * np.sqrt(share * (1 - share) / len(rows))
    others = np.bincount((examples.labels - classes)[examples.labels != classes] % 10, minlength=10)[1:]
    assert others.min() > 0.5 * others.mean()


@pytest.mark.nightly
def test_where_the_law_of_labels_is_known_rows_never_seen_show_nothing(tmp_path: Path) -> None:
    options = Options(
        tmp_path, run=RunOptions(runner="in-process"), say=lambda text: None, only=("redrawn labels, no privacy",)
    )
    (row,) = pacsv.read_csv(factors(options).files[1]).to_pylist()
    assert row["rows never seen"] == 0
    assert row["if the proxy is right"] > 2
