"""How much one run of the tests plays: little in `make test`, all of it in `make nightly`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Set
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
SWITCH = "DPAUDIT_NIGHTLY"
"""Set by `make nightly`: tests marked `nightly` run as well, and games are played in full number."""
QUICK = 100
"""Games of a simulation in the quick run."""
T = TypeVar("T")


def on() -> bool:
    """Whether this is the nightly run."""
    return bool(os.environ.get(SWITCH))


def nightly_games(number: int) -> int:
    """Return the number of games of a simulation, of which the quick run plays the first `QUICK`.

    A threshold is to follow from what this gives, so that the test fails as seldom in either run when all is well.
    """
    return number if on() else min(number, QUICK)


def by_day(size: T, *, by_night: T) -> T:
    """Return a size of the quick run, or that of the nightly run: of a planted fault, say, one that few games show."""
    return by_night if on() else size


def too(*cases: object) -> list[Any]:
    """Return parameters of a test that runs by night with these as well: those that follow the same lines of code."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]


def changed(*patterns: str) -> bool:
    """True if a file that matches a pattern was changed; False where git cannot tell.

    Uncommitted changes count, those of the last commit, and all since the branch left `origin/main`. For tests of the
    site and of packaging: `make test` runs them where a change may break them, `make nightly` always.

    Args:
        patterns: Paths from the root of the repository; `*` stands for any characters, slashes among them.
    """
    return any(fnmatch(path, pattern) for path in changed_files() for pattern in patterns)


def by_night_unless_changed(*patterns: str) -> Callable[[Test], Test]:
    """Mark a test `nightly` unless a file that matches a pattern was changed."""
    return (lambda test: test) if changed(*patterns) else pytest.mark.nightly


@cache
def changed_files(root: Path = Path(__file__).parent.parent) -> Set[str]:
    """The changed files of a repository by their paths; none where git cannot tell."""
    common = _git(root, "merge-base", "HEAD", "origin/main")
    found = {*_git(root, "ls-files", "--others", "--exclude-standard")}
    for base in ("HEAD", "HEAD~1", *common):
        found |= {*_git(root, "diff", "--name-only", "--no-renames", base)}
    return found


def _git(root: Path, *arguments: str) -> list[str]:
    """The lines that a git command prints; none where it fails."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
