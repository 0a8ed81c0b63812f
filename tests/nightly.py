"""Sizes of test runs: small in `make test`, full in `make nightly`."""

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
"""Set by `make nightly`: tests marked `nightly` run too, and simulations have their full number of games."""
QUICK = 100
"""Games of a simulation in the quick run."""
BASE = "DPAUDIT_BASE"
"""Names the commit that `changed_since_base` compares with."""
T = TypeVar("T")


def on() -> bool:
    """Return True in the nightly run."""
    return bool(os.environ.get(SWITCH))


def nightly_games(number: int) -> int:
    """Return the number of games of a simulation; the quick run has only the first `QUICK`.

    The test's threshold must follow from this number, so that both runs have the same probability of false failure.
    """
    return number if on() else min(number, QUICK)


def by_day(size: T, *, by_night: T) -> T:
    """Return the size for the quick or the nightly run, for example of a planted fault that few games detect."""
    return by_night if on() else size


def too(*cases: object) -> list[Any]:
    """Return parameters that a test only runs at night, because they follow the same lines of code as others."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]


def changed(*patterns: str) -> bool:
    """True if a file that matches a pattern was changed; False if git cannot tell.

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
    """Return the paths of a repository's changed files; empty if git cannot tell."""
    common = _git(root, "merge-base", "HEAD", "origin/main")
    changed_files = {*_git(root, "ls-files", "--others", "--exclude-standard")}
    for base in ("HEAD", "HEAD~1", *common):
        changed_files |= {*_git(root, "diff", "--name-only", "--no-renames", base)}
    return changed_files


def changed_since_base(root: Path = Path(__file__).parent.parent) -> Set[str] | None:
    """Return the paths of the files that changed since `DPAUDIT_BASE`; None if git knows no such commit.

    Without that variable, the base is the commit where the branch left `origin/main`, or, on that commit itself, the
    one before.
    """
    common = _git(root, "merge-base", "HEAD", "origin/main")
    left_main = common and common != _git(root, "rev-parse", "HEAD")
    base = os.environ.get(BASE) or (common[0] if left_main else "HEAD~1")
    base_commit = _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if not base_commit:
        return None
    untracked = _git(root, "ls-files", "--others", "--exclude-standard")
    return {*untracked, *_git(root, "diff", "--name-only", "--no-renames", *base_commit)}


def _git(root: Path, *arguments: str) -> list[str]:
    """Return the lines that a git command prints; empty if it fails."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    try:
        process = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return process.stdout.splitlines()
