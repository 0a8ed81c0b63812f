"""The planted defects, each audited as its spec in `examples/violations` says: caught or not, and at what price.

    python -m benchmarks.defects RESULTS.jsonl [CHECKS.jsonl] [PART OF A SPEC'S NAME ...]

Beside them stand specs about a library's own defects: those of diffprivlib need `make diffprivlib`, and are left out
without it.
A spec whose line is in RESULTS.jsonl is not run again. The table of all lines, with what `benchmarks.check_defects`
wrote to CHECKS.jsonl, goes to standard output and `docs/data/planted-defects.csv`; `make pages` then writes the page.
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
from benchmarks.rows import DATA, measured_here, note_origin, table_rows, write
from dpaudit import audit, load_spec
from dpaudit.engine.games.labels.label_crafted import LabelCrafted
from dpaudit.engine.games.trials import TrialGame
from dpaudit.engine.games.two_world.game import TwoWorldGame
from dpaudit.engine.planning.plan import PlannedAudit, make_plan, pieces_of
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.request.describe import describe
from dpaudit.mechanisms.adapters.diffprivlib import Diffprivlib
from dpaudit.registry import catalogue

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
"""Epsilon that is really spent at delta = 0, where it is known in closed form; by the name of the spec."""


@dataclass(frozen=True)
class AuditLine:
    """What one audit of a spec said.

    Attributes:
        spec: The spec's file name without ending.
        mechanism: Its registered name.
        planted: Whether it has a defect: one on purpose, or a library's own that the spec is about.
        claimed: Epsilon that is claimed at the bound's delta, in the game's relation.
        game: Its registered name.
        bound: What was observed, in words.
        verdict: The verdict.
        trainings: Runs of the mechanism, shadow models included; at most so many where the game chooses its data.
        seconds: The whole spec's, on the machine it ran on.
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
    """Audits a spec as it is."""
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
    if isinstance(game, TwoWorldGame):
        return game.trials + sum(pieces_of(unit) for unit in entry.game.shadows)
    if isinstance(game, LabelCrafted):
        return game.search + game.releases
    return game.trials if isinstance(game, TrialGame) else len(entry.trainings)


def _name(part: object) -> str:
    words = describe(part)
    return str(words["name"]) if isinstance(words, dict) else str(words)


def _planted_name(mechanism: object) -> str:
    """The registered name of the defect in a mechanism or in a part of it; "" where there is none."""
    defects = {name for name, entry in catalogue("mechanism").items() if "planted" in entry.source}
    return next((name for name in _names(describe(mechanism)) if name in defects), "")


def _names(words: object) -> Iterator[str]:
    if isinstance(words, dict):
        for value in words.values():
            yield from _names(value)
    elif isinstance(words, str):
        yield words


def table(results: Sequence[AuditLine], checks: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a defect, with the verdict on its honest twin where the spec has one, and what `check` says of it."""
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
    """What `check` says, from a line of `benchmarks.check_defects`."""
    if line is None:
        return ""
    refuted = line["verdict"] == Verdict.VIOLATION.value
    return f"{line['game']}, {line['seconds']:.0f} s" if refuted else f"{line['verdict']}, {line['seconds']:.0f} s"


def main(results: Path, parts: Sequence[str]) -> None:
    """Runs what has no line yet, and writes the table."""
    results = _read_lines(results)
    checks = {line["mechanism"]: line for part in parts if part.endswith(".jsonl") for line in lines(Path(part))}
    parts = [part for part in parts if not part.endswith(".jsonl")]
    for path in sorted(SPECS.glob("*.yaml")):
        if path.stem in {result.spec for result in results} or not any(part in path.stem for part in parts or [""]):
            continue
        if path.stem.startswith("diffprivlib") and not has_diffprivlib():
            print(f"{path.stem} is left out: `make diffprivlib` installs what it needs")
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
