"""Faults at random moments of a small audit on Ray: the same bytes after at most one resume, and the right exit code.

    python -m benchmarks.chaos --runs 20 --seed 0

Each run draws a fault and the number of finished units at which it strikes. Left behind may be nothing: no process of
the run within `GONE_S` seconds, no folder of its Ray session where it could end in order.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GONE_S = 30.0
TRAININGS = 10
SPEC = f"""
name: chaos
seed: 3
data: {{name: gaussian-mixture, rows: 2000}}
split: {{target: 0.5, reference: 0.4, test: 0.1}}
mechanism: {{name: lp-1st, epsilon: 1.0, model: {{name: catboost, iterations: 5}}}}
game: {{name: label-inference, replays: 4, trainings: {TRAININGS}}}
run: {{runner: RUNNER, workers: 2, time_limit_s: 30, figures: false}}
"""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: What, for the table.
        signal: What is sent.
        find: To which processes of the run, among (process id, command line).
        codes: Exit codes the run may end with.
    """

    name: str
    signal: signal.Signals
    find: Callable[[Chaos], list[int]]
    codes: frozenset[int]


@dataclass
class Chaos:
    """One run, while it goes on: its folder, its command, and all its processes, known by their environment."""

    folder: Path
    command: subprocess.Popen[str]
    mark: bytes

    def processes(self) -> dict[int, str]:
        """Process ids and command lines of everything this run started that still lives."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if self.mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def named(self, part: str) -> list[int]:
        """Those whose command line holds a word."""
        return [pid for pid, line in self.processes().items() if part in line]

    def worker(self) -> list[int]:
        """The first worker that is up."""
        return self.named("ray::Worker")[:1]

    def finished(self) -> int:
        """Units in the run folder."""
        return len(list((self.folder / "run" / "units").glob("*.parquet")))


FAULTS = (
    Fault("worker killed", signal.SIGKILL, Chaos.worker, frozenset({0})),
    Fault("worker stopped", signal.SIGSTOP, Chaos.worker, frozenset({0})),
    Fault("both workers killed", signal.SIGKILL, lambda run: run.named("ray::Worker"), frozenset({0})),
    Fault("command killed", signal.SIGKILL, lambda run: [run.command.pid], frozenset({-9})),
    Fault("driver killed", signal.SIGKILL, lambda run: _driver(run), frozenset({3})),
    Fault("SIGTERM", signal.SIGTERM, lambda run: [run.command.pid], frozenset({3})),
    Fault("SIGHUP", signal.SIGHUP, lambda run: [run.command.pid], frozenset({3})),
    Fault("SIGINT", signal.SIGINT, lambda run: [run.command.pid], frozenset({3})),
    Fault("raylet killed", signal.SIGKILL, lambda run: run.named("raylet/raylet"), frozenset({3})),
)


def _driver(run: Chaos) -> list[int]:
    """The process that works, a child of the one that was started."""
    children = Path(f"/proc/{run.command.pid}/task/{run.command.pid}/children").read_text().split()
    return [int(child) for child in children]


def started(folder: Path, *words: str) -> Chaos:
    """A command of dpaudit in that folder, with a folder for Ray that marks its processes."""
    environment = {**os.environ, "RAY_TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-m", "dpaudit", *words, "--quiet"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "errors.txt").open("a"),
        text=True,
        start_new_session=True,
    )
    return Chaos(folder, process, f"RAY_TMPDIR={folder}".encode())


def content(run: Path) -> dict[str, str]:
    """What a run found: digests of its scores, and its results."""
    files = sorted((run / "scores").rglob("*.parquet"))
    digests = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {**digests, "results": json.dumps(json.loads((run / "bounds.json").read_text())["results"])}


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder with a short path: Ray's sockets need one."""
    folder = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def reference() -> dict[str, str]:
    """What the audit finds when nothing goes wrong, in one process."""
    with workplace() as folder:
        (folder / "spec.yaml").write_text(SPEC.replace("RUNNER", "in-process"))
        assert started(folder, "run", "spec.yaml", "-o", "run").command.wait(600) == 0, (
            folder / "errors.txt"
        ).read_text()
        return content(folder / "run")


@dataclass(frozen=True)
class Outcome:
    """How a run with a fault went.

    Attributes:
        code: The first exit code.
        left_s: Seconds until no process of it was left; None when some still were after `GONE_S`.
        resumed: Whether a second command was needed.
        same: Whether the bytes were those of the undisturbed run.
        wrong: What should have been otherwise; "" when all is well.
    """

    code: int
    left_s: float | None
    resumed: bool
    same: bool
    wrong: str


def struck(fault: Fault, after: int, expected: dict[str, str]) -> Outcome:
    """Runs the audit, lets the fault strike once `after` units are finished, resumes if needed, and compares."""
    with workplace() as folder:
        (folder / "spec.yaml").write_text(SPEC.replace("RUNNER", "ray"))
        run = started(folder, "run", "spec.yaml", "-o", "run")
        while run.command.poll() is None and run.finished() < after:
            time.sleep(0.02)
        victims = fault.find(run) if run.command.poll() is None else []
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, fault.signal)
        code = run.command.wait(600)
        ended, left_s = time.monotonic(), None
        while left_s is None and time.monotonic() - ended < GONE_S:
            if not run.processes():
                left_s = time.monotonic() - ended
            time.sleep(0.2)
        left = list(run.processes().values())
        resumed = code != 0
        again = started(folder, "resume", "run").command.wait(600) if resumed else 0
        same = again == 0 and content(folder / "run") == expected
        wrong = [
            *([] if victims else ["the run was over before the fault"]),
            *([] if code in fault.codes else [f"exit code {code}: {(folder / 'errors.txt').read_text()[-600:]}"]),
            *([f"left behind: {left}"] if left else []),
            *([f"exit code {again} of resume: {(folder / 'errors.txt').read_text()[-600:]}"] if again else []),
            *([] if same else ["other bytes"]),
        ]
        return Outcome(code, left_s, resumed, same, "; ".join(wrong))


def main() -> None:
    """Prints a line a run; exit code 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):  # a shell's background, and `nohup`, have commands ignore them
        signal.signal(number, signal.SIG_DFL)
    draw, expected, failures = random.Random(options.seed), reference(), 0
    order = [FAULTS[number % len(FAULTS)] for number in range(options.runs)]
    draw.shuffle(order)
    print("| run | fault | after units | exit code | all gone after s | resumed | same bytes |")
    print(f"|{' --- |' * 7}")
    for number, fault in enumerate(order):
        after = draw.randint(1, 2 * TRAININGS)
        outcome = struck(fault, after, expected)
        gone = "never" if outcome.left_s is None else f"{outcome.left_s:.1f}"
        row = (number, fault.name, after, outcome.code, gone, outcome.resumed, outcome.same)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        if outcome.wrong:
            failures += 1
            print(f"run {number}: {outcome.wrong}", file=sys.stderr, flush=True)
    print(f"{options.runs - failures} of {options.runs} runs went as they should")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
