"""Run a spec's audits in sequence: claim, lower bound, number of trainings and processor seconds of each.

    python -m benchmarks.library_sweep SPEC [--only TEXT] [--output FOLDER]

Prints a Markdown table row by row. Processor seconds include child processes, planning and reading; the first audit's
also include the import of libraries.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.bound import format_lower


def main() -> None:
    """Print each row of the table when it is finished."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("spec")
    parser.add_argument("--only", default="", help="audits whose name contains this")
    parser.add_argument("--output", type=Path, default=None, help="where run folders go; a temporary folder otherwise")
    options = parser.parse_args()
    spec = load_spec(options.spec)
    print("| audit | claimed | observed at least | verdict | trainings | seconds | taken |")
    print("| --- | ---: | ---: | --- | ---: | ---: | --- |", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for entry in spec.audits:
            if options.only in entry.name:
                began = _processor_s()
                folder = (options.output or Path(temporary)) / entry.name.replace(" ", "-").replace(",", "")
                result = audit(replace(spec, audits=(entry,)), output=folder, quiet=True).results[0]
                print(row(result, trainings(entry.game), _processor_s() - began), flush=True)


def row(result: AuditResult, count: int, seconds: float) -> str:
    """Return one line of the table; claim and bound are for the game's neighbours."""
    comparison = result.comparison
    numbers = ("-", "-") if comparison is None else (f"{comparison.claimed:.3g}", format_lower(comparison.observed))
    poisonings = "; ".join(choice.split(" poisonings ")[1].split(" was taken")[0] for choice in result.chosen)
    why = f" ({result.failures[0].error})" if result.failures else ""
    cells = (result.name, *numbers, f"{result.verdict.value}{why}", f"{count:,}", f"{seconds:.0f}", poisonings)
    return f"| {' | '.join(cells)} |"


def trainings(game: Any) -> int:
    """Return a game's total number of trainings."""
    return int(getattr(game, "trainings", 0) or getattr(game, "trials", 0) + getattr(game, "search", 0))


def _processor_s() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    main()
