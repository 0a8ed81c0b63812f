"""Which run folders this user made here: a spec is code, and a stranger's folder must not run theirs unasked."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from pathlib import Path

from dpaudit.consent import OWN, Consent, given
from dpaudit.plain_files import write_whole

SPEC = "spec.yaml"


def remember(folder: Path, name: str = SPEC) -> None:
    """Notes, outside the folder, that this user wrote its spec; without a home to write to, nothing is noted.

    Of a folder of somebody else's that was opened by consent nothing is noted: the code it names may change, so the
    next command asks again, and runs that code in a process apart.

    Args:
        folder: The run folder.
        name: Of the spec in it.
    """
    if given().spec is not None:
        return
    note = _note(folder / name)
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(note, lambda file: file.write(_digest(folder / name).encode()))


def consent_for(folder: Path, asked: Consent, name: str = SPEC) -> Consent:
    """What the spec in a folder may do: everything where this user wrote it, else what was consented to.

    Args:
        folder: The run folder.
        asked: What the user consents to.
        name: Of the spec in it.
    """
    return OWN if made_here(folder, name) else replace(asked, spec=folder / name)


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
