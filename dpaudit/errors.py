"""The one error tree, and `require`, the one way to refuse bad input.

Every message is a sentence: what must hold, what was given, what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches


class AuditError(Exception):
    """Anything dpaudit refuses or could not do; catch this to catch them all.

    The sentence is one line: a name in it may hold a line break, or bytes that a terminal obeys.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class InputError(AuditError, ValueError):
    """An argument of a function or a field of a value is out of its range."""


class SpecError(AuditError):
    """An audit specification does not describe an audit; names the field."""


class DataError(AuditError):
    """A data file is missing or not of its format; names the file, line and column."""


class UnknownNameError(AuditError, LookupError):
    """A name is not registered; lists the names that are."""


class RunError(AuditError):
    """A run could not be carried out or read back; what was finished is kept."""


def require(condition: bool, must: str, /, *, do: str = "", **given: object) -> None:
    """Raises `InputError` unless `condition` holds.

    Args:
        condition: What must hold.
        must: The rule as a sentence without full stop: "delta must be in [0, 1)".
        do: What the caller can do about it, optional: "threshold the scores first".
        given: What was given, by name; shown in the message.
    """
    if not condition:
        raise InputError(sentence(must, do=do, **given))


def sentence(must: str, /, *, do: str = "", **given: object) -> str:
    """One sentence: the rule, what was given, what to do."""
    shown = [shortened(repr(value) if isinstance(value, str) else value) for value in given.values()]
    if len(shown) == 1:
        must = f"{must}, got {shown[0]}"
    elif shown:
        must = f"{must}, got " + ", ".join(f"{name} = {value}" for name, value in zip(given, shown, strict=True))
    return f"{must}; {do}" if do else must


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """The end of a sentence that proposes the known name nearest to an unknown one; "" where none is near."""
    near = get_close_matches(given, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shortened(value: object, most: int = 120) -> str:
    """A value as text of at most `most` characters in one line, for messages."""
    try:
        text = str(value)
    except ValueError:  # Python writes out no integer of more than 4,300 digits
        return f"a number of more than {sys.get_int_max_str_digits()} digits"
    except Exception:  # a class of somebody's own may raise anything
        return f"an object of {type(value).__name__}"
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "..."


def printable(text: str) -> str:
    """A text in one line, its line breaks and what a terminal would obey written out."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
