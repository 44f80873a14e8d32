"""Schemas of custom resources, as far as the restarter touches them."""

from __future__ import annotations

from typing import Any

ANYTHING: dict[str, Any] = {}
TEXT = {"type": "string"}
YES_OR_NO = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}


def fields(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with only these fields."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def some(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these and other fields."""
    return {"type": "object", "properties": properties}


METADATA = fields(
    name=TEXT,
    generateName=TEXT,
    namespace=TEXT,
    uid=TEXT,
    resourceVersion=TEXT,
    generation=COUNT,
    creationTimestamp=TEXT,
    deletionTimestamp=TEXT,
    labels={"type": "object", "additionalProperties": TEXT},
    annotations={"type": "object", "additionalProperties": TEXT},
    ownerReferences={"type": "array", "items": {"$ref": "#/$defs/ownerReference"}},
    managedFields=ANYTHING,
    finalizers=ANYTHING,
)
OWNER_REFERENCE = {
    **fields(apiVersion=TEXT, kind=TEXT, name=TEXT, uid=TEXT, controller=YES_OR_NO, blockOwnerDeletion=YES_OR_NO),
    "required": ["apiVersion", "kind", "name", "uid"],
}
TEMPLATE = some(metadata=some(annotations={"type": "object", "additionalProperties": TEXT}), spec=ANYTHING)


def resource(**properties: Any) -> dict[str, Any]:
    return {
        **fields(apiVersion=TEXT, kind=TEXT, metadata=METADATA, status=ANYTHING, **properties),
        "$defs": {"ownerReference": OWNER_REFERENCE},
    }


SCHEMAS = {
    "JobSet": resource(
        spec=fields(
            suspend=YES_OR_NO,
            managedBy=TEXT,
            replicatedJobs={"type": "array", "items": some(name=TEXT, replicas=COUNT, template=ANYTHING)},
            failurePolicy=ANYTHING,
            successPolicy=ANYTHING,
            startupPolicy=ANYTHING,
            network=ANYTHING,
            coordinator=ANYTHING,
            ttlSecondsAfterFinished=COUNT,
        )
    ),
    "TrainJob": resource(
        spec=fields(
            suspend=YES_OR_NO,
            managedBy=TEXT,
            runtimeRef=some(name=TEXT),
            trainer=some(numNodes=COUNT, image=TEXT),
            initializer=ANYTHING,
            runtimePatches=ANYTHING,
            labels=ANYTHING,
            annotations=ANYTHING,
        )
    ),
    "PyTorchJob": resource(
        spec=fields(
            runPolicy=fields(
                suspend=YES_OR_NO,
                managedBy=TEXT,
                cleanPodPolicy=TEXT,
                backoffLimit=COUNT,
                activeDeadlineSeconds=COUNT,
                ttlSecondsAfterFinished=COUNT,
                schedulingPolicy=ANYTHING,
            ),
            pytorchReplicaSpecs={"type": "object", "additionalProperties": some(replicas=COUNT, template=TEMPLATE)},
            elasticPolicy=ANYTHING,
            nprocPerNode=TEXT,
        )
    ),
    "Job": resource(  # Volcano's
        spec=some(schedulerName=TEXT, minAvailable=COUNT, maxRetry=COUNT, queue=TEXT, tasks={"type": "array"})
    ),
    "Command": {
        **resource(action=TEXT, target={"$ref": "#/$defs/ownerReference"}, reason=TEXT, message=TEXT),
        "required": ["apiVersion", "kind", "metadata", "action", "target"],
    },
    "RayJob": resource(
        spec=some(suspend=YES_OR_NO, shutdownAfterJobFinishes=YES_OR_NO, entrypoint=TEXT, rayClusterSpec=ANYTHING)
    ),
    "RayCluster": resource(spec=some(suspend=YES_OR_NO)),
    "LeaderWorkerSet": resource(
        spec=fields(
            replicas=COUNT,
            leaderWorkerTemplate=some(
                size=COUNT,
                restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None", "Default"]},
                leaderTemplate=TEMPLATE,
                workerTemplate=TEMPLATE,
            ),
            rolloutStrategy=ANYTHING,
            startupPolicy=TEXT,
            networkConfig=ANYTHING,
        )
    ),
    "PodMonitor": resource(
        spec=some(selector=some(), namespaceSelector=some(), podMetricsEndpoints={"type": "array"}),
    ),
    "Workflow": resource(
        spec=some(entrypoint=TEXT, templates={"type": "array"}, templateDefaults=ANYTHING, suspend=YES_OR_NO)
    ),
}
