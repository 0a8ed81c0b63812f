"""How a command ends: its exit codes, and a refusal in one sentence."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

FINISHED, VIOLATION, BAD_INPUT, RUN_FAILED = 0, 1, 2, 3


def stop(message: str, code: int) -> NoReturn:
    """Ends the process with one sentence on standard error."""
    click.echo(f"dpaudit: {message}", err=True)
    sys.exit(code)
