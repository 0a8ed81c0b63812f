"""Example files for new clusters: they parse and have the fields of KubeRay and Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import ray
import yaml

from dpaudit.actors.pool import WAIT_FOR_NODES

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


def parsed(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8")))


def test_the_ray_job_has_the_fields_of_kuberay() -> None:
    """Source: ray-operator/apis/ray/v1/rayjob_types.go and raycluster_types.go of KubeRay 1.5."""
    job = parsed("kuberay-job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    fields = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
    assert spec.keys() == fields
    assert spec["entrypoint"].startswith("python -m dpaudit run ")
    fields = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
    assert cluster.keys() == fields
    assert cluster["authOptions"] == {"mode": "token"}
    head, *workers = cluster["headGroupSpec"], *cluster["workerGroupSpecs"]
    assert head.keys() == {"rayStartParams", "template"}
    for group in workers:
        assert group.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    for group in (head, *workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,) = group["template"]["spec"]["containers"]
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        assert limits == requests
        assert all(isinstance(quantity, str) for quantity in limits.values())
        (mount,), (volume,) = container["volumeMounts"], group["template"]["spec"]["volumes"]
        assert mount["name"] == volume["name"]
    (container,) = head["template"]["spec"]["containers"]
    assert {"name": WAIT_FOR_NODES, "value": "1800"} in container["env"], (
        "units wait for the first worker instead of failing"
    )
    (container,) = workers[-1]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_file_for_ray_up_matches_the_schema_of_ray() -> None:
    config = parsed("ray-up.yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    assert not {"head_node", "worker_nodes", "initial_workers", "autoscaling_mode"} & config.keys(), "superseded"
    assert config["head_node_type"] in config["available_node_types"]
    *_, start = config["head_start_ray_commands"]
    assert f"{WAIT_FOR_NODES}=1800" in start
    assert "--dashboard-host=127.0.0.1" in start
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token" in config[commands][-1]
