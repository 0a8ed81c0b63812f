"""What a folder that somebody else made may do, as options of the verbs that open one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

code = click.option(
    "--allow-code",
    is_flag=True,
    help="The folder's spec may have code imported and run that it names, though you did not make the folder here.",
)
network = click.option(
    "--allow-network",
    is_flag=True,
    help="It may have requests sent to addresses it names, with the values of environment variables it names.",
)
files = click.option(
    "--allow-files", is_flag=True, help="It may have files of yours read that it names, outside of its folder."
)


def to_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a verb that runs what is in a folder."""
    return code(network(files(command)))


def to_read(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a verb that runs nothing."""
    return code(files(command))
