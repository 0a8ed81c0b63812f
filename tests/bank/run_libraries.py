"""Run `dpaudit check` with default settings on functions of third-party libraries, each in a separate Python.

make libraries
python -m tests.bank.run_libraries RUNS.jsonl [--only defect] [--only NAME ...] [--seeds N] [--write]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.campaign import campaign
from dpaudit import ResourceRequest, RunOptions, check
from tests.bank.libraries import LIBRARIES, LibraryCase

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "libraries"


def python_of(case: LibraryCase) -> Path:
    """Return the Python of `make libraries` for a case."""
    return ROOT / f".venv-{case.python}" / "bin" / "python"


def run(case: str, of: str, seed: int) -> dict[str, Any]:
    """Check one case with default settings and `strict`: low digits and rows beyond the schema count."""
    began = time.monotonic()
    chosen = LIBRARIES[case]
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = check(
                chosen.function,
                claim=chosen.claim,
                schema=chosen.schema,
                relation=chosen.claim.relation,
                form=chosen.form,  # type: ignore[arg-type]
                settings={name: [value] for name, value in chosen.settings.items()},
                python=str(python_of(chosen)),
                folder=str(FOLDER),
                seed=seed,
                output=folder,
                quiet=True,
                strict="all",
                run=RunOptions("in-process", resources=ResourceRequest(2), figures=False, repeats=0),
            )
    except Exception as err:  # an aborted check is a result too
        return {"verdict": type(err).__name__, "headline": str(err), "seconds": 0.0}
    assert report.joint is not None
    deciding = report.joint.deciding
    return {
        "verdict": report.joint.verdict.value,
        "headline": report.joint.answer.headline,
        "epsilon": None if deciding is None else max(0.0, deciding.epsilon),
        "test": "" if deciding is None else deciding.name,
        "seconds": round(time.monotonic() - began, 1),
    }


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the functions whose Python is installed, honest or not, and the seed of each check."""
    for seed in range(seeds):
        for name, case in LIBRARIES.items():
            if python_of(case).exists():
                yield {"case": name, "of": "honest" if case.honest else "defect", "seed": seed}


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a check."""
    return [({"library": LIBRARIES[line["case"]].python, "function": line["case"], "case": line["of"]}, line)]


def columns(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return leak, claim, verdicts, bound and seconds of a function."""
    case = LIBRARIES[checks[0]["case"]]
    counts = Counter(line["verdict"] for line in checks)
    return {
        "leak": case.leak,
        "claimed": f"{case.claim.epsilon:.4g}",
        "verdict": ", ".join(verdict if count == 1 else f"{verdict} ({count})" for verdict, count in counts.items()),
        "epsilon at least, median": f"{statistics.median(line.get('epsilon') or 0.0 for line in checks):.3f}",
        "seconds, median": f"{statistics.median(line['seconds'] for line in checks):.0f}",
    }


if __name__ == "__main__":
    campaign(
        cases,
        run,
        columns,
        groups=groups,
        program="tests.bank.run_libraries",
        file="library-bank.csv",
        counted=False,
    )
