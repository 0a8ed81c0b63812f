"""The run folder: its place, its lease, who wrote its spec, and the plan and code that it was made from.

Finished units are never deleted. A spec can name code, so a folder that another user made runs nothing without consent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpaudit.actors.audited.signals import call_periodically
from dpaudit.actors.events import Event, EventKind, EventStream, Listener
from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.actors.unit import code_version, user_code_by_label
from dpaudit.consent import FULL_CONSENT, Consent, current_consent
from dpaudit.engine.planning.plan import Plan
from dpaudit.engine.request.audit_spec import AuditSpec, slug, store_rows
from dpaudit.engine.request.build import call_text
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.errors import AuditError, RunError, SpecError, printable, shortened
from dpaudit.field_checks import checked_path
from dpaudit.plain_files import (
    Scratch,
    is_remote,
    join_place,
    note_path,
    open_for_update,
    open_to_read,
    read_bytes,
    recreate_file,
    require_plain,
    user_folder,
    write_atomically,
)

if TYPE_CHECKING:
    from dpaudit.actors.storage.mirror import FileStore

PLAN, SPEC = "plan.parquet", "spec.yaml"
_COLUMNS = {  # of a plan
    "key": pa.string(),
    "label": pa.string(),
    "task": pa.string(),
    "seed": pa.string(),
    "needs": pa.list_(pa.string()),
    "cpus": pa.int64(),
    "gpus": pa.float64(),
    "memory": pa.int64(),
    "custom": pa.string(),
    "pieces": pa.int64(),
}
_EARLIER = "earlier"  # subfolder for the files of replaced plans; their units stay in `units`
_CHECKPOINTS = "checkpoints"  # subfolder for checkpoints of units; workers copy them to a remote place themselves
_FILES = (SPEC, PLAN, "bounds.json", "bounds.parquet", "report.html")


def place_of(place: str | Path) -> str | Path:
    """Return the place of a run folder: a URI as a string without a final "/", a path as a `Path`."""
    place = checked_path("the folder of a run", place)
    return place.rstrip("/") if is_remote(place) else Path(place)


def checkpoints_of(place: str | Path) -> Scratch:
    return join_place(place, _CHECKPOINTS) if is_remote(place) else (Path(place) / _CHECKPOINTS).absolute()


def working_folder(place: str | Path) -> Path:
    """Return the local folder of a run: the place itself, or for a URI a folder in the user's cache."""
    if not is_remote(place):
        return Path(place)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(place).partition("?")[0].rpartition("/")[2])[:40]
    return (
        user_folder("XDG_CACHE_HOME", ".cache")
        / "dpaudit"
        / "runs"
        / f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    )


@contextlib.contextmanager
def open_run_folder(place: str | Path, listeners: Sequence[Listener] = ()) -> Iterator[Path]:
    """Yield the local folder of a run for a `with` block; for a URI, upload what is written there.

    `listeners` receive an event when the remote store stops answering and when it answers again.

    Raises: RunError if the place cannot be reached, contains something other than files, or another driver holds it.
    """
    folder = working_folder(place)
    if not is_remote(place):
        require_plain(folder)
        yield folder
        return
    from dpaudit.actors.storage.mirror import FileStore, Mirror  # needed for remote places only

    store, events = FileStore.at(place), EventStream(*listeners)
    store.require_plain()

    with remote_lease(store):
        mirror = Mirror(
            folder,
            str(place),
            excluded=(_CHECKPOINTS,),
            on_trouble=lambda trouble: events.emit(Event(EventKind.STAGE, detail=trouble)),
        )
        mirror.pull()
        with mirror.synchronized():
            try:
                yield folder
            except AuditError as err:  # its message names the local copy; the user gave `place`
                raise type(err)(str(err).replace(str(folder), str(place))) from err


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a run folder for a `with` block; create it if it is missing.

    Raises: SpecError if the folder contains other files than a run; RunError if another driver holds it, or it cannot
        be written.
    """
    try:
        # Refuse a folder with other files: its spec.yaml or report.html may be the user's own.
        if folder.is_dir() and not _is_run_folder(folder):
            others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
            if others:
                raise SpecError(
                    f"the run folder must be new, empty or the folder of a run, but {folder} contains "
                    f"{shortened(', '.join(others))}. Give another --output"
                )
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            kind = "a file" if folder.is_file() else "a device, a pipe or a socket"
            kind = "a link that leads to no folder" if folder.is_symlink() else kind
            raise RunError(f"cannot write the run folder {shortened(folder)}: it is {kind}. Give another --output")
        with lease(folder):
            yield
    except ConnectionError:
        raise
    except OSError as err:
        why = os.strerror(err.errno) if err.errno else shortened(err)
        raise RunError(f"cannot write the run folder {shortened(folder)}: {why}. Finished units are kept") from err


def default_run_folder(spec: AuditSpec) -> Path:
    """Return `runs/<name>`; for a spec without a name, `runs/<mechanisms and data>`."""
    about = [f"{call_text(audit.mechanism)} {call_text(audit.data)}" for audit in spec.audits]
    return Path("runs") / slug(" ".join([spec.name, *about]) if spec.name == AuditSpec.name else spec.name)


class OtherPlanError(RunError):
    """Raised if another dpaudit planned the units of a run, while spec, code and data are unchanged."""


_OTHER_VERSION, _OTHER_KEYS = "dpaudit was", "units have other keys"


def require_unchanged(differences: Sequence[str], place: str | Path, error: type[RunError] = RunError) -> None:
    """Raise `error` if a run folder differs from its spec, code or data, with the differences in its message."""
    if differences:
        raise error(
            f"the results in {place} do not match its spec, code or data: {'; '.join(differences)}. Nothing was "
            f"written. Undo the change to spec, code or data, or start again with `dpaudit resume {place} --fresh`; "
            "the old units stay on disk"
        )


@dataclass(frozen=True)
class PlanRecord:
    """Plan, code and data that a run folder was made from."""

    keys: frozenset[str]  # of all units of the plan
    version: str  # code version of dpaudit
    code_digests: Mapping[str, str]  # digest of the user's code, by label
    shared: frozenset[str]  # names of the large inputs, which contain a hash of their content
    spec: str  # SHA-256 of the spec
    unreadable_code: frozenset[str] = frozenset()  # labels of user code without source; units that need it are rerun

    @classmethod
    def of(cls, plan: Plan) -> PlanRecord:
        """Build the record of `plan` with the current code version."""
        codes = user_code_by_label(plan.units)
        code_digests = {label: code.digest for label, code in codes.items()}
        unreadable_code = frozenset(label for label, code in codes.items() if code.unseen)
        spec = hashlib.sha256(plan.spec.to_yaml().encode()).hexdigest()
        keys = frozenset(unit.key for unit in plan.units)
        return cls(keys, code_version(), code_digests, frozenset(plan.shared), spec, unreadable_code)

    @classmethod
    def load(cls, folder: Path) -> PlanRecord | None:
        """Load the record of a run folder; None if it has no plan yet."""
        file = folder / PLAN
        if not file.exists():
            return None
        try:
            table = read_plan(read_bytes(file), file, ["key"])
            metadata = json.loads(table.schema.metadata[b"record"])
            code_digests = {str(label): str(digest) for label, digest in metadata["own"].items()}
            shared = frozenset(str(name) for name in metadata["shared"])
            return cls(
                frozenset(table["key"].to_pylist()),
                str(metadata["version"]),
                code_digests,
                shared,
                str(metadata["spec"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise _unreadable_plan(file, err) from err

    def write(self, plan: Plan, folder: Path) -> None:
        """Write the plan of this record, its spec, and data that were given in memory."""
        metadata = {"version": self.version, "own": self.code_digests, "shared": sorted(self.shared), "spec": self.spec}
        table = plan.table().replace_schema_metadata({"record": json.dumps(metadata)})
        write_atomically(folder / PLAN, lambda file: pq.write_table(table, file))
        for entry in plan.spec.audits:
            store_rows(entry.data, folder)
        spec = YamlFile(folder / SPEC, plan.spec.to_yaml().encode())
        write_atomically(spec.path, lambda file: file.write(spec.content))
        note_as_own(spec)

    @staticmethod
    def archive(folder: Path) -> str:
        """Copy the files of the current plan to a new subfolder; return the name of the subfolders' parent."""
        target = folder / _EARLIER / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S-%f")
        target.mkdir(parents=True)
        for name in _FILES:
            if _is_file(folder / name):
                with open_to_read(folder / name) as source:
                    write_atomically(target / name, partial(shutil.copyfileobj, source))
        return _EARLIER

    def differences(self, current: PlanRecord) -> tuple[str, ...]:
        """Return the reasons why `current` cannot reuse all units of this record; () if it can."""
        if self.keys <= current.keys:
            return ()
        changed = sorted(
            label
            for label in (self.code_digests.keys() | current.code_digests.keys()) - current.unreadable_code
            if self.code_digests.get(label) != current.code_digests.get(label)
        )
        reasons = {
            f"{_OTHER_VERSION} {self.version}, is {current.version}": self.version != current.version,
            f"your code changed ({shortened(', '.join(changed))})": bool(changed),
            "the data have changed": self.shared != current.shared,
            "the spec has changed": self.spec != current.spec,
        }
        differences = tuple(why for why, holds in reasons.items() if holds)
        return differences if differences or current.unreadable_code else (_OTHER_KEYS,)

    def require_reusable(self, current: PlanRecord, place: str | Path) -> None:
        """Raise OtherPlanError or RunError if `current` cannot reuse all units of this record."""
        differences = self.differences(current)
        of_dpaudit = [why for why in differences if why == _OTHER_KEYS or why.startswith(_OTHER_VERSION)]
        require_unchanged(differences, place, OtherPlanError if len(of_dpaudit) == len(differences) else RunError)


def read_plan(content: bytes, name: object, columns: Sequence[str]) -> pa.Table:
    """Return some columns of `plan.parquet`, which anyone may have written; a missing `pieces` is left out.

    Raises: RunError if it is not a valid plan.
    """
    try:
        table = read_bounded(io.BytesIO(content), "it", columns)
        table.validate(full=True)
        if missing := {*columns} - {"pieces", *table.column_names}:  # plans of earlier versions have no `pieces`
            raise KeyError(*missing)
        fields = [pa.field(each, _COLUMNS[each], nullable=False) for each in table.column_names]
        return table.cast(pa.schema(fields, metadata=table.schema.metadata))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AuditError) as err:
        raise _unreadable_plan(name, err) from err


def _unreadable_plan(name: object, err: Exception) -> RunError:
    why = str(err) if isinstance(err, AuditError) else type(err).__name__
    return RunError(
        f"{printable(shortened(name, 300))} is not a valid plan ({shortened(why, 240)}). Move it away: then "
        "`dpaudit resume` writes it again and reuses the finished units"
    )


def read_spec(folder: Path) -> YamlFile:
    """Read the spec of a run folder without building anything from it.

    The file may be replaced at any time. Read it once: consent, the comparison with the plan and the audits must all
    come from the same content.

    Raises: SpecError if it is no run folder.
    """
    if not _is_file(folder / SPEC) or not _is_run_folder(folder):
        raise SpecError(
            f"{shortened(folder)} must be a run folder (with spec.yaml in it); "
            "`dpaudit run SPEC --output DIR` creates one"
        )
    return YamlFile.read_plain(folder / SPEC)


def _is_run_folder(folder: Path) -> bool:
    return _is_file(folder / PLAN) or (folder / "units").is_dir()


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # for example a name that is too long
        return False


def note_as_own(spec: YamlFile) -> None:
    """Note outside the folder that this user wrote a spec; do nothing if the home cannot be written.

    A folder that another user made and that was opened by consent is not noted. The code that it names may change, so
    the next command needs consent again and runs that code in a separate process.
    """
    if current_consent().spec is not None:
        return
    note = _note_of(spec.path)
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(note, lambda file: file.write(spec.digest.encode()))


def consent_for(spec: YamlFile, consent: Consent) -> Consent:
    """Return full consent for a spec that this user wrote with exactly this content, else `consent`."""
    with contextlib.suppress(OSError, ValueError):  # there is no note
        if _note_of(spec.path).read_text(encoding="ascii") == spec.digest:
            return FULL_CONSENT
    return replace(consent, spec=spec.path)


def _note_of(spec: Path) -> Path:
    """Return the path of the note about a spec; for the spec of a run folder, named after the folder."""
    path = spec.parent if spec.name == SPEC else spec
    return note_path("folders", path.resolve())


TOUCH_S = 10.0
STALE_S = 60.0  # a driver on another machine counts as dead if its lease has not been touched for this time
CONFIRM_S = 1.0  # after writing a remote lease, wait this long and read it: of two simultaneous drivers, the last wins
_NAME = ".lease"
_MAX_BYTES = 4096


@contextlib.contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Hold the lease of a local run folder for a `with` block.

    Drivers on one machine compete for a kernel lock, which ends with its process. Another machine that shares the
    folder may not see this lock. For it, the file names the host that holds the folder and is touched regularly.

    Raises: RunError, naming the holder.
    """
    file = open_for_update(folder / _NAME, os.O_RDWR | os.O_CREAT)

    def touch() -> None:
        with contextlib.suppress(OSError):
            os.utime(file)

    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _lease_error(folder, _parse_holder(os.pread(file, _MAX_BYTES, 0)), "wait for it") from None
        holder = _parse_holder(os.pread(file, _MAX_BYTES, 0))
        on_other_machine = (holder.get("host"), holder.get("boot")) != (socket.gethostname(), _boot_id())
        if holder and on_other_machine and abs(_age_s(folder, file)) < STALE_S:
            raise _lease_error(folder, holder, "wait for it")
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot_id()}).encode(), 0)
        try:
            with call_periodically(touch, TOUCH_S, "lease"):
                yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)  # releases the lock


def _age_s(folder: Path, file: int) -> float:
    """Return the seconds since the lease was touched, by the clock of the machine that stores the folder.

    All drivers touch it by this clock, so a live lease is never far in its future.
    """
    probe = folder / f"{_NAME}.{uuid.uuid4().hex}"
    try:
        with recreate_file(probe) as probe_file:
            return os.fstat(probe_file.fileno()).st_mtime - os.fstat(file).st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _this_process() -> dict[str, Any]:
    """Return values that together identify this process among all machines, containers and restarts."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pids": namespace,
        "start": _start_time(os.getpid()),
    }


def _has_ended(holder: dict[str, Any]) -> bool:
    """True if the holder of a lease was a process of this machine that has ended.

    A process number is meaningful only in the same container and until a restart, and it can be reused.
    """
    this_process = _this_process()
    same_machine = all(
        this_process[name] and holder.get(name) == this_process[name] for name in ("host", "boot", "pids")
    )
    pid, start = holder.get("pid"), holder.get("start")
    if not same_machine or not isinstance(pid, int) or not isinstance(start, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # the process of another user, whose state is hidden
        return False
    return _start_time(pid) not in (start, None)


def _start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; -1 if it has ended, None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


@contextlib.contextmanager
def remote_lease(store: FileStore) -> Iterator[None]:
    """Hold the lease of a remote run folder for a `with` block, as far as an object store allows.

    Conditional writes are not used, so the rule is: write, wait, read; the last writer holds the lease. Two drivers can
    both continue if they start within a second of each other and one is slow. They then write the same units, and the
    later report stays. The store's clock measures ages. The lease of an ended process of this machine is ignored.

    Raises: RunError, naming the holder, or if the place cannot be written.
    """
    content = {"id": uuid.uuid4().hex, **_this_process()}
    wait = f"wait for it ({STALE_S:.0f} s, where it was lost)"

    def write() -> None:
        store.write(_NAME, json.dumps(content).encode())

    def touch() -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            write()

    with store.explain_errors("must be a place that can be written"):
        holder = _remote_holder(store)
        # A lease that is far ahead of the clock is stale too.
        if holder and not _has_ended(holder) and abs(_remote_age_s(store)) < STALE_S:
            raise _lease_error(store.place, holder, wait)
        write()
        time.sleep(CONFIRM_S)
        holder = _remote_holder(store)
    if holder.get("id") != content["id"]:
        raise _lease_error(store.place, holder, wait)
    try:
        with call_periodically(touch, TOUCH_S, "lease"):
            yield
    finally:
        with contextlib.suppress(OSError, pa.ArrowException):
            if _remote_holder(store).get("id") == content["id"]:
                store.delete(_NAME)


def _remote_holder(store: FileStore) -> dict[str, Any]:
    try:
        with store.open_file(_NAME) as stream:
            return _parse_holder(stream.read(_MAX_BYTES))
    except FileNotFoundError:
        return {}


def _remote_age_s(store: FileStore) -> float:
    """Return the seconds since the lease was written, by the clock of the store."""
    probe = f"{_NAME}.{uuid.uuid4().hex}"
    store.write(probe, b"{}")
    try:
        now, then = (store.info(name).mtime_ns or 0 for name in (probe, _NAME))
        return float(now - then) / 1e9
    finally:
        store.delete(probe)


def _parse_holder(content: bytes) -> dict[str, Any]:
    """Parse the content of a lease; {} if it is empty or not a lease."""
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _lease_error(place: object, holder: dict[str, Any], advice: str) -> RunError:
    is_complete = {"pid", "host"} <= holder.keys()
    owner = f"process {shortened(holder['pid'])} on {shortened(holder['host'])}" if is_complete else "another process"
    return RunError(f"{place} is being written by {owner}; {advice}, or give another --output")
