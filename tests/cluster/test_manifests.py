"""Manifests fit the schemas that can be had offline, and hold no secret."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from click.testing import CliRunner

from dpaudit.actors.pool import WAIT_FOR_NODES
from dpaudit.engine.cli.main import main
from dpaudit.errors import InputError
from tests.cluster.kuberay_fields import RAY_JOB


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text("{data: iris, mechanism: {name: randomized-response, epsilon: 1}}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word-of-a-secret")
    return "spec.yaml"


def printed(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "word-of-a-secret" not in done.output
    return dict(yaml.safe_load(done.output))


def test_a_ray_job_has_fields_that_kuberay_knows_and_goes_on_after_failures(spec: str) -> None:
    made = printed(
        "cluster", "kuberay", spec, "--image", "me/dpaudit:1", "-o", "s3://bucket/run", "--gpu-nodes", "2",
        "--secret", "store",
    )  # fmt: skip
    jsonschema.validate(made, RAY_JOB)
    assert made["spec"]["entrypoint"] == "python -m dpaudit run spec.yaml --output s3://bucket/run"
    assert made["spec"]["backoffLimit"] > 0
    cluster = made["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == ray.__version__
    assert cluster["authOptions"] == {"mode": "token"}
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"name": WAIT_FOR_NODES, "value": "1800"} in head["env"], "at first there is no worker, and no refusal"
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert groups.keys() == {"cpu-workers", "gpu-workers"}
    limits = groups["gpu-workers"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    for pod in (cluster["headGroupSpec"], *groups.values()):
        (container,) = pod["template"]["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
    for wrong in ({"replicas": -1}, {"minReplicas": "0"}, {"gpus": 1}, {"rayStartParams": {"num-cpus": 0}}):
        broken = copy.deepcopy(made)
        broken["spec"]["rayClusterSpec"]["workerGroupSpecs"][0] |= wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, RAY_JOB)


@pytest.mark.parametrize("provider", ["aws", "gcp", "local"])
def test_a_file_for_ray_up_fits_rays_own_schema(provider: str) -> None:
    own = ("--head", "one", "--host", "two", "--host", "three") if provider == "local" else ()
    made = printed("cluster", "up-config", "--provider", provider, "--image", "me/dpaudit:1", *own)
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(made, schema)
    assert any("RAY_AUTH_MODE=token" in command for command in made["head_start_ray_commands"])
    assert f"{WAIT_FOR_NODES}=1800" in made["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in made["head_start_ray_commands"][-1]
    assert not {"head_node", "worker_nodes", "initial_workers", "autoscaling_mode"} & made.keys(), "superseded"


def test_what_kubernetes_would_refuse_is_one_sentence(spec: str) -> None:
    from dpaudit.cluster.jobs import Job
    from dpaudit.cluster.manifests import Workers, ray_job, up_config

    nodes = Workers(1)
    job = Job(("run",), Path.cwd())
    with pytest.raises(InputError, match="lower case letters, digits and dashes"):
        ray_job(job, name="My Job", image="i", ray_version="2", cpu=nodes, gpu=nodes)
    with pytest.raises(InputError, match="machines of one's own need a head"):
        up_config(name="c", provider="local", image="i", cpu=nodes, gpu=nodes)
