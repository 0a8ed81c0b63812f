"""Example files for new clusters match the schemas of KubeRay and Ray, and the rules of Kueue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from dpaudit.actors.pool import WAIT_FOR_NODES
from tests.cluster.kuberay_schema import RAY_JOB, kueue_objections

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


def parsed(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8")))


def test_the_ray_job_matches_the_schema_of_kuberay() -> None:
    job = parsed("kuberay-job.yaml")
    jsonschema.validate(job, RAY_JOB)
    assert job["spec"]["entrypoint"].startswith("python -m dpaudit run ")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == ray.__version__
    head, *workers = cluster["headGroupSpec"], *cluster["workerGroupSpecs"]
    for group in (head, *workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        (mount,), (volume,) = container["volumeMounts"], group["template"]["spec"]["volumes"]
        assert mount["name"] == volume["name"]
    (container,) = head["template"]["spec"]["containers"]
    assert {"name": WAIT_FOR_NODES, "value": "1800"} in container["env"], (
        "units wait for the first worker instead of failing"
    )
    gpu = workers[-1]["template"]["spec"]
    assert gpu["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert gpu["nodeSelector"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in gpu["tolerations"]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("maxReplicas: 8", 'maxReplicas: "8"'),
        ("effect: NoSchedule", "effect: NeverSchedule"),
        ("            tolerations:", "            toleration:"),
        ("medium: Memory", "medium: RAM"),
        ("apiVersion: ray.io/v1", "apiVersion: ray.io/v1alpha1"),
        ('{nvidia.com/gpu.present: "true"}', "{nvidia.com/gpu.present: true}"),
        ("backoffLimit: 3", "backoffLimits: 3"),
        ("memory: 8Gi", "memory: 8 GB"),
        ("name: dpaudit-mine", "name: Mine"),
    ],
)
def test_a_wrong_line_of_the_ray_job_is_refused(line: str, instead: str) -> None:
    text = (EXAMPLES / "kuberay-job.yaml").read_text(encoding="utf-8")
    assert line in text
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text.replace(line, instead)), RAY_JOB)


def test_the_ray_job_can_wait_in_a_queue_of_kueue() -> None:
    """With the commented lines; or without the feature gate, as the file says."""
    text = (EXAMPLES / "kuberay-job.yaml").read_text(encoding="utf-8")
    assert kueue_objections(yaml.safe_load(text)) == [
        "it names no queue",
        "the cluster grows, and the job is not elastic",
    ]
    queued = text.replace("  # labels: {kueue", "  labels: {kueue")
    elastic = yaml.safe_load(queued.replace("  # annotations: {kueue", "  annotations: {kueue"))
    fixed = yaml.safe_load(
        queued.replace("enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false").replace(
            "replicas: 0", "replicas: 2"
        )
    )
    for job in (elastic, fixed):
        jsonschema.validate(job, RAY_JOB)
        assert kueue_objections(job) == []


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
