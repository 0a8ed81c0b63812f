"""Every example of docs/developers/extending.md is a file that runs as it stands."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dpaudit import Audit, AuditSpec, Claim, RunOptions, Verdict, audit
from dpaudit.engine.data import table_files
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.figures.finding_figures import finding_figures
from dpaudit.testing import check_game

PAGE = Path(__file__).parents[1] / "docs" / "developers" / "extending.md"
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
MIXTURE = {"name": "gaussian-mixture", "rows": 1000}


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of the page, in a folder that Python imports from."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    for name in FILES:
        sys.modules.pop(name, None)


def run(tmp_path: Path, **parts: Any) -> Any:
    options = RunOptions(runner="in-process", figures=False)
    (result,) = audit(AuditSpec((Audit(**parts),), run=options), output=tmp_path / "run", quiet=True).results
    return result


def test_every_example_is_a_file_with_a_name() -> None:
    assert len(FILES) == PAGE.read_text(encoding="utf-8").count("```python")


@pytest.mark.parametrize("name", ["audits_it", "my_attack", "my_estimator", "checks_game"])
def test_the_example_checks_itself(name: str) -> None:
    """The estimator's: false failure < 1e-6."""
    importlib.import_module(name)


def test_the_estimator_and_the_attack_take_part_in_an_audit(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        mechanism="my_mechanism:KeepsSome",
        data=MIXTURE,
        game={"name": "label-canaries", "replays": 1},
        attack="my_attack:Surer",
        estimator="my_estimator:RightGuesses",
    )
    assert result.verdict is Verdict.VIOLATION
    assert result.finding.method == "RightGuesses"


def test_the_game_over_any_release_finds_rows_in_sums(tmp_path: Path) -> None:
    parts = {"mechanism": "my_game:SumsOfRows", "data": {**MIXTURE, "rows": 300}, "game": "my_game:SumCanaries"}
    assert run(tmp_path, **parts).verdict is Verdict.VIOLATION


def test_the_source_of_pairs_finds_missing_noise(tmp_path: Path) -> None:
    """The chosen pair differs by 1, the noise allows a half of it: true epsilon 2."""
    parts = {"mechanism": "my_pairs:NoisySum", "data": {**MIXTURE, "rows": 100}, "game": "my_pairs:SumsOfTwo"}
    check_game(Audit(**parts))
    assert run(tmp_path, **parts).verdict is Verdict.VIOLATION


def test_the_game_with_evidence_of_its_own_ends_in_a_verdict(tmp_path: Path) -> None:
    parts = {"mechanism": "my_mechanism:KeepsSome", "data": MIXTURE, "game": "ranks:RankOfSecrets"}
    check_game(Audit(**parts))
    result = run(tmp_path, **parts)
    assert result.verdict is Verdict.VIOLATION
    assert result.finding.method == "first-rank"


def test_the_verb_prints_a_claim() -> None:
    verb = importlib.import_module("claims_verb").claims
    result = CliRunner().invoke(verb, ["randomized-response", "--epsilon", "1.5"])
    assert (result.exit_code, "1.5" in result.output) == (0, True), result.output


def test_the_figure_is_drawn_from_the_series() -> None:
    bound = importlib.import_module("my_series").bound_over_trials([10, 20], [0.1, 0.4])
    (picture,) = finding_figures(bound, Claim(1.0))
    assert picture.stem == "trials"


def test_the_format_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table_files.READERS, b"PAIR", importlib.import_module("my_format").pairs)
    cells = np.stack([np.arange(100.0), np.arange(100) % 2], axis=1)
    (tmp_path / "scores.pairs").write_bytes(b"PAIR" + cells.tobytes())
    table = SourceTable.of_file(tmp_path / "scores.pairs")
    assert table.numbers("score").tolist() == cells[:, 0].tolist()
    assert table.bits("member").tolist() == (cells[:, 1] == 1).tolist()
