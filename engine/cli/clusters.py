"""`dpaudit cluster kuberay` and `up-config`: what a cluster is made from, as YAML to look at and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from dpaudit.engine.cli.places import PLACE
from dpaudit.engine.exits import show_lines

_nodes = (
    click.option("--image", required=True, help="Container image with dpaudit; docs/guides/cluster.md has one."),
    click.option("--cpu-nodes", type=click.IntRange(min=0), default=4, show_default=True, help="At most so many."),
    click.option("--gpu-nodes", type=click.IntRange(min=0), default=0, show_default=True, help="At most so many."),
)


def _with_nodes(command: Any) -> Any:
    for option in reversed(_nodes):
        command = option(command)
    return command


@click.group()
def cluster() -> None:
    """Prints what a cluster is made from; nothing is started."""


@cluster.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=PLACE, required=True, help="Run folder that lasts: a URI, or a shared path.")
@click.option("--name", help="Of the RayJob; left out: by the work.")
@click.option("--secret", help="Kubernetes secret with the store's credentials.")
@click.option("--cpus", type=click.IntRange(min=1), default=8, show_default=True, help="Of a node.")
@click.option("--memory-gib", type=click.IntRange(min=1), default=32, show_default=True, help="Of a node.")
@_with_nodes
def kuberay(
    spec: Path,
    output: str | Path,
    name: str | None,
    secret: str | None,
    cpus: int,
    memory_gib: int,
    image: str,
    cpu_nodes: int,
    gpu_nodes: int,
) -> None:
    """A RayJob for KubeRay: brings a cluster up, runs SPEC, goes on after failures, takes it down.

    SPEC and code of one's own are in the image's working folder, under the same names as here.
    """
    import ray
    import yaml

    from dpaudit.cluster.manifests import Workers, ray_job
    from dpaudit.engine.cli.remote_jobs import job_of

    job = job_of(spec, output, working_dir=Path.cwd())
    manifest = ray_job(
        job,
        name=name or job.key(),
        image=image,
        ray_version=ray.__version__,
        cpu=Workers(cpu_nodes, cpus, memory_gib),
        gpu=Workers(gpu_nodes, cpus, memory_gib, gpus=1),
        secret=secret,
    )
    show_lines(yaml.safe_dump(manifest, sort_keys=False, width=1000).rstrip())


@cluster.command()
@click.option("--provider", type=click.Choice(["aws", "gcp", "local"]), required=True)
@click.option("--name", default="dpaudit", show_default=True)
@click.option("--head", help="local: the head's host.")
@click.option("--host", "hosts", multiple=True, help="local: a worker's host; may be given again.")
@_with_nodes
def up_config(
    provider: Literal["aws", "gcp", "local"],
    name: str,
    head: str | None,
    hosts: tuple[str, ...],
    image: str,
    cpu_nodes: int,
    gpu_nodes: int,
) -> None:
    """A file for `ray up`; machine types are first choices, to be edited."""
    import yaml

    from dpaudit.cluster.manifests import Workers, up_config

    config = up_config(
        name=name,
        provider=provider,
        image=image,
        cpu=Workers(cpu_nodes),
        gpu=Workers(gpu_nodes, gpus=1),
        head=head,
        hosts=hosts,
    )
    show_lines(yaml.safe_dump(config, sort_keys=False, width=1000).rstrip())
