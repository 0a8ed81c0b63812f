"""Audit each planted defect by its spec in `examples/violations`: verdict and cost.

    python -m benchmarks.defects RESULTS.jsonl [CHECKS.jsonl] [PART OF A SPEC'S NAME ...]

That folder also has specs on defects of libraries. Those of diffprivlib need `make diffprivlib` and are skipped without
it.
The program skips specs that have a line in RESULTS.jsonl. The table of all lines, with the verdicts of
`benchmarks.check_defects` in CHECKS.jsonl, goes to standard output and `docs/data/planted-defects.csv`; `make pages`
then writes the page.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.check_defects import SPECS, has_diffprivlib, lines
from dpaudit import audit, load_spec
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.games.labels.label_crafted import LabelCrafted
from dpaudit.engine.games.trials import TrialGame
from dpaudit.engine.games.two_world.game import MembershipOfAPoint
from dpaudit.engine.planning.plan import PlannedAudit, make_plan, pieces_of
from dpaudit.engine.request.describe import describe
from dpaudit.mechanisms.adapters.diffprivlib import Diffprivlib
from dpaudit.registry import catalogue
from tools.rows import DATA, measured_here, note_origin, table_rows, write

TRUTHS = {
    "half-scale": 2.0,
    "sigma-for-b": math.sqrt(2),
    "noise-averaged": 2.0,
    "noise-redrawn": 10.0,
    "prior-not-paid-for": 5.0,
    "rr-binary-formula": 1 + math.log(9),
    "rr-one-draw-per-label": math.inf,
    "rr-constant-seed": math.inf,
    "alibi-half-scale": 2.0,
    "votes-without-noise": math.inf,
    "votes-without-noise-20-teachers": math.inf,
}
"""True epsilon at delta = 0 by the name of the spec, if it is known in closed form."""


@dataclass(frozen=True)
class AuditLine:
    """Result of one audit of a spec.

    Attributes:
        spec: The spec's file name without ending.
        mechanism: Registered name of the mechanism.
        planted: True if the mechanism has a defect, planted or of a library.
        claimed: Claimed epsilon at the bound's delta, in the game's relation.
        game: Registered name of the game.
        bound: The bound in words.
        verdict: The verdict.
        trainings: Runs of the mechanism with shadow models; a maximum if the game chooses its data.
        seconds: Seconds of the whole spec on this machine.
    """

    spec: str
    mechanism: str
    planted: bool
    claimed: float
    game: str
    bound: str
    verdict: str
    trainings: int
    seconds: float


def run(path: Path) -> Iterator[AuditLine]:
    """Audit a spec without changes."""
    spec = load_spec(path)
    planned = {entry.audit.name: entry for entry in make_plan(spec).audits}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = audit(spec, output=folder, quiet=True).results
    seconds = time.perf_counter() - began
    for result in results:
        yield _line(path.stem, result, planned[result.name], seconds)


def _line(stem: str, result: AuditResult, entry: PlannedAudit, seconds: float) -> AuditLine:
    mechanism = _planted_name(entry.audit.mechanism) or _name(entry.audit.mechanism)
    return AuditLine(
        spec=stem,
        mechanism=mechanism,
        planted=_planted_name(entry.audit.mechanism) != "" or isinstance(entry.audit.mechanism, Diffprivlib),
        claimed=result.comparison.claimed if result.comparison else math.nan,
        game=_name(entry.audit.game),
        bound=result.comparison.words if result.comparison else "none",
        verdict=str(result.verdict),
        trainings=_trainings(entry),
        seconds=round(seconds, 1),
    )


def _trainings(entry: PlannedAudit) -> int:
    game = entry.audit.game
    if isinstance(game, MembershipOfAPoint):
        return game.trials + sum(pieces_of(unit) for unit in entry.game.shadows)
    if isinstance(game, LabelCrafted):
        return game.search + game.releases
    return game.trials if isinstance(game, TrialGame) else len(entry.trainings)


def _name(part: object) -> str:
    words = describe(part)
    return str(words["name"]) if isinstance(words, dict) else str(words)


def _planted_name(mechanism: object) -> str:
    """Return the registered name of the defect in a mechanism or in a part of it; "" if there is none."""
    defects = {name for name, entry in catalogue("mechanism").items() if "planted" in entry.source}
    return next((name for name in _names(describe(mechanism)) if name in defects), "")


def _names(words: object) -> Iterator[str]:
    if isinstance(words, dict):
        for value in words.values():
            yield from _names(value)
    elif isinstance(words, str):
        yield words


def table(results: Sequence[AuditLine], checks: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a row for each defect: its verdict, that of its honest twin if any, and that of `check`."""
    rows = [
        "| defect | true epsilon | claimed | game | bound | verdict | honest twin | trainings | seconds | `check` |"
    ]
    rows.append("| --- " * 10 + "|")
    for result in results:
        if not result.planted:
            continue
        twin = next((other.verdict for other in results if other.spec == result.spec and not other.planted), "")
        true = f"{TRUTHS[result.spec]:.3g}" if result.spec in TRUTHS else ""
        rows.append(
            f"| `{result.spec}` | {true} | {result.claimed:.3g} | `{result.game}` | {result.bound} | "
            f"{result.verdict} | {twin} | {result.trainings:,} | {result.seconds:.0f} | "
            f"{_checked(checks.get(result.spec))} |"
        )
    specs = {result.spec for result in results if result.planted}
    caught = {result.spec for result in results if result.planted and result.verdict == Verdict.VIOLATION}
    checked = {name for name in specs if checks.get(name, {}).get("verdict") == Verdict.VIOLATION.value}
    rows += [
        "",
        f"{len(caught | checked)} of {len(specs)} are refuted: {len(caught)} by their spec, {len(checked)} of "
        f"{len(specs & checks.keys())} by `check`, given the mechanism and, where that is digits or iris, the data.",
    ]
    return "\n".join(rows)


def _checked(line: Mapping[str, Any] | None) -> str:
    """Return the verdict of `check` from a line of `benchmarks.check_defects`."""
    if line is None:
        return ""
    refuted = line["verdict"] == Verdict.VIOLATION.value
    return f"{line['game']}, {line['seconds']:.0f} s" if refuted else f"{line['verdict']}, {line['seconds']:.0f} s"


def main(results: Path, parts: Sequence[str]) -> None:
    """Run the specs without a line, and write the table."""
    results = _read_lines(results)
    checks = {line["mechanism"]: line for part in parts if part.endswith(".jsonl") for line in lines(Path(part))}
    parts = [part for part in parts if not part.endswith(".jsonl")]
    for path in sorted(SPECS.glob("*.yaml")):
        if path.stem in {result.spec for result in results} or not any(part in path.stem for part in parts or [""]):
            continue
        if path.stem.startswith("diffprivlib") and not has_diffprivlib():
            print(f"{path.stem} is skipped: it needs `make diffprivlib`")
            continue
        added = list(run(path))
        with results.open("a") as file:
            file.writelines(json.dumps(asdict(result)) + "\n" for result in added)
        results += added
        print(*added, sep="\n", flush=True)
    written = table(sorted(results, key=lambda result: result.spec), checks)
    print(written)
    write(DATA / "planted-defects.csv", list(table_rows(written.splitlines(), keys=1)))
    note_origin(measured_here("planted-defects.csv", "python -m benchmarks.defects RESULTS.jsonl CHECKS.jsonl"))


def _read_lines(results: Path) -> list[AuditLine]:
    lines = results.read_text().splitlines() if results.exists() else []
    return [AuditLine(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
