"""Trainings in examples/trainers: honest ones pass, and half of the stated noise is a violation.

Those that need other packages run in a Python of their own, and are skipped if `make libraries` has not made it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "trainers"
PYTHONS = {"jax_privacy_loop.py": "jax-privacy", "optax_loop.py": "jax-privacy"}
NIGHTLY = {"torch_ddp.py": [pytest.mark.nightly]}  # starts two processes with torch, twice


@pytest.mark.parametrize(
    "name", [pytest.param(path.name, marks=NIGHTLY.get(path.name, [])) for path in sorted(FOLDER.glob("*.py"))]
)
def test_half_of_the_noise_is_found(name: str) -> None:
    environment = PYTHONS.get(name)
    python = Path(sys.executable) if environment is None else ROOT / f".venv-{environment}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"needs `make .venv-{environment}/.installed`")
    paths = {"PYTHONPATH": str(ROOT / "editable"), "OMP_NUM_THREADS": "1"}
    verdicts = []
    for share in ("1", "0.5"):
        completed = subprocess.run(
            [python, "-W", "ignore", FOLDER / name, share],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **paths},
        )
        assert completed.returncode == 0, completed.stderr
        verdicts.append(completed.stdout.partition("  ")[0])
    assert verdicts == ["NO VIOLATION FOUND", "VIOLATION"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_an_audit_is_three_lines(path: Path) -> None:
    marked = re.findall(r"# audit(?:$|:)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(marked) == 3
