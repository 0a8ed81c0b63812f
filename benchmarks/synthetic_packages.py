"""Synthesize census rows with third-party generators, each in a Python of its own, and audit the tables from three files.

    make libraries
    python -m benchmarks.synthetic_packages tables ADULT FOLDER [NAME ...]
    python -m benchmarks.synthetic_packages audits FOLDER

ADULT is the folder with UCI's files. `tables` splits random rows into FOLDER/train.csv and FOLDER/holdout.csv, and
writes FOLDER/NAME.csv for each generator; it skips tables that are there. `audits` runs `dpaudit.synthetic` on each,
prints a table and writes it to `docs/data/synthetic-packages.csv`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpaudit.engine.data.adult import COLUMNS, NUMERIC

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "libraries"
ROWS = 5_000
"""Rows of each file."""
LIMIT_S = 900

SYNTHESIZE = """
import importlib, json, sys
import pandas as pd
module, name, arguments, train, output = sys.argv[1:]
frame = pd.read_csv(train)
generator = getattr(importlib.import_module(module), name)(**json.loads(arguments))
generator.fit(frame)
generator.sample(len(frame)).to_csv(output, index=False)
"""


@dataclass(frozen=True)
class Package:
    """A generator of a package.

    Attributes:
        python: Name of the environment `.venv-PYTHON`.
        generator: "module:Class" of `examples/libraries`.
        epsilon: Claimed epsilon; None if no privacy is claimed.
        arguments: Further arguments of the class.
        public: True if the generator gets the values and ranges of all columns.
    """

    python: str
    generator: str
    epsilon: float | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    public: bool = False


SMARTNOISE, SDV, DPMM = "smartnoise-generators", "sdv", "dpmm"
WORDS = {"attribute_to_is_categorical": {"native-country": True}}
"""As in DataSynthesizer's example: a column of words with more than 20 values is stated to be one."""
PACKAGES = {
    "smartnoise-mst-1": Package(SMARTNOISE, "smartnoise_generators:MST", 1.0),
    "smartnoise-mst-3": Package(SMARTNOISE, "smartnoise_generators:MST", 3.0),
    "smartnoise-mst-public-1": Package(SMARTNOISE, "smartnoise_generators:MST", 1.0, public=True),
    "smartnoise-aim-1": Package(SMARTNOISE, "smartnoise_generators:AIM", 1.0),
    "smartnoise-pate-ctgan-1": Package(SMARTNOISE, "smartnoise_generators:PATECTGAN", 1.0),
    "dpmm-mst-1": Package(DPMM, "dpmm_generators:MST", 1.0, public=True),
    "dpmm-priv-bayes-1": Package(DPMM, "dpmm_generators:PrivBayes", 1.0, public=True),
    "data-synthesizer-1": Package("data-synthesizer", "data_synthesizer_generators:Correlated", 1.0, WORDS),
    "data-synthesizer-3": Package("data-synthesizer", "data_synthesizer_generators:Correlated", 3.0, WORDS),
    "sdv-gaussian-copula": Package(SDV, "sdv_generators:GaussianCopula"),
    "sdv-ctgan": Package(SDV, "sdv_generators:CTGAN"),
    "sdv-tvae": Package(SDV, "sdv_generators:TVAE"),
}


def census(adult: Path) -> pd.DataFrame:
    """Return the rows of `adult.data`, with the word `unknown` for missing cells."""
    rows = pd.read_csv(
        next(adult.glob("adult.data*")), names=[*COLUMNS, "income"], skipinitialspace=True, keep_default_na=False
    )
    return rows.replace("?", "unknown")


def public_domain(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the values of all columns of words and the ranges of the others, as published with the data."""
    return {
        name: {"lower": float(column.min()), "upper": float(column.max())} if name in NUMERIC else sorted(set(column))
        for name, column in rows.items()
    }


def tables(adult: Path, folder: Path, *names: str) -> None:
    """Write the split and the synthetic tables that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = census(adult)
    order = np.random.default_rng(0).permutation(len(rows))
    rows.iloc[order[:ROWS]].to_csv(folder / "train.csv", index=False)
    rows.iloc[order[ROWS : 2 * ROWS]].to_csv(folder / "holdout.csv", index=False)
    for name in names or PACKAGES:
        path = folder / f"{name}.csv"
        if not path.exists():
            print(name, f"{synthesize(PACKAGES[name], folder / 'train.csv', path, public_domain(rows)):.0f} s", flush=True)


def synthesize(package: Package, train: Path, output: Path, domain: Mapping[str, Any]) -> float:
    """Write a synthetic table of as many rows; return the seconds of processor time."""
    module, generator = package.generator.split(":")
    arguments = {
        **({} if package.epsilon is None else {"epsilon": package.epsilon}),
        **({"domain": dict(domain)} if package.public else {}),
        **package.arguments,
    }
    python = ROOT / f".venv-{package.python}" / "bin" / "python"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [str(python), "-W", "ignore", "-c", SYNTHESIZE, module, generator, json.dumps(arguments), train, output],
        env={"PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=LIMIT_S,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    tables(Path(arguments[0]), Path(arguments[1]), *arguments[2:])
