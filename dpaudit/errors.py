"""Exceptions of dpaudit, the argument check `require`, and escaping of text for messages.

A message says what must hold, then the value, then what to do.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from traceback import walk_tb
from types import TracebackType
from typing import ParamSpec, TypeVar

MAX_MARKS = 4  # combining marks on one character; no language needs more, and many of them cover neighbouring lines
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U0001d159")
"""Characters that `str.isprintable` accepts but terminals show as blank, without variation selectors."""
_NOT_PRINTABLE_ASCII = re.compile("[^ -~]+")


class AuditError(Exception):
    """Base class of all exceptions of dpaudit.

    The message is one line of printable characters: names, paths and other errors in it may hold terminal escapes.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class InputError(AuditError, ValueError):
    """An argument of a function or a field of a value is out of range."""


class PathExistsError(InputError, FileExistsError):
    """A file that would be written exists already."""


class SpecError(AuditError):
    """An audit specification is invalid; the message names the field."""


class DataError(AuditError):
    """A data file is missing or malformed; the message names the file, line and column."""


class UnknownNameError(AuditError, LookupError):
    """A name is not registered; the message lists the registered names."""


class FormerNameError(UnknownNameError):
    """A name was registered in an earlier dpaudit; the message says what became of it."""


class VerdictError(AuditError, AssertionError):
    """An audit did not pass; the message is the printed verdict, on several lines."""

    def __init__(self, message: str = "") -> None:
        Exception.__init__(self, printable_lines(message))


class RunError(AuditError):
    """A run could not be executed or loaded; finished results are kept."""


def require(condition: bool, must: str, /, *, do: str = "", **values: object) -> None:
    """Raise `InputError` unless `condition` holds.

    Args:
        must: The rule as a sentence without full stop: "delta must be in [0, 1)".
        do: Advice for the caller: "threshold the scores first".
        values: Values that break the rule, by name; the message shows them.
    """
    if condition:
        return
    texts = [shortened(repr(value) if isinstance(value, str) else value) for value in values.values()]
    if len(texts) == 1:
        must = f"{must}, got {texts[0]}"
    elif texts:
        must = f"{must}, got " + ", ".join(f"{name} = {value}" for name, value in zip(values, texts, strict=True))
    raise InputError(f"{must}; {do}" if do else must)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the registered name nearest to `name`, or "" if none is near."""
    by_lower = {each.lower(): each for each in names}
    matches = [by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=1)]
    return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the `count` names that are most like `name`, the nearest first; fewer if there are fewer names."""
    return get_close_matches(name, list(names), n=count, cutoff=0.0)


def shortened(value: object, max_length: int = 120) -> str:
    """Return `value` as one line of at most `max_length` printable characters."""
    try:
        text = str(value)
    except ValueError:  # Python formats no integer of more than 4,300 digits
        return f"a number of more than {sys.get_int_max_str_digits()} digits"
    except Exception:  # `__str__` of a user's class may raise anything
        return f"an object of {type(value).__name__}"
    text = printable(text[: max_length + 1])
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


CODE_ERRORS = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "AttributeError", "TypeError")
"""Exceptions of code that is wrong for all data."""
_ERROR_OF_CODE = re.compile(
    r"\b(?!(?:Run|Training|Input|Spec|Data)Error)\w+(?:Error|Exception): .*?(?:\(line \d+ of [^()]*\)|$)"
)


def with_line(message: str, frames: Iterable[tuple[str, int]]) -> str:
    """Return a message with the last frame, (file, line), outside dpaudit, Python and installed packages."""
    not_users = tuple(os.path.join(os.path.dirname(file), "") for file in (__file__, os.__file__))
    lines = [
        f" (line {line} of {os.path.basename(file)})"
        for file, line in frames
        if not file.startswith(not_users) and "-packages" not in file and file[:1] != "<"
    ]
    return message + lines[-1] if lines and " (line " not in message else message


def described(err: BaseException) -> str:
    """Return class, message and line of an exception of audited code."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_tb(root_cause(err).__traceback__))
    return with_line(f"{type(err).__name__}: {shortened(err)}", frames)


def root_cause(err: BaseException) -> BaseException:
    """Return the exception that an exception was first raised from; itself if there is none."""
    while err.__cause__ is not None:
        err = err.__cause__
    return err


def error_of_code(message: str) -> str:
    """Return the first error of audited code in a message, as `described`; "" without one."""
    match = _ERROR_OF_CODE.search(message)
    return match[0] if match else ""


def printable(text: str) -> str:
    """Return `text` with invisible characters and terminal controls escaped, so that it stays on one line.

    Characters that `str.isprintable` accepts stay, except blank ones and more than `MAX_MARKS` combining marks on one
    character. Escaped are thus controls, changes of text direction, surrogates, private characters, and spaces but " ".
    """
    return text if text.isascii() and text.isprintable() else _NOT_PRINTABLE_ASCII.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Escape `text` like `printable`, but keep line breaks and tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    characters, marks = [], 0
    for character in match.group():
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        code = ord(character)
        is_variation_selector = 0x180B <= code <= 0x180F or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
        visible = character.isprintable() and character not in _INVISIBLE and not is_variation_selector
        if visible and marks <= MAX_MARKS:
            characters.append(character)
        else:  # Python's escape, but four digits from 0x7F on: JSON knows no \xNN
            characters.append(f"\\u{code:04x}" if 0x7F <= code <= 0xFF else ascii(character)[1:-1])
    return "".join(characters)


FULL_TRACEBACK_VARIABLE = "DPAUDIT_TRACEBACK"
"""Environment variable; 1 shows full tracebacks."""

P = ParamSpec("P")
T = TypeVar("T")


def short_tracebacks(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with short tracebacks: an `AuditError` leaves it without the frames of dpaudit.

    Type, attributes and cause of the error stay. Other exceptions, and all exceptions if the environment variable
    DPAUDIT_TRACEBACK is 1, keep every frame.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for pytest
        try:
            return function(*args, **kwargs)
        except AuditError as err:
            if os.environ.get(FULL_TRACEBACK_VARIABLE) != "1":
                drop_own_frames(err)
            raise

    return call


def drop_own_frames(error: BaseException) -> None:
    """Remove the frames of dpaudit from the tracebacks of `error` and its causes."""
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        trace = link.__traceback__
        frames = []
        while trace is not None:
            module = str(trace.tb_frame.f_globals.get("__name__", ""))
            # Context managers and cached properties of dpaudit have frames of contextlib and functools.
            if module.partition(".")[0] not in ("dpaudit", "contextlib", "functools"):
                frames.append(trace)
            trace = trace.tb_next
        chain: TracebackType | None = None
        for frame in reversed(frames):
            chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        link.__traceback__ = chain
        link = link.__cause__ or link.__context__
