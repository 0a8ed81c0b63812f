"""Commands for runs on another machine: `submit`, `status`, `logs`, `stop` and `fetch`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import dpaudit
from dpaudit.engine.cli.options import PLACE, json_option
from dpaudit.engine.exits import RUN_FAILED, in_json, show, show_lines, stop
from dpaudit.errors import AuditError, SpecError, shortened
from dpaudit.locations import search_last
from dpaudit.plain_files import is_remote, require_no_credentials

if TYPE_CHECKING:
    from dpaudit.cluster.jobs import Job, Jobs

_address = click.option(
    "--address", help="Dashboard of the cluster, http://HOST:8265.  [default: $RAY_API_SERVER_ADDRESS]"
)


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--output", "-o", type=PLACE, required=True, help="Persistent run folder: a URI, or a path on a shared disk."
)
@_address
@click.option(
    "--working-dir", type=click.Path(path_type=Path), default=Path("."), show_default=True,
    help="Folder to upload: it contains SPEC and your code.",
)  # fmt: skip
@click.option("--env", "requirements", type=click.Path(path_type=Path), help="requirements.txt the cluster installs.")
@click.option("--ship", is_flag=True, help="Upload this installation of dpaudit, if the cluster has none.")
@click.option("--seed", type=int, help="Override the spec's seed.")
@click.option("--sweep", is_flag=True, help="SPEC is the spec of a sweep.")
@click.option("--follow", "-f", is_flag=True, help="Print the log of the job until it ends.")
@json_option
def submit(
    spec: Path, output: str | Path, address: str | None, follow: bool, as_json: bool, **job_options: Any
) -> None:
    """Run the audits of SPEC, or a sweep, as a job of a cluster.

    The spec, code and output identify the job. A job that runs or has succeeded is not started again. A job that failed
    or was stopped starts again and resumes from its run folder.
    """
    from dpaudit.cluster.jobs import Jobs
    from dpaudit.engine.run.run_status import note_submission

    search_last(str(job_options["working_dir"].resolve()))
    jobs = Jobs(address)
    submitted = jobs.submit(job_of(spec, output, **job_options))
    note_submission(output, submitted.name, jobs.address)
    outcome = "submitted" if submitted.new else f"exists already ({submitted.state}) and is not started again"
    where = _where(address)
    text = f"{submitted.name} {outcome}; `dpaudit logs -f {submitted.name}{where}`, `dpaudit status {output}{where}`"
    _show(text, {"job": submitted.name, "new": submitted.new, "state": submitted.state, "output": str(output)}, as_json)
    if follow:
        _follow(jobs, submitted.name)


@click.command()
@click.argument("target", metavar="RUN|JOB")
@_address
@json_option
def status(target: str, address: str | None, as_json: bool) -> None:
    """Print the status of a run or job.

    RUN is the path or URI of a run folder, JOB the name of a job.
    """
    from dpaudit.cluster.jobs import Jobs
    from dpaudit.engine.run.run_status import NotPlanned, run_status

    if Jobs.is_name(target) and not os.path.exists(target):
        jobs = Jobs(address)
        state, message = jobs.state(target), jobs.message(target)
        text = f"{target}: {state}" + (f"; {message}" if message else "")
        _show(text, {"job": target, "state": state, "message": message}, as_json)
        return
    place = PLACE.convert(target, None, None)
    try:
        run = run_status(place)
    except NotPlanned as err:
        submission = _submission_status(place, address, err)
        _show(submission, {"place": str(place), "stage": submission}, as_json)
    else:
        show_lines(in_json(run) if as_json else str(run))


def _show(text: str, values: Mapping[str, Any], as_json: bool) -> None:
    """Print one line of text, or its values in JSON."""
    if as_json:
        show_lines(in_json(values))
    else:
        show(text)


def _submission_status(place: str | Path, address: str | None, not_planned: SpecError) -> str:
    """Return the state of the job that was submitted to write `place`; raise `not_planned` if there is no such job."""
    from dpaudit.cluster.jobs import UNFINISHED, Jobs
    from dpaudit.engine.run.run_status import submission_of

    noted = submission_of(place)
    if noted is None:
        raise not_planned
    job, address = noted[0], address or noted[1]
    submitted = f"{shortened(place)}: submitted as {job}"
    where = _where(address)
    try:
        state = Jobs(address).state(job)
    except AuditError as err:
        return f"{submitted} and not started yet. The state of the job is unknown: {err}"
    if state in UNFINISHED:
        return f"{submitted} ({state}) and not started yet; `dpaudit logs -f {job}{where}` follows the job"
    return f"{submitted}, which ended as {state} without a plan; see `dpaudit logs {job}{where}`"


def _where(address: str | None) -> str:
    """Return the option that a further command needs; "" where the environment states the same address."""
    return f" --address {address}" if address and address != os.environ.get("RAY_API_SERVER_ADDRESS") else ""


@click.command()
@click.argument("job")
@_address
@click.option("--follow", "-f", is_flag=True, help="Continue until the job ends.")
def logs(job: str, address: str | None, follow: bool) -> None:
    """Print the log of a job.

    With -f, print new lines until the job ends. The exit code is 3 if it fails.
    """
    from dpaudit.cluster.jobs import Jobs

    jobs = Jobs(address)
    if follow:
        _follow(jobs, job)
    else:
        for text in jobs.logs(job):
            _show_log(text)


def _follow(jobs: Jobs, name: str) -> None:
    for text in jobs.logs(name, follow=True):
        _show_log(text)
    if failure := jobs.failure(name):
        stop(f"{name}: {failure}", RUN_FAILED)


def _show_log(text: str) -> None:
    show_lines(click.unstyle(text), newline=False)


@click.command(name="stop")
@click.argument("job")
@_address
@json_option
def stop_job(job: str, address: str | None, as_json: bool) -> None:
    """Stop a job; its finished units are kept.

    Submit the same job again to resume it.
    """
    from dpaudit.cluster.jobs import Jobs

    state = Jobs(address).stop(job)
    _show(f"{job}: {state}", {"job": job, "state": state}, as_json)


@click.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def fetch(run: str | Path, folder: Path, as_json: bool) -> None:
    """Copy the run folder at RUN to FOLDER.

    RUN is a URI or a path. FOLDER must be new or empty.
    """
    from dpaudit.engine.run.run_status import fetch as fetch_run

    if str(run) == str(folder):
        raise SpecError(f"RUN and FOLDER must differ, got {shortened(folder)} for both")
    fetch_run(run, folder)
    _show(f"{folder}: open report.html, or `dpaudit report {folder}`", {"folder": str(folder)}, as_json)


def job_of(
    spec: Path,
    output: str | Path,
    *,
    working_dir: Path,
    requirements: Path | None = None,
    ship: bool = False,
    seed: int | None = None,
    sweep: bool = False,
) -> Job:
    from dpaudit.cluster.jobs import Job
    from dpaudit.engine.request.loading import load_spec
    from dpaudit.engine.sweep.request import read_request

    audits = read_request(spec) if sweep else load_spec(spec)
    if audits.run.runner not in ("auto", "ray"):
        raise SpecError(
            f"a submitted spec must have `run: {{runner: ray}}` or no runner, got {audits.run.runner!r}: only Ray "
            "distributes work over a cluster"
        )
    folder = working_dir.resolve()
    try:
        inside = spec.resolve().relative_to(folder)
    except ValueError:
        raise SpecError(f"the spec must be in the uploaded folder {shortened(folder)}. Give --working-dir") from None
    if is_remote(output):
        require_no_credentials(str(output))
    elif not Path(output).is_absolute():
        raise SpecError(
            f"the output of a job must be a URI, or an absolute path on a disk that all nodes share, got "
            f"{shortened(output)}"
        )
    for path, option in ((folder, "--working-dir"), (requirements, "--env")):
        if path is not None and not path.exists():
            raise SpecError(f"{option} must name an existing path, got {shortened(path)}")
    seeded = () if seed is None else ("--seed", str(seed))
    return Job(
        ("sweep" if sweep else "run", inside.as_posix(), "--output", str(output), *seeded),
        folder,
        requirements,
        (Path(dpaudit.__file__).parent,) if ship else (),
        {"audit": audits.name, "output": str(output)},
    )


REMOTE_VERBS = (submit, status, logs, stop_job, fetch)
