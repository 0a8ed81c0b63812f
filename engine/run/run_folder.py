"""The run folder: where it is, whose, what it was made from, and what of that differs now.

Nothing finished is deleted. A spec is code, and a stranger's folder must not run theirs unasked.
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

from dpaudit.actors.events import Event, EventKind, EventStream, Listener
from dpaudit.actors.periodic import call_periodically
from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.actors.storage.places import Scratch, is_remote, join_place
from dpaudit.actors.unit import code_version, user_code_by_label
from dpaudit.consent import FULL_CONSENT, Consent, current_consent
from dpaudit.engine.planning.plan import Plan
from dpaudit.engine.request.audit_spec import AuditSpec, keep_data, slug
from dpaudit.engine.request.describe import in_words
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.errors import AuditError, RunError, SpecError, printable, shortened
from dpaudit.given import path
from dpaudit.plain_files import (
    note_path,
    open_for_update,
    open_to_read,
    read_bytes,
    recreate_file,
    require_plain,
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
    "pieces": pa.int64(),
}
_EARLIER = "earlier"  # keeps the files of plans before the last one; their units stay beside the others
_CHECKPOINTS = "checkpoints"  # of the units, which workers bring to and from a remote place themselves
_FILES = (SPEC, PLAN, "bounds.json", "bounds.parquet", "report.html")


def place_of(named: str | Path) -> str | Path:
    """A place as it was named: a URI as it is, a path as a path."""
    named = path("the folder of a run", named)
    return named.rstrip("/") if is_remote(named) else Path(named)


def checkpoints_of(place: str | Path) -> Scratch:
    return join_place(place, _CHECKPOINTS) if is_remote(place) else (Path(place) / _CHECKPOINTS).absolute()


def working_folder(place: str | Path) -> Path:
    """Where the files of a run are on this machine: the place itself, or a folder of the user's cache for a URI."""
    if not is_remote(place):
        return Path(place)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(place).partition("?")[0].rpartition("/")[2])[:40]
    return cache / "dpaudit" / "runs" / f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def opened(place: str | Path, listeners: Sequence[Listener] = ()) -> Iterator[Path]:
    """The working folder of a place for the length of a `with` block; what is written there is brought to a URI.

    Who listens is told when the remote store does not answer, and when it does again.

    Raises: RunError when the place cannot be reached, holds what is no file, or another driver holds it.
    """
    folder = working_folder(place)
    if not is_remote(place):
        require_plain(folder)
        yield folder
        return
    from dpaudit.actors.storage.mirror import FileStore, Mirror  # of runs on object stores alone

    store, events = FileStore.at(place), EventStream(*listeners)
    store.require_plain()

    def say(trouble: str) -> None:
        events.emit(Event(EventKind.STAGE, detail=trouble))

    with remote_lease(store):
        mirror = Mirror(folder, str(place), excluded=(_CHECKPOINTS,), on_trouble=say)
        mirror.pull()
        with mirror.synchronized():
            try:
                yield folder
            except AuditError as err:  # it speaks of the copy, which nobody has asked for
                raise type(err)(str(err).replace(str(folder), str(place))) from err


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """A run folder that nobody else writes, for the length of a `with` block; made where it is not there.

    What a full disk, a read-only folder or a name too long raises becomes one sentence.

    Raises: SpecError for a folder that holds other things than a run; RunError when another driver holds it.
    """
    try:
        _require_room(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with lease(folder):
            yield
    except ConnectionError:
        raise
    except OSError as err:
        why = os.strerror(err.errno) if err.errno else shortened(err)
        raise RunError(
            f"{shortened(folder)} must be a folder that can be written and has room: {why}; what is finished is kept"
        ) from err


def _require_room(folder: Path) -> None:
    """A spec.yaml or report.html in a folder of another kind may be somebody's own."""
    if not folder.is_dir() or _is_run_folder(folder):
        return
    others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if others:
        raise SpecError(
            f"the run folder must be new, empty or one that a run made, {folder} holds "
            f"{shortened(', '.join(others))}; give another --output"
        )


def run_folder(spec: AuditSpec) -> Path:
    """Where a run goes when nothing else is said; without a name, by what is audited and on what."""
    about = [f"{in_words(audit.mechanism)} {in_words(audit.data)}" for audit in spec.audits]
    return Path("runs") / slug(" ".join([spec.name, *about]) if spec.name == AuditSpec.name else spec.name)


@dataclass(frozen=True)
class Record:
    """What a run folder was made from."""

    keys: frozenset[str]  # of all units of its plan
    version: str  # code version of dpaudit
    own: Mapping[str, str]  # digest of the user's code, by label
    shared: frozenset[str]  # names of the large inputs, which are named by their content
    spec: str  # its SHA-256
    unseen: frozenset[str] = frozenset()  # labels of the user's code that cannot be read: what needs it is run anew

    @classmethod
    def of(cls, plan: Plan) -> Record:
        """That of a plan, with the code as it is now."""
        codes = user_code_by_label(plan.units)
        own = {label: code.digest for label, code in codes.items()}
        unseen = frozenset(label for label, code in codes.items() if code.unseen)
        spec = hashlib.sha256(plan.spec.to_yaml().encode()).hexdigest()
        keys = frozenset(unit.key for unit in plan.units)
        return cls(keys, code_version(), own, frozenset(plan.shared), spec, unseen)

    @classmethod
    def required(cls, folder: Path, place: str | Path) -> Record:
        """That of a folder which is a run's."""
        _require_run_folder(folder)
        record = cls.read(folder)
        if record is None:
            raise RunError(f"{place} has no plan.parquet; `dpaudit resume {place}` writes it anew")
        return record

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """That of a run folder; None where no plan was written yet."""
        file = folder / PLAN
        if not file.exists():
            return None
        try:
            table = read_plan(read_bytes(file), file, ["key"])
            about = json.loads(table.schema.metadata[b"record"])
            own = {str(label): str(digest) for label, digest in about["own"].items()}
            shared = frozenset(str(name) for name in about["shared"])
            return cls(frozenset(table["key"].to_pylist()), str(about["version"]), own, shared, str(about["spec"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise _no_plan(file, err) from err

    def write(self, plan: Plan, folder: Path) -> None:
        """Writes the plan that it is of, the spec, and the rows that have no file of their own."""
        about = {"version": self.version, "own": self.own, "shared": sorted(self.shared), "spec": self.spec}
        table = plan.table().replace_schema_metadata({"record": json.dumps(about)})
        write_atomically(folder / PLAN, lambda file: pq.write_table(table, file))
        for entry in plan.spec.audits:
            keep_data(entry.data, folder)
        spec = YamlFile(folder / SPEC, plan.spec.to_yaml().encode())
        write_atomically(spec.path, lambda file: file.write(spec.content))
        remember(spec)

    @staticmethod
    def set_aside(folder: Path) -> str:
        """Copies the files of the plan so far to a folder of their own, in the one that is given."""
        target = folder / _EARLIER / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S-%f")
        target.mkdir(parents=True)
        for name in _FILES:
            if _is_file(folder / name):
                with open_to_read(folder / name) as source:
                    write_atomically(target / name, partial(shutil.copyfileobj, source))
        return _EARLIER

    def differences(self, now: Record) -> tuple[str, ...]:
        """Why results of this record would not be those of another one, in words; empty where they all would be."""
        if self.keys <= now.keys:
            return ()
        changed = sorted(
            label
            for label in (self.own.keys() | now.own.keys()) - now.unseen
            if self.own.get(label) != now.own.get(label)
        )
        reasons = {
            f"dpaudit was {self.version}, is {now.version}": self.version != now.version,
            f"your code changed ({shortened(', '.join(changed))})": bool(changed),
            "the data are others": self.shared != now.shared,
            "the spec has changed": self.spec != now.spec,
        }
        found = tuple(why for why, holds in reasons.items() if holds)
        return found if found or now.unseen else ("units have other keys",)

    def spec_differs(self, spec: YamlFile) -> tuple[str, ...]:
        """A difference, in words, where a spec is not the one that was written with this plan."""
        return () if spec.digest == self.spec else ("the spec has changed",)


def read_plan(content: bytes, name: object, columns: Sequence[str]) -> pa.Table:
    """Some columns of `plan.parquet`, which anybody may have written; those that its version lacks are left out."""
    try:
        table = read_bounded(io.BytesIO(content), "it", columns)
        table.validate(full=True)
        if missing := {*columns} - {"pieces", *table.column_names}:  # plans of earlier versions have none
            raise KeyError(*missing)
        fields = [pa.field(each, _COLUMNS[each], nullable=False) for each in table.column_names]
        return table.cast(pa.schema(fields, metadata=table.schema.metadata))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AuditError) as err:
        raise _no_plan(name, err) from err


def _no_plan(name: object, err: Exception) -> RunError:
    why = str(err) if isinstance(err, AuditError) else type(err).__name__
    return RunError(
        f"{printable(shortened(name, 300))} is no plan that can be read ({shortened(why, 240)}); move it away, and "
        "`dpaudit resume` writes it anew and uses what is finished"
    )


def read_spec(folder: Path) -> YamlFile:
    """Read the spec that a run folder was made from; nothing of it is built.

    Consent, the comparison with the plan and what is built must all be of this one reading: the file may be swapped
    in between.

    Raises: SpecError where it is no run folder.
    """
    _require_run_folder(folder)
    return YamlFile.read_plain(folder / SPEC)


def _require_run_folder(folder: Path) -> None:
    if not _is_file(folder / SPEC) or not _is_run_folder(folder):
        raise SpecError(
            f"{shortened(folder)} must be a run folder (with spec.yaml in it); "
            "`dpaudit run SPEC --output DIR` makes one"
        )


def _is_run_folder(folder: Path) -> bool:
    return _is_file(folder / PLAN) or (folder / "units").is_dir()


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # a name too long, for one
        return False


def remember(spec: YamlFile) -> None:
    """Notes, outside its folder, that this user wrote a spec; without a home to write to, nothing is noted.

    Of a folder of somebody else's that was opened by consent nothing is noted: the code it names may change, so the
    next command asks again, and runs that code in a process apart.
    """
    if current_consent().spec is not None:
        return
    note = _note_of(spec.path)
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(note, lambda file: file.write(spec.digest.encode()))


def consent_for(spec: YamlFile, asked: Consent) -> Consent:
    """What a spec may do, as it was read: everything where this user wrote it, else what was consented to."""
    return FULL_CONSENT if _made_here(spec) else replace(asked, spec=spec.path)


def _made_here(spec: YamlFile) -> bool:
    """True if this user wrote the very spec that was read."""
    try:
        return _note_of(spec.path).read_text(encoding="ascii") == spec.digest
    except (OSError, ValueError):
        return False


def _note_of(spec: Path) -> Path:
    """Where a spec is noted; that of a run folder under the folder's own name."""
    path = spec.parent if spec.name == SPEC else spec
    return note_path("folders", path.resolve())


BEAT_S = 10.0
STALE_S = 60.0  # a driver on another machine that has not touched its lease for so long is held to be dead
SETTLE_S = 1.0  # after which a remote lease is read again: of two drivers that take it at once, the last one keeps it
_NAME = ".lease"
_MAX_BYTES = 4096


@contextlib.contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Holds the run folder for the length of a `with` block.

    On one machine the kernel decides, by a lock that dies with its process, however it dies. A machine that shares the
    folder may not see that lock: for it, the file says which host holds the folder, and is touched every few seconds.

    Raises: RunError, which says who holds it.
    """
    file = open_for_update(folder / _NAME, os.O_RDWR | os.O_CREAT)

    def beat() -> None:
        with contextlib.suppress(OSError):
            os.utime(file)

    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(folder, _holder(os.pread(file, _MAX_BYTES, 0)), "wait for it") from None
        holder = _holder(os.pread(file, _MAX_BYTES, 0))
        elsewhere = (holder.get("host"), holder.get("boot")) != (socket.gethostname(), _boot())
        if holder and elsewhere and abs(_age_s(folder, file)) < STALE_S:
            raise _held(folder, holder, "wait for it")
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot()}).encode(), 0)
        try:
            with call_periodically(beat, BEAT_S, "lease"):
                yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)  # which lets go of the lock


def _age_s(folder: Path, file: int) -> float:
    """Seconds since the lease was touched, by the clock of the machine that keeps the folder.

    A time that lies further ahead than that was touched by nobody who lives: who does, touches it with that clock.
    """
    probe = folder / f"{_NAME}.{uuid.uuid4().hex}"
    try:
        with recreate_file(probe) as made:
            return os.fstat(made.fileno()).st_mtime - os.fstat(file).st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _this_process() -> dict[str, Any]:
    """Return what tells this process from every other one, of this machine and of others, now and later."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": _boot(),
        "pids": _numbering(),
        "start": _started(os.getpid()),
    }


def _ended(holder: dict[str, Any]) -> bool:
    """True if the holder of a lease was a process of this machine that has ended.

    The number of a process means nothing in another container, after a restart, or once another process has it.
    """
    here = _this_process()
    known = all(here[name] and holder.get(name) == here[name] for name in ("host", "boot", "pids"))
    pid, start = holder.get("pid"), holder.get("start")
    if not known or not isinstance(pid, int) or not isinstance(start, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # another user's, of which nothing more may be known
        return False
    return _started(pid) not in (start, None)


def _numbering() -> str:
    """Return the name of the PID namespace that process numbers are of; "" where there is none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine did; -1 for one that has ended, None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


@contextlib.contextmanager
def remote_lease(store: FileStore) -> Iterator[None]:
    """Holds a remote run folder for the length of a `with` block, as far as an object store allows.

    No object store is asked for a condition when it writes, so the rule is write, wait, read: whoever stands there then
    holds it. Two drivers that begin within the same second and one of which is slower than that could both go on;
    they would write the same units, whole, and the later report. Ages are told by the store's own clock. A holder that
    was a process of this machine and has ended holds nothing any more.

    Raises: RunError, which says who holds it, or that the place cannot be written.
    """
    mine = {"id": uuid.uuid4().hex, **_this_process()}
    wait = f"wait for it ({STALE_S:.0f} s, where it was lost)"

    def write() -> None:
        store.write(_NAME, json.dumps(mine).encode())

    def beat() -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            write()

    with store.explain_errors("must be a place that can be written"):
        holder = _remote_holder(store)
        if (
            holder and not _ended(holder) and abs(_remote_age_s(store)) < STALE_S
        ):  # ahead of the clock is no beat either
            raise _held(store.place, holder, wait)
        write()
        time.sleep(SETTLE_S)
        holder = _remote_holder(store)
    if holder.get("id") != mine["id"]:
        raise _held(store.place, holder, wait)
    try:
        with call_periodically(beat, BEAT_S, "lease"):
            yield
    finally:
        with contextlib.suppress(OSError, pa.ArrowException):
            if _remote_holder(store).get("id") == mine["id"]:
                store.delete(_NAME)


def _remote_holder(store: FileStore) -> dict[str, Any]:
    try:
        with store.open_file(_NAME) as stream:
            return _holder(stream.read(_MAX_BYTES))
    except FileNotFoundError:
        return {}


def _remote_age_s(store: FileStore) -> float:
    """Seconds since the lease was written, by the clock of the store."""
    probe = f"{_NAME}.{uuid.uuid4().hex}"
    store.write(probe, b"{}")
    try:
        now, then = (store.info(name).mtime_ns or 0 for name in (probe, _NAME))
        return float(now - then) / 1e9
    finally:
        store.delete(probe)


def _holder(content: bytes) -> dict[str, Any]:
    """Who wrote a lease; nobody where it is empty or no lease."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _held(place: object, holder: dict[str, Any], wait: str) -> RunError:
    known = {"pid", "host"} <= holder.keys()
    who = f"process {shortened(holder['pid'])} on {shortened(holder['host'])}" if known else "another process"
    return RunError(f"{place} is being written by {who}; {wait}, or give another --output")
