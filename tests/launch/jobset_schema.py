# ruff: noqa: N815 - the names are the API's
"""The part of the JobSet, Job and Pod schemas that we use, written down from their documentation; all else is refused.

JobSet v1alpha2: https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/. Job and Pod: the Kubernetes API reference.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^:]*$")]
Count = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SecretKey(Strict):
    name: DnsLabel
    key: str


class ValueFrom(Strict):
    secretKeyRef: SecretKey


class Env(Strict):
    name: Variable
    value: str | None = None
    valueFrom: ValueFrom | None = None


class VolumeMount(Strict):
    name: DnsLabel
    mountPath: AbsolutePath


class Resources(Strict):
    requests: dict[str, int]
    limits: dict[str, int]


class Container(Strict):
    name: DnsLabel
    image: str
    command: list[str]
    args: list[str]
    env: list[Env]
    resources: Resources
    volumeMounts: list[VolumeMount]


class EmptyDir(Strict):
    medium: Literal["", "Memory"]


class Csi(Strict):
    driver: str
    volumeAttributes: dict[str, str]


class Claim(Strict):
    claimName: DnsLabel


class Volume(Strict):
    name: DnsLabel
    emptyDir: EmptyDir | None = None
    csi: Csi | None = None
    persistentVolumeClaim: Claim | None = None


class Toleration(Strict):
    key: str
    operator: Literal["Exists", "Equal"]


class PodSpec(Strict):
    restartPolicy: Literal["Never"]  # a pod failure policy needs it
    terminationGracePeriodSeconds: Count
    nodeSelector: dict[str, str]
    containers: list[Container]
    volumes: list[Volume]
    tolerations: list[Toleration]
    priorityClassName: str | None = None
    serviceAccountName: str | None = None


class PodTemplate(Strict):
    metadata: dict[Literal["annotations", "labels"], dict[str, str]]
    spec: PodSpec


class OnExitCodes(Strict):
    containerName: DnsLabel
    operator: Literal["In", "NotIn"]
    values: Annotated[list[int], Field(min_length=1, max_length=255)]


class OnPodCondition(Strict):
    type: str
    status: Literal["True", "False", "Unknown"]  # required: without it the API refuses the rule


class PodRule(Strict):
    action: Literal["FailJob", "FailIndex", "Ignore", "Count"]
    onExitCodes: OnExitCodes | None = None
    onPodConditions: list[OnPodCondition] | None = None


class PodFailurePolicy(Strict):
    rules: Annotated[list[PodRule], Field(max_length=20)]


class JobSpec(Strict):
    parallelism: Count
    completions: Count
    completionMode: Literal["Indexed"]
    backoffLimit: Count
    podFailurePolicy: PodFailurePolicy
    template: PodTemplate


class JobTemplate(Strict):
    spec: JobSpec


class ReplicatedJob(Strict):
    name: DnsLabel
    replicas: Count
    template: JobTemplate


class Network(Strict):
    enableDNSHostnames: bool
    subdomain: DnsLabel
    publishNotReadyAddresses: bool


class FailureRule(Strict):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    action: Literal["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    onJobFailureReasons: list[
        Literal[
            "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"
        ]
    ]


class FailurePolicy(Strict):
    maxRestarts: Count
    restartStrategy: Literal["Recreate", "BlockingRecreate"]
    rules: list[FailureRule]


class JobSetSpec(Strict):
    suspend: bool
    network: Network
    failurePolicy: FailurePolicy
    replicatedJobs: list[ReplicatedJob]


class JobSetMetadata(Strict):
    name: DnsLabel
    namespace: DnsLabel
    labels: dict[str, str]


class JobSet(Strict):
    apiVersion: Literal["jobset.x-k8s.io/v1alpha2"]
    kind: Literal["JobSet"]
    metadata: JobSetMetadata
    spec: JobSetSpec


def check(manifest: dict[str, Any]) -> JobSet:
    """The manifest as a model; an error for what the schema does not know, and for a mount without its volume."""
    jobset = JobSet.model_validate(manifest)
    for job in jobset.spec.replicatedJobs:
        pod = job.template.spec.template.spec
        volumes = [volume.name for volume in pod.volumes]
        assert len(set(volumes)) == len(volumes)
        for container in pod.containers:
            assert {mount.name for mount in container.volumeMounts} == set(volumes)
            rules = job.template.spec.podFailurePolicy.rules
            assert all(r.onExitCodes is None or r.onExitCodes.containerName == container.name for r in rules)
            assert all((r.onExitCodes is None) != (r.onPodConditions is None) for r in rules)
    return jobset
