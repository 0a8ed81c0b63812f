"""The page of the audit of a synthetic table: self-contained, complete, and safe for names from files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpaudit import synthetic
from dpaudit.errors import DataError
from dpaudit.estimators.scores import Scores
from dpaudit.synthetic_tables.front_door.page import right_in_order, write_page
from dpaudit.synthetic_tables.front_door.result import SyntheticAudit

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def audit() -> SyntheticAudit:
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame({"x": rng.normal(size=80), HOSTILE: rng.choice(["a", "b", HOSTILE], 80)}) for _ in range(3)]
    tables[2].iloc[:60] = tables[0].iloc[:60]
    return synthetic(*tables, claim=0.5)


def test_page(audit: SyntheticAudit, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", audit)
    page = (tmp_path / "page.html").read_text()
    assert audit.verdict.value in page
    for attack in audit.attacks:
        assert attack.name in page
    for measure in audit.measures:
        if not measure.name.startswith(("AUC", "TPR")):
            assert measure.means[:40] in page
    assert page.count("<svg") == 4
    assert HOSTILE not in page
    assert not re.search(r"<(script|link|iframe|img)\b", page)
    assert "default-src 'none'" in page


def test_a_folder_is_no_page(audit: SyntheticAudit, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        write_page(tmp_path, audit)


def test_right_guesses_come_in_the_order_of_their_confidence() -> None:
    scores = Scores(np.array([0.1, -3.0, 2.0]), np.array([False, False, True]))
    assert right_in_order(scores).tolist() == [True, True, False]
