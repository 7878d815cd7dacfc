"""A JobSet for a Kueue queue, for clusters without xpk: TPU slices, or nodes with GPUs.

Restarts are the cluster's own here, and are told apart: a machine that was taken away, or a program that saved and
stopped (exit 75), restarts without limit; anything else counts. `BlockingRecreate` waits until the old pods are gone,
since two jobs must never write one run.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import yaml

from ectype.errors import EXIT_STOPPED, EctypeError
from ectype.launch.command import Training, process_arguments
from ectype.launch.kubernetes_state import QUEUE_LABEL
from ectype.launch.settings import chips_of
from ectype.launch.xpk import escape_dollars

COORDINATOR_PORT = 8476
_ACCELERATORS = {
    "tpu7x": "tpu7x", "v6e": "tpu-v6e-slice", "v5p": "tpu-v5p-slice", "v5litepod": "tpu-v5-lite-podslice",
    "v4": "tpu-v4-podslice",
}  # fmt: skip
"""Value of GKE's node label by chip."""
_CHIPS_OF_A_MACHINE = 4
_TOPOLOGY = re.compile(r"([a-z]+[0-9]+[a-z]*)-([1-9][0-9]{0,3}(?:x[1-9][0-9]{0,3}){1,2})")
_WORKERS = "workers"
_FUSE = "gcsfuse.csi.storage.gke.io"


@dataclass(frozen=True)
class Machines:
    """What each replica gets: a TPU slice, or nodes with GPUs."""

    per_replica: int
    replicas: int
    resource: str
    count: int
    selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobSetPlan:
    """All that goes into the manifest besides the training command."""

    name: str
    image: str
    queue: str
    machines: Machines
    namespace: str = "default"
    priority: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str, str], ...] = ()
    """Variable, name of the Kubernetes secret, key in it."""
    buckets: tuple[tuple[str, str], ...] = ()
    """Bucket and where it is mounted."""
    claims: tuple[tuple[str, str], ...] = ()
    """Persistent volume claim and where it is mounted."""
    service_account: str | None = None
    failures: int = 5
    grace_seconds: int = 300


def tpu_machines(device_type: str, num_slices: int) -> Machines:
    """A TPU slice by chip and topology, as `tpu7x-4x8x8`.

    Raises:
        EctypeError: another form, or a chip that GKE has no label for here.
    """
    found = _TOPOLOGY.fullmatch(device_type)
    if found is None or found[1] not in _ACCELERATORS:
        raise EctypeError(
            f"--device-type {device_type!r}", f"CHIP-TOPOLOGY with one of {', '.join(_ACCELERATORS)}",
            "as tpu7x-4x8x8 or v5p-4x4x8; a count of cores does not say how the slice is cut",
        )  # fmt: skip
    _, chips = chips_of(device_type)
    of_machine = min(chips, _CHIPS_OF_A_MACHINE)
    if chips % of_machine:
        raise EctypeError(
            f"--device-type {device_type!r}: {chips} chips", f"a whole number of machines of {of_machine}",
            "choose another topology",
        )  # fmt: skip
    selector = (
        ("cloud.google.com/gke-tpu-accelerator", _ACCELERATORS[found[1]]),
        ("cloud.google.com/gke-tpu-topology", found[2]),
    )
    return Machines(chips // of_machine, num_slices, "google.com/tpu", of_machine, selector)


def gpu_machines(gpus_per_node: int, nodes: int) -> Machines:
    """Nodes with NVIDIA GPUs, one process each."""
    return Machines(nodes, 1, "nvidia.com/gpu", gpus_per_node)


def jobset(plan: JobSetPlan, training: Training) -> dict[str, Any]:
    """The JobSet as a mapping."""
    job = {
        "parallelism": plan.machines.per_replica,
        "completions": plan.machines.per_replica,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "ectype", "operator": "In", "values": [EXIT_STOPPED]},
                },
            ]
        },
        "template": {"metadata": _pod_metadata(plan), "spec": _pod(plan, training)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": plan.name, "namespace": plan.namespace, "labels": {QUEUE_LABEL: plan.queue}},
        "spec": {
            "suspend": True,  # until Kueue admits it
            "network": {"enableDNSHostnames": True, "subdomain": plan.name, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": plan.failures,
                "restartStrategy": "BlockingRecreate",
                "rules": [
                    {
                        "name": "takenAway",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": _WORKERS, "replicas": plan.machines.replicas, "template": {"spec": job}}],
        },
    }


def manifest_text(plan: JobSetPlan, training: Training) -> str:
    """The JobSet as YAML."""
    return yaml.safe_dump(jobset(plan, training), sort_keys=False, width=1000)


def _pod_metadata(plan: JobSetPlan) -> dict[str, Any]:
    if not plan.buckets:
        return {"annotations": {}}
    return {"annotations": {"gke-gcsfuse/volumes": "true"}}


def _pod(plan: JobSetPlan, training: Training) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": plan.grace_seconds,
        "nodeSelector": dict(plan.machines.selector),
        "containers": [_container(plan, training)],
        "volumes": _volumes(plan),
    }
    if plan.machines.resource == "google.com/tpu":
        spec["tolerations"] = [{"key": "google.com/tpu", "operator": "Exists"}]
    else:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    if plan.priority is not None:
        spec["priorityClassName"] = plan.priority
    if plan.service_account is not None:
        spec["serviceAccountName"] = plan.service_account
    return spec


def _container(plan: JobSetPlan, training: Training) -> dict[str, Any]:
    """No shell takes part: the program is the container's first process and hears of an end itself."""
    limits = {plan.machines.resource: plan.machines.count}
    variables: list[dict[str, Any]] = [
        {"name": name, "value": escape_dollars(value)} for name, value in plan.environment
    ]
    variables += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, secret, key in plan.secrets
    ]
    mounts = [
        {"name": f"volume-{number}", "mountPath": path} for number, (_, path) in enumerate(plan.buckets + plan.claims)
    ]
    return {
        "name": "ectype",
        "image": plan.image,
        "command": ["ectype"],
        "args": _arguments(plan, training),
        "env": variables,
        "resources": {"requests": limits, "limits": dict(limits)},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, *mounts],
    }


def _arguments(plan: JobSetPlan, training: Training) -> list[str]:
    """The processes find each other on TPUs by what GKE tells them, elsewhere by the job's index."""
    machines = plan.machines
    if machines.resource == "google.com/tpu":
        training = replace(training, coordinator="auto")
    given = [escape_dollars(value) for value in training.arguments()]
    if machines.resource == "google.com/tpu":
        return given
    first = f"{plan.name}-{_WORKERS}-0-0.{plan.name}:{COORDINATOR_PORT}"
    return [*given, *process_arguments("$(JOB_COMPLETION_INDEX)", machines.per_replica, first)]


def _volumes(plan: JobSetPlan) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    for number, (bucket, _) in enumerate(plan.buckets):
        attributes = {"bucketName": bucket, "mountOptions": "implicit-dirs"}
        volumes.append({"name": f"volume-{number}", "csi": {"driver": _FUSE, "volumeAttributes": attributes}})
    for number, (claim, _) in enumerate(plan.claims, len(plan.buckets)):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
    return volumes
