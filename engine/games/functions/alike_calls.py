"""The note of a unit whose calls had equal results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from dpaudit.engine.games.outcomes import MAX_NUMBER
from dpaudit.mechanisms.queries.row_function import ALIKE, CallOutcome


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
