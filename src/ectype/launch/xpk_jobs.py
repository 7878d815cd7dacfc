"""Jobs on a cluster: made and deleted by `xpk`, looked at through `kubectl`, credentials and old logs by `gcloud`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ectype.artifacts import parse_json
from ectype.launch.backend import Backend, JobReport
from ectype.launch.command import Ran, Training, call
from ectype.launch.kubernetes_state import JOBSET_LABEL, standing
from ectype.launch.log_text import last_error, last_lines
from ectype.launch.settings import Cluster, Slice
from ectype.launch.xpk import Container, create_arguments, delete_arguments

LOG_LINES = 200
_NO_CONTEXT = ("does not exist", "context was not found", "no configuration has been provided", "no context exists")


@dataclass(frozen=True)
class ClusterJobs:
    """What is the same for all jobs of one run on a cluster."""

    cluster: Cluster
    container: Container
    slices: tuple[Slice, ...]
    """The one asked for first."""
    training: Callable[[str], Training]
    """What runs, given a placement."""
    call: Callable[[list[str]], Ran] = call
    now: Callable[[], float] = time.time


def cluster_backend(jobs: ClusterJobs) -> Backend:
    """Jobs of `jobs` as a backend."""
    return Backend(
        submit=lambda name, size: _submit(jobs, name, size),
        look=lambda name: look(jobs, name),
        cancel=lambda name: _cancel(jobs, name),
        commands=lambda name, size: [_create(jobs, name, size)],
    )


def _create(jobs: ClusterJobs, name: str, size: int) -> list[str]:
    machines = jobs.slices[size]
    return create_arguments(jobs.cluster, machines, jobs.container, name, jobs.training(machines.placement))


def _submit(jobs: ClusterJobs, name: str, size: int) -> str:
    ran = jobs.call(_create(jobs, name, size))
    return "" if ran.code == 0 else f"xpk: {_xpk_words(ran)}"


def _cancel(jobs: ClusterJobs, name: str) -> str:
    ran = jobs.call(delete_arguments(jobs.cluster, name))
    return "" if ran.code == 0 else f"xpk: {_xpk_words(ran)}"


def _xpk_words(ran: Ran) -> str:
    """xpk tells of its errors on either stream."""
    lines = [line.strip() for line in ran.output.splitlines() if "rror" in line or "already exists" in line]
    return f"{lines[-1]} ({ran.last_words})" if lines else ran.last_words


def look(jobs: ClusterJobs, name: str) -> JobReport:
    """How a job stands. Any listing that fails, is empty or is no list makes it unknown, never missing."""
    found: list[list[Any]] = []
    kinds: tuple[tuple[str, ...], ...] = (
        ("jobsets.jobset.x-k8s.io", "--field-selector", f"metadata.name={name}"),
        ("workloads.kueue.x-k8s.io",),
        ("pods", "--selector", f"{JOBSET_LABEL}={name}"),
    )
    for kind in kinds:
        ran = _kubectl(jobs, ["get", *kind, "--output", "json"])
        items = _items(ran)
        if items is None:
            return JobReport("unknown", f"kubectl get {kind[0]}: {ran.last_words}")
        found.append(items)
    try:
        stands = standing(name, found[0], found[1], found[2], jobs.now())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return JobReport("unknown", f"kubectl gave something else than it documents: {error!r}")
    if stands.state not in ("failed", "preempted", "succeeded"):
        return JobReport(stands.state, stands.why)
    log = read_log(jobs, name, stands.pod, LOG_LINES)
    error = (stands.error or last_error(log)) if stands.state == "failed" else ""
    return JobReport(stands.state, stands.why, error, last_lines(log), stands.unhealthy)


def read_log(jobs: ClusterJobs, name: str, pod: str | None, lines: int) -> str:
    """The end of a pod's log, of the first worker's without a pod; from Cloud Logging once the pod is gone."""
    which = [pod] if pod else ["--selector", f"{JOBSET_LABEL}={name},batch.kubernetes.io/job-completion-index=0"]
    ran = _kubectl(jobs, ["logs", *which, "--all-containers", f"--tail={lines}"])
    if ran.code == 0 and ran.output.strip():
        return ran.output
    wanted = f'labels."k8s-pod/jobset_sigs_k8s_io/jobset-name"="{name}"'
    if pod:
        wanted += f' resource.labels.pod_name="{pod}"'
    old = jobs.call(
        [
            "gcloud", "logging", "read", f'resource.type="k8s_container" {wanted}', "--project", jobs.cluster.project,
            "--limit", str(lines), "--format", "value(textPayload)",
        ]
    )  # fmt: skip
    return "\n".join(reversed(old.output.splitlines())) if old.code == 0 else ""


def _kubectl(jobs: ClusterJobs, arguments: list[str]) -> Ran:
    """Run kubectl in the cluster's context, which is fetched where this machine does not have it yet."""
    cluster = jobs.cluster
    command = ["kubectl", "--context", cluster.context, "--namespace", cluster.namespace, *arguments]
    ran = jobs.call(command)
    if ran.code != 0 and any(words in ran.errors for words in _NO_CONTEXT):
        where = ["--location", cluster.where, "--project", cluster.project]
        got = jobs.call(["gcloud", "container", "clusters", "get-credentials", cluster.cluster, *where])
        if got.code == 0:
            ran = jobs.call(command)
    return ran


def _items(ran: Ran) -> list[Any] | None:
    """The items of a listing; None when it is none."""
    if ran.code != 0:
        return None
    try:
        listing = parse_json(ran.output)
    except ValueError:
        return None
    items = listing.get("items") if isinstance(listing, dict) else None
    return items if isinstance(items, list) else None
