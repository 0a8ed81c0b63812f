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


PLACE = _Place()  # a run folder: a path, or the URI of a place anywhere pyarrow.fs reaches

FAIL_ON_VIOLATION = click.option(
    "--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds its claim."
)
_CONSENTS = {
    "code": "The folder's spec may have code imported and run that it names, though you did not make the folder here.",
    "network": "It may have requests sent to addresses it names, with the values of environment variables it names.",
    "files": "It may have files of yours read that it names, outside of its folder.",
}


def allowing(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options by which a verb is told what a folder that somebody else made may do."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for kind in reversed(kinds):
            command = click.option(f"--allow-{kind}", is_flag=True, help=_CONSENTS[kind])(command)
        return command

    return add
