"""Trainings in examples/trainers: honest ones pass, and half of the stated noise is a violation.

Those that need other packages run in a Python of their own, and are skipped if `make libraries` has not made it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dpaudit
from dpaudit.errors import InputError

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "trainers"
PYTHONS = {
    "flower_rounds.py": "flower",
    "jax_privacy_loop.py": "jax-privacy",
    "keras_jax.py": "trainers",
    "keras_torch.py": "trainers",
    "lightning_opacus.py": "trainers",
    "nvflare_aggregator.py": "nvflare",
    "optax_loop.py": "jax-privacy",
}
SETTINGS = {"opacus_loop.py": ("flat", "per-layer", "ghost", "memory"), "flower_rounds.py": ("fixed", "adaptive")}
DAY = ("jax_privacy_loop.py", "numpy_loop.py", "nvflare_aggregator.py", "optax_loop.py")
"""Examples that do not import torch, which takes longest in their processes."""


def verdict_of(name: str, *arguments: str) -> str:
    """Return the verdict that an example prints."""
    environment = PYTHONS.get(name)
    python = Path(sys.executable) if environment is None else ROOT / f".venv-{environment}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"needs `make .venv-{environment}/.installed`")
    completed = subprocess.run(
        [python, "-W", "ignore", FOLDER / name, *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT / "editable"), "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    verdict = re.search(r"^(VIOLATION|NO VIOLATION FOUND)  ", completed.stdout, re.MULTILINE)
    assert verdict is not None, completed.stdout
    return verdict[1]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param(path.name, setting, marks=[] if path.name in DAY else pytest.mark.nightly)
        for path in sorted(FOLDER.glob("*.py"))
        for setting in SETTINGS.get(path.name, (None,))
    ],
)
def test_half_of_the_noise_is_found(name: str, setting: str | None) -> None:
    settings = [] if setting is None else [setting]
    assert verdict_of(name, "1", *settings) == "NO VIOLATION FOUND"
    assert verdict_of(name, "0.5", *settings) == "VIOLATION"


@pytest.mark.nightly
def test_updates_weighted_by_rows_need_more_noise() -> None:
    assert verdict_of("flower_rounds.py", "1", "rows") == "VIOLATION"


@pytest.mark.parametrize("audit_of", [dpaudit.TrainingAudit.of_keras, dpaudit.TrainingAudit.of_flower])
def test_other_trainers_are_refused(audit_of: Callable[[object], object]) -> None:
    with pytest.raises(InputError, match=r"must be private|must clip at the server"):
        audit_of(object())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_an_audit_is_at_most_three_lines(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    marked = [line for line in source.splitlines() if re.search(r"# audit(?:$|:|  #)", line)]
    calls = re.findall(r"\bTrainingAudit\b|\baudit\.(?!result)\w+", source)
    assert 1 <= len(marked) <= 3
    assert len(calls) == len(marked)
