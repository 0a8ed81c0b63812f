"""Exit codes, errors and printed output of the command line: lines on the terminal, and values in JSON.

Printed text may come from audited code, and a terminal obeys control characters. The command prints through this file
only. Warnings, tracebacks and prints of audited code reach the streams directly, so `EscapingStream` escapes them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TextIO

import click

from dpaudit.errors import (
    AuditError,
    DataError,
    InputError,
    SpecError,
    UnknownNameError,
    did_you_mean,
    printable,
    printable_lines,
    shortened,
)
from dpaudit.installation import require_one_distribution, without_library

FINISHED, VIOLATION, BAD_INPUT, RUN_FAILED, INCONCLUSIVE = 0, 1, 2, 3, 4


class CommandExit(SystemExit):
    """Raised by dpaudit to exit. Any other `SystemExit` comes from audited code."""

    code: int


class EscapingStream(io.TextIOWrapper):
    """A stream that escapes control characters; see `printable_lines`."""

    def __init__(self, original: io.TextIOWrapper) -> None:
        # Characters that the terminal's encoding lacks are escaped too, so that no name ends the command.
        original.reconfigure(errors="backslashreplace")
        original.flush()
        super().__init__(
            original.buffer,
            encoding=original.encoding,
            errors="backslashreplace",
            line_buffering=original.line_buffering,
            write_through=True,  # keeps the order of texts written to this stream and to the original
        )
        self.original = original

    def write(self, text: str) -> int:
        super().write(printable_lines(text))
        return len(text)


def install_escaping_streams() -> None:
    """Make standard output and standard error escape control characters until the process ends."""
    sys.stdout, sys.stderr = (
        EscapingStream(stream) if isinstance(stream, io.TextIOWrapper) else stream
        for stream in (sys.stdout, sys.stderr)
    )


def original_stream(stream: TextIO) -> TextIO:
    """Return the stream below an `EscapingStream`, for text that is escaped already and styled; else `stream`."""
    return stream.original if isinstance(stream, EscapingStream) else stream


def end(code: int) -> NoReturn:
    raise CommandExit(code)


def stop(message: str, code: int) -> NoReturn:
    """Print a message on standard error and exit."""
    tell(f"dpaudit: {printable(message)}")
    end(code)


def tell(text: str) -> None:
    """Print lines on standard error."""
    click.echo(printable_lines(text), err=True)


def show(text: str, *, bold: str = "") -> None:
    """Print `text` on one line after a bold prefix; line breaks in `text` are escaped."""
    _print_to_stdout(click.style(printable(bold), bold=True) + printable(text) if bold else printable(text))


def show_lines(text: str, *, newline: bool = True) -> None:
    """Print lines, and a line break after them if `newline`."""
    _print_to_stdout(printable_lines(text), newline=newline)


def _print_to_stdout(text: str, *, newline: bool = True) -> None:
    """Print text. A reader that has closed the pipe, such as `head`, changes neither the work nor the exit code."""
    try:
        click.echo(text, file=original_stream(sys.stdout), nl=newline)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Send all further output to the null device."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


def in_json(value: Any) -> str:
    """Return a value in JSON, by its `to_dict` or its fields; infinite numbers and NaN are strings."""
    return json.dumps(plain_values(value), indent=1, allow_nan=False)


def plain_values(value: Any) -> Any:
    """Return numbers, booleans, text, lists and mappings with text keys; objects by their `to_dict`, else by fields."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if hasattr(value, "to_dict"):
        return plain_values(value.to_dict())
    if dataclasses.is_dataclass(value):
        return attributes(value, (field.name for field in dataclasses.fields(value)))
    return value


def attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return some of an object's attributes as plain values, by name."""
    return {name: plain_values(getattr(value, name)) for name in names}


def end_by_verdict(
    *, rejected: bool, inconclusive: bool, fail_on_violation: bool, fail_on_inconclusive: bool = False
) -> None:
    """Exit with 1 or 4 if a verdict and the option for it call for that; else return."""
    if fail_on_violation and rejected:
        end(VIOLATION)
    if fail_on_inconclusive and inconclusive:
        end(INCONCLUSIVE)


class CommandGroup(click.Group):
    """Turns every error into a message and an exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:  # the reader of the help text has closed the pipe
            discard_output()
            end(FINISHED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            verbs = self.list_commands(ctx)
            raise UnknownNameError(
                f"the command must be one of {', '.join(verbs)}, got {args[0]!r}{did_you_mean(args[0], verbs)}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            require_one_distribution()
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            end(FINISHED)
        except (InputError, SpecError, DataError, UnknownNameError) as err:
            stop(str(err), BAD_INPUT)
        except AuditError as err:
            stop(str(err), RUN_FAILED)
        except (CommandExit, click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SystemExit as err:  # for example from an imported module
            stop(f"audited or imported code ended the program (sys.exit({err.code!r})): no result", RUN_FAILED)
        except OSError as err:  # for example a full disk, a read-only folder or a name that is too long
            where = f"{shortened(err.filename)}: " if err.filename else ""
            stop(f"{where}{err.strerror or shortened(err)}", RUN_FAILED)
        except Exception as err:  # must not exit with 1, the code of a violation
            if isinstance(err, ModuleNotFoundError) and (error := without_library(err)):
                stop(str(error), RUN_FAILED)
            tell(traceback.format_exc())
            stop("unexpected error, see the traceback above", RUN_FAILED)
        except KeyboardInterrupt:
            stop("interrupted", RUN_FAILED)
