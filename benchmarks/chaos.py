"""Inject faults at random moments of a small audit on Ray, and check results, exit codes and leftover processes.

    python -m benchmarks.chaos RUNS.jsonl [--only FAULT ...] [--seeds 2] [--seed 0] [--write]

Run n gets the n-th of `FAULTS`, cyclically, after a random number of finished units. After at most one resume, results
must have the bytes of an undisturbed run. No process of the run may remain after `GONE_S` seconds. With unchanged code,
the same command resumes after the last line of RUNS.jsonl. The full disk needs the right to mount one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dpaudit
from benchmarks.campaign import by_case, campaign
from benchmarks.nodes import children_of, cluster, processes

GONE_S = 30.0
ENDED_S = 300.0
DISK_BYTES = 8_000_000
TRAININGS = 10
ROWS = 2000
BIG_ROWS = 200_000
STOPPED_S = 60.0
ODD = Path(__file__).parent / "odd"
SPEC = f"""
name: chaos
seed: 3
data: {{name: gaussian-mixture, rows: ROWS}}
split: {{target: 0.5, reference: 0.4, test: 0.1}}
mechanism: {{name: lp-1st, epsilon: 1.0, model: {{name: catboost, iterations: 5}}}}
game: {{name: label-inference, replays: 4, trainings: {TRAININGS}}}
run: {{runner: RUNNER, workers: 2, time_limit_s: 15, figures: false}}
"""


@dataclass(frozen=True)
class Run:
    """A running audit and its processes, which are identified by their environment.

    Attributes:
        place: Folder of the spec, of Ray's files, and of the run folder.
        command: The started process.
        rng: Random choices of the fault.
    """

    place: Path
    command: subprocess.Popen[str]
    rng: random.Random

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.place / "disk" / "run"

    def processes(self) -> dict[int, str]:
        """Return the live processes of this run."""
        return processes(f"RAY_TMPDIR={self.place}")

    def on_cluster(self) -> dict[int, str]:
        """Return the processes of the joined cluster, including this run's workers."""
        return processes(f"RAY_TMPDIR={self.place}/cluster")

    def driver(self) -> list[int]:
        """Return the driver process, a child of the started command."""
        return children_of(self.command.pid)

    def workers(self) -> list[int]:
        """Return the running workers."""
        return [pid for pid, line in (self.processes() | self.on_cluster()).items() if "ray::Worker" in line]

    def raylet(self) -> list[int]:
        """Return the raylet of this run's session."""
        return [pid for pid, line in self.processes().items() if "raylet/raylet" in line]

    def gcs(self) -> list[int]:
        """Return Ray's control store (GCS), of this run's session or of the cluster."""
        return [pid for pid, line in (self.processes() | self.on_cluster()).items() if "gcs/gcs_server" in line]

    def second_node(self) -> list[int]:
        """Return all processes of the cluster's second node."""
        raylets = {pid: line for pid, line in self.on_cluster().items() if "raylet/raylet" in line}
        (second,) = (pid for pid, line in raylets.items() if "--head" not in line.split())
        return [second, *(child for child in children_of(second) if child in self.on_cluster())]

    def leftovers(self) -> dict[int, str]:
        """Return processes that must end with the run: its own, and its workers on nodes that still run."""
        on_cluster = {pid: line for pid, line in self.on_cluster().items() if "ray::Worker" in line}
        return self.processes() | {pid: line for pid, line in on_cluster.items() if not _stopped(pid)}

    def finished(self) -> int:
        """Return the number of units in the run folder."""
        return len(list((self.folder / "units").glob("*.parquet")))


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


@dataclass(frozen=True)
class Fault:
    """A fault and the required behaviour of the run.

    Attributes:
        name: Name in the table.
        strike: Inject the fault; True if it had a target.
        codes: Allowed exit codes.
        says: Pattern that the final error message must match; "" if no message is required.
        mended: Repair that a user makes before the resume.
        nodes: Nodes of the cluster that the run joins; 0 for a separate session.
        disk: True if the run folder is on a separate disk.
        rows: Number of rows of the data.
        environment: Environment variables of the run and all its processes, from its place.
    """

    name: str
    strike: Callable[[Run], bool]
    codes: frozenset[int] = frozenset({0})
    says: str = ""
    mended: Callable[[Run], None] = lambda run: None
    nodes: int = 0
    disk: bool = False
    rows: int = ROWS
    environment: Callable[[Path], dict[str, str]] = lambda place: {}


def _sent(*signals: signal.Signals, to: Callable[[Run], list[int]]) -> Callable[[Run], bool]:
    """Return a strike that sends signals in sequence to all selected processes."""

    def strike(run: Run) -> bool:
        victims = to(run)
        for count, number in enumerate(signals):
            time.sleep(2.5 if count else 0)  # beyond the time in which signals count as one (actors/audited/signals.py)
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return bool(victims)

    return strike


def _stopped_a_minute(to: Callable[[Run], list[int]]) -> Callable[[Run], bool]:
    """Return a strike that stops processes and continues them after a minute."""

    def strike(run: Run) -> bool:
        victims = to(run)
        for number, pause_s in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, 0.0)):
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause_s)
        return bool(victims)

    return strike


def _flag_written(name: str) -> Callable[[Run], bool]:
    """Return a strike that writes a flag file for `odd/sitecustomize.py`."""

    def strike(run: Run) -> bool:
        (run.place / name).touch()
        return True

    return strike


def _told_no_more(name: str) -> Callable[[Run], None]:
    return lambda run: (run.place / name).unlink()


def _with_odd(place: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ODD), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path, "ODD_PLACE": str(place), **more}


def _little_memory(place: Path) -> dict[str, str]:
    """Return an environment in which Ray's monitor kills workers once 1.5 GB more memory is in use than now."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return _with_odd(place, RAY_memory_usage_threshold=f"{1 - (free - 1.5e9) / total:.3f}")


def _small_store(place: Path) -> dict[str, str]:
    """Return an environment with an object store of 80 MB and a disk that Ray considers full, so it cannot spill."""
    return _with_odd(
        place, RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES="80000000", RAY_local_fs_capacity_threshold="0.0001"
    )


def _spilling_store(place: Path) -> dict[str, str]:
    """Return an environment with an object store of 80 MB and room on the disk."""
    return _with_odd(place, RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES="80000000")


def _some_workers(run: Run) -> list[int]:
    """Return one worker, or both."""
    up = run.workers()
    return up[: run.rng.randint(1, max(1, len(up)))]


def _command(run: Run) -> list[int]:
    return [run.command.pid]


def _fill(run: Run) -> bool:
    """Fill the run's disk."""
    with (run.place / "disk" / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return shutil.disk_usage(run.place / "disk").free == 0


def _empty(run: Run) -> None:
    (run.place / "disk" / "filler").unlink(missing_ok=True)


STOPPED = frozenset({3})
FAULTS = (
    Fault("workers killed", _sent(signal.SIGKILL, to=_some_workers)),
    Fault("SIGTERM", _sent(signal.SIGTERM, to=_command), STOPPED, "interrupted by SIGTERM"),
    Fault("raylet killed", _sent(signal.SIGKILL, to=Run.raylet), STOPPED, "goes on"),
    Fault("SIGHUP", _sent(signal.SIGHUP, to=_command), STOPPED, "interrupted by SIGHUP"),
    Fault("worker stopped", _sent(signal.SIGSTOP, to=lambda run: run.workers()[:1])),
    Fault("full disk", _fill, STOPPED, "No space left", mended=_empty, disk=True),
    Fault("SIGINT", _sent(signal.SIGINT, to=_command), STOPPED, "interrupted by SIGINT"),
    Fault("driver killed", _sent(signal.SIGKILL, to=Run.driver), STOPPED, r"was killed \(SIGKILL\)"),
    Fault("node of a cluster killed", _sent(signal.SIGKILL, to=Run.second_node), nodes=2),
    Fault("command killed", _sent(signal.SIGKILL, to=_command), frozenset({-9})),
    Fault("SIGINT twice", _sent(signal.SIGINT, signal.SIGINT, to=_command), STOPPED, "interrupted"),
    Fault("node of a cluster stopped", _sent(signal.SIGSTOP, to=Run.second_node), nodes=2),
    Fault("GCS killed", _sent(signal.SIGKILL, to=Run.gcs), STOPPED, "goes on"),
    Fault("GCS of a cluster killed", _sent(signal.SIGKILL, to=Run.gcs), STOPPED, "goes on", nodes=2),
    Fault("driver stopped 60 s", _stopped_a_minute(Run.driver)),
    Fault("raylet stopped 60 s", _stopped_a_minute(Run.raylet), frozenset({0, 3})),
    Fault("GCS stopped 60 s", _stopped_a_minute(Run.gcs)),
    Fault("workers stopped 60 s", _stopped_a_minute(Run.workers)),
    Fault(
        "memory eaten",
        _flag_written("eat"),
        frozenset({0, 3}),
        "audits have no result|the node ran out of memory",
        mended=_told_no_more("eat"),
        environment=_little_memory,
    ),
    Fault(
        "full store, full disk",
        _flag_written("fill"),
        frozenset({0, 3}),
        rows=BIG_ROWS,
        mended=_told_no_more("fill"),
        environment=_small_store,
    ),
    Fault("full store", _flag_written("fill"), rows=BIG_ROWS, environment=_spilling_store),
    Fault("clock jumps", _flag_written("jump"), environment=_with_odd),
)


@contextlib.contextmanager
def workplace(*, disk: bool = False) -> Iterator[Path]:
    """Yield a folder with a short path, as Ray's sockets need; with `disk`, it contains a small disk."""
    place = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
    (place / "disk").mkdir()
    if disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", place / "disk"], check=True)
    try:
        yield place
    finally:
        if disk:
            subprocess.run(["umount", "--lazy", place / "disk"], check=True)
        shutil.rmtree(place, ignore_errors=True)


def started(place: Path, environment: dict[str, str], *words: str, rng: random.Random | None = None) -> Run:
    """Start a dpaudit command in `place`; its Ray folder identifies its processes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dpaudit", *words, "--quiet"],
        cwd=place,
        env={**os.environ, "RAY_TMPDIR": str(place), **environment},
        stdout=subprocess.DEVNULL,
        stderr=(place / "errors.txt").open("a"),
        text=True,
        start_new_session=True,
    )
    return Run(place, process, rng or random.Random())


def content(run: Path) -> dict[str, str]:
    """Return digests of a run's scores and results."""
    files = sorted((run / "scores").rglob("*.parquet"))
    digests = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {**digests, "results": json.dumps(json.loads((run / "bounds.json").read_text())["results"])}


@cache
def reference(rows: int) -> dict[str, str]:
    """Return the content of the undisturbed audit on `rows` rows, run in one process."""
    with workplace() as place:
        (place / "spec.yaml").write_text(SPEC.replace("ROWS", str(rows)).replace("RUNNER", "in-process"))
        run = started(place, {}, "run", "spec.yaml", "-o", "disk/run")
        assert run.command.wait(ENDED_S) == 0, (place / "errors.txt").read_text()
        return content(run.folder)


def outcome(run: int, fault: str, seed: int, digest: str) -> dict[str, Any]:
    """Run the audit, inject the fault, resume if needed, and compare.

    Returns the number of finished units at the fault (`after`), the first exit code (`code`), the seconds until all
    processes had ended (`left_s`; None if some remained after `GONE_S`), if a second command was needed (`resumed`), if
    the bytes equal those of the undisturbed run (`same`), the duration, and violated requirements (`wrong`).
    """
    rng, began = random.Random(f"{seed} {run}"), time.monotonic()
    return outcome_of(FAULTS[run % len(FAULTS)], rng) | {"seconds": time.monotonic() - began}


def outcome_of(fault: Fault, rng: random.Random) -> dict[str, Any]:
    """Return the outcome of a run with a fault at a random moment."""
    after, expected = rng.randint(1, 2 * TRAININGS), reference(fault.rows)
    with workplace(disk=fault.disk) as place, contextlib.ExitStack() as stack:
        nodes = stack.enter_context(cluster(place / "cluster", fault.nodes)) if fault.nodes else None
        environment = {**(nodes.environment if nodes else {}), **fault.environment(place)}
        (place / "spec.yaml").write_text(SPEC.replace("ROWS", str(fault.rows)).replace("RUNNER", "ray"))
        run = started(place, environment, "run", "spec.yaml", "-o", "disk/run", rng=rng)
        while run.command.poll() is None and run.finished() < after:
            time.sleep(0.01)
        hit = run.command.poll() is None and fault.strike(run)
        code = run.command.wait(ENDED_S)
        left_s = _gone_after(run)
        leftovers = list(run.leftovers().values())
        errors = (place / "errors.txt").read_text()
        fault.mended(run)
        if not run.gcs():  # a cluster whose head is dead cannot be joined again
            environment.pop("RAY_ADDRESS", None)
        # If a fault may fail units, a run can end without them; a resume runs the failed units again.
        fewer = code == 0 and fault.codes >= {0, 3} and content(run.folder) != expected
        resumed = code != 0 or fewer
        again = started(place, environment, "resume", "disk/run").command.wait(ENDED_S) if resumed else 0
        same = again == 0 and content(run.folder) == expected
        explained = code == 0 or re.search(fault.says, errors)
        wrong = [
            *([] if hit else ["the run was over before the fault"]),
            *([] if code in fault.codes else [f"exit code {code}: {errors[-600:]}"]),
            *([] if explained and "Traceback" not in errors else [f"it said {errors[-2000:]!r}"]),
            *([f"left behind: {leftovers}"] if left_s is None else []),
            *([f"exit code {again} of resume: {(place / 'errors.txt').read_text()[-600:]}"] if again else []),
            *([] if same else ["other bytes"]),
        ]
    facts = {"after": after, "code": code, "left_s": left_s, "resumed": resumed, "same": same}
    return facts | {"wrong": "; ".join(wrong)}


def _gone_after(run: Run) -> float | None:
    """Return the seconds until all processes of an ended run are gone; None if that exceeds `GONE_S`."""
    ended = time.monotonic()
    while time.monotonic() - ended < GONE_S:
        if not run.leftovers():
            return round(time.monotonic() - ended, 1)
        time.sleep(0.1)
    return None


def digest() -> str:
    """Return a digest of the package and this file: outcomes of other code are not comparable."""
    root = Path(dpaudit.__file__).parent
    sources = [
        Path(__file__),
        *sorted(
            Path(folder, name)
            for folder, _, names in os.walk(root, followlinks=True)
            for name in names
            if name.endswith(".py")
        ),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def cases(seeds: int, seed: str) -> Iterator[dict[str, Any]]:
    """Yield the runs, as many as seeds for each fault; those of other code do not count."""
    for run in range(seeds * len(FAULTS)):
        yield {"run": run, "fault": FAULTS[run % len(FAULTS)].name, "seed": int(seed or 0), "digest": digest()}


def columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the numbers of a run."""
    (line,) = lines
    return {
        "after units": str(line["after"]),
        "exit code": str(line["code"]),
        "all gone after s": "never" if line["left_s"] is None else f"{line['left_s']:.1f}",
        "resumed": yes(line["resumed"]),
        "same bytes": yes(line["same"]),
        "s": f"{line['seconds']:.0f}",
        "wrong": line["wrong"],
    }


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def played(*campaign_of: Any, **options: Any) -> None:
    """Play all runs; exit with code 1 if one of them failed."""
    for number in (signal.SIGINT, signal.SIGHUP):  # background commands of a shell and `nohup` ignore them
        signal.signal(number, signal.SIG_DFL)
    wrong = [line for line in campaign(*campaign_of, counted=False, **options) if line["wrong"]]
    print(*(f"run {line['run']}: {line['wrong']}" for line in wrong), f"{len(wrong)} runs went wrong", sep="\n")
    sys.exit(len(wrong) > 0)


if __name__ == "__main__":
    played(cases, outcome, columns, groups=by_case("run", "fault"), seeds=2, settings={"seed": "of the random draws"})
