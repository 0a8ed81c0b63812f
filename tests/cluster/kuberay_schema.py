"""Schema of the parts of KubeRay's RayJob that the example uses, written by hand: any other field is refused.

Source: the fields, types, required names and enumerations of ray-operator/config/crd/bases/ray.io_rayjobs.yaml, KubeRay
1.5 (RayJobSpec, RayClusterSpec, HeadGroupSpec, WorkerGroupSpec), and of Kubernetes' PodSpec within it.
"""

from __future__ import annotations

from typing import Any

TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$"}
COUNT = {"type": "integer", "minimum": 0}


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields only."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def several(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TEXT = {"type": "string", "minLength": 1}
AMOUNTS = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = fields(
    "name image resources",
    name=TEXT,
    image=TEXT,
    resources=fields(limits=AMOUNTS, requests=AMOUNTS),
    env=several(fields("name", name=TEXT, value={"type": "string"})),
    envFrom=several(fields(secretRef=fields("name", name=TEXT), configMapRef=fields("name", name=TEXT))),
    ports=several(
        fields("containerPort", name=TEXT, containerPort={"type": "integer", "minimum": 1, "maximum": 65535})
    ),
    volumeMounts=several(fields("mountPath name", name=TEXT, mountPath=TEXT)),
)
TOLERATION = fields(
    key=TEXT,
    operator={"enum": ["Exists", "Equal"]},
    value={"type": "string"},
    effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    tolerationSeconds=COUNT,
)
POD = fields(
    "spec",
    metadata=fields(labels=TEXTS, annotations=TEXTS),
    spec=fields(
        "containers",
        containers=several(CONTAINER),
        volumes=several(
            fields("name", name=TEXT, emptyDir=fields(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY))
        ),
        nodeSelector=TEXTS,
        tolerations=several(TOLERATION),
    ),
)
WORKERS = fields(
    "groupName template",
    groupName={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=TEXTS,
    template=POD,
)
CLUSTER = fields(
    "headGroupSpec",
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    authOptions=fields(mode={"enum": ["disabled", "token"]}),
    enableInTreeAutoscaling={"type": "boolean"},
    headGroupSpec=fields("template", rayStartParams=TEXTS, template=POD),
    workerGroupSpecs=several(WORKERS),
)
RAY_JOB = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields(
        "name",
        name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47},
        labels=TEXTS,
        annotations=TEXTS,
    ),
    spec=fields(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        backoffLimit=COUNT,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=CLUSTER,
    ),
)


def kueue_objections(job: dict[str, Any]) -> list[str]:
    """Return why Kueue would not admit a RayJob to its queue.

    Source: the web hook of Kueue's RayJob integration: the cluster must be the job's own and end with it, there may be
    at most seven groups of workers, and a cluster that grows needs the annotation of elastic jobs.
    """
    spec, metadata = job["spec"], job["metadata"]
    cluster, objections = spec["rayClusterSpec"], []
    if not metadata.get("labels", {}).get("kueue.x-k8s.io/queue-name"):
        objections.append("it names no queue")
    if not spec.get("shutdownAfterJobFinishes"):
        objections.append("the cluster stays after the job")
    elastic = metadata.get("annotations", {}).get("kueue.x-k8s.io/elastic-job") == "true"
    if cluster.get("enableInTreeAutoscaling") and not elastic:
        objections.append("the cluster grows, and the job is not elastic")
    if len(cluster["workerGroupSpecs"]) > 7:
        objections.append("it has too many groups of workers")
    return objections
