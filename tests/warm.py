"""`dpaudit` in a process forked from one that has imported the libraries: it starts in a tenth of a second.

The command is the one that `python -m dpaudit` starts, in a session of its own, with the environment, the folder and
the files for its output that the test gives. What a test says of imports, of the working folder or of processes left
behind needs a Python of its own: such tests start one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[1]
HEAVY = (
    *("numpy", "numpy.ma", "scipy.stats", "scipy.special", "scipy.optimize", "pandas", "sklearn.datasets", "numba"),
    *("pyarrow.parquet", "pyarrow.compute", "pyarrow.dataset", "pyarrow.fs", "pyarrow.csv", "yaml", "click", "jinja2"),
)
"""Other people's libraries that most commands import."""


def run_warm(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    time_limit_s: float,
) -> int | None:
    """Runs `dpaudit ARGUMENTS` and waits for it.

    Args:
        arguments: Behind the name of the command.
        cwd: Its working folder.
        environment: All of its environment.
        out, err: Files with a number of their own, where its output goes.
        time_limit_s: After so long all processes of its session are killed.
    Returns: Its exit code, as `subprocess` gives it; None where it was killed for its time.
    """
    asked = {
        "arguments": list(arguments),
        "cwd": str(cwd),
        "environment": dict(environment),
        "out": f"/proc/{os.getpid()}/fd/{out.fileno()}",
        "err": f"/proc/{os.getpid()}/fd/{err.fileno()}",
        "time_limit_s": time_limit_s,
    }
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    code = json.loads(server.stdout.readline())
    assert code is None or isinstance(code, int)
    return code


@cache
def _server() -> subprocess.Popen[str]:
    """One for each process of the tests; it ends when that one does."""
    paths = os.pathsep.join((str(ROOT / "editable"), str(ROOT)))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.warm"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Reads what is asked, a line each, and answers with exit codes, until nobody asks any more."""
    for name in HEAVY:
        importlib.import_module(name)
    _play_once()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            _become(asked)
        answers.write(json.dumps(_wait(pid, asked["time_limit_s"])) + "\n")
        answers.flush()


def _play_once() -> None:
    """A small audit: what it imports and compiles is there for all commands."""
    from dpaudit import Audit, AuditSpec, RunOptions, audit

    entry = Audit({"name": "randomized-response", "epsilon": 1.0}, {"name": "digits"}, {"name": "label-canaries"})
    with tempfile.TemporaryDirectory() as folder:
        audit(AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False)), output=folder, quiet=True)


def _become(asked: dict[str, Any]) -> NoReturn:
    """Makes this process the command, and ends with it."""
    os.setsid()
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), (asked["out"], os.O_WRONLY), (asked["err"], os.O_WRONLY)]
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(os.devnull)  # noqa: SIM115, for as long as the command lives
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.path = [path for path in sys.path if path != str(ROOT)]
    sys.path.insert(0, asked["cwd"])
    for path in sys.path:
        if (watch := Path(path, "sitecustomize.py")).is_file():
            runpy.run_path(str(watch))
    sys.argv = ["dpaudit", *asked["arguments"]]
    code: object = 0
    try:
        runpy.run_module("dpaudit", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    _end(code if isinstance(code, int) else 1)


def _end(code: int) -> NoReturn:
    """As an interpreter ends, without taking its modules apart: of so many libraries that takes half a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int, limit_s: float) -> int | None:
    """The exit code of a child, or None where it took too long: an alarm then ends its session."""
    late = False

    def kill(*_: object) -> None:
        nonlocal late
        late = True
        os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    _, status = os.waitpid(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return None if late else os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
