"""What a cluster is made from: a RayJob of KubeRay (`ray.io/v1`) and a file for `ray up`, as plain values for YAML.

No value of a secret is in them: credentials are named, and come from the cluster's own secret store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dpaudit.cluster.jobs import Job
from dpaudit.errors import require

Provider = Literal["aws", "gcp", "local"]
RESUMES = 3  # how often a RayJob is begun again on a new cluster: what is in its run folder is not run again
SHARED_MEMORY = "4Gi"
WAIT_FOR_NODES = {"DPAUDIT_WAIT_FOR_NODES_S": "1800"}
"""These clusters have no worker before one is asked for: a run that finds none waits so many seconds for one."""


@dataclass(frozen=True)
class Workers:
    """Nodes of one kind."""

    most: int
    cpus: int = 8  # of each
    memory_gib: int = 32  # of each
    gpus: int = 0  # of each

    def __post_init__(self) -> None:
        fits = self.most >= 0 and self.cpus >= 1 and self.memory_gib >= 1 and self.gpus >= 0
        require(fits, "nodes need cpus >= 1, memory >= 1 GiB, gpus >= 0, and none or more of them", given=self)


def ray_job(
    job: Job, *, name: str, image: str, ray_version: str, cpu: Workers, gpu: Workers, secret: str | None = None
) -> dict[str, Any]:
    """A RayJob that brings a cluster up, runs the job, begins it again when it fails, and takes the cluster down.

    The job's files, dpaudit and `ray[default]` are in the image, the files in its working folder. There are no nodes
    with GPUs where `gpu.most` is 0. The entries of the Kubernetes secret become environment variables: credentials of
    the store.
    Raises: InputError for a name that Kubernetes would refuse.
    Source: KubeRay, `ray-operator/apis/ray/v1/rayjob_types.go`; token authentication needs KubeRay >= 1.5.1.
    """
    valid = re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?", name) is not None
    require(valid, "the name of a RayJob must be lower case letters, digits and dashes, 47 at most", name=name)
    kinds = {"cpu": cpu, "gpu": gpu}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": job.entrypoint,
            "metadata": dict(job.metadata),
            "backoffLimit": RESUMES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "authOptions": {"mode": "token"},
                "enableInTreeAutoscaling": True,
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": _pod("ray-head", image, Workers(1, 2, 8), secret, head=True),
                },
                "workerGroupSpecs": [
                    _group(kind, image, workers, secret) for kind, workers in kinds.items() if workers.most
                ],
            },
        },
    }


def _group(kind: str, image: str, workers: Workers, secret: str | None) -> dict[str, Any]:
    return {
        "groupName": f"{kind}-workers",
        "replicas": 0,
        "minReplicas": 0,
        "maxReplicas": workers.most,
        "rayStartParams": {},
        "template": _pod("ray-worker", image, workers, secret),
    }


def _pod(name: str, image: str, workers: Workers, secret: str | None, *, head: bool = False) -> dict[str, Any]:
    resources = {"cpu": str(workers.cpus), "memory": f"{workers.memory_gib}Gi"}
    if workers.gpus:
        resources["nvidia.com/gpu"] = str(workers.gpus)
    ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "resources": {"limits": resources, "requests": resources},
        # Ray's object store; without it Kubernetes gives 64 MiB.
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    if head:
        container["env"] = [{"name": name, "value": value} for name, value in WAIT_FOR_NODES.items()]
        container["ports"] = [{"name": port, "containerPort": number} for port, number in ports.items()]
    if secret is not None:
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    return {"spec": {"containers": [container], "volumes": [memory]}}


_NODES: dict[str, dict[str, dict[str, Any]]] = {
    "aws": {
        "head": {"InstanceType": "m6i.large"},
        "cpu": {"InstanceType": "c6i.4xlarge", "InstanceMarketOptions": {"MarketType": "spot"}},
        "gpu": {"InstanceType": "g5.xlarge", "InstanceMarketOptions": {"MarketType": "spot"}},
    },
    "gcp": {
        "head": {"machineType": "e2-standard-2"},
        "cpu": {"machineType": "c2-standard-16", "scheduling": [{"preemptible": True}]},
        "gpu": {"machineType": "g2-standard-8", "scheduling": [{"preemptible": True}]},
    },
}
_PROVIDERS: dict[str, dict[str, Any]] = {
    "aws": {"type": "aws", "region": "us-west-2", "cache_stopped_nodes": False},
    "gcp": {"type": "gcp", "region": "us-west1", "availability_zone": "us-west1-a", "project_id": None},
}


def up_config(
    *,
    name: str,
    provider: Provider,
    image: str,
    cpu: Workers,
    gpu: Workers,
    head: str | None = None,
    hosts: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A file for `ray up`: a small head node, workers that come and go with the work.

    Machine types are sound first choices, to be edited; the ports stay closed to all but the nodes and SSH.

    The image has dpaudit and `ray[default]` in it. On "local", machines of one's own, the head and the hosts of the
    workers are named, and there are no GPUs.
    Raises: InputError for a provider there is none of, or hosts that are missing or too many.
    Source: the schema that Ray brings along (`ray/autoscaler/ray-schema.json`).
    """
    require(provider in get_args(Provider), f"provider must be one of {', '.join(get_args(Provider))}", given=provider)
    local = provider == "local"
    require(local == bool(head), "machines of one's own need a head, and only they", provider=provider, head=head)
    config: dict[str, Any] = {
        "cluster_name": name,
        "docker": {
            "image": image,
            "container_name": "dpaudit",
            "pull_before_run": True,
            "run_options": ["--shm-size=4g"],
        },
        "auth": {"ssh_user": "ubuntu"},
        "idle_timeout_minutes": 5,
        "head_start_ray_commands": [
            "ray stop",
            f"{_TOKEN} {_WAIT} ray start --head --port=6379 --dashboard-host=127.0.0.1 "
            "--autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": ["ray stop", f"{_TOKEN} ray start --address=$RAY_HEAD_IP:6379"],
        "file_mounts": {"~/.ray/auth_token": "~/.ray/auth_token"},
    }
    if local:
        return config | {"provider": {"type": "local", "head_ip": head, "worker_ips": list(hosts)}}
    kinds = {"head": Workers(0, 2), "cpu": cpu, "gpu": gpu}
    node_types = {
        kind: {
            "node_config": _NODES[provider][kind],
            "resources": {"CPU": 0} if kind == "head" else {},
            "min_workers": 0,
            "max_workers": workers.most,
        }
        for kind, workers in kinds.items()
        if kind == "head" or workers.most
    }
    return config | {
        "provider": _PROVIDERS[provider],
        "max_workers": cpu.most + gpu.most,
        "available_node_types": node_types,
        "head_node_type": "head",
    }


_WAIT = " ".join(f"{name}={value}" for name, value in WAIT_FOR_NODES.items())
_TOKEN = "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token"
