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


class CommandExit(SystemExit):
    """The command's own end. Any other `SystemExit` comes from code that it ran."""

    code: int


class EscapingStream(io.TextIOWrapper):
    """A stream on which everything is written out that a terminal would obey; see `printable_lines`."""

    def __init__(self, original: io.TextIOWrapper) -> None:
        # Whatever the terminal cannot show is written out too: no name ends a command by its letters.
        original.reconfigure(errors="backslashreplace")
        original.flush()
        super().__init__(
            original.buffer,
            encoding=original.encoding,
            errors="backslashreplace",
            line_buffering=original.line_buffering,
            write_through=True,  # what is written here and what is written behind comes out in the order it was written
        )
        self.original = original

    def write(self, text: str) -> int:
        super().write(printable_lines(text))
        return len(text)


def install_escaping_streams() -> None:
    """Makes standard output and error doors, for as long as the process lives."""
    sys.stdout, sys.stderr = (
        EscapingStream(stream) if isinstance(stream, io.TextIOWrapper) else stream
        for stream in (sys.stdout, sys.stderr)
    )


def original_stream(stream: TextIO) -> TextIO:
    """The stream behind a door, for what has been made printable and bears styles of our own; another one itself."""
    return stream.original if isinstance(stream, EscapingStream) else stream


def end(code: int) -> NoReturn:
    raise CommandExit(code)


def stop(message: str, code: int) -> NoReturn:
    """Ends the command with one sentence on standard error."""
    tell(f"dpaudit: {printable(message)}")
    end(code)


def tell(text: str) -> None:
    """Prints lines on standard error."""
    click.echo(printable_lines(text), err=True)


def show(line: str, *, bold: str = "") -> None:
    """Prints one line, with bold words before it; a line break in it is no end of it."""
    _print_to_stdout(click.style(printable(bold), bold=True) + printable(line) if bold else printable(line))


def show_lines(text: str, *, ends: bool = True) -> None:
    """Prints a text of several lines, whose values are printable already; without the last line's end if not `ends`."""
    _print_to_stdout(printable_lines(text), ends=ends)


def _print_to_stdout(text: str, *, ends: bool = True) -> None:
    """A reader who has gone away, such as `head`, changes neither the work nor the exit code."""
    try:
        click.echo(text, file=original_stream(sys.stdout), nl=ends)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Lets what is still to be printed go nowhere."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)
