"""Which run folders this user made here: a spec is code, and a stranger's folder must not run theirs unasked."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpaudit.engine.report.whole import write_whole
from dpaudit.errors import SpecError, shortened

_LOCATION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


SPEC = "spec.yaml"


def remember(folder: Path, name: str = SPEC) -> None:
    """Notes, outside the folder, that this user wrote its spec; without a home to write to, nothing is noted.

    Args:
        folder: The run folder.
        name: Of the spec in it.
    """
    note = _note(folder / name)
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(note, lambda file: file.write(_digest(folder / name).encode()))


def require_own(folder: Path, content: Any, name: str = SPEC) -> None:
    """Refuses a folder whose spec names code outside the installed packages, unless this user wrote that very spec.

    Args:
        folder: The run folder.
        content: Its spec as plain values.
        name: Of the spec in it.
    Raises: SpecError.
    """
    codes = sorted(code for code in set(_locations(content)) if not _installed(code))
    if codes and not made_here(folder, name):
        raise SpecError(
            f"{folder}/{name} names code of its own ({shortened(', '.join(codes))}), and you did not make this "
            "folder here; look at that code, then add --allow-code"
        )


def made_here(folder: Path, name: str = SPEC) -> bool:
    """Whether this user wrote the very spec that is in a folder."""
    try:
        return _note(folder / name).read_text(encoding="ascii") == _digest(folder / name)
    except (OSError, ValueError):
        return False


def _note(spec: Path) -> Path:
    """Where a spec is noted; that of a run folder under the folder's own name."""
    path = spec.parent if spec.name == SPEC else spec
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    return state / "dpaudit" / "folders" / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()


def _digest(spec: Path) -> str:
    return hashlib.sha256(spec.read_bytes()).hexdigest()


def _locations(content: Any) -> Iterator[str]:
    """Every text in a spec that reads like `module:name`."""
    if isinstance(content, dict):
        for value in content.values():
            yield from _locations(value)
    elif isinstance(content, list):
        for value in content:
            yield from _locations(value)
    elif isinstance(content, str) and _LOCATION.fullmatch(content):
        yield content


def _installed(location: str) -> bool:
    """Whether its module is Python's or an installed package's; nothing is imported to tell."""
    package = location.partition(":")[0].partition(".")[0]
    if package in sys.builtin_module_names or package == "dpaudit":
        return True
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    places = [] if found is None else [*(found.submodule_search_locations or []), found.origin or ""]
    roots = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    return bool(places) and any(Path(place).resolve().is_relative_to(root) for place in places for root in roots)
