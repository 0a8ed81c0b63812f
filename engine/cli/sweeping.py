"""`dpaudit sweep`: many configurations of one audit, and which of them is best for what is known of its epsilon."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.engine.cli.options import FAIL_ON_VIOLATION, PLACE, allowing
from dpaudit.engine.exits import BAD_INPUT, RUN_FAILED, VIOLATION, end, interrupted, show_lines, stop

if TYPE_CHECKING:
    from dpaudit.engine.sweep.result import SweepResult


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option("--restore", type=PLACE, metavar="DIR", help="Go on with the sweep in this folder, a path or a URI.")
@click.option("--output", "-o", type=PLACE, help="Folder, a path or a URI; left out: runs/<name>.")
@click.option("--seed", type=int, help="Instead of the spec's seed.")
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
@allowing("code", "network", "files")
@FAIL_ON_VIOLATION
def sweep(
    spec: Path | None,
    restore: str | Path | None,
    output: str | Path | None,
    seed: int | None,
    quiet: bool,
    fail_on_violation: bool,
    **allowed: bool,
) -> None:
    """Trains and audits every configuration of SPEC (YAML with `grid` or `sweep`), side by side.

    Says which is most useful, and what is known of its epsilon: all bounds hold together with the stated confidence. A
    folder that holds this sweep is continued; nothing that is finished is run again.
    """
    from dpaudit.engine.sweep import running

    if (spec is None) == (restore is None) or (restore is not None and (output is not None or seed is not None)):
        stop("give SPEC, or --restore DIR alone", BAD_INPUT)
    if restore is not None:
        go_on(restore, allowed, quiet=quiet, fail_on_violation=fail_on_violation)
        return
    assert spec is not None
    folder = output or running.read_request(spec).folder
    try:
        found = running.sweep(spec, output=folder, seed=seed, quiet=quiet)
    except KeyboardInterrupt as err:
        interrupted(err, f"dpaudit sweep --restore {shlex.quote(str(folder))}")
    _end(found, fail_on_violation=fail_on_violation)


def go_on(folder: str | Path, allowed: Mapping[str, Any], *, quiet: bool, fail_on_violation: bool) -> None:
    """Goes on with the sweep in a folder, with what is consented to, and ends with the stated exit code."""
    from dpaudit.engine.sweep.running import restore_sweep

    try:
        found = restore_sweep(folder, **allowed, quiet=quiet)
    except KeyboardInterrupt as err:
        interrupted(err, f"dpaudit sweep --restore {shlex.quote(str(folder))}")
    _end(found, fail_on_violation=fail_on_violation)


def _end(found: SweepResult, *, fail_on_violation: bool) -> None:
    show_lines(str(found))
    if found.errors:
        stop(f"{found.num_errors} of {len(found)} configurations failed: {found.errors[0]}", RUN_FAILED)
    if fail_on_violation and (found.report.violations or found.report.undecided):
        end(VIOLATION)
