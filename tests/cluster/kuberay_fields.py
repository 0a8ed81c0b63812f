"""The fields of a RayJob as KubeRay 1.5 declares them, as a JSON schema: those we write, down to the pods.

Source: ray-operator/apis/ray/v1/rayjob_types.go and raycluster_types.go of ray-project/kuberay; Kubernetes' PodSpec.
"""

from __future__ import annotations

from typing import Any

WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
INT32 = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXT = {"type": "string", "minLength": 1}
QUANTITIES = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$"},
}


def fields(required: str, **properties: Any) -> dict[str, Any]:
    """An object of these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def several(each: dict[str, Any]) -> dict[str, Any]:
    """A list that is not empty."""
    return {"type": "array", "items": each, "minItems": 1}


CONTAINER = fields(
    "name image resources",
    name=TEXT,
    image=TEXT,
    resources=fields("limits requests", limits=QUANTITIES, requests=QUANTITIES),
    volumeMounts=several(fields("name mountPath", name=TEXT, mountPath=TEXT)),
    ports=several(fields("name containerPort", name={**TEXT, "maxLength": 15}, containerPort=INT32)),
    env=several(fields("name value", name=TEXT, value=TEXT)),
    envFrom=several(fields("secretRef", secretRef=fields("name", name=TEXT))),
)
MEMORY = fields("medium sizeLimit", medium={"const": "Memory"}, sizeLimit=TEXT)
POD = fields(
    "spec",
    spec=fields(
        "containers",
        containers=several(CONTAINER),
        volumes=several(fields("name emptyDir", name=TEXT, emptyDir=MEMORY)),
    ),
)
GROUP = fields(
    "groupName minReplicas maxReplicas rayStartParams template",
    groupName=TEXT,
    replicas=INT32,
    minReplicas=INT32,
    maxReplicas=INT32,
    numOfHosts=INT32,
    rayStartParams=WORDS,
    template=POD,
)
CLUSTER = fields(
    "headGroupSpec",
    headGroupSpec=fields("rayStartParams template", rayStartParams=WORDS, template=POD),
    workerGroupSpecs=several(GROUP),
    rayVersion=TEXT,
    enableInTreeAutoscaling={"type": "boolean"},
    authOptions=fields("mode", mode={"enum": ["token", "disabled"]}),
)
RAY_JOB = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields("name", name={**TEXT, "maxLength": 47, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}),
    spec=fields(
        "rayClusterSpec entrypoint",
        entrypoint=TEXT,
        metadata=WORDS,
        backoffLimit=INT32,
        activeDeadlineSeconds=INT32,
        ttlSecondsAfterFinished=INT32,  # read where shutdownAfterJobFinishes is true
        shutdownAfterJobFinishes={"const": True},
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        suspend={"type": "boolean"},
        rayClusterSpec=CLUSTER,
    ),
)
