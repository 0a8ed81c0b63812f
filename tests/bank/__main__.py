"""Run `dpaudit check` with default settings on the defect bank: detections, durations, and verdicts on the twins.

    python -m tests.bank RUNS.jsonl [--only defect] [--only KIND ...] [--seeds N] [--write]
    python -m tests.bank in-30s RUNS.jsonl [--only KIND ...] [--write]

A VIOLATION of a twin is a false positive, allowed in at most one of a thousand runs.

`in-30s` gives each check 30 processor seconds, so that other load on the machine does not matter. It covers the defects
of labels and of DP-SGD in the bank and in the package (`benchmarks.check_defects`).
"""

from __future__ import annotations

import importlib
import pkgutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from benchmarks.campaign import campaign, of_each
from benchmarks.check_defects import DEFECTS, checked_here
from dpaudit import Verdict
from tests import bank
from tests.bank import Case


@cache
def bank_cases() -> dict[str, Case]:
    """Return all cases by "kind/name"; a kind is a file of this folder with a table `BANK`."""
    all_cases = {}
    for module in pkgutil.iter_modules(bank.__path__):
        if module.name != "__main__":
            table = getattr(importlib.import_module(f"tests.bank.{module.name}"), "BANK", {})
            all_cases |= {f"{module.name}/{name}": case for name, case in table.items()}
    return all_cases


MISSED = {
    "sigma-for-b, labels": "nothing to refute: one label released alone spends 0.80",
    "dp-sgd-clip-doubled": "found with some seeds alone, with 5 minutes too",
}
"""Reasons that planted defects are missed within 30 seconds."""


@cache
def soon() -> dict[str, Case]:
    """Return the cases of labels and of DP-SGD, with 30 seconds each."""
    planted = {
        f"planted/{name}": Case(
            lambda checked=checked: checked.mechanism,  # type: ignore[misc]
            claim=checked.claim,
            data=checked.data,
            missed=MISSED.get(name, ""),
        )
        for name, checked in DEFECTS.items()
        if not name.startswith("diffprivlib")
    }
    written = {name: case for name, case in bank_cases().items() if name.startswith(("labels/", "loops/"))}
    return {name: replace(case, budget="30s") for name, case in (planted | written).items()}


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield each case, its defect or its twin, and the seed of each check."""
    for seed in range(seeds):
        for name, case in bank_cases().items():
            yield {"case": name, "of": "defect", "seed": seed}
            if case.twin is not None:
                yield {"case": name, "of": "twin", "seed": seed}


def run(case: str, of: str, seed: int) -> dict[str, Any]:
    """Return what one check of a case or of its twin found."""
    chosen = bank_cases()[case]
    return checked(chosen.twin if of == "twin" and chosen.twin else chosen.defect, chosen, seed)


def run_soon(case: str, seed: int) -> dict[str, Any]:
    """Return what one check within 30 seconds found."""
    return checked(soon()[case].defect, soon()[case], seed)


def checked(make: Callable[[], Any], case: Case, seed: int) -> dict[str, Any]:
    """Return what one check found."""
    began = time.monotonic()
    try:
        rows = {} if case.schema is None else {"schema": case.schema, "strict": "all"}  # side findings are defects too
        report = checked_here(make(), case.data, claim=case.claim, budget=case.budget, seed=seed, **rows)
    except Exception as err:  # an aborted check is a result too
        return {"verdict": type(err).__name__, "game": None, "headline": str(err), "seconds": 0.0}
    joint = report.joint
    assert joint is not None
    test = joint.deciding
    return {
        "verdict": joint.verdict.value,
        "game": None if test is None else test.name,
        "headline": joint.answer.headline,
        "played": {result.name: result.headline for result in report.results},
        "seconds": round(time.monotonic() - began, 1),
        "not_run": joint.not_played,
    }


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a check."""
    kind, name = line["case"].split("/", 1)
    return [({"kind": kind, "case": name}, line)]


def columns(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdicts on a defect and its twin, games that decided, and seconds."""
    case = bank_cases()[checks[0]["case"]]
    defects = [line for line in checks if line["of"] == "defect"]
    games = {str(line["game"]) for line in defects if line["verdict"] == case.expects.value}
    return {
        "true epsilon": "" if case.true is None else f"{case.true:.3g}",
        "defect": in_words(line["verdict"] for line in defects),
        "found by": ", ".join(sorted(games)),
        "seconds, median": f"{statistics.median(line['seconds'] for line in defects):.0f}" if defects else "",
        "twin": in_words(line["verdict"] for line in checks if line["of"] == "twin"),
    }


def columns_soon(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdict, game and seconds of the last check of a case, and the reason if the defect was missed."""
    line = checks[-1]
    refuted = line["verdict"] == Verdict.VIOLATION.value
    return {
        "verdict": line["verdict"],
        "found by": line["game"] if refuted else "",
        "seconds": f"{line['seconds']:.0f}",
        "missed": "" if refuted else soon()[line["case"]].missed or "not known",
    }


def in_words(verdicts: Iterable[str]) -> str:
    """Return verdicts in words, with the count of each that occurs several times."""
    return ", ".join(verdict if count == 1 else f"{verdict} ({count})" for verdict, count in Counter(verdicts).items())


if __name__ == "__main__":
    if sys.argv[1:2] == ["in-30s"]:
        time.monotonic = time.process_time
        campaign(
            partial(of_each, soon()),
            run_soon,
            columns_soon,
            groups=groups,
            program="tests.bank in-30s",
            file="defects-in-30-s.csv",
            counted=False,
            arguments=sys.argv[2:],
        )
    else:
        campaign(cases, run, columns, groups=groups, program="tests.bank", file="defect-bank.csv", counted=False)
