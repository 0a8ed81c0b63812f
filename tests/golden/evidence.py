"""The evidence and the counts behind the audits of a finished run folder, as the values that estimators are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.values import decode
from dpaudit.engine.planning.plan import control_estimator, make_plan
from dpaudit.engine.request.audit_spec import AuditSpec


def counted_and_played(spec: AuditSpec, folder: Path) -> dict[str, dict[str, list[Any]]]:
    """By audit: `evidence`, `tallies`, `controls` and `ceilings`, those that there are."""
    store = UnitStore(folder / "units")
    found: dict[str, dict[str, list[Any]]] = {}
    for entry in make_plan(spec).audits:
        estimator = entry.audit.estimator
        here = store.finished(entry.keys)
        counted = {"tallies": entry.tallies, "ceilings": entry.ceilings}
        kinds = {name: _tallies(estimator, keys, here, store) for name, keys in counted.items()}
        if entry.controls:
            control = control_estimator(estimator, len(entry.controls))
            kinds["controls"] = _tallies(control, entry.controls, here, store)
        kinds["evidence"] = [
            piece for key in entry.scores if key in here for piece in decode(store.read(key), estimator.evidence)
        ]
        found[entry.audit.name] = {name: values for name, values in kinds.items() if values}
    return found


def _tallies(estimator: Any, keys: tuple[str, ...], here: set[str], store: UnitStore) -> list[Any]:
    return [tally for key in keys if key in here for tally in decode(store.read(key), estimator.tally_type)]
