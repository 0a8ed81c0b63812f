"""Imports of commands: planning, estimating and small runs load no heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HEAVY = ("numba", "pandas", "sklearn", "torch", "ray", "catboost", "matplotlib", "scipy.optimize", "scipy.stats")
SPEC = """\
mechanism: {name: randomized-response, epsilon: 1.0}
data: {name: iris}
game: {name: label-canaries}
run: {runner: in-process, figures: false}
"""
COMMAND = """
import sys
from dpaudit.engine.cli.main import main
main(sys.argv[1:], standalone_mode=False)
print("LOADED", *sys.modules)
"""


def loaded(folder: Path, *arguments: str) -> set[str]:
    """Return the modules that a command has loaded at its end."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    modules = set(process.stdout.splitlines()[-1].removeprefix("LOADED ").split())
    assert "numpy" in modules
    return modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    member = np.arange(2_000) % 2
    scores = np.random.default_rng(1).normal(size=member.size) + member
    rows = "".join(f"{score:.6f},{bit}\n" for score, bit in zip(scores, member, strict=True))
    (tmp_path / "scores.csv").write_text(f"score,member\n{rows}")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (("plan", "spec.yaml"), {"rich", "pyarrow.dataset", "dpaudit.engine.run.driver"}),
        (("estimate", "scores.csv", "--claim", "1"), {"rich", "pyarrow.dataset"}),
    ],
    ids=["plan", "estimate"],
)
def test_planning_and_estimating_load_no_heavy_library(
    arguments: tuple[str, ...], unused: set[str], folder: Path
) -> None:
    assert loaded(folder, *arguments).isdisjoint({*HEAVY, *unused})


def test_a_small_run_loads_no_heavy_library(folder: Path) -> None:
    """The proxy is exact: a proxy of scikit-learn would load pandas and more."""
    true_law = SPEC.replace("iris", "gaussian-mixture, rows: 300").replace(
        "label-canaries", "label-canaries, replays: 20"
    )
    true_law += "proxy: true-posterior\n"
    (folder / "known.yaml").write_text(true_law)
    modules = loaded(folder, "run", "known.yaml", "--output", "run", "--quiet")
    assert modules.isdisjoint({*HEAVY, "pyarrow.dataset", "dpaudit.estimators.one_run._guess_band_kernel"})
