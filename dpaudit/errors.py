"""The one error tree, and `require`, the one way to refuse bad input.

Every message is a sentence: what must hold, what was given, what to do.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

MAX_MARKS = 4  # that may stand on one sign: no language needs more, and a flood of them covers the lines around it
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U0001d159")
"""What Python takes for printable though nothing is seen of it; variation selectors are the rest of these."""
_OTHER = re.compile("[^ -~]+")


class AuditError(Exception):
    """Anything dpaudit refuses or could not do; catch this to catch them all.

    Its message is one line: names, paths and other people's errors in it may hold what a terminal obeys.
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


class VerdictError(AuditError, AssertionError):
    """An audit ended in a verdict that is no pass; its message is the printed answer, of several lines."""

    def __init__(self, message: str = "") -> None:
        Exception.__init__(self, printable_lines(message))


class RunError(AuditError):
    """A run could not be carried out or read back; what was finished is kept."""


def require(condition: bool, must: str, /, *, do: str = "", **given: object) -> None:
    """Raises `InputError` unless `condition` holds.

    Args:
        must: The rule as a sentence without full stop: "delta must be in [0, 1)".
        do: What the caller can do about it: "threshold the scores first".
        given: What was given, by name; shown in the message.
    """
    if condition:
        return
    shown = [shortened(repr(value) if isinstance(value, str) else value) for value in given.values()]
    if len(shown) == 1:
        must = f"{must}, got {shown[0]}"
    elif shown:
        must = f"{must}, got " + ", ".join(f"{name} = {value}" for name, value in zip(given, shown, strict=True))
    raise InputError(f"{must}; {do}" if do else must)


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
    """A text in one line that looks like what it is: what a terminal obeys, and what is not seen, is written out.

    Shown as they are: signs that Python calls printable (no control characters, signs that turn the direction of text,
    unseen ones, halves of a sign, private ones, spaces but " ") but blank ones, and up to four marks on one sign.
    """
    return text if text.isascii() and text.isprintable() else _OTHER.sub(_written_out, text)


def printable_lines(text: str) -> str:
    """A text of several lines, each as `printable` shows it; line breaks and tabs stay."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _written_out(found: re.Match[str]) -> str:
    shown, marks = [], 0
    for sign in found.group():
        marks = marks + 1 if unicodedata.category(sign) in ("Mn", "Me") else 0
        seen = sign.isprintable() and sign not in _BLANKS and not _is_variation_selector(ord(sign))
        if seen and marks <= MAX_MARKS:
            shown.append(sign)
        else:  # as Python writes it; from 0x7F on with four digits, so that JSON stays JSON
            shown.append(f"\\u{ord(sign):04x}" if 0x7F <= ord(sign) <= 0xFF else ascii(sign)[1:-1])
    return "".join(shown)


def _is_variation_selector(code: int) -> bool:
    return 0x180B <= code <= 0x180F or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
