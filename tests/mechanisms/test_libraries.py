"""External libraries, each in its own Python environment; skipped if `make libraries` has not installed them."""

from __future__ import annotations

import subprocess
from ast import literal_eval
from pathlib import Path

import pytest

from benchmarks.gallery import GALLERY
from tests.bank.libraries import LIBRARIES

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "libraries"
ONCE = """
import ast, importlib, sys
import numpy as np

sys.path.insert(0, sys.argv[1])
rng = np.random.default_rng(0)
def column(values):
    # fifty ordinary values: words in turn, or numbers between two ends, which are whole if the ends are
    if isinstance(values, list):
        return [values[i % len(values)] for i in range(50)]
    low, high = values
    return rng.integers(low, high + 1, 50) if isinstance(low, int) else rng.uniform(low, high, 50)
for function, form, settings, schema in ast.literal_eval(sys.argv[2]):
    module, name = function.split(":")
    columns = {key: column(values) for key, values in schema.items()}
    if form == "array":
        rows = np.column_stack(list(columns.values())).astype(float)
    elif form == "frame":
        import pandas
        rows = pandas.DataFrame(columns)
    elif form == "list":
        (rows,) = map(list, columns.values())
    else:
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    shown = getattr(importlib.import_module(module), name)(rows, np.random.default_rng(1), **settings)
    assert shown is not None, function
"""


FUNCTIONS = {
    *((c.python, c.function, c.form, repr(dict(c.settings)), repr(dict(c.schema))) for c in LIBRARIES.values()),
    *((c.python, c.function, c.form, repr(dict(c.settings)), repr(dict(c.schema))) for c in GALLERY),
}


@pytest.mark.parametrize("python", sorted({python for python, *_ in FUNCTIONS}))
def test_every_function_of_the_bank_and_the_gallery_answers(python: str) -> None:
    """Each function runs on fifty ordinary rows, in the Python environment of its library."""
    executable = ROOT / f".venv-{python}" / "bin" / "python"
    if not executable.exists():
        pytest.skip(f"needs `make .venv-{python}/.installed`")
    cases = sorted(case for of, *case in FUNCTIONS if of == python and "_generators:" not in case[0])
    written = repr([[name, form, *map(literal_eval, values)] for name, form, *values in cases])
    completed = subprocess.run(
        [executable, "-W", "ignore", "-c", ONCE, FOLDER, written], capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stderr


def test_every_row_of_the_gallery_has_a_pinned_package_a_file_and_the_source_of_its_claim() -> None:
    assert len(GALLERY) >= 40
    for row in GALLERY:
        assert row.version, row
        assert (FOLDER / f"{row.function.partition(':')[0]}.py").exists(), row
        assert row.source, row
        assert row.unit, row


def test_every_library_of_the_bank_has_pins_and_a_file() -> None:
    pins = {path.stem for path in (ROOT / "requirements/libraries").glob("*.txt")}
    for name, case in LIBRARIES.items():
        assert case.python in pins, name
        assert (FOLDER / f"{case.function.partition(':')[0]}.py").exists(), name
        assert case.honest == (not case.pair), name
