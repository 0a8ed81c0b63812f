"""Notes of submitted jobs: `dpaudit submit` writes them, `dpaudit status` reads them on the same machine."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from dpaudit.plain_files import is_remote, note_path, read_bytes, write_atomically


@dataclass(frozen=True)
class Submission:
    """A job that was submitted."""

    job: str  # its name
    address: str  # dashboard of its cluster


def note_submission(place: str | Path, submission: Submission) -> None:
    """Write a note, outside the run folder, of the job that fills it; do nothing if the home cannot be written."""
    note = _note_of(place)
    content = json.dumps({"job": submission.job, "address": submission.address}).encode()
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(note, lambda file: file.write(content))


def submission_of(place: str | Path) -> Submission | None:
    """Return the job that was last submitted from this machine to write `place`; None if there is none."""
    try:
        noted = json.loads(read_bytes(_note_of(place)))
        return Submission(str(noted["job"]), str(noted["address"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note_of(place: str | Path) -> Path:
    return note_path("submissions", str(place).rstrip("/") if is_remote(place) else os.path.abspath(place))
