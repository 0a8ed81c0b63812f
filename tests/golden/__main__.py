"""The golden record: `python -m tests.golden write` before a refactoring, `python -m tests.golden` after it.

Each spec of `specs.yaml` runs in process at its seed. For each audit the record holds hashes of the evidence
(scores, answers, posteriors: every replay, query and release), of the estimator's counts, of the controls and
ceilings, and of the finding, and some values for readers. To compare two commits on another machine, write the
record in a checkout of the first and copy it into one of the second: floating-point results differ between
processors.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RECORD = HERE / "record.json"
FORMER_FIELDS = {
    "log_p_flip_1": "flips_1",
    "log_p_flip_0": "flips_0",
    "log_p_check_1": "checks_1",
    "log_p_check_0": "checks_0",
}
"""Names of fields of evidence in records of 22 November 2026 or before."""


def main() -> None:
    """Compare with the record, or write it; exit with 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["compare", "write"], default="compare")
    parser.add_argument("--only", default="", metavar="TEXT", help="Only specs whose name contains this.")
    arguments = parser.parse_args()
    current = dict(recorded(arguments.only))
    if not current:
        sys.exit(f"--only must be part of the name of a spec in {HERE / 'specs.yaml'}, got {arguments.only!r}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if arguments.what == "write":
        RECORD.write_text(json.dumps(record | current, indent=1, sort_keys=True) + "\n")
        return
    changed = list(differences(record, current))
    print("\n".join(changed) if changed else f"{len(current)} specs, all as recorded")
    sys.exit(1 if changed else 0)


def recorded(only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and record of each spec."""
    content = yaml.safe_load((HERE / "specs.yaml").read_text())
    defaults = {name: content["usual"][name] for name in ("seed", "run")}
    for kind in ("specs", "checks"):
        for name, words in content[kind].items():
            if only in name:
                with tempfile.TemporaryDirectory(prefix="dpaudit-golden-") as folder:
                    spec = defaults | {"name": name} | words if kind == "specs" else words
                    yield f"{kind}/{name}", record_of(spec, kind, Path(folder) / "run")
                print(f"{kind}/{name}", file=sys.stderr)


def record_of(words: Mapping[str, Any], kind: str, folder: Path) -> dict[str, Any]:
    """Return the record of the audits of one spec, by name."""
    from dpaudit.engine.request.audit_spec import RunOptions
    from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
    from dpaudit.engine.request.loading import load_spec
    from dpaudit.engine.run.driver import audit
    from tests.golden.evidence import counted_and_played

    if kind == "checks":
        run = RunOptions(runner="in-process", repeats=0, figures=False)
        spec = check_spec(CheckRequest(words["mechanism"], budget=words["budget"]), CheckOptions(seed=11, run=run))
    else:
        spec = load_spec(dict(words))
    audit(spec, output=folder, quiet=True)
    report = json.loads((folder / "bounds.json").read_text())
    results = {result["name"]: finding_of(result) for result in report["results"]}
    if report["joint"] is not None:
        results["joint"] = {"said": digest(json.dumps(report["joint"]["verdict"]))}
    for name, kinds in counted_and_played(spec, folder).items():
        results.setdefault(name, {}).update(
            {kind_of_values: digest_of(values) for kind_of_values, values in kinds.items()}
        )
    return results


def finding_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return finding, ceiling, control and metrics of an audit, without texts, whose wording may change."""
    finding = result["finding"] or {}
    numbers = [_numbers(result[name]) for name in ("finding", "ceiling", "control", "comparison", "metrics", "rows")]
    return {
        "verdict": result["verdict"],
        "observed": (result["comparison"] or {}).get("observed"),
        "counts": finding.get("counts"),
        "finding": digest(json.dumps(numbers, sort_keys=True)),
        "failures": len(result["failures"]),
    }


def _numbers(value: Any) -> Any:
    """Return all numbers of nested plain values, without texts and names."""
    if isinstance(value, Mapping):
        parts = (_numbers(part) for name, part in sorted(value.items()) if name != "series")
        return [part for part in parts if part not in (None, [])]
    if isinstance(value, list):
        return [part for part in map(_numbers, value) if part is not None]
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def recorded_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in the first record, because a name is no evidence."""
    return FORMER_FIELDS.get(field.name, field.name)


def digest_of(values: list[Any]) -> dict[str, Any]:
    """Return the number of dataclasses, and a hash of all their fields in the order of their names."""
    import numpy as np

    hasher = hashlib.sha256()
    for value in values:
        for field in sorted(dataclasses.fields(value), key=recorded_name):
            part = getattr(value, field.name)
            array = np.asarray(np.nan if part is None else part)
            plain = array.astype(np.float64) if array.dtype.kind in "biuf" else array.astype(str)
            hasher.update(f"{recorded_name(field)} {plain.shape} ".encode())
            hasher.update(np.ascontiguousarray(plain).tobytes())
    return {"values": len(values), "hash": hasher.hexdigest()[:16]}


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(recorded_values: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each difference from the record."""
    for spec, audits in current.items():
        before = recorded_values.get(spec)
        if before is None:
            yield f"{spec}: not in the record"
            continue
        for name in sorted(before.keys() | audits.keys()):
            old, new = before.get(name, {}), audits.get(name, {})
            for part in sorted(old.keys() | new.keys()):
                if old.get(part) != new.get(part):
                    yield f"{spec}, {name}: {part} was {old.get(part)}, is {new.get(part)}"


if __name__ == "__main__":
    main()
