"""Verbs for runs elsewhere: `submit`, `status`, `logs`, `stop`, `fetch`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.engine.cli.places import PLACE
from dpaudit.engine.exits import RUN_FAILED, show, show_lines, stop
from dpaudit.errors import SpecError, shortened
from dpaudit.locations import search_last

if TYPE_CHECKING:
    from dpaudit.cluster.jobs import Jobs

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
def submit(
    spec: Path,
    output: str | Path,
    address: str | None,
    working_dir: Path,
    requirements: Path | None,
    ship: bool,
    seed: int | None,
    sweep: bool,
    follow: bool,
) -> None:
    """Runs the audits of SPEC, or a sweep, as a job of a cluster.

    The same spec, code and output are the same job: submitted again, it is not begun twice; one that failed or was
    stopped is begun again and goes on where its run folder stands.
    """
    from dpaudit.cluster.jobs import Jobs
    from dpaudit.engine.cli.remote_jobs import job_of

    search_last(str(working_dir.resolve()))
    jobs = Jobs(address)
    job = job_of(spec, output, working_dir=working_dir, requirements=requirements, ship=ship, seed=seed, sweep=sweep)
    submitted = jobs.submit(job)
    said = "submitted" if submitted.new else f"is there already ({submitted.state}); not begun again"
    show(f"{submitted.name} {said}; `dpaudit logs -f {submitted.name}`, `dpaudit status {output}`")
    if follow:
        _follow(jobs, submitted.name)


@click.command()
@click.argument("what", metavar="RUN|JOB")
@_address
def status(what: str, address: str | None) -> None:
    """How a run stands, from its run folder (a path or a URI), or a job of a cluster, by its name."""
    from dpaudit.cluster.jobs import PREFIX, Jobs
    from dpaudit.engine.run.watching import run_status

    if what.startswith(PREFIX) and not os.path.exists(what):
        jobs = Jobs(address)
        state, message = jobs.state(what), jobs.message(what)
        show(f"{what}: {state}" + (f"; {message}" if message else ""))
        return
    show_lines(str(run_status(PLACE.convert(what, None, None))))


@click.command()
@click.argument("job")
@_address
@click.option("--follow", "-f", is_flag=True, help="Until the job has ended.")
def logs(job: str, address: str | None, follow: bool) -> None:
    """What a job printed; with -f as it comes, and the exit code says how it ended."""
    from dpaudit.cluster.jobs import Jobs

    jobs = Jobs(address)
    if follow:
        _follow(jobs, job)
    else:
        for text in jobs.logs(job):
            _show_log(text)


def _follow(jobs: Jobs, name: str) -> None:
    from dpaudit.cluster.jobs import SUCCEEDED

    for text in jobs.logs(name, follow=True):
        _show_log(text)
    state = jobs.state(name)
    if state != SUCCEEDED:
        stop(f"{name}: {state}; {jobs.message(name)}", RUN_FAILED)


def _show_log(text: str) -> None:
    """A piece of a log; what coloured it is left out."""
    show_lines(click.unstyle(text), ends=False)


@click.command(name="stop")
@click.argument("job")
@_address
def stop_job(job: str, address: str | None) -> None:
    """Stops a job; what it finished is kept, and submitting the same again goes on."""
    from dpaudit.cluster.jobs import Jobs

    show(f"{job}: {Jobs(address).stop(job)}")


@click.command()
@click.argument("run", metavar="RUN", type=PLACE)
@click.argument("folder", type=click.Path(path_type=Path))
def fetch(run: str | Path, folder: Path) -> None:
    """Copies the run folder at RUN (a URI or a path) to FOLDER, new or empty."""
    from dpaudit.engine.run.watching import fetch as fetch_run

    if str(run) == str(folder):
        raise SpecError(f"the folder to fetch to must be another one than {shortened(folder)}")
    fetch_run(run, folder)
    show(f"{folder}: open report.html, or `dpaudit report {folder}`")
