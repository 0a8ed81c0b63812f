"""What a command prints and how it ends: its exit codes, and a refusal in one sentence."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

FINISHED, VIOLATION, BAD_INPUT, RUN_FAILED, INCONCLUSIVE = 0, 1, 2, 3, 4


class Ended(SystemExit):
    """The command's own end. Any other `SystemExit` comes from code that it ran."""

    code: int


def end(code: int) -> NoReturn:
    """Ends the command with an exit code."""
    raise Ended(code)


def stop(message: str, code: int) -> NoReturn:
    """Ends the command with one sentence on standard error."""
    click.echo(f"dpaudit: {message}", err=True)
    end(code)


def show(text: str) -> None:
    """Prints a line. A reader who has gone away, such as `head`, changes neither the work nor the exit code."""
    try:
        click.echo(text)
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Lets what is still to be printed go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
