"""Audit third-party generators of tables, each in a Python of its own: with the generator, and from three files.

    make libraries
    python -m benchmarks.synthetic_packages checks FOLDER [NAME ...]
    python -m benchmarks.synthetic_packages tables FOLDER ADULT [NAME ...]
    python -m benchmarks.synthetic_packages audits FOLDER [NAME ...]
    python -m benchmarks.synthetic_packages pages FOLDER

`checks` runs `dpaudit check` on generators, each in the run folder FOLDER/NAME. `tables` splits random rows of UCI's
files in ADULT into FOLDER/train.csv and FOLDER/holdout.csv, and writes FOLDER/NAME.csv for each generator. `audits`
runs `dpaudit.synthetic` on these tables. All skip what FOLDER has. `pages` writes what was found to
`docs/data/synthetic-package-checks.csv` and `docs/data/synthetic-package-tables.csv`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpaudit
from dpaudit import Claim, Relation
from dpaudit.engine.data.labelled_files import COLUMNS, NUMERIC
from tools.rows import record, table_rows

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


@dataclass(frozen=True)
class Check:
    """A generator of a package that is audited on small tables of `SCHEMA`.

    Attributes:
        python, generator: As in `Package`.
        delta: Claimed delta, of epsilon 1 under records added or removed.
        leak: What gives a record away; "" if nothing is known to.
        settings: Arguments of the class.
    """

    python: str
    generator: str
    delta: float
    leak: str
    settings: Mapping[str, Any] = field(default_factory=dict)


SCHEMA: dict[str, Any] = {"sex": ["f", "m"], "job": ["a", "b", "c"]}
GIVEN = {"domain": SCHEMA}
FROM_ROWS = "values of a column are taken from the rows"
CHECKS = {
    "data-synthesizer": Check("data-synthesizer", "data_synthesizer_generators:Independent", 0.0, FROM_ROWS),
    "data-synthesizer, values given": Check(
        "data-synthesizer", "data_synthesizer_generators:Independent", 0.0, "", GIVEN
    ),
    "smartnoise-mst": Check(SMARTNOISE, "smartnoise_generators:MST", 1e-9, FROM_ROWS),
    "smartnoise-mst, values given": Check(SMARTNOISE, "smartnoise_generators:MST", 1e-9, "", GIVEN),
    "smartnoise-mwem, values given": Check(
        *(
            SMARTNOISE,
            "smartnoise_generators:MWEM",
            0.0,
            "the cells of the histogram end at the last value in the rows",
        ),
        GIVEN,
    ),
    "dpmm-priv-bayes, values given": Check(
        *(
            DPMM,
            "dpmm_generators:PrivBayes",
            1e-5,
            "no noise for a column of equal values, and an error if all columns are",
        ),
        GIVEN | {"iterations": 20},
    ),
    "dpmm-priv-bayes, values given, public rows": Check(
        *(DPMM, "dpmm_generators:PrivBayes", 1e-5, ""), GIVEN | {"iterations": 20, "public_rows": True}
    ),
}
BUDGET = "4m"


def checks(folder: Path, *names: str) -> None:
    """Run the checks that are missing."""
    for name in names or CHECKS:
        output = folder / name.replace(", ", "-").replace(" ", "-")
        if (output / "found.json").exists():
            continue
        case, began = CHECKS[name], time.monotonic()
        claim = Claim(1.0, case.delta, Relation.ADD_REMOVE)
        report = dpaudit.check(
            case.generator,
            schema=SCHEMA,
            claim=claim,
            relation=claim.relation,
            settings={name: [value] for name, value in case.settings.items()},
            python=str(ROOT / f".venv-{case.python}" / "bin" / "python"),
            folder=str(FOLDER),
            effort="quick",
            budget=BUDGET,
            output=str(output),
        )
        assert report.joint is not None
        deciding = report.joint.deciding
        outcome = {
            "name": name,
            "verdict": report.joint.verdict.value,
            "epsilon": 0.0 if deciding is None else max(0.0, deciding.epsilon),
            "seconds": time.monotonic() - began,
        }
        (output / "found.json").write_text(json.dumps(outcome))
        print(report, json.dumps(outcome), sep="\n", flush=True)


def audits(folder: Path, *names: str) -> None:
    """Audit the synthetic tables that were not audited yet."""
    for name in names or PACKAGES:
        synth, output = folder / f"{name}.csv", folder / f"{name}.json"
        if not synth.exists() or output.exists():
            continue
        claim = None if PACKAGES[name].epsilon is None else PACKAGES[name].epsilon
        began = time.process_time()
        result = dpaudit.synthetic(folder / "train.csv", folder / "holdout.csv", synth, claim=claim)
        outcome = {
            "name": name,
            "claimed": claim,
            "verdict": result.verdict.value,
            "epsilon": result.epsilon,
            "measures": {measure.name: measure.value for measure in result.measures},
            "best": max((attack.accuracy, attack.name) for attack in result.attacks),
            "seconds": time.process_time() - began,
        }
        output.write_text(json.dumps(outcome))
        print(name, result, sep="\n", flush=True)


def pages(folder: Path) -> None:
    """Write what was found to `docs/data`."""
    lines = ["| generator | leak | claimed | epsilon at least | verdict |", "| --- | --- | --- | --- | --- |"]
    for name, case in CHECKS.items():
        path = folder / name.replace(", ", "-").replace(" ", "-") / "found.json"
        if path.exists():
            outcome = json.loads(path.read_text())
            lines.append(
                f"| {name} | {case.leak or 'none known'} | 1 | {_down(outcome['epsilon'])} | {outcome['verdict']} |"
            )
    _write("synthetic-package-checks.csv", lines, 2, "checks")
    lines = [
        "| generator | claimed | epsilon at least | best attack | right in | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in PACKAGES:
        path = folder / f"{name}.json"
        if path.exists():
            outcome = json.loads(path.read_text())
            accuracy, attack = outcome["best"]
            claimed = "none" if outcome["claimed"] is None else f"{outcome['claimed']:g}"
            cells = f"{_down(outcome['epsilon'])} | {attack} | {accuracy:.1%}".replace("%", " %")
            lines.append(f"| {name} | {claimed} | {cells} | {outcome['seconds']:.0f} |")
    _write("synthetic-package-tables.csv", lines, 1, "audits")


def _write(file: str, lines: list[str], keys: int, verb: str) -> None:
    if len(lines) == 2:
        return  # nothing was found
    print(*lines, sep="\n")
    record(file, list(table_rows(lines, keys=keys)), f"python -m benchmarks.synthetic_packages {verb} FOLDER")


def _down(epsilon: float) -> str:
    """Return a lower bound with three digits, rounded down."""
    return f"{np.floor(1_000 * epsilon) / 1_000:.3f}"


def census(adult: Path) -> pd.DataFrame:
    """Return the rows of `adult.data`, with the word `unknown` for missing cells."""
    rows = pd.read_csv(
        next(adult.glob("adult.data*")), names=[*COLUMNS, "income"], skipinitialspace=True, keep_default_na=False
    )
    return rows.replace("?", "unknown")


def public_domain(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the values of all columns of words and the ranges of the others, as published with the data."""
    return {
        str(name): {"lower": float(column.min()), "upper": float(column.max())}
        if name in NUMERIC
        else sorted(set(column))
        for name, column in rows.items()
    }


def tables(folder: Path, adult: str, *names: str) -> None:
    """Write the split and the synthetic tables that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = census(Path(adult))
    order = np.random.default_rng(0).permutation(len(rows))
    rows.iloc[order[:ROWS]].to_csv(folder / "train.csv", index=False)
    rows.iloc[order[ROWS : 2 * ROWS]].to_csv(folder / "holdout.csv", index=False)
    for name in names or PACKAGES:
        path = folder / f"{name}.csv"
        if not path.exists():
            print(
                name, f"{synthesize(PACKAGES[name], folder / 'train.csv', path, public_domain(rows)):.0f} s", flush=True
            )


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
    verb, folder, *arguments = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {"checks": checks, "tables": tables, "audits": audits, "pages": pages}
    verbs[verb](Path(folder), *arguments)
