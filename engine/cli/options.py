"""Options and arguments that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _PlaceType = click.ParamType[str | Path]
else:
    _PlaceType = click.ParamType  # takes no type in brackets before click 8.4


class _Place(_PlaceType):
    name = "path or uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        return str(value) if "://" in str(value) else Path(value)


PLACE = _Place()  # a run folder: a path, or the URI of a place anywhere pyarrow.fs reaches
