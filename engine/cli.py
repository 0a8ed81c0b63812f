"""The command line. Heavy libraries are imported by the verb that needs them: `--help` and `list` answer at once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

import dpaudit
from dpaudit.engine.commands.exits import BAD_INPUT, RUN_FAILED, VIOLATION, stop
from dpaudit.engine.commands.own_scores import estimate
from dpaudit.errors import AuditError, DataError, InputError, RunError, SpecError, UnknownNameError


class _Verbs(click.Group):
    """Turns every refusal into one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (InputError, SpecError, DataError, UnknownNameError) as err:
            stop(str(err), BAD_INPUT)
        except (RunError, AuditError) as err:
            stop(str(err), RUN_FAILED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:  # never with the exit code of a violation
            click.echo(traceback.format_exc(), err=True)
            stop("this error is not foreseen; the lines above say where it happened", RUN_FAILED)
        except KeyboardInterrupt:
            stop("interrupted; what was finished is kept, `dpaudit resume RUN` goes on", RUN_FAILED)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(dpaudit.__version__, prog_name="dpaudit")
def main() -> None:
    """Measures, by experiment, how much a machine-learning system really leaks.

    Exit codes: 0 the run finished, 1 a violation was found (with --fail-on-violation), 2 bad input, 3 the run failed.
    """
    # One's own mechanism, named `module:Class` in a spec, lies in the folder one works in more often than not.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _run_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds its claim."),
        click.option("--quiet", is_flag=True, help="No progress, only the report."),
    ):
        command = option(command)
    return command


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Run folder; left out: runs/<name>.")
@click.option("--seed", type=int, help="Instead of the spec's seed.")
@_run_options
def run(spec: Path, output: Path | None, seed: int | None, fail_on_violation: bool, quiet: bool) -> None:
    """Runs the audits of SPEC (YAML) and reports what they show.

    A run folder that holds finished units of the same work is continued.
    """
    _audit(spec, output, seed, fail_on_violation, quiet)


@main.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@_run_options
def resume(folder: Path, fail_on_violation: bool, quiet: bool) -> None:
    """Goes on with the run in folder RUN: only what is missing is run."""
    from dpaudit.engine.driver import read_spec

    _audit(read_spec(folder), folder, None, fail_on_violation, quiet)


def _audit(spec: Any, output: Path | None, seed: int | None, fail_on_violation: bool, quiet: bool) -> None:
    from dpaudit.engine.driver import audit

    report = audit(spec, output=output, seed=seed, quiet=quiet)
    click.echo(str(report))
    if report.failed:
        sys.exit(RUN_FAILED)
    if fail_on_violation and report.violations:
        sys.exit(VIOLATION)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="Instead of the spec's seed.")
def plan(spec: Path, seed: int | None) -> None:
    """Prints every unit SPEC leads to, with its seed and resources; nothing runs."""
    from dataclasses import replace

    from dpaudit.engine.plan import make_plan
    from dpaudit.engine.spec.audit_spec import load_spec

    made = load_spec(spec)
    planned = make_plan(replace(made, seed=seed) if seed is not None else made)
    click.echo(f"{planned.spec.name}: {len(planned.units)} units, seed {planned.spec.seed}, {planned.spec.run.runner}")
    for row in planned.table().to_pylist():
        needs = f"  needs {' '.join(need[:8] for need in row['needs'])}" if row["needs"] else ""
        seed_of = f"  seed {row['seed']}" if row["seed"] else ""
        click.echo(f"{row['key'][:8]}  {row['label']:<34} {row['cpus']} CPU {row['gpus']:g} GPU{seed_of}{needs}")


@main.command(name="list")
@click.argument("kind", required=False)
def list_(kind: str | None) -> None:
    """Lists mechanisms, models, games, attacks, proxies, estimators, data sets and reproductions.

    KIND narrows it: `dpaudit list estimators`, which shows the functions they are made of as well.
    """
    from dpaudit.registry import PACKAGES, catalogue, functions, plural

    kinds = {plural(name): name for name in PACKAGES}
    if kind is not None and kind not in kinds:
        raise InputError(f"KIND must be one of {', '.join(kinds)}, got {kind!r}")
    for title, name in kinds.items():
        if kind in (None, title):
            click.secho(title, bold=True)
            for entry in catalogue(name).values():
                click.echo(f"  {entry.name:<28} {entry.summary}")
                if kind is not None:
                    click.echo(f"  {'':<28} [{entry.source}]")
    if kind == "estimators":
        click.secho("functions and types (in Python: from dpaudit.estimators.MODULE import NAME)", bold=True)
        for part in functions():
            click.echo(f"  {part.module + '.' + part.name:<40} {part.summary}")


@main.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds its claim.")
def report(folder: Path, fail_on_violation: bool) -> None:
    """Writes and prints the report of the run in folder RUN anew, from what is finished there; nothing runs."""
    from dpaudit.engine.driver import report_again

    again = report_again(folder)
    click.echo(str(again))
    if fail_on_violation and again.violations:
        sys.exit(VIOLATION)


@main.command()
@click.argument("paper", required=False)
@click.argument("what", required=False)
@click.option("--data", type=click.Path(path_type=Path), help="Path of the real data, where some are needed.")
@click.option("--scale", type=click.Choice(["small", "paper"]), default="small", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("reproduced"), show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="How many Ray workers; left out: what there is room for.")
@click.option("--seed", default=0, show_default=True)
def reproduce(
    paper: str | None,
    what: str | None,
    data: Path | None,
    scale: Literal["small", "paper"],
    output: Path,
    workers: int | None,
    seed: int,
) -> None:
    """Makes a table or figure of PAPER anew: `dpaudit reproduce observational-label figure-2`.

    Without arguments, lists what there is. Stopped half-way, the same command goes on where it was.
    """
    from dpaudit.registry import catalogue, load

    if paper is None or what is None:
        for entry in catalogue("reproduction").values():
            if paper is None or entry.name.startswith(f"{paper} "):
                click.echo(f"  {entry.name:<36} {entry.summary}")
        return
    make = load("reproduction", f"{paper} {what}")
    from rich.console import Console

    from dpaudit.engine.report.progress import TerminalProgress
    from dpaudit.engine.reproduce.making import Options
    from dpaudit.engine.spec.audit_spec import RunOptions

    with TerminalProgress(Console(stderr=True)) as progress:
        run_options = RunOptions(workers=workers)
        made = make(Options(output / paper, data, scale, run_options, listeners=[progress], seed=seed))
    click.echo(made.text)
    for path in made.files:
        click.echo(f"{path}")


main.add_command(estimate)


if __name__ == "__main__":
    main()
