"""The command line. Heavy libraries are imported by the verb that needs them: `--help` and `list` answer at once."""

from __future__ import annotations

import ast
import os
import shlex
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import dpaudit
from dpaudit.engine.cli.beginning import FIRST_VERBS
from dpaudit.engine.cli.names import NAME_VERBS
from dpaudit.engine.cli.options import PLACE
from dpaudit.engine.cli.own_scores import estimate
from dpaudit.engine.cli.remote import REMOTE_VERBS
from dpaudit.engine.exits import (
    BAD_INPUT,
    FINISHED,
    INCONCLUSIVE,
    RUN_FAILED,
    VIOLATION,
    Ended,
    end,
    show,
    show_lines,
    silence,
    stop,
    tell,
)
from dpaudit.errors import (
    AuditError,
    DataError,
    InputError,
    RunError,
    SpecError,
    UnknownNameError,
    did_you_mean,
    shortened,
)
from dpaudit.locations import search_last

if TYPE_CHECKING:
    from dpaudit.engine.reading.run_report import Report
    from dpaudit.engine.sweep.result import SweepResult
    from dpaudit.engine.sweep.running import SweepOutline

T = TypeVar("T")
RUNNERS = ("auto", "in-process", "processes", "ray")  # those of `RunOptions`, which takes long to load
FORMS = ("frame", "arrow", "array", "records", "list")
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


class _Verbs(click.Group):
    """Turns every refusal into one sentence and an exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:  # the help's reader has gone away
            silence()
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
            return super().invoke(ctx)
        except BrokenPipeError:
            silence()
            end(FINISHED)
        except (InputError, SpecError, DataError, UnknownNameError) as err:
            stop(str(err), BAD_INPUT)
        except (RunError, AuditError) as err:
            stop(str(err), RUN_FAILED)
        except (Ended, click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SystemExit as err:  # a module of the spec's that ends the program when it is imported, for one
            stop(f"code that was run or imported ended the program (sys.exit({err.code!r})): no result", RUN_FAILED)
        except OSError as err:  # a full disk, a folder that cannot be written, a name too long
            where = f"{shortened(err.filename)}: " if err.filename else ""
            stop(f"{where}{err.strerror or shortened(err)}", RUN_FAILED)
        except Exception:  # never with the exit code of a violation
            tell(traceback.format_exc())
            stop("this error is not foreseen; the lines above say where it happened", RUN_FAILED)
        except KeyboardInterrupt:
            stop("interrupted", RUN_FAILED)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(dpaudit.__version__, prog_name="dpaudit")
def main() -> None:
    """Measures, by experiment, how much a machine-learning system really leaks.

    Exit codes: 0 the run finished, 1 a violation was found or stays open (with --fail-on-violation), 2 bad input,
    3 the run failed, 4 an audit could not have refuted its claim (with --fail-on-inconclusive).
    """
    # One's own mechanism, named `module:Class` in a spec, lies in the folder one works in more often than not.
    search_last(os.getcwd())


_verbose = click.option(
    "--verbose", "-v", is_flag=True, help="Method, counts, choices, controls and utility of each audit as well."
)
_inconclusive = click.option(
    "--fail-on-inconclusive",
    is_flag=True,
    help="Exit with 4 when an audit could not have refuted its claim whatever the mechanism did.",
)


_FOR_CI = (
    click.option("--junit", type=click.Path(path_type=Path), help="Write the verdicts as JUnit XML to this file."),
    click.option("--sarif", type=click.Path(path_type=Path), help="Write what is to be mended as SARIF to this file."),
    click.option("--summary", type=click.Path(path_type=Path), help="Add a summary in Markdown to this file."),
    click.option("--mlflow", metavar="EXPERIMENT", help="Log what was found to MLflow, at $MLFLOW_TRACKING_URI."),
)


def _fail_on(command: Callable[..., None]) -> Callable[..., None]:
    return FAIL_ON_VIOLATION(_inconclusive(command))


def _ends_in_ci(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_FOR_CI):
        command = option(command)
    return _fail_on(command)


def _end(report: Report, *, fail_on_violation: bool, fail_on_inconclusive: bool) -> None:
    if report.failed:
        names = shortened(", ".join(result.name for result in report.failed))
        stop(f"{len(report.failed)} of {len(report.results)} audits have no result: {names}", RUN_FAILED)
    if fail_on_violation and (report.violations or report.undecided):
        end(VIOLATION)
    if fail_on_inconclusive and report.inconclusive:
        end(INCONCLUSIVE)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=PLACE, help="Run folder, a path or a URI (s3://...); left out: runs/<name>.")
@click.option("--seed", type=int, help="Instead of the spec's seed.")
@click.option("--runner", type=click.Choice(RUNNERS), help="Instead of the spec's.")
@click.option("--quiet", is_flag=True, help="No progress, only the report.")
@_verbose
@_ends_in_ci
def run(spec: Path, output: str | Path | None, seed: int | None, runner: Any, quiet: bool, **ending: Any) -> None:
    """Runs the audits of SPEC (YAML) and reports what they show.

    A run folder that holds finished units of the same work is continued.
    """
    from dataclasses import replace

    from dpaudit.engine.request.loading import load_spec
    from dpaudit.engine.run.driver import audit
    from dpaudit.engine.run.run_folder import run_folder

    checked = load_spec(spec)
    if runner is not None:
        checked = replace(checked, run=replace(checked.run, runner=runner))
    folder = output or run_folder(checked)
    _finish(partial(audit, checked, output=folder, seed=seed, quiet=quiet), folder, str(spec), **ending)


@main.command()
@click.argument("mechanism")
@click.option("--data", help="A data set's name, or {name: ..., fields}; left out: small data are made.")
@click.option("--schema", help="Of a function's rows: a YAML file, or '{age: [0, 100], sex: [f, m]}'.")
@click.option("--claim", help="Of a function: 1, '1, 1e-5', rho=0.5 (zCDP) or mu=1; left out: what its code states.")
@click.option("--relation", type=click.Choice(["add-remove", "replace"]), help="Which tables are neighbours.")
@click.option("--form", type=click.Choice(FORMS), help="How a function is given its rows.  [default: frame]")
@click.option("--settings", default="", help="A function's arguments to try: 'bounds=(0,1);fit_intercept=true,false'.")
@click.option("--python", default="", help="The Python that runs a function, where its library is installed.")
@click.option("--folder", default="", help="Where that Python looks for the function first.")
@click.option("--memory-mb", type=click.IntRange(min=64), help="Memory that the other Python may have.")
@click.option("--time", is_flag=True, help="How long a call takes is part of what it gives away.")
@click.option(
    "--effort",
    type=click.Choice(["quick", "standard", "thorough"]),
    default="standard",
    show_default=True,
    help="How many calls and trainings each test has: an eighth, all, or four times as many.",
)
@click.option("--budget", help="A cap: 90s, 10m, '1h, 500 trainings'.  [default: 2m, 10m or 2h by the effort]")
@click.option("--strict", default="", help="Side findings that count: floating-point, beyond-schema, or all.")
@click.option("--output", "-o", type=PLACE, help="Run folder, a path or a URI (s3://...); left out: runs/check-<name>.")
@click.option("--seed", type=int, default=0, show_default=True, help="Everything random follows from it.")
@click.option("--confidence", default=0.999, show_default=True, help="Of the verdict VIOLATION.")
@click.option("--until-decided", is_flag=True, help="Play what stays undecided once more, with four times the trials.")
@click.option("--runner", type=click.Choice(RUNNERS), help="Left out: auto where models are trained.")
@click.option("--quiet", is_flag=True, help="No progress, only the report.")
@_verbose
@_ends_in_ci
def check(
    mechanism: str,
    data: str | None,
    schema: str | None,
    claim: str | None,
    relation: str | None,
    form: Any,
    settings: str,
    python: str,
    folder: str,
    memory_mb: int | None,
    time: bool,
    effort: Any,
    budget: str | None,
    strict: str,
    output: str | Path | None,
    seed: int,
    confidence: float,
    until_decided: bool,
    runner: Any,
    quiet: bool,
    **ending: Any,
) -> None:
    """Checks a claim with every game that fits: one verdict.

    MECHANISM is one's own class, `package.module:Class`, a registered name, or `{name: ..., fields}`; with --schema any
    function on rows, `package.module:function`, which is called as f(rows, rng, **settings). The cheap games come
    first. One that refutes the claim in a first pass, in which all share an error of 0.05, is repeated with other seeds
    at --confidence; where that refutes it too, the rest is left out.
    """
    from dpaudit.engine.request.audit_spec import RunOptions
    from dpaudit.engine.request.plain_yaml import yaml_value
    from dpaudit.engine.run.checking import check

    usual = {"relation": relation, "form": form}
    carry_out = partial(
        check,
        mechanism if schema is not None else yaml_value(mechanism),
        None if data is None else yaml_value(data),
        claim=claim,
        schema=None if schema is None else schema_in_words(schema),
        settings=settings_in_words(settings),
        python=python,
        folder=folder,
        memory_mb=memory_mb,
        time=time,
        confidence=confidence,
        effort=effort,
        budget=budget,
        strict=strict,
        until_decided=until_decided,
        seed=seed,
        run=None if runner is None else RunOptions(runner=runner),
        output=output,
        quiet=quiet,
        **{name: value for name, value in usual.items() if value is not None},
    )
    _finish(carry_out, output, mechanism, **ending)


@main.command()
@click.argument("folder", metavar="RUN", type=PLACE)
@click.option("--fresh", is_flag=True, help="Run anew, beside what is there, what other code or data would change.")
@click.option("--quiet", is_flag=True, help="No progress, only the report.")
@_verbose
@allowing("code", "network", "files")
@_fail_on
def resume(
    folder: str | Path,
    fresh: bool,
    quiet: bool,
    allow_code: bool,
    allow_network: bool,
    allow_files: bool,
    **ending: Any,
) -> None:
    """Goes on with the run in folder RUN.

    Only what is missing is run.

    Where somebody else made the folder, what its spec would run, contact or read is said and refused until allowed.
    """
    from dpaudit.engine.run import driver
    from dpaudit.engine.sweep.running import is_sweep

    allowed: dict[str, Any] = {"allow_code": allow_code, "allow_network": allow_network, "allow_files": allow_files}
    if is_sweep(folder):
        go_on(folder, allowed, quiet=quiet, fail_on_violation=ending["fail_on_violation"])
    else:
        _finish(partial(driver.resume, folder, fresh=fresh, quiet=quiet, **allowed), folder, **ending)


def _finish(
    carry_out: Callable[[], Report],
    folder: str | Path | None,
    subject: str = "",
    *,
    verbose: bool,
    junit: Path | None = None,
    sarif: Path | None = None,
    summary: Path | None = None,
    mlflow: str | None = None,
    **fail_on: bool,
) -> None:
    """Carries a run out, prints its report, writes what CI services read of it, and ends with the stated code."""
    report = carried_out(carry_out, "resume", folder)
    show_lines(report.text(verbose=verbose))
    if junit or sarif or summary:
        from dpaudit.engine.report.ci_files import write_for_ci

        write_for_ci(report, subject, junit=junit, sarif=sarif, summary=summary)
    if mlflow is not None:
        from dpaudit.engine.cli.mlflow_runs import log_to_mlflow

        log_to_mlflow(report, experiment=mlflow)
    _end(report, **fail_on)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="Instead of the spec's seed.")
@click.option(
    "--timings",
    type=click.Path(path_type=Path),
    help="Folder of an earlier run, whose finished units tell how long others take; left out: runs/<name>.",
)
@click.option("--json", "as_json", is_flag=True, help="Units and costs as JSON.")
def plan(spec: Path, seed: int | None, timings: Path | None, as_json: bool) -> None:
    """Prints the sensitivity of each audit of SPEC, and its cost.

    A spec with `sweep` is planned as `dpaudit sweep` runs it, with its configurations, units and trainings.

    Every unit is listed with its seed and resources. For each audit: which under-noising it would detect, the maximum
    detectable epsilon, what four times the trials would detect, and the bound to expect if the claim holds. Then the
    number of trainings, and the time left if an earlier run tells how long units take. Nothing runs.
    """
    import json
    from dataclasses import asdict, replace

    from dpaudit.engine.planning.plan import make_plan, planning_announcement
    from dpaudit.engine.planning.power import planned_outlook
    from dpaudit.engine.request.loading import is_sweep_spec, load_spec
    from dpaudit.engine.run.forecast import expected_cost

    swept: SweepOutline | None = None
    if is_sweep_spec(spec):
        from dpaudit.engine.sweep.running import outlined

        swept = outlined(spec, seed)
        made = swept.spec
    else:
        made = load_spec(spec)
    if beforehand := planning_announcement(made):
        tell(beforehand)
    planned = make_plan(replace(made, seed=seed) if seed is not None else made)
    cost = expected_cost(planned, timings)
    if as_json:
        units = planned.table().to_pylist()
        about = {"name": planned.spec.name, "seed": planned.spec.seed, "units": units, "cost": asdict(cost)}
        of_sweep = {} if swept is None else {"configurations": len(made.audits), "trainings": cost.trainings}
        show(json.dumps(about | of_sweep))
        return
    size = f"{len(planned.units)} units"
    if swept is not None:
        size = f"{len(made.audits)} configurations (trials), {size}, {cost.trainings} trainings"
    show(f"{planned.spec.name}: {size}, seed {planned.spec.seed}, runner {planned.spec.run.runner}")
    for line in () if swept is None else swept.beside:
        show(line)
    for entry in planned.audits:
        if (could_show := planned_outlook(entry)) is not None:
            show(f"{entry.audit.name}:")
            for line in could_show.lines:
                show(f"  {line}")
    for line in (*planned.prices(), *cost.lines):
        show(line)
    for row in planned.table().to_pylist():
        needs = f"  needs {' '.join(need[:8] for need in row['needs'])}" if row["needs"] else ""
        seed_of = f"  seed {row['seed']}" if row["seed"] else ""
        show(f"{row['key'][:8]}  {row['label']:<34} {row['cpus']} CPU {row['gpus']:g} GPU{seed_of}{needs}")


@main.command()
@click.argument("folder", metavar="RUN", type=PLACE)
@click.option("--quiet", is_flag=True, help="One line an audit: its verdict.")
@_verbose
@allowing("code", "files")
@_fail_on
def report(
    folder: str | Path, quiet: bool, verbose: bool, allow_code: bool, allow_files: bool, **fail_on: bool
) -> None:
    """Writes and prints the report of the run in RUN anew.

    It is made from what is finished there; nothing runs.

    Where somebody else made the folder, what its spec would import or read is said and refused until allowed.
    """
    from dpaudit.engine.run.driver import report_again

    again = report_again(folder, allow_code=allow_code, allow_files=allow_files)
    if quiet:
        for result in again.results:
            show(f"{result.verdict}  {result.name}")
    else:
        show_lines(again.text(verbose=verbose))
    _end(again, **fail_on)


@main.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the block to this file, not here.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a summary of one page (A4) to this file as well.")
def card(run: str | Path, output: Path | None, html: Path | None) -> None:
    """Prints a block for a model card: what RUN found.

    Markdown with YAML in front: claim, verdict, bound, confidence, assumption, what could have been detected,
    fingerprints of data and code, and the command that runs it again. It is read from the run folder, a path or a URI;
    nothing runs. It is no proof of privacy, and says so.
    """
    from dpaudit.engine.run import model_card
    from dpaudit.plain_files import write_user_file

    made = model_card.ModelCard.of(run)
    if html is not None:
        write_user_file(html, made.page().encode())
    if output is not None:
        write_user_file(output, made.markdown().encode())
    else:
        show_lines(made.markdown().rstrip())


@main.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="How many are shown.")
@click.option("--rate", type=float, default=0.05, show_default=True, help="False discovery rate, in (0, 1).")
@click.option("--audit", help="Which audit of the run; left out: the only one that fits.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write all of them to this file as well.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the table to this page as well.")
def records(run: str | Path, top: int, rate: float, audit: str | None, csv: Path | None, html: Path | None) -> None:
    """Lists records that were guessed too often.

    For label-canaries and membership with several `trainings`: how often the guess about each record was right, a
    p-value against the claim (against chance where nothing is claimed), and which are found at the false discovery rate
    (Benjamini-Yekutieli: under any dependence). It is read from the run folder, a path or a URI; nothing runs.
    """
    from dpaudit.engine.run.recorded import records_in
    from dpaudit.plain_files import write_user_file

    found = records_in(run, top=top, rate=rate, audit=audit)
    if csv is not None:
        write_user_file(csv, found.to_frame().to_csv(index=False).encode())
    if html is not None:
        write_user_file(html, found.page().encode())
    show_lines(str(found))


@main.command()
@click.argument("paper", required=False)
@click.argument("what", required=False)
@click.option("--data", type=click.Path(path_type=Path), help="Path of the real data, where some are needed.")
@click.option("--scale", type=click.Choice(["small", "paper"]), default="small", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("reproduced"), show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="How many at a time; left out: what there is room for.")
@click.option("--runner", type=click.Choice(RUNNERS), default="auto", show_default=True)
@click.option("--only", multiple=True, metavar="TEXT", help="Only parts whose name contains this; may be repeated.")
@click.option("--seed", default=0, show_default=True)
def reproduce(
    paper: str | None, what: str | None, output: Path, workers: int | None, runner: Any, **asked: Any
) -> None:
    """Reproduces a table or figure of PAPER.

    For instance: `dpaudit reproduce observational-label figure-2`. Without arguments, lists what there is. Stopped
    half-way, the same command goes on where it was. The papers' tables and figures are made by a checkout of dpaudit: a
    package that was installed from an index has none.
    """
    from dpaudit.registry import catalogue, imported, load

    if paper is None or what is None:
        entries = catalogue("reproduction") or imported("papers.making")  # which says why there are none
        for entry in entries.values():
            if paper is None or entry.name.startswith(f"{paper} "):
                show(f"  {entry.name:<36} {entry.summary}")
        return
    making = imported("papers.making")
    make = load("reproduction", f"{paper} {what}")
    from dpaudit.engine.report.progress import TerminalProgress, terminal
    from dpaudit.engine.request.audit_spec import RunOptions

    if asked["only"] and f"{paper} {what}" not in making.IN_PARTS:
        raise click.BadParameter(f"{paper} {what} is made as a whole", param_hint="--only")
    with TerminalProgress(terminal()) as progress:
        run_options = RunOptions(runner=runner, workers=workers)
        made = make(making.Options(output / paper, run=run_options, listeners=[progress], **asked))
    show_lines(made.text)
    for path in made.files:
        show(f"{path}")


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
    """Trains and audits every configuration of SPEC.

    SPEC is YAML with `grid` or `sweep`. Says which is most useful, and what is known of its epsilon: all bounds hold
    together with the stated confidence. A folder that holds this sweep is continued; nothing that is finished is run
    again.
    """
    from dpaudit.engine.sweep import running

    if (spec is None) == (restore is None) or (restore is not None and (output is not None or seed is not None)):
        stop("give SPEC, or --restore DIR alone", BAD_INPUT)
    if restore is not None:
        go_on(restore, allowed, quiet=quiet, fail_on_violation=fail_on_violation)
        return
    assert spec is not None
    folder = output or running.read_request(spec).folder
    asked = partial(running.sweep, spec, output=folder, seed=seed, quiet=quiet)
    _end_of_sweep(carried_out(asked, "sweep --restore", folder), fail_on_violation=fail_on_violation)


def go_on(folder: str | Path, allowed: Mapping[str, Any], *, quiet: bool, fail_on_violation: bool) -> None:
    """Goes on with the sweep in a folder, with what is consented to, and ends with the stated exit code."""
    from dpaudit.engine.sweep.running import restore_sweep

    asked = partial(restore_sweep, folder, **allowed, quiet=quiet)
    _end_of_sweep(carried_out(asked, "sweep --restore", folder), fail_on_violation=fail_on_violation)


def _end_of_sweep(found: SweepResult, *, fail_on_violation: bool) -> None:
    show_lines(str(found))
    if found.errors:
        stop(f"{found.num_errors} of {len(found)} configurations failed: {found.errors[0]}", RUN_FAILED)
    if fail_on_violation and (found.report.violations or found.report.undecided):
        end(VIOLATION)


def carried_out(work: Callable[[], T], again: str, folder: str | Path | None) -> T:
    """What work gives; where it is interrupted, the command ends and says which one goes on in the folder.

    Work that chooses its folder itself, None here, says so in a note of the interrupt.
    """
    try:
        return work()
    except KeyboardInterrupt as err:
        by = f" by {err}" if str(err) else ""
        notes = getattr(err, "__notes__", ())
        goes_on = notes[-1] if notes else f"`dpaudit {again} {shlex.quote(str(folder))}` goes on"
        if folder is None and not notes:  # while the tests were chosen
            stop(f"interrupted{by}; nothing was run yet", RUN_FAILED)
        stop(f"interrupted{by}; what was finished is kept, {goes_on}", RUN_FAILED)


def schema_in_words(text: str) -> Mapping[str, Any]:
    """A schema of a command line: a mapping as YAML has it, or the file it stands in.

    Raises: SpecError for what is none.
    """
    from dpaudit.engine.request.plain_yaml import yaml_value

    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise SpecError(f"--schema must be a mapping such as '{{age: [0, 100]}}' or a YAML file: {err}") from err
    found = yaml_value(text)
    if not isinstance(found, Mapping):
        raise SpecError(f"a schema must be a mapping such as {{age: [0, 100], sex: [f, m]}}, got {shortened(found)}")
    return found


def settings_in_words(text: str) -> dict[str, list[Any]]:
    """Settings of a command line: "bounds_X=(0,1);fit_intercept=true,false", each name with the values to try.

    Raises: SpecError for what is not so.
    """
    found: dict[str, list[Any]] = {}
    for part in filter(str.strip, text.split(";")):
        name, sign, values = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise SpecError(f"settings must be like 'bounds=(0,1);fit_intercept=true,false', got {shortened(part)!r}")
        found[name.strip()] = [_value(each) for each in _parts(values)]
    return found


def _parts(values: str) -> list[str]:
    """Split by the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in values:
        quote = ("" if letter == quote else quote) if quote else (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _value(text: str) -> Any:
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    text = text.strip()
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


for command in (*FIRST_VERBS, *NAME_VERBS, estimate, sweep, *REMOTE_VERBS):
    main.add_command(command)
