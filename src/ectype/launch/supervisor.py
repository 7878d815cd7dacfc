"""What a supervisor does next, as a pure function of what it remembers and what it sees.

The rules, in the order in which they count:

1. The run is done when its own record shows as many completed updates as asked for. Nothing else says so.
2. What could not be read says nothing: a listing that failed is no missing job, a run that can't be read is not at 0.
3. A job that was taken away after progress is submitted again, however often that happens.
4. Without progress, failures and preemptions each have a budget, and the pause before the next try doubles.
5. The same error at the same step twice is no accident, and neither is an end over the run's health: stop.
6. A job that a person stopped is no preemption: it counts as nothing, and the next one is submitted at once.
7. A job that waits for machines, was evicted by its queue, or was suspended by a person, still exists: wait for it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ectype.launch.memory import Memory, SeenError

JobState = Literal[
    "none", "pending", "running", "succeeded", "failed", "preempted", "evicted", "suspended", "deleted", "unknown"
]
"""`none`: no job was submitted. `deleted`: it was, and a sound listing lacks it. `unknown`: no sound listing."""
Kind = Literal["wait", "submit", "cancel", "stop", "done"]
ENDED = ("succeeded", "failed", "preempted", "deleted")
_MOST_ERRORS = 50
_MOST_DOUBLINGS = 30
_END_AGAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Policy:
    """Budgets and pauses."""

    failures: int = 5
    """Failures in a row without progress, after which it stops."""
    preemptions: int = 50
    """The same of preemptions and deletions."""
    first_pause_seconds: float = 15.0
    longest_pause_seconds: float = 900.0
    stall_seconds: float = 3600.0
    """No progress, no machines or no listing for so long is told once."""
    missing_listings: int = 2
    """Sound listings without the job that count as its deletion."""
    sizes: int = 1
    shrink_after_seconds: float | None = None
    grow_after_seconds: float | None = None


@dataclass(frozen=True)
class Observation:
    """One look."""

    at: float
    """Seconds since the epoch."""
    job: JobState
    completed_updates: int | None
    """By the run's own record; None: it could not be read."""
    reached_step: int | None = None
    """The last update in the metrics, which may lie beyond the newest checkpoint."""
    error: str = ""
    """What ended the job, when something did that the program itself said."""
    tail: str = ""
    """The end of its log."""
    why: str = ""
    """What the listing said, for people."""
    stop_asked: bool = False
    unhealthy: bool = False
    """The program ended itself over the run's health (exit 65)."""


@dataclass(frozen=True)
class Decision:
    """What to do now. `tell` names what a person should hear of."""

    kind: Kind
    reason: str
    tell: Literal["finish", "stall", "stop"] | None = None
    tail: str = ""


def decide(policy: Policy, memory: Memory, seen: Observation) -> tuple[Decision, Memory]:
    """The decision, and what to remember. `submit` counts as done once remembered: name the job by `attempt`."""
    memory, rose = _noted(memory, seen)
    if seen.stop_asked and seen.job in ("none", *ENDED):
        return _stop(memory, seen, "asked to stop")
    if seen.stop_asked:
        return Decision("cancel", "asked to stop"), memory
    if _complete(memory) and seen.job not in ("running", "unknown"):
        return _done(memory, seen)
    match seen.job:
        case "unknown":
            return _unknown(policy, memory, seen, "the listing of jobs failed")
        case "none":
            return _between(policy, memory, seen)
        case "pending" | "evicted":
            return _waiting(policy, memory, seen)
        case "suspended":
            why = "suspended, by a person it seems: resume it or stop the run"
            return _told(policy, memory, seen, why, at_once=True)
        case "running":
            return _running(policy, memory, seen, rose)
        case "deleted" if memory.missing_listings < policy.missing_listings:
            return Decision("wait", "the job is missing from the listing; looking again"), memory
    return _ended(policy, memory, seen)


def submitted_name(name: str, memory: Memory) -> str:
    """The name of the job of this attempt, so that two attempts never meet."""
    return f"{name}-{memory.attempt}"


def _with(memory: Memory, **changes: Any) -> Memory:
    return memory.model_copy(update=changes)


def _noted(memory: Memory, seen: Observation) -> tuple[Memory, bool]:
    """The memory with what is plain from this look, and whether the run has more updates than ever before.

    A count below the highest is a run that was rolled back or read amiss; it is no progress, and takes none away.
    """
    changes: dict[str, Any] = {}
    now, before = seen.completed_updates, memory.completed_updates
    rose = now is not None and before is not None and now > before
    if now is not None and (before is None or rose):
        changes["completed_updates"] = now
    if rose:
        changes |= {
            "progressed_at": seen.at, "failures_without_progress": 0, "preemptions_without_progress": 0,
            "stalled": False,
        }  # fmt: skip
    changes["missing_listings"] = memory.missing_listings + 1 if seen.job == "deleted" else 0
    if seen.job == "unknown":
        changes["missing_listings"] = memory.missing_listings
    elif seen.job not in ("none", "deleted"):
        changes |= {"job_was_listed": True, "submit_error": ""}
    if seen.job != "unknown" and now is not None:
        changes["unknown_since"] = None
    if seen.job not in ("pending", "evicted", "unknown"):
        changes["waiting_since"] = None
    return _with(memory, **changes), rose


def _complete(memory: Memory) -> bool:
    return memory.completed_updates is not None and memory.completed_updates >= memory.target_updates


def _place(memory: Memory) -> str:
    return f"{memory.completed_updates} of {memory.target_updates} updates"


def _done(memory: Memory, seen: Observation) -> tuple[Decision, Memory]:
    if seen.job not in ("none", *ENDED):
        return Decision("cancel", "the run is complete; its last job is not needed"), memory
    reason = f"{_place(memory)} are recorded"
    return Decision("done", reason, "finish"), _with(memory, outcome="done", reason=reason, job=None)


def _stop(memory: Memory, seen: Observation, reason: str) -> tuple[Decision, Memory]:
    stopped = _with(memory, outcome="stopped", reason=reason, job=None, ending_for_size=None)
    return Decision("stop", reason, "stop", seen.tail), stopped


def _told(
    policy: Policy, memory: Memory, seen: Observation, why: str, since: float | None = None, *, at_once: bool = False
) -> tuple[Decision, Memory]:
    """Wait; tell a person, once, when it lasts."""
    long = at_once or (since is not None and seen.at - since > policy.stall_seconds)
    tell: Literal["stall"] | None = "stall" if long and not memory.stalled else None
    return Decision("wait", why, tell), _with(memory, stalled=memory.stalled or long)


def _unknown(policy: Policy, memory: Memory, seen: Observation, why: str) -> tuple[Decision, Memory]:
    since = seen.at if memory.unknown_since is None else memory.unknown_since
    words = f"{why}: {seen.why}" if seen.why else why
    return _told(policy, _with(memory, unknown_since=since), seen, f"{words}; trying again", since)


def _between(policy: Policy, memory: Memory, seen: Observation) -> tuple[Decision, Memory]:
    if memory.completed_updates is None:
        return _unknown(policy, memory, seen, "the run's record could not be read")
    if seen.at < memory.not_before:
        return Decision("wait", f"next try in {memory.not_before - seen.at:.0f} s: {memory.reason}"), memory
    attempt = memory.attempt + 1
    changes = {
        "attempt": attempt, "completed_at_submit": memory.completed_updates, "job_was_listed": False,
        "missing_listings": 0, "waiting_since": None, "progressed_at": seen.at, "submit_error": "",
    }  # fmt: skip
    return Decision("submit", f"attempt {attempt}, from {_place(memory)}"), _with(memory, **changes)


def _waiting(policy: Policy, memory: Memory, seen: Observation) -> tuple[Decision, Memory]:
    since = seen.at if memory.waiting_since is None else memory.waiting_since
    memory = _with(memory, waiting_since=since, progressed_at=seen.at)
    if memory.ending_for_size is not None:
        return _end_for_size(memory, seen, memory.ending_for_size, "still ending")
    what = "evicted by its queue, which admits it again" if seen.job == "evicted" else "waiting for machines"
    why = f"{what}: {seen.why}" if seen.why else what
    may_shrink = policy.shrink_after_seconds is not None and memory.size + 1 < policy.sizes
    if may_shrink and seen.at - since >= (policy.shrink_after_seconds or 0.0):
        return _end_for_size(memory, seen, memory.size + 1, f"no machines for {seen.at - since:.0f} s: a smaller slice")
    return _told(policy, memory, seen, why, since)


def _end_for_size(memory: Memory, seen: Observation, size: int, why: str) -> tuple[Decision, Memory]:
    """Ask the job to end so that the next one has another size; ask again when it does not end."""
    if memory.ending_for_size is not None and seen.at - memory.ending_asked_at < _END_AGAIN_SECONDS:
        return Decision("wait", "the job was asked to end, for one of another size"), memory
    failed = memory.failed_growths + (1 if memory.size == 0 and size > 0 and memory.resized_at > 0 else 0)
    changes = {"ending_for_size": size, "ending_asked_at": seen.at}
    if memory.ending_for_size is None:
        changes["failed_growths"] = failed
    return Decision("cancel", why), _with(memory, **changes)


def _may_grow(policy: Policy, memory: Memory, at: float) -> bool:
    """Whether the size that was asked for is tried again; each failed try doubles the time until the next."""
    if memory.size == 0 or policy.grow_after_seconds is None:
        return False
    return at - memory.resized_at >= policy.grow_after_seconds * 2 ** min(memory.failed_growths, 5)


def _running(policy: Policy, memory: Memory, seen: Observation, rose: bool) -> tuple[Decision, Memory]:
    if memory.ending_for_size is not None:
        return _end_for_size(memory, seen, memory.ending_for_size, "still ending")
    if rose and memory.size == 0:
        memory = _with(memory, failed_growths=0)
    # Just after a checkpoint the least is lost.
    if rose and not _complete(memory) and _may_grow(policy, memory, seen.at):
        return _end_for_size(memory, seen, 0, "trying the slice that was asked for again")
    why = "finishing" if _complete(memory) else "running"
    return _told(policy, memory, seen, f"{why}, {_place(memory)}", memory.progressed_at)


def _ended(policy: Policy, memory: Memory, seen: Observation) -> tuple[Decision, Memory]:
    """The job is over and the target not reached: again, or stop."""
    if seen.completed_updates is None:
        return _unknown(policy, memory, seen, "the job is over, and the run's record could not be read")
    after = _with(memory, job=None, stalled=False, ending_for_size=None, stop_was_asked=False)
    if memory.ending_for_size is not None:
        after = _with(after, size=memory.ending_for_size, resized_at=seen.at, not_before=seen.at)
        return Decision("wait", "the job has ended; the next one has another size"), after
    if memory.stop_was_asked and seen.job in ("preempted", "deleted"):
        return Decision("wait", "stopped by you; it goes on at once"), _with(after, not_before=seen.at)
    if _may_grow(policy, memory, seen.at):
        after = _with(after, size=0, resized_at=seen.at)
    progress = (memory.completed_updates or 0) > memory.completed_at_submit
    if seen.job == "deleted" and not memory.job_was_listed:
        why = f"the submission failed: {memory.submit_error}" if memory.submit_error else "the submission was lost"
        return _again_without_progress(policy, after, seen, why, "failures")
    if seen.job in ("preempted", "deleted"):
        why = f"{seen.job}: {seen.why}" if seen.why else seen.job
        after = _with(after, preemptions=memory.preemptions + 1)
        return _again(policy, after, seen, why, "preemptions", progress)
    if seen.job == "succeeded" and not progress:
        return _stop(memory, seen, f"the program ended well, but only {_place(memory)} are recorded")
    after = _with(after, failures=memory.failures + (seen.job == "failed"))
    if seen.unhealthy:
        return _stop(after, seen, f"the run is not well, and a restart would meet the same: {seen.error or seen.why}")
    if seen.error:
        step = max(seen.reached_step or 0, memory.completed_updates or 0)
        this = SeenError(text=seen.error, step=step)
        if this in memory.errors:
            return _stop(after, seen, f"the same error twice after step {step}: {seen.error}")
        after = _with(after, errors=(*memory.errors, this)[-_MOST_ERRORS:])
    why = f"failed: {seen.error or seen.why or 'without a word'}" if seen.job == "failed" else "ended before the target"
    return _again(policy, after, seen, why, "failures", progress)


def _again(
    policy: Policy, memory: Memory, seen: Observation, why: str, what: Literal["failures", "preemptions"],
    progress: bool,
) -> tuple[Decision, Memory]:  # fmt: skip
    if not progress:
        return _again_without_progress(policy, memory, seen, why, what)
    # A failure may need a moment until its cause is gone; after a preemption every second counts.
    pause = min(policy.first_pause_seconds, policy.longest_pause_seconds) if what == "failures" else 0.0
    changes = {"not_before": seen.at + pause, "reason": why, f"{what}_without_progress": 0}
    return Decision("wait", f"{why}; after progress, so it goes on in {pause:.0f} s"), _with(memory, **changes)


def _again_without_progress(
    policy: Policy, memory: Memory, seen: Observation, why: str, what: Literal["failures", "preemptions"]
) -> tuple[Decision, Memory]:
    count = getattr(memory, f"{what}_without_progress") + 1
    memory = _with(memory, **{f"{what}_without_progress": count})
    most = getattr(policy, what)
    if count >= most:
        words = f"{count} {what} in a row" if count > 1 else f"1 {what.removesuffix('s')}"
        return _stop(memory, seen, f"{words} without progress; the last: {why}")
    doublings = min(count - 1, _MOST_DOUBLINGS)
    pause = min(policy.first_pause_seconds * 2**doublings, policy.longest_pause_seconds)
    words = f"{why}; {count} of {most} {what} without progress, next try in {pause:.0f} s"
    return Decision("wait", words), _with(memory, not_before=seen.at + pause, reason=why)
