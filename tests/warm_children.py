"""Child processes of an audit forked from a process that has imported the libraries, in place of a new Python each.

`dpaudit.actors.children` starts a Python for third-party code, for parallel work, and to rerun a mechanism before a
VIOLATION. A forked process has made no calls either, and starts in a tenth of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

PRELOADED = (
    # An audit ends the processes that were begun while it ran, but for those that name this helper on their command
    # line, as the fork server does with all that it preloads.
    "multiprocessing.resource_tracker",
    "pytest",
    "sklearn.linear_model",
    "sklearn.ensemble",
    "torch",
    "dpaudit",
    "dpaudit.actors.children",
    "dpaudit.engine.planning.state_between_calls",
    "dpaudit.engine.planning.plan",
    "dpaudit.engine.run.checking",
    "dpaudit.engine.run.driver",
    "scipy.stats",
    "click.testing",
)


@cache
def fork_server() -> Any:
    """Return the context of the fork server of this process of the tests; the first child starts the server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


class ForkedChild:
    """The part of `subprocess.Popen` that the caller needs from a child."""

    def __init__(self, line: Connection) -> None:
        surroundings = (dict(os.environ), os.getcwd())
        self._process = fork_server().Process(target=serve, args=(line, *surroundings), daemon=True)
        self._process.start()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)
        return int(self._process.exitcode)

    def kill(self) -> None:
        self._process.kill()


def serve(line: Connection, environment: dict[str, str], folder: str) -> None:
    """Serve units, as `python -m dpaudit.actors.children` would."""
    from dpaudit.actors.children import main

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        os.chdir(folder)
    main(os.dup(line.fileno()))


def start_child() -> Any:
    """Return a child, as `_Child.start` makes it."""
    from dpaudit.actors.children import _Child

    ours, theirs = Pipe()
    process = ForkedChild(theirs)
    theirs.close()
    return _Child(process, ours)  # type: ignore[arg-type]
