"""Commands for runs on another machine: `submit`, `status`, `logs`, `stop` and `fetch`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import dpaudit
from dpaudit.engine.cli.options import PLACE
from dpaudit.engine.exits import RUN_FAILED, show, show_lines, stop
from dpaudit.errors import AuditError, SpecError, shortened
from dpaudit.locations import search_last

if TYPE_CHECKING:
    from dpaudit.cluster.jobs import Job, Jobs

_address = click.option(
    "--address", help="Dashboard of the cluster, http://HOST:8265; left out: $RAY_API_SERVER_ADDRESS."
)


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--output", "-o", type=PLACE, required=True, help="Run folder that lasts: a URI, or a path of a shared disk."
)
@_address
@click.option(
    "--working-dir", type=click.Path(path_type=Path), default=Path("."), show_default=True,
    help="Folder that travels along: SPEC and code of one's own are in it.",
)  # fmt: skip
@click.option("--env", "requirements", type=click.Path(path_type=Path), help="requirements.txt the cluster installs.")
@click.option("--ship", is_flag=True, help="Send this installation of dpaudit along; left out: the cluster has it.")
@click.option("--seed", type=int, help="Instead of the spec's seed.")
@click.option("--sweep", is_flag=True, help="SPEC is that of a sweep.")
@click.option("--follow", "-f", is_flag=True, help="Show what it prints until it has ended.")
def submit(spec: Path, output: str | Path, address: str | None, follow: bool, **travels: Any) -> None:
    """Runs the audits of SPEC, or a sweep, as a job of a cluster.

    The same spec, code and output are the same job: submitted again, it is not begun twice; one that failed or was
    stopped is begun again and goes on where its run folder stands.
    """
    from dpaudit.cluster.jobs import Jobs
    from dpaudit.engine.run.submissions import Submission, note_submission

    search_last(str(travels["working_dir"].resolve()))
    jobs = Jobs(address)
    submitted = jobs.submit(job_of(spec, output, **travels))
    note_submission(output, Submission(submitted.name, jobs.address))
    said = "submitted" if submitted.new else f"is there already ({submitted.state}); not begun again"
    show(f"{submitted.name} {said}; `dpaudit logs -f {submitted.name}`, `dpaudit status {output}`")
    if follow:
        _follow(jobs, submitted.name)


@click.command()
@click.argument("what", metavar="RUN|JOB")
@_address
def status(what: str, address: str | None) -> None:
    """Says how a run or a job stands.

    A run is named by its run folder (a path or a URI), a job of a cluster by its name.
    """
    from dpaudit.cluster.jobs import Jobs
    from dpaudit.engine.run.watching import NotPlanned, run_status

    if Jobs.is_name(what) and not os.path.exists(what):
        jobs = Jobs(address)
        state, message = jobs.state(what), jobs.message(what)
        show(f"{what}: {state}" + (f"; {message}" if message else ""))
        return
    place = PLACE.convert(what, None, None)
    try:
        show_lines(str(run_status(place)))
    except NotPlanned as err:
        show(_not_started(place, address, err))


def _not_started(place: str | Path, address: str | None, not_planned: SpecError) -> str:
    """Return the state of the job that was submitted to write `place`; raise `not_planned` if there is no such job."""
    from dpaudit.cluster.jobs import ALIVE, Jobs
    from dpaudit.engine.run.submissions import submission_of

    submission = submission_of(place)
    if submission is None:
        raise not_planned
    submitted = f"{shortened(place)}: submitted as {submission.job}"
    try:
        state = Jobs(address or submission.address).state(submission.job)
    except AuditError as err:
        return f"{submitted} and not started yet; how the job stands is unknown: {err}"
    if state in ALIVE:
        return f"{submitted} ({state}) and not started yet; `dpaudit logs -f {submission.job}` follows the job"
    return f"{submitted}, which ended as {state} and left no plan; `dpaudit logs {submission.job}` says why"


@click.command()
@click.argument("job")
@_address
@click.option("--follow", "-f", is_flag=True, help="Until the job has ended.")
def logs(job: str, address: str | None, follow: bool) -> None:
    """Prints what a job printed.

    With -f as it comes, and then the exit code says how it ended.
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
    """A piece of a log; what coloured it is left out."""
    show_lines(click.unstyle(text), ends=False)


@click.command(name="stop")
@click.argument("job")
@_address
def stop_job(job: str, address: str | None) -> None:
    """Stops a job; what it finished is kept.

    Submitting the same again goes on.
    """
    from dpaudit.cluster.jobs import Jobs

    show(f"{job}: {Jobs(address).stop(job)}")


@click.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.argument("folder", type=click.Path(path_type=Path))
def fetch(run: str | Path, folder: Path) -> None:
    """Copies the run folder at RUN to FOLDER.

    RUN is a URI or a path; FOLDER is new or empty.
    """
    from dpaudit.engine.run.watching import fetch as fetch_run

    if str(run) == str(folder):
        raise SpecError(f"the folder to fetch to must be another one than {shortened(folder)}")
    fetch_run(run, folder)
    show(f"{folder}: open report.html, or `dpaudit report {folder}`")


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
    from dpaudit.actors.storage.places import is_remote, require_no_credentials
    from dpaudit.cluster.jobs import Job
    from dpaudit.engine.request.loading import load_spec
    from dpaudit.engine.sweep.running import read_request

    audits = read_request(spec) if sweep else load_spec(spec)
    if audits.run.runner not in ("auto", "ray"):
        raise SpecError(
            f"a submitted spec must have `run: {{runner: ray}}`, or none, got {audits.run.runner!r}: on a cluster only "
            "Ray's workers share the work"
        )
    folder = working_dir.resolve()
    try:
        inside = spec.resolve().relative_to(folder)
    except ValueError:
        raise SpecError(
            f"the spec must be in the folder that travels, {shortened(folder)}; give --working-dir"
        ) from None
    if is_remote(output):
        require_no_credentials(str(output))
    elif not Path(output).is_absolute():
        raise SpecError(
            f"the output of a job must last longer than the job: a URI, or an absolute path on a disk that all nodes "
            f"share, got {shortened(output)}"
        )
    for path, what in ((folder, "the working folder"), (requirements, "the file of --env")):
        if path is not None and not path.exists():
            raise SpecError(f"{what} must be there, {shortened(path)} is not")
    seeded = () if seed is None else ("--seed", str(seed))
    return Job(
        ("sweep" if sweep else "run", inside.as_posix(), "--output", str(output), *seeded),
        folder,
        requirements,
        (Path(dpaudit.__file__).parent,) if ship else (),
        {"audit": audits.name, "output": str(output)},
    )


REMOTE_VERBS = (submit, status, logs, stop_job, fetch)
