"""Options and arguments that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


class _Place(click.ParamType[str | Path]):
    name = "path or uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        return str(value) if "://" in str(value) else Path(value)


PLACE = _Place()
"""A run folder: a path, or the URI of a place anywhere pyarrow.fs reaches."""

FAIL_ON_VIOLATION = click.option(
    "--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds its claim."
)
_code = click.option(
    "--allow-code",
    is_flag=True,
    help="The folder's spec may have code imported and run that it names, though you did not make the folder here.",
)
_network = click.option(
    "--allow-network",
    is_flag=True,
    help="It may have requests sent to addresses it names, with the values of environment variables it names.",
)
_files = click.option(
    "--allow-files", is_flag=True, help="It may have files of yours read that it names, outside of its folder."
)


def consent_to_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a folder that somebody else made may do, for a verb that runs what is in it."""
    return _code(_network(_files(command)))


def consent_to_read(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a verb that runs nothing."""
    return _code(_files(command))
