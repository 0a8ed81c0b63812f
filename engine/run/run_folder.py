"""The run folder: what makes one, what it was made from, and what of that differs now. Nothing finished is deleted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from dpaudit.actors.unit import code_version, user_code
from dpaudit.engine.data.in_memory import keep
from dpaudit.engine.planning.plan import Plan
from dpaudit.engine.planning.plan_file import PLAN, no_plan, read_plan
from dpaudit.engine.run.own_folders import remember
from dpaudit.engine.spec.audit_spec import AuditSpec, slug
from dpaudit.engine.spec.loading import load_spec
from dpaudit.errors import RunError, SpecError, shortened
from dpaudit.plain_files import bytes_of, reading, write_whole

EARLIER = "earlier"
"""Where a run folder keeps the files of plans before the last one; their units stay beside the others."""
_FILES = ("spec.yaml", PLAN, "bounds.json", "bounds.parquet", "report.html")


@dataclass(frozen=True)
class Record:
    """What a run folder was made from.

    Attributes:
        keys: Of all units of its plan.
        version: Code version of dpaudit.
        own: Digest of the user's code, by label.
        shared: Names of the large inputs, which are named by their content.
        spec: SHA-256 of the spec.
        unseen: Labels of what cannot be read of the user's code; units that depend on it are never used again.
    """

    keys: frozenset[str]
    version: str
    own: Mapping[str, str]
    shared: frozenset[str]
    spec: str
    unseen: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan: Plan) -> Record:
        """That of a plan, with the code as it is now."""
        codes = user_code(plan.units)
        own = {label: code.digest for label, code in codes.items()}
        unseen = frozenset(label for label, code in codes.items() if code.unseen)
        spec = hashlib.sha256(plan.spec.to_yaml().encode()).hexdigest()
        keys = frozenset(unit.key for unit in plan.units)
        return cls(keys, code_version(), own, frozenset(plan.shared), spec, unseen)

    def differences(self, now: Record) -> tuple[str, ...]:
        """Why results of this record would not be those of another one, in words; empty where they all would be."""
        if self.keys <= now.keys:
            return ()
        changed = sorted(
            label
            for label in (self.own.keys() | now.own.keys()) - now.unseen
            if self.own.get(label) != now.own.get(label)
        )
        found = (
            *([f"dpaudit was {self.version}, is {now.version}"] if self.version != now.version else []),
            *([f"your code changed ({shortened(', '.join(changed))})"] if changed else []),
            *(["the data are others"] if self.shared != now.shared else []),
            *(["the spec is another one"] if self.spec != now.spec else []),
        )
        return found if found or now.unseen else ("units have other keys",)


def read_record(folder: Path) -> Record | None:
    """What a run folder was made from; None where nothing was planned in it yet.

    Raises: RunError when its plan cannot be read.
    """
    path = folder / PLAN
    if not path.exists():
        return None
    try:
        table = read_plan(bytes_of(path), path, ["key"])
        about = json.loads(table.schema.metadata[b"record"])
        own = {str(label): str(digest) for label, digest in about["own"].items()}
        shared = frozenset(str(name) for name in about["shared"])
        return Record(frozenset(table["key"].to_pylist()), str(about["version"]), own, shared, str(about["spec"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise no_plan(path, err) from err


def require_run_folder(folder: Path) -> None:
    """Refuses a folder that is none of a run.

    Raises: SpecError.
    """
    if not _is_file(folder / "spec.yaml") or not _is_run_folder(folder):
        raise SpecError(
            f"{shortened(folder)} must be a run folder (with spec.yaml in it); "
            "`dpaudit run SPEC --output DIR` makes one"
        )


def read_spec(folder: Path) -> AuditSpec:
    """The spec a run folder was made from, built with the consent there is.

    Raises: SpecError when it is no run folder, or asks for more than is consented to.
    """
    require_run_folder(folder)
    return load_spec(folder / "spec.yaml")


def changed_spec(folder: Path, record: Record) -> tuple[str, ...]:
    """A difference, in words, where the folder's spec is not the one that was written with its plan."""
    same = hashlib.sha256(bytes_of(folder / "spec.yaml")).hexdigest() == record.spec
    return () if same else ("the spec is another one",)


def require_room(folder: Path) -> None:
    """Refuses a folder that holds other things than a run: a spec.yaml or report.html there may be somebody's own.

    Raises: SpecError.
    """
    if not folder.is_dir() or _is_run_folder(folder):
        return
    held = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if held:
        raise SpecError(
            f"the run folder must be new, empty or one that a run made, {folder} holds "
            f"{shortened(', '.join(held))}; give another --output"
        )


def write_plan(folder: Path, plan: Plan, record: Record) -> None:
    """The plan, the spec, and the rows that have no file of their own."""
    about = {"version": record.version, "own": record.own, "shared": sorted(record.shared), "spec": record.spec}
    table = plan.table().replace_schema_metadata({"record": json.dumps(about)})
    write_whole(folder / PLAN, lambda file: pq.write_table(table, file))
    for entry in plan.spec.audits:
        keep(entry.data, folder)
    write_whole(folder / "spec.yaml", lambda file: file.write(plan.spec.to_yaml().encode()))
    remember(folder)


def set_aside(folder: Path) -> Path:
    """Copies the files of the plan so far to a folder of their own; where they are now."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S-%f")
    target = folder / EARLIER / now
    target.mkdir(parents=True)
    for name in _FILES:
        if _is_file(folder / name):
            with reading(folder / name) as source:
                write_whole(target / name, partial(shutil.copyfileobj, source))
    return target


def forget_renamed(folder: Path, spec: AuditSpec) -> None:
    """Takes away score folders of audits that the spec has no more; the units they show stay."""
    current = {slug(audit.name) for audit in spec.audits}
    with contextlib.suppress(FileNotFoundError):
        for entry in (folder / "scores").iterdir():
            if entry.name not in current and entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turns what a full disk, a read-only folder or a name too long raises into one sentence."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as err:
        why = os.strerror(err.errno) if err.errno else shortened(err)
        raise RunError(
            f"{shortened(folder)} must be a folder that can be written and has room: {why}; what is finished is kept"
        ) from err


def _is_run_folder(folder: Path) -> bool:
    return _is_file(folder / PLAN) or (folder / "units").is_dir()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, for one
        return False
