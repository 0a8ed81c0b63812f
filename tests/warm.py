"""`dpaudit` in a process forked from one that has imported the libraries: it starts in a tenth of a second.

The command is the one that `python -m dpaudit` starts, in a session of its own, with the environment, the folder and
the files for its output that the test gives. What a test says of imports, of the working folder or of processes left
behind by audited code needs a Python of its own: such tests start one.

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

from dpaudit.actors.audited.leftover_processes import adopt_orphans
from tests.processes import below
from tests.waiting import HANGS_S

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a finished command.

    Attributes:
        code: The exit code, as `subprocess` gives it (negative: killed by that signal); None where it hung.
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
    """Runs `dpaudit ARGUMENTS` and waits for it.

    Args:
        arguments: Behind the name of the command.
        cwd: Its working folder.
        environment: All of its environment.
        out, err: Files with a number of their own, where its output goes.
        time_limit_s: After so long all processes of its session are killed.
        program: Runs in place of the command: the text of a program of Python.
    Returns: Its exit code, as `subprocess` gives it; None where it was killed for its time.
    """
    asked = {
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
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    code = json.loads(server.stdout.readline())
    assert code is None or isinstance(code, int)
    return code


def left_by_commands() -> list[int]:
    """Processes that the commands started so far have left behind: the server adopts whatever they detach."""
    return below(_server().pid) if _server.cache_info().currsize else []


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
    adopt_orphans()
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
        with contextlib.suppress(ChildProcessError):  # what was adopted and has ended since
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _play_once() -> None:
    """A small audit: what it imports and compiles is there for all commands."""
    import dpaudit.engine.cli.main  # noqa: F401, and what commands import besides
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
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [path for path in sys.path if path not in (*paths, str(ROOT))]
    sys.path[:] = [asked["cwd"], *paths, *own]
    first = next((path for path in paths if Path(path, "sitecustomize.py").is_file()), None)
    if first is not None:  # as a Python that starts here would
        runpy.run_path(f"{first}/sitecustomize.py")
    code: object = 0
    try:
        if asked["program"] is not None:
            _run_program(asked["program"], asked["arguments"])
        else:
            sys.argv = ["dpaudit", *asked["arguments"]]
            runpy.run_module("dpaudit", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    _end(code if isinstance(code, int) else 1)


def _run_program(text: str, arguments: list[str]) -> None:
    """Run it as one typed at a prompt: as the module `__main__`, with a traceback where it fails."""
    sys.argv = ["-", *arguments]
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    try:
        exec(compile(text, "<stdin>", "exec"), vars(main_module))
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


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
