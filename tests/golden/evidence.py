"""Evidence and counts of the audits in a finished run folder, as the values that estimators receive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.values import decode
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.estimators.one_run.signed_scores import control_estimator


def counted_and_played(spec: AuditSpec, folder: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the available values of `evidence`, `tallies`, `controls` and `ceilings`, by audit."""
    store = UnitStore(folder / "units")
    evidence: dict[str, dict[str, list[Any]]] = {}
    for entry in make_plan(spec).audits:
        estimator = entry.audit.estimator
        present = store.finished(entry.keys)
        counted = {"tallies": entry.tallies, "ceilings": entry.ceilings}
        kinds = {name: _tallies(estimator, keys, present, store) for name, keys in counted.items()}
        if entry.controls:
            control = control_estimator(estimator, len(entry.controls))
            kinds["controls"] = _tallies(control, entry.controls, present, store)
        kinds["evidence"] = [
            piece for key in entry.scores if key in present for piece in decode(store.read(key), estimator.evidence)
        ]
        evidence[entry.audit.name] = {name: values for name, values in kinds.items() if values}
    return evidence


def _tallies(estimator: Any, keys: tuple[str, ...], present: set[str], store: UnitStore) -> list[Any]:
    return [tally for key in keys if key in present for tally in decode(store.read(key), estimator.tally_type)]
