"""Types and parsers of command-line options."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from dpaudit.errors import InputError, RunError, SpecError, shortened
from dpaudit.plain_files import require_writable

if TYPE_CHECKING:
    _PlaceType = click.ParamType[str | Path]
else:
    _PlaceType = click.ParamType  # not generic before click 8.4


class _Place(_PlaceType):
    name = "path or uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        return str(value) if "://" in str(value) else Path(value)


class _OutputFile(click.Path):
    """A file to write; refused before the work whose answer it will hold if it cannot be written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        try:
            require_writable(Path(value))
        except RunError as err:  # the option is wrong: no run has failed
            raise InputError(str(err)) from err
        return Path(value)


OUTPUT_FILE = _OutputFile(path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
PLACE = _Place()  # a run folder: a path, or a URI that pyarrow.fs can open


def completing(names: Callable[[], Iterable[tuple[str, str]]]) -> Callable[..., list[CompletionItem]]:
    """Return a shell completion by names, each with its summary."""
    return lambda ctx, parameter, prefix: [
        CompletionItem(name, help=summary or None) for name, summary in names() if name.startswith(prefix)
    ]


def parse_schema(text: str) -> Mapping[str, Any]:
    """Return the schema in `text`, a YAML mapping or the path of a YAML file.

    Raises: SpecError if there is no mapping.
    """
    from dpaudit.engine.request.plain_yaml import parse_yaml_argument

    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except UnicodeDecodeError as err:
            raise SpecError(f"--schema must be a file in UTF-8, {shortened(text)} is not; save it as UTF-8") from err
        except OSError as err:
            raise SpecError(f"--schema must be a mapping such as '{{age: [0, 100]}}' or a YAML file: {err}") from err
    schema = parse_yaml_argument(text)
    if not isinstance(schema, Mapping):
        raise SpecError(f"a schema must be a mapping such as {{age: [0, 100], sex: [f, m]}}, got {shortened(schema)}")
    return schema


def parse_settings(text: str) -> dict[str, list[Any]]:
    """Return the values to try by setting, from text such as "bounds_X=(0,1);fit_intercept=true,false".

    Raises: SpecError for other text.
    """
    settings: dict[str, list[Any]] = {}
    for part in filter(str.strip, text.split(";")):
        name, sign, values = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise SpecError(f"settings must be like 'bounds=(0,1);fit_intercept=true,false', got {shortened(part)!r}")
        settings[name.strip()] = [_parse_value(value) for value in _split_at_commas(values)]
    return settings


def _split_at_commas(values: str) -> list[str]:
    """Split at the commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in values:
        quote = ("" if letter == quote else quote) if quote else (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _parse_value(text: str) -> Any:
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    text = text.strip()
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
