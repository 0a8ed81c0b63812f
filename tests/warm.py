"""`dpaudit` in a process forked from one that has imported the libraries: it starts in a tenth of a second.

The command equals `python -m dpaudit`, in a separate session with the test's environment, folder and output files.
Tests about imports, the working folder or processes left behind by audited code start a fresh Python instead.

    ended = dpaudit("run", "spec.yaml", "--quiet", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    ended = python("import dpaudit; print(dpaudit.__name__)", cwd=tmp_path)
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

from dpaudit.actors.audited.signals import adopt_orphans
from tests.processes import below
from tests.waiting import HANGS_S

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a finished command.

    Attributes:
        code: The exit code, as in `subprocess` (negative: killed by that signal); None if it hung.
        out, err: What the command printed.
    """

    code: int | None
    out: str
    err: str


def dpaudit(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> CommandResult:
    """Run `dpaudit ARGUMENTS`, as a shell would, from a warm start.

    Args:
        arguments: Words behind the name of the command.
        cwd: Its working folder, from which modules are imported too.
        environment: Variables added to those of the tests.
    """
    return _result(list(map(str, arguments)), None, cwd, environment)


def python(program: str, *arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> CommandResult:
    """Run a program of Python, as `python - ARGUMENTS < PROGRAM` would, from a warm start: libraries are imported."""
    return _result(list(map(str, arguments)), program, cwd, environment)


def _result(
    arguments: list[str], program: str | None, cwd: Path, environment: Mapping[str, str] | None
) -> CommandResult:
    added = {"PYTHONPATH": os.pathsep.join((str(ROOT / "editable"), str(ROOT))), **(environment or {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = run_warm(
            arguments,
            cwd=cwd,
            environment={**os.environ, **added},
            out=out,
            err=err,
            time_limit_s=HANGS_S,
            program=program,
        )
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return CommandResult(code, *texts)


def run_warm(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    time_limit_s: float,
    program: str | None = None,
) -> int | None:
    """Run `dpaudit ARGUMENTS` and wait for it.

    Args:
        arguments: Behind the name of the command.
        cwd: Its working folder.
        environment: Its complete environment.
        out, err: Output files with file descriptors.
        time_limit_s: Timeout after which all processes of its session are killed.
        program: Text of a Python program to run instead of the command.
    Returns: Its exit code, as in `subprocess`; None after a timeout.
    """
    request = {
        "arguments": list(arguments),
        "cwd": str(cwd),
        "environment": dict(environment),
        "out": f"/proc/{os.getpid()}/fd/{out.fileno()}",
        "err": f"/proc/{os.getpid()}/fd/{err.fileno()}",
        "time_limit_s": time_limit_s,
        "program": program,
    }
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    code = json.loads(server.stdout.readline())
    assert code is None or isinstance(code, int)
    return code


def left_by_commands() -> list[int]:
    """Return processes left behind by earlier commands; the server adopts detached processes."""
    return below(_server().pid) if _server.cache_info().currsize else []


@cache
def _server() -> subprocess.Popen[str]:
    """Return the server of this test process; it ends with the process."""
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
    """Read requests, one in each line, and answer with exit codes until the input ends."""
    adopt_orphans()
    _play_once()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            _become(request)
        answers.write(json.dumps(_wait(pid, request["time_limit_s"])) + "\n")
        answers.flush()
        with contextlib.suppress(ChildProcessError):  # an adopted process may have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _play_once() -> None:
    """Run a small audit, so that all commands share its imports and compiled code."""
    import dpaudit.engine.cli.main  # noqa: F401, and what commands import besides
    from dpaudit import Audit, AuditSpec, RunOptions, audit

    entry = Audit({"name": "randomized-response", "epsilon": 1.0}, {"name": "digits"}, {"name": "label-canaries"})
    with tempfile.TemporaryDirectory() as folder:
        audit(AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False)), output=folder, quiet=True)


def _become(request: dict[str, Any]) -> NoReturn:
    """Turn this process into the command, and exit with it."""
    os.setsid()
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), (request["out"], os.O_WRONLY), (request["err"], os.O_WRONLY)]
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(os.devnull)  # noqa: SIM115, for as long as the command lives
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    other_paths = [path for path in sys.path if path not in (*paths, str(ROOT))]
    sys.path[:] = [request["cwd"], *paths, *other_paths]
    first = next((path for path in paths if Path(path, "sitecustomize.py").is_file()), None)
    if first is not None:  # as a Python that starts here would
        runpy.run_path(f"{first}/sitecustomize.py")
    code: object = 0
    try:
        if request["program"] is not None:
            _run_program(request["program"], request["arguments"])
        else:
            sys.argv = ["dpaudit", *request["arguments"]]
            runpy.run_module("dpaudit", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    _end(code if isinstance(code, int) else 1)


def _run_program(text: str, arguments: list[str]) -> None:
    """Run a program as the module `__main__`, with a traceback on failure."""
    sys.argv = ["-", *arguments]
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    try:
        exec(compile(text, "<stdin>", "exec"), vars(main_module))
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def _end(code: int) -> NoReturn:
    """Exit like an interpreter, but without deleting modules, which takes half a second with these libraries."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int, limit_s: float) -> int | None:
    """Return the exit code of a child, or None after a timeout: an alarm then ends its session."""
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
