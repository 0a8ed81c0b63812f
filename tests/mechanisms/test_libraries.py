"""External libraries, each in its own Python environment; skipped if `make libraries` has not installed them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bank.libraries import LIBRARIES

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "libraries"
ONCE = """
import ast, importlib, sys
import numpy as np

sys.path.insert(0, sys.argv[1])
x = np.random.default_rng(0).random((50, 2))
records = [{"key": "ab"[i % 2], "value": x[i, 0], "x": float(i % 2), "y": float(i % 3 == 0)} for i in range(50)]
for function, form, settings in ast.literal_eval(sys.argv[2]):
    module, name = function.split(":")
    if form == "array":
        rows = x.copy() if name != "naive_bayes" else np.column_stack([x[:, 0], np.arange(50) % 2])
    elif form == "frame":
        import pandas
        rows = pandas.DataFrame(records)
    else:
        rows = records if form == "records" else [row["value"] for row in records]
    shown = getattr(importlib.import_module(module), name)(rows, np.random.default_rng(1), **settings)
    assert shown is not None, function
"""


@pytest.mark.parametrize("python", sorted({case.python for case in LIBRARIES.values()}))
def test_every_function_of_the_bank_answers(python: str) -> None:
    """Each function runs on fifty ordinary rows, in the Python environment of its library."""
    executable = ROOT / f".venv-{python}" / "bin" / "python"
    if not executable.exists():
        pytest.skip(f"needs `make .venv-{python}/.installed`")
    cases = [[c.function, c.form, dict(c.settings)] for c in LIBRARIES.values() if c.python == python]
    completed = subprocess.run(
        [executable, "-W", "ignore", "-c", ONCE, FOLDER, repr(cases)], capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stderr


def test_every_library_of_the_bank_has_pins_and_a_file() -> None:
    pins = {path.stem for path in (ROOT / "requirements/libraries").glob("*.txt")}
    for name, case in LIBRARIES.items():
        assert case.python in pins, name
        assert (FOLDER / f"{case.function.partition(':')[0]}.py").exists(), name
        assert case.honest == (not case.pair), name
