"""Registration of a run before it starts: its claim, protocol and seed, bound by hashes to its answer.

An entry of the registry states claim, unit of privacy, protocol and versions, and a commitment to the whole plan: the
hash of a random number (nonce) and the plan, with its seed. Each entry has the hash of the one before. The run folder
keeps the entries and opens the commitment. After the run, its receipt has the hashes of all units and of the answer.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import code_version
from dpaudit.engine.answer.stated_values import StatedValue
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.audit_spec import MAX_SEED, AuditSpec, store_rows
from dpaudit.engine.request.build import call_text
from dpaudit.engine.request.loading import spec_from_file
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.engine.run.plan_record import as_json, plan_to_plain
from dpaudit.engine.run.run_folder import SPEC, PlanRecord, locked_folder, open_run_folder, place_of
from dpaudit.errors import RunError, require
from dpaudit.plain_files import open_for_update, read_bytes, write_atomically

REGISTRATION, RECEIPT = "registration.json", "receipt.json"
REGISTRY = "registrations.jsonl"
"""Usual name of the registry."""


@dataclass(frozen=True)
class Registration:
    """A registered run."""

    entries: tuple[str, ...]  # lines of the registry up to the one of this run
    unit: str  # what one unit of privacy is, in words
    nonce: str  # random number of the commitment, in hexadecimal digits
    plan: Any  # as `plan_to_plain` gives it

    @classmethod
    def load(cls, folder: Path) -> Registration | None:
        """Return the registration of a run folder; None if it has none."""
        if not (folder / REGISTRATION).exists():
            return None
        content = StatedValue.parse(read_bytes(folder / REGISTRATION), REGISTRATION)
        entries = tuple(entry.name() for entry in content["entries"].items())
        if not entries:
            raise content["entries"].refusal("must have an entry", "none")
        return cls(entries, content["unit"].name(), content["nonce"].name(), content["plan"].value)

    @property
    def entry(self) -> Any:
        """The entry of this run."""
        return entry_in(self.entries[-1])

    @property
    def commitment(self) -> str:
        """Hash of the nonce, the unit of privacy and the plan."""
        return sha256(as_json([self.nonce, self.unit, self.plan]))


def register(
    spec: AuditSpec, *, unit: str, output: str | Path, registry: str | Path, seed: int | None = None
) -> Registration:
    """Register a run of `spec`, whose folder is made, and return its registration. No unit runs.

    Args:
        spec: The spec.
        unit: What one unit of privacy is, in words: "one patient", "a sequence of 1,024 tokens".
        output: The run folder, which must be new; `dpaudit resume` of it runs the plan.
        registry: File to which the entry is appended.
        seed: Seed of the run; drawn at random if it is None.
    Raises: InputError if a stranger could not check the run, or the run folder has a plan already.
    """
    require(bool(unit.strip()), "the unit of privacy must be stated", do='write for example --unit "one patient"')
    require(spec.sweep is None, "a sweep cannot be registered", do="register a run of one configuration")
    require(spec.run.keep_scores, "a registered run must keep its scores", do="leave out run.keep_scores")
    spec = dataclasses.replace(spec, seed=secrets.randbelow(MAX_SEED) if seed is None else seed)
    with open_run_folder(place_of(output)) as folder, locked_folder(folder):
        require(PlanRecord.load(folder) is None, "a registration needs a new run folder", do="give another --output")
        for audit in spec.audits:
            store_rows(audit.data, folder)
        plan = make_plan(spec_from_file(YamlFile(folder / SPEC, spec.to_yaml().encode())))  # as a later run reads it
        plain, nonce = plan_to_plain(plan), secrets.token_hex(32)
        commitment = Registration((), unit, nonce, plain).commitment
        content = {**public_facts(plan), "unit": unit, "dpaudit": code_version(), "commitment": commitment}
        registration = Registration(append(Path(registry), content), unit, nonce, plain)
        PlanRecord.of(plan).write(plan, folder)
        stored = json.dumps(dataclasses.asdict(registration)).encode()
        write_atomically(folder / REGISTRATION, lambda file: file.write(stored))
        return registration


def append(registry: Path, content: dict[str, Any]) -> tuple[str, ...]:
    """Append an entry to a registry and return all its lines; of two writers, one waits.

    Raises: RunError if an entry was changed or removed.
    """
    with os.fdopen(open_for_update(registry, os.O_RDWR | os.O_CREAT), "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = tuple(file.read().splitlines())
        require_chain(lines, str(registry))
        time = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"number": len(lines) + 1, "previous": sha256(lines[-1]) if lines else "", "time": time, **content}
        file.write(f"{as_json(entry)}\n")
        return (*lines, as_json(entry))


def require_chain(lines: Sequence[str], name: str) -> None:
    """Raise RunError unless each line is an entry with its number and the hash of the line before."""
    for number, line in enumerate(lines, 1):
        entry = entry_in(line)
        if (entry.get("number"), entry.get("previous")) != (number, sha256(lines[number - 2]) if number > 1 else ""):
            raise RunError(f"{name}: entry {number} does not follow the one before: entries were changed or removed")


def entry_in(line: str) -> Any:
    """Return the entry in a line of a registry. Raises: SpecError if it is none."""
    entry = StatedValue.parse(line.encode(), "an entry of the registry")
    entry["commitment"].name()
    return entry.value


def public_facts(plan: Plan) -> dict[str, Any]:
    """Return what an entry states of a plan: claims, with their neighbours, and the protocol of each audit."""
    audits = []
    for entry in plan.audits:
        claim, audit = entry.effective_claim, entry.audit
        game = {field.name: str(getattr(audit.game, field.name)) for field in dataclasses.fields(audit.game)}
        curve = "this point" if claim.is_point else str(claim.curve)
        numbers = {"epsilon": repr(claim.epsilon), "delta": repr(claim.delta)}
        facts = {
            "name": audit.name,
            "claim": {**numbers, "relation": claim.relation.value, "curve": curve},
            "game": {"name": call_text(audit.game).partition("(")[0], **game},
            "confidence": repr(audit.estimator.confidence),
            "rows": dict(entry.rows),
            "units": len(entry.keys),
        }
        parts = {name: call_text(getattr(audit, name)) for name in ("mechanism", "attack", "estimator")}
        audits.append({**facts, **parts})
    return {"name": plan.spec.name, "confidence": repr(plan.spec.confidence), "audits": audits}


def require_registered(plan: Plan, folder: Path) -> None:
    """Raise RunError if a run folder is registered for another plan."""
    registration = Registration.load(folder)
    if registration is not None and as_json(registration.plan) != as_json(plan_to_plain(plan)):
        raise RunError(
            f"{folder} is registered for another plan: spec, seed, code or data have changed since. Undo the change, "
            "or register again with another --output"
        )


def write_receipt(folder: Path, plan: Plan) -> None:
    """Write the hashes of registration, units and answer of a registered run; do nothing for other runs."""
    if not (folder / REGISTRATION).exists():
        return
    content = json.dumps(receipt_of(folder, [unit.key for unit in plan.units]), indent=1, sort_keys=True).encode()
    write_atomically(folder / RECEIPT, lambda file: file.write(content))


def receipt_of(folder: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Return the hashes of the files of a run folder: registration, finished units, answer, and their copies."""
    store = UnitStore(folder / "units")
    files = {key: file_hash(Path(store.path(key))) for key in sorted(store.finished(keys))}
    copies = {name: file_hash(folder / name) for name in (SPEC, "bounds.parquet") if (folder / name).exists()}
    named = {"registration": file_hash(folder / REGISTRATION), "answer": file_hash(folder / "bounds.json")}
    return {**named, "units": files, "copies": copies}


def file_hash(path: Path) -> str:
    """Return the hash of a file, in hexadecimal digits."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def sha256(text: str) -> str:
    """Return the hash of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
