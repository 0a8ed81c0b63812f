"""Outcomes of a fuzzer case: answered, refused with one sentence, or wrong."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import FrameType

from click.testing import CliRunner

from dpaudit.engine.cli.main import main
from dpaudit.engine.estimate import estimating  # noqa: F401, imported before any case is timed
from dpaudit.errors import AuditError

LIMIT_S = 10.0
"""Limit of processor time, which other work on the machine does not affect. `SLEPT_S` limits wall-clock time."""
SLEPT_S = 120.0
LONGEST = 2000
"""Maximum number of characters of a refusal: a sentence that may hold a list of names."""


class End(Enum):
    """Kinds of outcomes; the last four are wrong."""

    ANSWERED = "answered"
    REFUSED = "refused"
    TRACEBACK = "traceback"
    HANG = "hang"
    NONSENSE = "answer to nonsense"
    NO_SENTENCE = "refusal that is no sentence"

    @property
    def wrong(self) -> bool:
        """True if the code under test must never end like this."""
        return self not in (End.ANSWERED, End.REFUSED)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        end: Its kind.
        text: The refusal, the answer or the traceback.
    """

    end: End
    text: str


class _Late(BaseException):
    """Raised when a case takes too long; `except Exception` of the code under test does not catch it."""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def late(signum: int, frame: FrameType | None) -> None:
        raise _Late

    timers = ((signal.SIGALRM, signal.ITIMER_REAL, SLEPT_S), (signal.SIGPROF, signal.ITIMER_PROF, LIMIT_S))
    before = [signal.signal(number, late) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def outcome(case: Callable[[], str], *, nonsense: bool = False) -> Outcome:
    """Run a case that returns a text or raises an `AuditError`.

    Args:
        case: Function to run.
        nonsense: True if any answer is wrong.
    """
    try:
        with _in_time(), contextlib.redirect_stderr(io.StringIO()):
            answer = case()
    except AuditError as err:
        text = str(err)
        sentence = text.strip() and "\n" not in text and len(text) <= LONGEST
        return Outcome(End.REFUSED if sentence else End.NO_SENTENCE, text)
    except _Late:
        return Outcome(End.HANG, traceback.format_exc())
    except Exception:
        return Outcome(End.TRACEBACK, traceback.format_exc())
    return Outcome(End.NONSENSE if nonsense else End.ANSWERED, answer)


def command(arguments: list[str], *, nonsense: bool = False) -> Outcome:
    """Run a command line in this process. Exit codes 0 and 1 are answers; 2 or 3 with one line on stderr are
    refusals."""
    try:
        with _in_time():
            result = CliRunner().invoke(main, arguments)
    except _Late:
        return Outcome(End.HANG, traceback.format_exc())
    if isinstance(result.exception, _Late):
        return Outcome(End.HANG, _lines_of(result.exc_info))
    if "Traceback" in result.stderr or result.exit_code not in (0, 1, 2, 3):
        return Outcome(End.TRACEBACK, result.stderr or _lines_of(result.exc_info))
    if result.exit_code in (0, 1):
        return Outcome(End.NONSENSE if nonsense else End.ANSWERED, result.stdout)
    usage = result.stderr.startswith("Usage:")  # a usage message of click
    sentence = (
        result.stderr.startswith("dpaudit: ") and result.stderr.count("\n") == 1 and len(result.stderr) <= LONGEST
    )
    return Outcome(End.REFUSED if sentence or usage else End.NO_SENTENCE, result.stderr)


def _lines_of(info: object) -> str:
    return "".join(traceback.format_exception(*info)) if isinstance(info, tuple) else str(sys.exc_info())
