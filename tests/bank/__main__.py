"""Run `dpaudit check` with default settings on the defect bank: detections, durations, and verdicts on the twins.

    python -m tests.bank RUNS.jsonl [--only defect] [--only KIND ...] [--seeds N] [--write]
    python -m tests.bank in-30s RUNS.jsonl [--only KIND ...] [--write]
    python -m tests.bank honest RUNS.jsonl [--seeds N] [--write]
    python -m tests.bank libraries RUNS.jsonl [--only defect] [--only NAME ...] [--write]
    python -m tests.bank pairs RUNS.jsonl [--only defect] [--only NAME ...] [--code before | after] [--write]

A VIOLATION of an honest mechanism is a false positive, allowed in at most one of a thousand runs.

`in-30s` gives each check 30 processor seconds, so that other load on the machine does not matter. It covers the defects
of labels and of DP-SGD in the bank, and those of the package's own mechanisms (`planted.py`). `honest` checks honest
mechanisms of the package. `libraries` checks functions of third-party libraries, each in a Python of its own.
`pairs` compares the search for pairs of tables in two versions of the code, by the test of a function's claim alone.
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

from benchmarks.campaign import by_case, campaign, of_each
from dpaudit import ResourceRequest, Verdict
from tests import bank
from tests.bank import HERE, Case, checked_here, claim_alone
from tests.bank.libraries import FOLDER, LIBRARIES, python_of
from tests.bank.planted import DEFECTS, HONEST

VIOLATION = Verdict.VIOLATION


def result_of(mechanism: Callable[[], Any], data: Any, **options: Any) -> dict[str, Any]:
    """Return what one check found."""
    began = time.monotonic()
    try:
        report = checked_here(mechanism(), data, **options)
    except Exception as err:  # an aborted check is a result too
        return {"verdict": type(err).__name__, "game": None, "headline": str(err), "seconds": 0.0}
    joint = report.joint
    assert joint is not None
    test = joint.deciding
    return {
        "verdict": joint.verdict.value,
        "game": None if test is None else test.name,
        "epsilon": None if test is None else max(0.0, test.epsilon),
        "headline": joint.answer.headline,
        "played": {result.name: result.headline for result in report.results},
        "seconds": round(time.monotonic() - began, 1),
        "not_run": joint.not_played,
        "not_confirmed": [
            test.name for test in joint.tests if test.name in joint.confirmations and test.verdict is not VIOLATION
        ],
    }


def checked(make: Callable[[], Any], case: Case, seed: int) -> dict[str, Any]:
    """Return what one check of a case found; side findings of functions of rows are defects too."""
    rows = {} if case.schema is None else {"schema": case.schema, "strict": "all"}
    return result_of(make, case.data, claim=case.claim, budget=case.budget, seed=seed, **rows)


@cache
def bank_cases() -> dict[str, Case]:
    """Return all cases by "kind/name"; a kind is a file of this folder with a table `BANK`."""
    all_cases = {}
    for module in pkgutil.iter_modules(bank.__path__):
        if module.name != "__main__":
            table = getattr(importlib.import_module(f"tests.bank.{module.name}"), "BANK", {})
            all_cases |= {f"{module.name}/{name}": case for name, case in table.items()}
    return all_cases


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


def in_words(verdicts: Iterable[str]) -> str:
    """Return verdicts in words, with the count of each that occurs several times."""
    return ", ".join(verdict if count == 1 else f"{verdict} ({count})" for verdict, count in Counter(verdicts).items())


MISSED = {
    "sigma-for-b, labels": "nothing to refute: one label released alone spends 0.80",
    "dp-sgd-clip-doubled": "found with some seeds alone, with 5 minutes too",
}
"""Reasons that planted defects are missed within 30 seconds."""


@cache
def soon() -> dict[str, Case]:
    """Return the cases of labels and of DP-SGD, with 30 seconds each."""
    planted = {f"planted/{name}": replace(case, missed=MISSED.get(name, "")) for name, case in DEFECTS.items()}
    written = {name: case for name, case in bank_cases().items() if name.startswith(("labels/", "loops/"))}
    return {name: replace(case, budget="30s") for name, case in (planted | written).items()}


def run_soon(case: str, seed: int) -> dict[str, Any]:
    """Return what one check within 30 seconds found."""
    return checked(soon()[case].defect, soon()[case], seed)


def columns_soon(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdict, game and seconds of the last check of a case, and the reason if the defect was missed."""
    line = checks[-1]
    refuted = line["verdict"] == VIOLATION.value
    return {
        "verdict": line["verdict"],
        "found by": line["game"] if refuted else "",
        "seconds": f"{line['seconds']:.0f}",
        "missed": "" if refuted else soon()[line["case"]].missed or "not known",
    }


def run_honest(mechanism: str, seed: int) -> dict[str, Any]:
    """Return what one check of an honest mechanism found."""
    return checked(HONEST[mechanism].defect, HONEST[mechanism], seed)


def columns_honest(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return first passes and verdicts of a mechanism, the games that rejected it, and the seconds."""
    violations = [line for line in checks if line["verdict"] == VIOLATION.value]
    took = [line["seconds"] for line in checks]
    return {
        "refuted in the first pass": str(len(violations) + sum(bool(line["not_confirmed"]) for line in checks)),
        "VIOLATION": str(len(violations)),
        "game": ", ".join(sorted({str(line["game"]) for line in violations})),
        "seconds, median": f"{statistics.median(took):.0f}",
        "slowest": f"{max(took):.0f}",
    }


def cases_of_libraries(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the functions whose Python is installed, honest or not, and the seed of each check."""
    for seed in range(seeds):
        for name, case in LIBRARIES.items():
            if python_of(case).exists():
                yield {"case": name, "of": "honest" if case.honest else "defect", "seed": seed}


def run_library(case: str, of: str, seed: int) -> dict[str, Any]:
    """Check one function with default settings and `strict`: low digits and rows beyond the schema count."""
    chosen = LIBRARIES[case]
    return result_of(
        lambda: chosen.function,
        None,
        claim=chosen.claim,
        schema=chosen.schema,
        relation=chosen.claim.relation,
        form=chosen.form,
        settings={name: [value] for name, value in chosen.settings.items()},
        python=str(python_of(chosen)),
        folder=str(FOLDER),
        seed=seed,
        strict="all",
        run=replace(HERE, resources=ResourceRequest(2)),
    )


def groups_of_libraries(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a check."""
    return [({"library": LIBRARIES[line["case"]].python, "function": line["case"], "case": line["of"]}, line)]


def columns_of_libraries(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return leak, claim, verdicts, bound and seconds of a function."""
    case = LIBRARIES[checks[0]["case"]]
    return {
        "leak": case.leak,
        "claimed": f"{case.claim.epsilon:.4g}",
        "verdict": in_words(line["verdict"] for line in checks),
        "epsilon at least, median": f"{statistics.median(line.get('epsilon') or 0.0 for line in checks):.3f}",
        "seconds, median": f"{statistics.median(line['seconds'] for line in checks):.0f}",
    }


def cases_of_pairs(seeds: int, code: str = "") -> Iterator[dict[str, Any]]:
    """Yield the functions of rows whose pairs are rare, in one version of the code."""
    rarer = (case for case in cases(seeds) if case["case"].startswith("rarer_pairs/"))
    yield from ({**case, "code": code or "after"} for case in rarer)


def run_pairs(case: str, of: str, seed: int, code: str) -> dict[str, Any]:
    """Return what the test of a claim found; its confirmatory run has no more calls than the first pass."""
    chosen, began = bank_cases()[case], time.process_time()
    make = chosen.twin if of == "twin" and chosen.twin else chosen.defect
    with claim_alone(growth_on_repeat={"trials": 1.0}):
        line = result_of(make, None, claim=chosen.claim, schema=chosen.schema, budget="1h", seed=seed)
    return line | {"seconds": round(time.process_time() - began, 1)}


def columns_of_pairs(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdict and bound on a defect before and after, the seconds, and the verdict on its twin."""
    defects = {line["code"]: line for line in checks if line["of"] == "defect"}
    after = defects.get("after")
    return {
        **{f"defect, {code}": line["verdict"] for code, line in sorted(defects.items(), reverse=True)},
        **{
            f"epsilon at least, {code}": f"{line['epsilon']:.3f}"
            for code, line in sorted(defects.items(), reverse=True)
        },
        "seconds": f"{after['seconds']:.0f}" if after else "",
        "twin": in_words(line["verdict"] for line in checks if line["of"] == "twin"),
    }


VERBS: dict[str, Callable[..., Any]] = {
    "": partial(campaign, cases, run, columns, groups=groups, file="defect-bank.csv", counted=False),
    "in-30s": partial(
        *(campaign, partial(of_each, soon()), run_soon, columns_soon),
        groups=groups,
        file="defects-in-30-s.csv",
        counted=False,
    ),
    "honest": partial(
        *(campaign, partial(of_each, HONEST, by="mechanism"), run_honest, columns_honest),
        groups=by_case("mechanism"),
        file="checks-of-honest-mechanisms.csv",
    ),
    "libraries": partial(
        *(campaign, cases_of_libraries, run_library, columns_of_libraries),
        groups=groups_of_libraries,
        file="library-bank.csv",
        counted=False,
    ),
    "pairs": partial(
        *(campaign, cases_of_pairs, run_pairs, columns_of_pairs),
        groups=groups,
        file="rarer-pairs.csv",
        counted=False,
        settings={"code": "version of the code, before or after"},
    ),
}

if __name__ == "__main__":
    verb = sys.argv[1] if sys.argv[1:2] and sys.argv[1] in VERBS else ""
    if verb == "in-30s":
        time.monotonic = time.process_time
    VERBS[verb](arguments=sys.argv[2 if verb else 1 :], verb=verb)
