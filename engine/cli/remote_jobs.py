"""From a spec to a job of a cluster: what travels, and where its run folder lasts."""

from __future__ import annotations

from pathlib import Path

from dpaudit.actors.storage.mirror import is_remote, refuse_credentials
from dpaudit.cluster.jobs import Job
from dpaudit.engine.spec.loading import load_spec
from dpaudit.engine.sweep.request import read_request
from dpaudit.errors import SpecError, shortened


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
    """The job that runs a spec.

    Args:
        spec: A YAML file in the working folder.
        output: The run folder: a URI, or an absolute path on a disk that all nodes share.
        working_dir: Folder that travels along.
        requirements: A requirements.txt for the cluster.
        ship: Send this installation of dpaudit along.
        seed: Instead of the spec's.
        sweep: Whether it is a sweep.
    Raises: SpecError for a spec that is wrong or outside of the folder, or an output that would not last.
    """
    audits = read_request(spec) if sweep else load_spec(spec)
    if audits.run.runner != "ray":
        raise SpecError("a submitted spec must have `run: {runner: ray}`: on a cluster only workers share the work")
    folder = working_dir.resolve()
    try:
        inside = spec.resolve().relative_to(folder)
    except ValueError:
        raise SpecError(
            f"the spec must be in the folder that travels, {shortened(folder)}; give --working-dir"
        ) from None
    if is_remote(output):
        refuse_credentials(str(output))
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
        (_own_package(),) if ship else (),
        {"audit": audits.name, "output": str(output)},
    )


def _own_package() -> Path:
    import dpaudit

    return Path(dpaudit.__file__).parent
