"""Audit third-party generators of tables, each in a Python of its own: with the generator, and from three files.

    make libraries
    python -m benchmarks.synthetic_packages checks RUNS.jsonl [--only NAME ...] [--write]
    python -m benchmarks.synthetic_packages tables FOLDER ADULT [NAME ...]
    python -m benchmarks.synthetic_packages audits RUNS.jsonl --folder FOLDER [--only NAME ...] [--write]

`checks` runs `dpaudit check` on generators. `tables` splits random rows of UCI's files in ADULT into FOLDER/train.csv
and FOLDER/holdout.csv, and writes FOLDER/NAME.csv for each generator whose file is missing. `audits` runs
`dpaudit.synthetic` on these tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpaudit
from benchmarks.campaign import by_case, campaign, of_each
from dpaudit import Claim, Relation
from dpaudit.engine.data.labelled_files import COLUMNS, NUMERIC

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


def check(generator: str, seed: int) -> dict[str, Any]:
    """Return what a check of a generator found."""
    case = CHECKS[generator]
    claim = Claim(1.0, case.delta, Relation.ADD_REMOVE)
    with tempfile.TemporaryDirectory() as folder:
        joint = dpaudit.check(
            case.generator,
            schema=SCHEMA,
            claim=claim,
            relation=claim.relation,
            settings={name: [value] for name, value in case.settings.items()},
            python=str(ROOT / f".venv-{case.python}" / "bin" / "python"),
            folder=str(FOLDER),
            effort="quick",
            budget=BUDGET,
            output=f"{folder}/run",
        ).joint
    assert joint is not None
    return {
        "leak": case.leak or "none known",
        "verdict": joint.verdict.value,
        "epsilon": 0.0 if joint.deciding is None else max(0.0, joint.deciding.epsilon),
    }


def columns_of_checks(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return claim, bound and verdict of a generator."""
    return {"claimed": "1", "epsilon at least": _down(lines[0]["epsilon"]), "verdict": lines[0]["verdict"]}


def audit(generator: str, seed: int, folder: str) -> dict[str, Any]:
    """Return what an audit from the files of the training, of the holdout and of a generator found."""
    tables = (Path(folder) / f"{name}.csv" for name in ("train", "holdout", generator))
    result = dpaudit.synthetic(*tables, claim=PACKAGES[generator].epsilon)
    best = max((attack.accuracy, attack.name) for attack in result.attacks)
    return {"epsilon": result.epsilon, "best": best}


def columns_of_audits(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return claim, bound, best attack and seconds of a generator."""
    (line,), (accuracy, attack) = lines, lines[0]["best"]
    claimed = PACKAGES[line["generator"]].epsilon
    return {
        "claimed": "none" if claimed is None else f"{claimed:g}",
        "epsilon at least": _down(line["epsilon"]),
        "best attack": attack,
        "right in": f"{100 * accuracy:.1f} %",
        "seconds": f"{line['seconds']:.0f}",
    }


def with_tables(seeds: int, folder: str) -> Iterator[Mapping[str, Any]]:
    """Yield the generators whose table is in the folder."""
    yield from of_each((name for name in PACKAGES if (Path(folder) / f"{name}.csv").exists()), 1, by="generator")


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
            synthesize(PACKAGES[name], folder / "train.csv", path, public_domain(rows))


def synthesize(package: Package, train: Path, output: Path, domain: Mapping[str, Any]) -> None:
    """Write a synthetic table of as many rows."""
    module, generator = package.generator.split(":")
    arguments = {
        **({} if package.epsilon is None else {"epsilon": package.epsilon}),
        **({"domain": dict(domain)} if package.public else {}),
        **package.arguments,
    }
    python = ROOT / f".venv-{package.python}" / "bin" / "python"
    subprocess.run(
        [str(python), "-W", "ignore", "-c", SYNTHESIZE, module, generator, json.dumps(arguments), train, output],
        env={"PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=LIMIT_S,
    )


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "tables":
        tables(Path(words[0]), *words[1:])
    elif verb == "checks":
        campaign(
            *(partial(of_each, CHECKS, by="generator"), check, columns_of_checks),
            groups=by_case("generator", "leak"),
            file="synthetic-package-checks.csv",
            counted=False,
            verb=verb,
            arguments=words,
        )
    else:
        campaign(
            *(with_tables, audit, columns_of_audits),
            groups=by_case("generator"),
            file="synthetic-package-tables.csv",
            counted=False,
            verb=verb,
            settings={"folder": "where the tables are"},
            arguments=words,
        )
