"""How a job stands, from what Kubernetes says of its JobSet, its Kueue workload and its pods. Pure functions.

JobSet (`jobset.x-k8s.io/v1alpha2`): conditions Completed, Failed; `spec.suspend` while its queue or a person holds it.
Workload (`kueue.x-k8s.io`): conditions QuotaReserved, Evicted; `spec.active` false once a person, or Kueue after too
many tries, took it out of the queue. Pods: exit codes, and the condition DisruptionTarget where a machine was taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ectype.errors import EXIT_UNHEALTHY
from ectype.launch.exits import in_words, taken_away
from ectype.launch.supervisor import JobState

Item = Mapping[str, Any]
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
LOST_POD_SECONDS = 1800.0
"""A pod that is still ending after so long sits on a machine that is gone."""
_TAKEN_REASONS = ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity")
_LATEST = "9999"


@dataclass(frozen=True)
class Standing:
    """The state, why, and the pod whose log tells more."""

    state: JobState
    why: str = ""
    pod: str | None = None
    error: str = ""
    """What ended the job where the log can't tell, as being out of memory."""
    unhealthy: bool = False
    """The program ended itself over the run's health."""


@dataclass(frozen=True)
class _End:
    """How a pod failed."""

    when: str
    """As Kubernetes writes times, which sort as text."""
    taken: bool
    """Its machine was taken away, or it was asked to stop."""
    why: str
    pod: str
    error: str = ""
    code: int | None = None
    """The exit code, where it was the program that ended."""


def standing(
    name: str, jobsets: Sequence[Item], workloads: Sequence[Item], pods: Sequence[Item], at: float
) -> Standing:
    """How the job `name` stands, from sound listings.

    Args:
        pods: those of this job.
        at: seconds since the epoch, to tell a pod that ends from one that was lost.
    """
    jobset = next((item for item in jobsets if item["metadata"]["name"] == name), None)
    alive = [pod for pod in pods if _is_alive(pod, at)]
    if jobset is None:
        # Its pods may still be saving: a second job beside them would write the same run.
        return Standing("running", f"deleted; {len(alive)} pods are ending") if alive else Standing("deleted")
    conditions = _true_conditions(jobset)
    over = [kind for kind in ("Completed", "Failed") if kind in conditions]
    if over and alive:
        return Standing("running", f"{over[0].lower()}; {len(alive)} pods are ending")
    if over == ["Completed"]:
        return Standing("succeeded")
    if over:
        return _failure(pods, str(conditions["Failed"].get("message", "")))
    if jobset["metadata"].get("deletionTimestamp"):
        return Standing("running", "being deleted")
    if jobset["spec"].get("suspend"):
        return _held(jobset, _workload_of(jobset, workloads))
    return _under_way(pods)


def _held(jobset: Item, workload: Item | None) -> Standing:
    """A suspended JobSet: its queue holds it, has taken it back, or a person has."""
    if workload is None:
        queued = QUEUE_LABEL in jobset["metadata"].get("labels", {})
        return Standing("pending", "not queued yet") if queued else Standing("suspended", "suspended, and in no queue")
    if workload.get("spec", {}).get("active") is False:
        return Standing("suspended", "its workload was deactivated")
    conditions = _true_conditions(workload)
    if "Evicted" in conditions:
        return Standing("evicted", _words(conditions["Evicted"]))
    if "QuotaReserved" in conditions:
        return Standing("pending", "admitted, starting")
    waits = [one for one in _conditions(workload) if one.get("type") == "QuotaReserved"]
    return Standing("pending", _words(waits[0]) if waits else "waiting in its queue")


def _under_way(pods: Sequence[Item]) -> Standing:
    phases = [pod.get("status", {}).get("phase") for pod in pods]
    if pods and all(phase in ("Running", "Succeeded") for phase in phases):
        return Standing("running")
    for pod in pods:
        for condition in _conditions(pod):
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return Standing("pending", _words(condition))
    if "Failed" in phases:
        return Standing("running", "a pod has failed; the others are ending")
    return Standing("pending", f"{phases.count('Running')} of {len(pods)} pods run")


def _failure(pods: Sequence[Item], message: str) -> Standing:
    """Whether machines were taken away or the program failed: what came first counts, the rest follows from it."""
    ends = sorted((end for pod in pods if (end := _end_of(pod))), key=lambda end: (end.when, not end.taken))
    if not ends:
        return Standing("preempted", f"no failed pod is left: {message}")
    first = ends[0]
    why = f"{first.pod}: {first.why}"
    return Standing("preempted" if first.taken else "failed", why, first.pod, first.error, first.code == EXIT_UNHEALTHY)


def _end_of(pod: Item) -> _End | None:
    """How a pod failed; None for one that did not."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    ended = [one.get("state", {}).get("terminated") for one in status.get("containerStatuses") or []]
    failed = [one for one in ended if one and one.get("exitCode", 0) != 0]
    when = min((str(one.get("finishedAt") or _LATEST) for one in failed), default=_LATEST)
    for condition in _conditions(pod):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            since = str(condition.get("lastTransitionTime") or _LATEST)
            return _End(min(when, since), True, _words(condition), name)
    if status.get("reason") in _TAKEN_REASONS:
        return _End(when, True, str(status["reason"]), name)
    if not failed:
        return None
    first = min(failed, key=lambda one: str(one.get("finishedAt") or _LATEST))
    if first.get("reason") == "OOMKilled":
        return _End(when, False, "OOMKilled", name, "OOMKilled: a container used more memory than its limit")
    code = int(first["exitCode"])
    return _End(when, taken_away(code), in_words(code), name, code=code)


def _is_alive(pod: Item, at: float) -> bool:
    if pod.get("status", {}).get("phase") not in ("Pending", "Running"):
        return False
    asked = pod["metadata"].get("deletionTimestamp")
    return (
        asked is None or at - datetime.fromisoformat(str(asked).replace("Z", "+00:00")).timestamp() < LOST_POD_SECONDS
    )


def _workload_of(jobset: Item, workloads: Sequence[Item]) -> Item | None:
    uid = jobset["metadata"].get("uid")
    for workload in workloads:
        if any(owner.get("uid") == uid for owner in workload["metadata"].get("ownerReferences", [])):
            return workload
    return None


def _conditions(item: Item) -> Sequence[Item]:
    return item.get("status", {}).get("conditions") or []


def _true_conditions(item: Item) -> dict[str, Item]:
    return {str(one.get("type")): one for one in _conditions(item) if one.get("status") == "True"}


def _words(condition: Item) -> str:
    return ": ".join(str(condition[part]) for part in ("reason", "message") if condition.get(part))
