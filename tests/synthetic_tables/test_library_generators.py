"""Wrappers of third-party generators, each in its own Python environment; skipped if that is not installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_packages import CHECKS, FOLDER, GIVEN, PACKAGES, ROOT, Check, Package

ONCE = """
import importlib, json, sys
import pandas as pd

sys.path.insert(0, sys.argv[1])
rows = pd.DataFrame({"sex": ["f"] * 40 + ["m"] * 20, "job": list("ab") * 30})
generators = []
for seed in (1, 2):
    module, name = sys.argv[2].split(":")
    generator = getattr(importlib.import_module(module), name)(seed=seed, **json.loads(sys.argv[3]))
    generator.fit(rows)
    generators.append(generator.sample(200))
words = [sorted(map(str, set(shown[name]))) for shown in generators for name in ("sex", "job")]
print(json.dumps([[*map(len, generators)], [*map(list, generators)], words, generators[0].equals(generators[1])]))
"""
SLOW = pytest.mark.nightly


@pytest.mark.parametrize(
    ("python", "generator", "settings"),
    [
        ("data-synthesizer", "data_synthesizer_generators:Independent", GIVEN),
        ("data-synthesizer", "data_synthesizer_generators:Correlated", {}),
        ("dpmm", "dpmm_generators:PrivBayes", GIVEN | {"iterations": 20, "public_rows": True}),
        pytest.param("dpmm", "dpmm_generators:MST", GIVEN, marks=SLOW),
        pytest.param("sdv", "sdv_generators:GaussianCopula", {}, marks=SLOW),
        pytest.param("smartnoise-generators", "smartnoise_generators:MST", GIVEN, marks=SLOW),
        pytest.param("smartnoise-generators", "smartnoise_generators:AIM", {}, marks=SLOW),
    ],
)
def test_a_generator_fits_and_samples(python: str, generator: str, settings: dict[str, Any]) -> None:
    """Two fits give tables with the columns and words of the rows, or the given ones; another seed, another table."""
    executable = ROOT / f".venv-{python}" / "bin" / "python"
    if not executable.exists():
        pytest.skip(f"needs `make .venv-{python}/.installed`")
    completed = subprocess.run(
        [executable, "-W", "ignore", "-c", ONCE, FOLDER, generator, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    counts, columns, words, equal = json.loads(completed.stdout.splitlines()[-1])
    assert counts == [200, 200]
    assert columns == [["sex", "job"]] * 2
    domain = settings.get("domain", {"sex": ["f", "m"], "job": ["a", "b"]})
    assert all(set(values) <= set(domain[name]) for values, name in zip(words, ("sex", "job") * 2, strict=True))
    # SDV's rows depend on the model alone.
    assert equal == (python == "sdv")


def test_every_package_has_pins_and_a_wrapper() -> None:
    cases: list[Package | Check] = [*PACKAGES.values(), *CHECKS.values()]
    for case in cases:
        module, name = case.generator.split(":")
        assert (ROOT / "requirements/libraries" / f"{case.python}.txt").exists(), case
        assert f"class {name}(" in (Path(FOLDER) / f"{module}.py").read_text(encoding="utf-8"), case
