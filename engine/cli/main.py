"""The command line: options of each verb, and calls of the Python functions.

Heavy libraries are imported inside the verbs that need them, so `--help` and `list` answer at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import dpaudit
from dpaudit.engine.cli.estimate import estimate
from dpaudit.engine.cli.init_and_doctor import FIRST_VERBS
from dpaudit.engine.cli.names import NAME_VERBS
from dpaudit.engine.cli.options import OUTPUT_FILE, PLACE, json_option, parse_schema, parse_settings
from dpaudit.engine.cli.remote import REMOTE_VERBS
from dpaudit.engine.exits import (
    BAD_INPUT,
    RUN_FAILED,
    CommandGroup,
    end_by_verdict,
    in_json,
    show,
    show_lines,
    stop,
    tell,
)
from dpaudit.errors import shortened
from dpaudit.locations import imported, search_last
from dpaudit.registry import catalogue, load

if TYPE_CHECKING:
    from dpaudit.engine.answer.run_report import Report
    from dpaudit.engine.sweep.result import SweepResult

T = TypeVar("T")
RUNNERS = ("auto", "in-process", "processes", "ray")  # those of `RunOptions`, which is slow to import
FORMS = ("frame", "arrow", "array", "records", "list")
_CONSENTS = {
    "code": "Let the folder's spec import and run the code that it names, though you did not make the folder here.",
    "network": "Let it send requests to addresses that it names, with the values of environment variables it names.",
    "files": "Let it read your files that it names, outside the folder.",
}
_verbose = click.option(
    "--verbose", "-v", is_flag=True, help="Also print method, counts, choices, controls and utility of each audit."
)
_fail_on_violation = click.option(
    "--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds its claim."
)
_fail_on_inconclusive = click.option(
    "--fail-on-inconclusive",
    is_flag=True,
    help="Exit with 4 when an audit could not have rejected its claim for any mechanism.",
)
_registry = click.option(
    "--registry",
    type=click.Path(path_type=Path),
    default=Path("registrations.jsonl"),
    show_default=True,
    help="File to which the entry of a registration is appended.",
)
_CI_OPTIONS = (
    click.option("--junit", type=OUTPUT_FILE, help="Write the verdicts as JUnit XML to this file."),
    click.option("--sarif", type=OUTPUT_FILE, help="Write the findings as SARIF to this file."),
    click.option("--summary", type=OUTPUT_FILE, help="Append a summary in Markdown to this file."),
    click.option("--mlflow", metavar="EXPERIMENT", help="Log the results to MLflow, at $MLFLOW_TRACKING_URI."),
)


def allow_options(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that allow a folder which another user made to run code, send requests or read files."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for kind in reversed(kinds):
            command = click.option(f"--allow-{kind}", is_flag=True, help=_CONSENTS[kind])(command)
        return command

    return add


def _fail_options(command: Callable[..., None]) -> Callable[..., None]:
    return _fail_on_violation(_fail_on_inconclusive(command))


def _ci_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_CI_OPTIONS):
        command = option(command)
    return _fail_options(command)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(dpaudit.__version__, prog_name="dpaudit")
def main() -> None:
    """Measure, by experiment, how much a machine-learning system really leaks.

    Exit codes: 0 the run finished, 1 a violation was found or is undecided (with --fail-on-violation), 2 bad input,
    3 the run failed, 4 an audit could not have rejected its claim (with --fail-on-inconclusive).
    """
    # A user's own mechanism, named `module:Class` in a spec, is often in the current folder.
    search_last(os.getcwd())


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=PLACE, help="Run folder, a path or a URI (s3://...).  [default: runs/<name>]")
@click.option("--seed", type=int, help="Override the spec's seed.")
@click.option("--runner", type=click.Choice(RUNNERS), help="Override the spec's runner.")
@click.option("--quiet", is_flag=True, help="Print the report only, no progress.")
@json_option
@_verbose
@_ci_options
def run(spec: Path, output: str | Path | None, seed: int | None, runner: Any, quiet: bool, **ending: Any) -> None:
    """Run the audits of SPEC (YAML) and print the report.

    Finished units of the same work in the run folder are reused.
    """
    from dataclasses import replace

    from dpaudit.engine.request.loading import load_spec
    from dpaudit.engine.run.driver import audit
    from dpaudit.engine.run.run_folder import default_run_folder

    audit_spec = load_spec(spec)
    if runner is not None:
        audit_spec = replace(audit_spec, run=replace(audit_spec.run, runner=runner))
    folder = output or default_run_folder(audit_spec)
    _finish(partial(audit, audit_spec, output=folder, seed=seed, quiet=quiet), folder, str(spec), **ending)


@main.command()
@click.argument("mechanism")
@click.option("--data", help="A data set's name, or {name: ..., fields}.  [default: small generated data]")
@click.option("--schema", help="Schema of a function's rows: a YAML file, or '{age: [0, 100], sex: [f, m]}'.")
@click.option(
    "--claim", help="Claim of a function: 1, '1, 1e-5', rho=0.5 (zCDP) or mu=1.  [default: stated in its code]"
)
@click.option("--relation", type=click.Choice(["add-remove", "replace"]), help="Neighbouring relation of tables.")
@click.option("--person", metavar="COLUMN", help="Column that names the person of each row, for claims about persons.")
@click.option(
    "--group",
    type=click.IntRange(min=1),
    help="Most rows of a person, or number of rows in which two tables differ.  [default: any number, or 1]",
)
@click.option("--form", type=click.Choice(FORMS), help="Type in which a function gets rows.  [default: frame]")
@click.option("--settings", default="", help="Arguments of a function to try: 'bounds=(0,1);fit_intercept=true,false'.")
@click.option("--python", default="", help="Other Python interpreter that runs a function.")
@click.option("--folder", default="", help="Folder where that Python looks for the function first.")
@click.option("--memory-mb", type=click.IntRange(min=64), help="Memory limit of that Python.")
@click.option("--time", is_flag=True, help="Also treat the duration of each call as an output (timing side channel).")
@click.option(
    "--effort",
    type=click.Choice(["quick", "standard", "thorough"]),
    default="standard",
    show_default=True,
    help="Calls and trainings of each test: an eighth, all, or four times as many.",
)
@click.option("--budget", help="Cap: 90s, 10m, '1h, 500 trainings'.  [default: 2m, 10m or 2h, by effort]")
@click.option("--strict", default="", help="Side findings in the verdict: floating-point, beyond-schema, or all.")
@click.option(
    "--output", "-o", type=PLACE, help="Run folder, a path or a URI (s3://...).  [default: runs/check-<name>-<claim>]"
)
@click.option("--seed", type=int, help="Seed of all randomness.  [default: 0; of a registered check drawn at random]")
@click.option("--unit", help="Register the check before it runs: what one unit of privacy is, such as 'one row'.")
@_registry
@click.option("--confidence", default=0.999, show_default=True, help="Confidence of the verdict VIOLATION.")
@click.option("--until-decided", is_flag=True, help="Rerun undecided tests with four times the trials.")
@click.option("--runner", type=click.Choice(RUNNERS), help="[default: auto if models are trained, else in-process]")
@click.option("--quiet", is_flag=True, help="Print the report only, no progress.")
@json_option
@_verbose
@_ci_options
def check(
    mechanism: str,
    data: str | None,
    schema: str | None,
    claim: str | None,
    relation: str | None,
    person: str | None,
    group: int | None,
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
    seed: int | None,
    unit: str | None,
    registry: Path,
    confidence: float,
    until_decided: bool,
    runner: Any,
    quiet: bool,
    **ending: Any,
) -> None:
    """Check a claim with every game that fits.

    MECHANISM is your class `package.module:Class`, a registered name, or `{name: ..., fields}`. With --schema it is any
    function on rows, `package.module:function`, called as f(rows, rng, **settings). The cheap games run first. In a
    first pass, all games share an error of 0.05. A game that rejects the claim is repeated with other seeds at
    --confidence; if the repetition rejects the claim too, the remaining games are skipped.
    """
    from dpaudit.engine.request.audit_spec import RunOptions
    from dpaudit.engine.request.plain_yaml import parse_yaml_argument
    from dpaudit.engine.run.checking import check

    with_defaults = {"relation": relation, "form": form}
    carry_out = partial(
        check,
        mechanism if schema is not None else parse_yaml_argument(mechanism),
        None if data is None else parse_yaml_argument(data),
        claim=claim,
        schema=None if schema is None else parse_schema(schema),
        person=person,
        group=group,
        settings=parse_settings(settings),
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
        unit=unit,
        registry=registry,
        quiet=quiet,
        **{name: value for name, value in with_defaults.items() if value is not None},
    )
    _finish(carry_out, output, mechanism, **ending)


@main.command()
@click.argument("folder", metavar="RUN", type=PLACE)
@click.option("--fresh", is_flag=True, help="Rerun units that other code, data or another spec made; keep their files.")
@click.option("--quiet", is_flag=True, help="Print the report only, no progress.")
@json_option
@_verbose
@allow_options("code", "network", "files")
@_fail_options
def resume(
    folder: str | Path,
    fresh: bool,
    quiet: bool,
    allow_code: bool,
    allow_network: bool,
    allow_files: bool,
    **ending: Any,
) -> None:
    """Resume the run or sweep in folder RUN.

    Only missing units run.

    If another user made the folder, the command refuses code, addresses and files that its spec names, and lists them,
    until an option allows them.
    """
    from dpaudit.engine.run import driver
    from dpaudit.engine.sweep.running import is_sweep

    allowed: dict[str, Any] = {"allow_code": allow_code, "allow_network": allow_network, "allow_files": allow_files}
    if is_sweep(folder):
        of_sweep = {name: ending[name] for name in ("as_json", "fail_on_violation")}
        _resume_sweep(folder, allowed, quiet=quiet, **of_sweep)
    else:
        _finish(partial(driver.resume, folder, fresh=fresh, quiet=quiet, **allowed), folder, **ending)


def _finish(
    carry_out: Callable[[], Report],
    folder: str | Path | None,
    subject: str = "",
    *,
    verbose: bool,
    as_json: bool,
    junit: Path | None = None,
    sarif: Path | None = None,
    summary: Path | None = None,
    mlflow: str | None = None,
    **fail_on: bool,
) -> None:
    """Run `carry_out`, print its report, write the files for CI services, and exit."""
    if mlflow is not None:
        imported("mlflow", "mlflow")
    report = _run_interruptible(carry_out, "resume", folder)
    _show_report(report, verbose=verbose, as_json=as_json)
    if junit or sarif or summary:
        from dpaudit.engine.report.ci_files import write_for_ci

        write_for_ci(report, subject, junit=junit, sarif=sarif, summary=summary)
    if mlflow is not None:
        from dpaudit.engine.cli.trackers import log_to_mlflow

        log_to_mlflow(report, experiment=mlflow)
    _end_by_report(report, **fail_on)


def _show_report(report: Report, *, verbose: bool, as_json: bool) -> None:
    """Print the report, or the content of its `bounds.json`."""
    from dpaudit.engine.report.page import bounds_json  # imports Arrow

    show_lines(bounds_json(report) if as_json else report.text(verbose=verbose))


def _end_by_report(report: Report, **fail_on: bool) -> None:
    if report.failed:
        names = shortened(", ".join(result.name for result in report.failed))
        stop(f"{len(report.failed)} of {len(report.results)} audits have no result: {names}", RUN_FAILED)
    rejected = bool(report.violations or report.undecided)
    end_by_verdict(rejected=rejected, inconclusive=bool(report.inconclusive), **fail_on)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="Override the spec's seed.")
@click.option(
    "--timings",
    type=click.Path(path_type=Path),
    help="Folder of an earlier run that times the units.  [default: runs/<name>]",
)
@json_option
def plan(spec: Path, seed: int | None, timings: Path | None, as_json: bool) -> None:
    """Print the sensitivity of each audit of SPEC, and its cost.

    For a spec with `sweep`, print the plan of `dpaudit sweep`: one line for each configuration, units and trainings.

    List every unit with its seed and resources. For each audit: the noise reduction it would detect, the maximum
    detectable epsilon, what four times the trials would detect, and the bound to expect if the claim holds; only the
    claim if the game chooses its data in the run, which computes the rest. Then the number of trainings, and the
    remaining time if an earlier run has timed such units. Nothing runs.
    """
    from dpaudit.engine.cli.planned_run import planned_run

    planned = planned_run(spec, seed=seed, timings=timings, announce=tell)
    if as_json:
        show_lines(in_json(planned))
    else:
        for line in planned.lines:
            show(line)


@main.command()
@click.argument("folder", metavar="RUN", type=PLACE)
@click.option("--quiet", is_flag=True, help="Print the verdict of each audit only.")
@json_option
@_verbose
@allow_options("code", "files")
@_fail_options
def report(
    folder: str | Path, quiet: bool, as_json: bool, verbose: bool, allow_code: bool, allow_files: bool, **fail_on: bool
) -> None:
    """Recompute, write and print the report of the run in RUN.

    The report is computed from finished units; nothing runs. Of a training, the saved result is printed.

    If another user made the folder, the command refuses code and files that its spec names, and lists them, until an
    option allows them.
    """
    from dpaudit.engine.run.driver import report_again
    from dpaudit.engine.run.run_folder import OtherPlanError
    from dpaudit.engine.run.run_status import is_training

    if is_training(folder):
        _show_stored(folder, quiet=quiet, as_json=as_json, verbose=verbose, **fail_on)
        return
    try:
        again = report_again(folder, allow_code=allow_code, allow_files=allow_files)
    except OtherPlanError:
        tell(f"another version of dpaudit made {folder}; results are printed as it wrote them, and nothing is written")
        _show_stored(folder, quiet=quiet, as_json=as_json, verbose=verbose, **fail_on)
        return
    if quiet and not as_json:
        for result in again.results:
            show(f"{result.verdict}  {result.name}")
    else:
        _show_report(again, verbose=verbose, as_json=as_json)
    _end_by_report(again, **fail_on)


def _show_stored(place: str | Path, *, quiet: bool, as_json: bool, verbose: bool, **fail_on: bool) -> None:
    """Print the results that a folder holds, of a training or of a run that this dpaudit cannot compute again."""
    from dpaudit.engine.answer.verdict import Verdict
    from dpaudit.engine.run.run_status import run_status

    status = run_status(place)
    answers, verdicts = status.answers(verbose=verbose), {verdict for verdict, _ in status.outcomes.values()}
    lines = [f"{verdict}  {name}" for name, verdict in status.verdicts] if quiet else answers
    show_lines(in_json(status.report.value) if as_json else "\n".join(lines))
    if Verdict.FAILED in verdicts:
        stop("an audit has no result", RUN_FAILED)
    rejected = not verdicts.isdisjoint({Verdict.VIOLATION, Verdict.UNDECIDED})
    end_by_verdict(rejected=rejected, inconclusive=Verdict.INCONCLUSIVE in verdicts, **fail_on)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--unit", required=True, help="What one unit of privacy is: 'one row', 'a sequence of 1,024 tokens'.")
@click.option("--output", "-o", type=PLACE, help="New run folder, a path or a URI.  [default: runs/<name>]")
@_registry
@click.option("--seed", type=int, help="Seed of the run.  [default: drawn at random]")
@json_option
def register(spec: Path, unit: str, output: str | Path | None, registry: Path, seed: int | None, as_json: bool) -> None:
    """Register the run of SPEC before it starts.

    A stranger can then check its answer by `dpaudit verify`. The registry gets the claim, the protocol and a commitment
    to plan and seed, which the run folder opens. Publish the registry now and the folder after the run; `dpaudit
    resume` runs the plan.
    """
    from dpaudit.engine.request.loading import load_spec
    from dpaudit.engine.run import registration
    from dpaudit.engine.run.run_folder import default_run_folder

    audit_spec = load_spec(spec)
    folder = output or default_run_folder(audit_spec)
    registered = registration.register(audit_spec, unit=unit, output=folder, registry=registry, seed=seed)
    number, digest = len(registered.entries), registration.sha256(registered.entries[-1])
    if as_json:
        show_lines(in_json({"folder": str(folder), "entry": registered.entry, "hash": digest}))
    else:
        show(f"registered as number {number} in {registry}: {digest}")
        show(f"publish this hash, then run `dpaudit resume {shlex.quote(str(folder))}`")


@main.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.option("--registry", type=click.Path(path_type=Path), help="The registry, which also has later registrations.")
@click.option("--replay", is_flag=True, help="Run all units again, with code and data, and compare every bit.")
@allow_options("code", "network", "files")
@json_option
def verify(run: str | Path, registry: Path | None, replay: bool, as_json: bool, **allowed: bool) -> None:
    """Check a registered run without model and data.

    Prints what was checked, and what no check can know. A rejected run ends with exit code 3.
    """
    from dpaudit.engine.run import verifying

    verification = verifying.verify(run, registry=registry, replay=replay, **allowed)
    show_lines(in_json(verification) if as_json else "\n".join(verification.lines))


@main.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.option("--output", "-o", type=OUTPUT_FILE, help="Write the block to this file instead of standard output.")
@click.option("--html", type=OUTPUT_FILE, help="Also write a summary of one page (A4) to this file.")
@json_option
def card(run: str | Path, output: Path | None, html: Path | None, as_json: bool) -> None:
    """Print the results of RUN for a model card.

    The block is Markdown with YAML front matter: claim, verdict, bound, confidence, assumption, sensitivity,
    fingerprints of data and code, and the command that reruns the audit. RUN is a path or a URI; nothing runs. The
    block says that it is no proof of privacy.
    """
    from dpaudit.engine.run.model_card import ModelCard
    from dpaudit.plain_files import write_user_file

    model_card = ModelCard.of(run)
    if output is not None:
        write_user_file(output, model_card.markdown().encode())
    if as_json or output is None:
        show_lines(in_json(model_card) if as_json else model_card.markdown().rstrip())
    if html is not None:
        write_user_file(html, model_card.page().encode())


@main.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.option("--output", "-o", type=OUTPUT_FILE, help="Write the annex to this file instead of standard output.")
@click.option("--html", type=OUTPUT_FILE, help="Also write it as a page to this file.")
@json_option
def annex(run: str | Path, output: Path | None, html: Path | None, as_json: bool) -> None:
    """Print an annex of RUN for an authority.

    It has the headings of NIST SP 800-226, EDPB opinion 28/2024 and the AI Act. Each answer is from the run folder, or
    "not tested". It is no statement of compliance. RUN is a path or a URI; nothing runs.
    """
    from dpaudit.engine.run.annex import Annex
    from dpaudit.plain_files import write_user_file

    answers = Annex.of(run)
    if output is not None:
        write_user_file(output, answers.markdown().encode())
    if as_json or output is None:
        show_lines(in_json(dict(answers.sections)) if as_json else answers.markdown().rstrip())
    if html is not None:
        write_user_file(html, answers.page().encode())


@main.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Number of records to print.")
@click.option("--rate", type=float, default=0.05, show_default=True, help="False discovery rate, in (0, 1).")
@click.option("--audit", help="Name of the audit; needed if several audits fit.")
@click.option("--csv", type=OUTPUT_FILE, help="Also write all records to this file.")
@click.option("--html", type=OUTPUT_FILE, help="Also write the table to this page.")
@json_option
def records(
    run: str | Path, top: int, rate: float, audit: str | None, csv: Path | None, html: Path | None, as_json: bool
) -> None:
    """List the records that leak most, with false discovery rates.

    For label-canaries and membership with several `trainings`: the share of correct guesses about each record, a
    p-value against the claim (against chance without a claim), and the records found at the false discovery rate
    (Benjamini-Yekutieli, for any dependence). RUN is a path or a URI; nothing runs.
    """
    from dpaudit.engine.run.model_card import records_in
    from dpaudit.plain_files import write_user_file

    ranking = records_in(run, top=top, rate=rate, audit=audit)
    show_lines(in_json(ranking) if as_json else str(ranking))
    if csv is not None:
        write_user_file(csv, ranking.to_frame().to_csv(index=False).encode())
    if html is not None:
        write_user_file(html, ranking.page().encode())


@main.command()
@click.argument("paper", required=False)
@click.argument("what", required=False)
@click.option("--data", type=click.Path(path_type=Path), help="The folder that holds all data sets.")
@click.option("--scale", type=click.Choice(["small", "paper"]), default="small", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("reproduced"), show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Units at a time.  [default: as many as fit]")
@click.option("--runner", type=click.Choice(RUNNERS), default="auto", show_default=True)
@click.option("--only", multiple=True, metavar="TEXT", help="Run only parts whose name contains this; may be repeated.")
@click.option("--seed", default=0, show_default=True)
@json_option
def reproduce(
    paper: str | None, what: str | None, output: Path, workers: int | None, runner: Any, as_json: bool, **options: Any
) -> None:
    """Reproduce a table or figure of PAPER.

    For instance: `dpaudit reproduce observational-label figure-2`. Without arguments, list all tables and figures, with
    the time and the data that each takes. An interrupted command resumes when it is run again. Reproductions need a
    checkout of dpaudit: a package installed from an index has none.
    """
    from dpaudit.registry import catalogue, import_module, load

    needs = import_module("papers.needs")  # its error explains why there are none
    entries = catalogue("reproduction")
    names = list(entries) if paper is None else needs.chosen(entries, paper, what)
    if what is None:
        listed = needs.listed(entries[name] for name in names)
        show_lines(in_json({"names": names, "text": listed.splitlines()}) if as_json else listed)
        return
    (name,) = names
    if options["data"] is not None:
        needs.require_data(name, options["data"])
    papers, make = import_module("papers.reproduction"), load("reproduction", name)
    from dpaudit.engine.report.progress import TerminalProgress, terminal
    from dpaudit.engine.request.audit_spec import RunOptions

    if options["only"] and not needs.NEEDS[name].parts:
        raise click.BadParameter(f"{name} has no parts", param_hint="--only")
    with TerminalProgress(terminal()) as progress:
        run_options = RunOptions(runner=runner, workers=workers)
        reproduction = make(papers.Options(output / str(paper), run=run_options, listeners=[progress], **options))
    lines, paths = reproduction.text.splitlines(), [str(path) for path in reproduction.files]
    show_lines(in_json({"text": lines, "files": paths}) if as_json else "\n".join([*lines, *paths]))


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option("--restore", type=PLACE, metavar="DIR", help="Resume the sweep in this folder, a path or a URI.")
@click.option("--output", "-o", type=PLACE, help="Folder, a path or a URI.  [default: runs/<name>]")
@click.option("--seed", type=int, help="Override the spec's seed.")
@click.option("--quiet", is_flag=True, help="Print the result only, no progress.")
@json_option
@allow_options("code", "network", "files")
@_fail_on_violation
def sweep(
    spec: Path | None,
    restore: str | Path | None,
    output: str | Path | None,
    seed: int | None,
    quiet: bool,
    as_json: bool,
    fail_on_violation: bool,
    **allowed: bool,
) -> None:
    """Train and audit every configuration of SPEC.

    SPEC is YAML with `grid` or `sweep`. The report names the most useful configuration and bounds its epsilon; all
    bounds hold together with the stated confidence. Finished units of the same sweep in the folder are reused.
    """
    from dpaudit.engine.sweep import request, running

    if (spec is None) == (restore is None) or (restore is not None and (output is not None or seed is not None)):
        stop("give SPEC, or --restore DIR alone", BAD_INPUT)
    if restore is not None:
        _resume_sweep(restore, allowed, quiet=quiet, as_json=as_json, fail_on_violation=fail_on_violation)
        return
    assert spec is not None
    folder = output or request.read_request(spec).folder
    run_sweep = partial(running.sweep, spec, output=folder, seed=seed, quiet=quiet)
    _finish_sweep(run_sweep, folder, as_json=as_json, fail_on_violation=fail_on_violation)


def _resume_sweep(folder: str | Path, allowed: dict[str, Any], *, quiet: bool, **ending: bool) -> None:
    from dpaudit.engine.sweep.running import restore_sweep

    _finish_sweep(partial(restore_sweep, folder, **allowed, quiet=quiet), folder, **ending)


def _finish_sweep(
    carry_out: Callable[[], SweepResult], folder: str | Path, *, as_json: bool, fail_on_violation: bool
) -> None:
    result = _run_interruptible(carry_out, "sweep --restore", folder)
    show_lines(in_json(result.summary) if as_json else str(result))
    if result.errors:
        stop(f"{result.num_errors} of {len(result)} configurations failed: {result.errors[0]}", RUN_FAILED)
    rejected = bool(result.report.violations or result.report.undecided)
    end_by_verdict(rejected=rejected, inconclusive=False, fail_on_violation=fail_on_violation)


def _run_interruptible(work: Callable[[], T], resume_verb: str, folder: str | Path | None) -> T:
    """Return `work()`; if it is interrupted, exit with the command that resumes it.

    `folder` is None if `work` chooses its folder. The interrupt then carries a note with that command.
    """
    try:
        return work()
    except KeyboardInterrupt as err:
        by = f" by {err}" if str(err) else ""
        notes = getattr(err, "__notes__", ())
        advice = notes[-1] if notes else f"`dpaudit {resume_verb} {shlex.quote(str(folder))}` continues it"
        if folder is None and not notes:  # `work` had not chosen its tests yet
            stop(f"interrupted{by}; nothing has run yet", RUN_FAILED)
        stop(f"interrupted{by}; finished units are kept, {advice}", RUN_FAILED)


WING_VERBS = [load("verb", name) for name in catalogue("verb")]
for command in (*FIRST_VERBS, *NAME_VERBS, estimate, *WING_VERBS, sweep, *REMOTE_VERBS):
    main.add_command(command)
