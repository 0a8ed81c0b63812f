"""What a command prints and how it ends: its exit codes, a refusal in one sentence, and the door to the terminal.

What is printed may be a stranger's, and a terminal obeys what it is sent. Nothing but this file prints, and whatever
reaches the command's streams past it (warnings, tracebacks, prints of audited code) goes through `Door`.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn, TextIO

import click

from dpaudit.errors import printable, printable_lines

FINISHED, VIOLATION, BAD_INPUT, RUN_FAILED, INCONCLUSIVE = 0, 1, 2, 3, 4


class Ended(SystemExit):
    """The command's own end. Any other `SystemExit` comes from code that it ran."""

    code: int


class Door(io.TextIOWrapper):
    """A stream on which everything is written out that a terminal would obey; see `printable_lines`."""

    def __init__(self, behind: io.TextIOWrapper) -> None:
        # Whatever the terminal cannot show is written out too: no name ends a command by its letters.
        behind.reconfigure(errors="backslashreplace")
        behind.flush()
        super().__init__(
            behind.buffer,
            encoding=behind.encoding,
            errors="backslashreplace",
            line_buffering=behind.line_buffering,
            write_through=True,  # what is written here and what is written behind comes out in the order it was written
        )
        self.behind = behind

    def write(self, text: str) -> int:
        super().write(printable_lines(text))
        return len(text)


def put_doors() -> None:
    """Makes standard output and error doors, for as long as the process lives."""
    sys.stdout, sys.stderr = (
        Door(stream) if isinstance(stream, io.TextIOWrapper) else stream for stream in (sys.stdout, sys.stderr)
    )


def behind(stream: TextIO) -> TextIO:
    """The stream behind a door, for what has been made printable and bears styles of our own; another one itself."""
    return stream.behind if isinstance(stream, Door) else stream


def end(code: int) -> NoReturn:
    raise Ended(code)


def stop(message: str, code: int) -> NoReturn:
    """Ends the command with one sentence on standard error."""
    tell(f"dpaudit: {printable(message)}")
    end(code)


def tell(text: str) -> None:
    """Prints lines on standard error."""
    click.echo(printable_lines(text), err=True)


def show(line: str, *, bold: str = "") -> None:
    """Prints one line, with bold words before it; a line break in it is no end of it."""
    _print(click.style(printable(bold), bold=True) + printable(line) if bold else printable(line))


def show_lines(text: str, *, ends: bool = True) -> None:
    """Prints a text of several lines, whose values are printable already; without the last line's end if not `ends`."""
    _print(printable_lines(text), ends=ends)


def _print(text: str, *, ends: bool = True) -> None:
    """A reader who has gone away, such as `head`, changes neither the work nor the exit code."""
    try:
        click.echo(text, file=behind(sys.stdout), nl=ends)
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Lets what is still to be printed go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
