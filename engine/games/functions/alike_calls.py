"""Calls with equal results: whether anything that was not read differs between them.

Equal results show no leak, and no leak would show in them. If some part of the results, the printed
text or the files was not read and differs, nothing is known about the claim.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from dpaudit.engine.games.outcomes import MAX_NUMBER
from dpaudit.mechanisms.queries.row_function import UNKNOWN, CallOutcome

ALIKE = "all results are equal: "
"""Prefix of the note of a unit whose calls all had the same result."""


def alike_note(outcomes: Sequence[CallOutcome]) -> tuple[str, ...]:
    """Return the note on calls that all have the same ending and numbers, in single precision; () for others."""
    numbers = (outcome.numbers.clip(-MAX_NUMBER, MAX_NUMBER).astype("f4") for outcome in outcomes)
    kinds = {(outcome.ending, values.tobytes()) for outcome, values in zip(outcomes, numbers, strict=True)}
    if len(kinds) != 1:
        return ()
    ending, content = kinds.pop()
    parts = [dict(outcome.unread) for outcome in outcomes]
    names = sorted(set().union(*parts))
    unread = {what: sorted({part.get(what, "") for part in parts})[:2] for what in names}  # two show a difference
    digest = hashlib.sha256(ending.encode("utf-8", "backslashreplace") + content).hexdigest()
    return (ALIKE + json.dumps({"result": digest, "unread": unread}),)


def differing_parts(notes: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """Return the unread parts that differ or may differ, from the notes of each unit; None if results differ."""
    alike = [json.loads(note.removeprefix(ALIKE)) for unit in notes for note in unit if note.startswith(ALIKE)]
    if not alike or len(alike) != len(notes) or len({unit["result"] for unit in alike}) > 1:
        return None
    whats = dict.fromkeys(what for unit in alike for what in unit["unread"])
    checksums = {what: {each for unit in alike for each in unit["unread"].get(what, [""])} for what in whats}
    return tuple(what for what, different in checksums.items() if len(different) > 1 or UNKNOWN in different)
