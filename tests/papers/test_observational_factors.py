"""What moves the bounds of tables 1 and 2 of arXiv:2511.14084."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as pacsv

from dpaudit.engine.spec.audit_spec import RunOptions
from papers.making import Options
from papers.observational_factors import factors


def test_what_rows_never_seen_show_is_not_left_of_a_bound(tmp_path: Path) -> None:
    run = RunOptions(runner="in-process")
    options = Options(tmp_path, run=run, say=lambda text: None, only=("images, no privacy",))
    found = {row["setting"]: row for row in pacsv.read_csv(factors(options).files[1]).to_pylist()}
    good, off = found["images, no privacy"], found["images, no privacy, proxy of one epoch"]
    assert off["as published"] > good["as published"] > 2
    assert min(good["rows never seen"], off["rows never seen"]) > 2  # digits are too few for either proxy
    assert good["beyond those"] == off["beyond those"] == 0
