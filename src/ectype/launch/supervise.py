"""The loop around the supervisor's decisions: look, decide, remember, act, tell, sleep."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ectype.artifacts import lock
from ectype.errors import EctypeError
from ectype.launch.backend import Backend, JobReport
from ectype.launch.events import Webhook, append_event, post
from ectype.launch.memory import Memory, begun, read_memory, write_memory
from ectype.launch.run_record import Reader
from ectype.launch.supervisor import ENDED, Decision, Observation, Policy, decide, submitted_name


@dataclass(frozen=True)
class StateFolder:
    """Where a supervisor keeps its files, beside the run folder and not in it."""

    path: Path

    @classmethod
    def beside(cls, run: str) -> "StateFolder":
        """The folder of a run: RUN.launch; in the working folder where the run lies in a bucket."""
        where = Path(run.rstrip("/").rpartition("/")[2] if run.startswith("gs://") else run)
        where = where if where.name else where.absolute()
        if not run or not where.name:
            raise EctypeError(f"--run {run!r}", "the folder of a run", "name one that has a folder above it")
        return cls(where.with_name(f"{where.name}.launch"))

    @property
    def memory(self) -> Path:
        """What it remembers."""
        return self.path / "supervisor.json"

    @property
    def events(self) -> Path:
        """What it did and why, one JSON line each."""
        return self.path / "events.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the one supervisor of the run."""
        return self.path / "supervisor.lock"

    @property
    def stop(self) -> Path:
        """There when somebody asked for a stop."""
        return self.path / "stop"

    @property
    def jobs(self) -> Path:
        """Local jobs."""
        return self.path / "jobs"


@dataclass(frozen=True)
class Supervised:
    """One run and how it is supervised."""

    name: str
    """Beginning of the jobs' names."""
    run: str
    target_updates: int
    state: StateFolder
    backend: Backend
    read: Reader
    policy: Policy = field(default_factory=Policy)
    look_every_seconds: float = 30.0
    webhook: Webhook | None = None
    show: Callable[[str], None] = lambda text: None
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def supervise(what: Supervised) -> Memory:
    """Submit and resubmit until the run is done or a rule says stop; gives the last memory.

    An interrupted supervisor leaves its job running, and the next one takes it up.

    Raises:
        EctypeError: another supervisor has this run, or the memory on file is another run's.
    """
    what.state.path.mkdir(parents=True, exist_ok=True)
    busy = EctypeError(
        f"another supervisor has {what.state.path}", "one supervisor per run",
        "wait for it, or stop it; its job goes on and the next supervisor takes it up",
    )  # fmt: skip
    if what.webhook is not None:
        what.webhook.address()
    with lock(what.state.lock, busy):
        asked = what.state.stop.exists()
        memory = _begin(what, asked)
        write_memory(what.state.memory, memory)
        what.state.stop.unlink(missing_ok=True)
        append_event(what.state.events, "supervising", job=memory.job, target_updates=what.target_updates)
        said = ""
        while True:
            report = JobReport("none") if memory.job is None else what.backend.look(memory.job)
            decision, after = decide(what.policy, memory, _observe(what, report))
            said = _tell(what, decision, after, report, said)
            memory = _act(what, decision, memory, after)
            if decision.kind in ("done", "stop"):
                return memory
            if decision.kind != "submit":
                what.sleep(_pause(what, after))


def request_stop(state: StateFolder, backend: Backend) -> str:
    """Ask the supervisor to stop, and the job to save and end; in words, what was done. Works without a supervisor."""
    memory = read_memory(state.memory)
    if memory is None:
        raise no_supervised_run(state)
    state.stop.touch()
    if memory.job is None:
        return "no job is under way"
    fault = backend.cancel(memory.job)
    return f"{memory.job} could not be asked to end: {fault}" if fault else f"{memory.job} was asked to save and end"


def no_supervised_run(state: StateFolder) -> EctypeError:
    """The error for a folder in which nothing was submitted."""
    return EctypeError(
        f"{state.path.absolute()} holds no supervised run", "the folder that `submit` or `resume-until-done` made",
        "call it from where the run was submitted, or give its --state folder; else submit the run first",
    )  # fmt: skip


def submit_once(what: Supervised) -> str | None:
    """Submit one job without supervision, remembered so that `resume-until-done` takes it up; its name.

    None, and nothing is submitted, where the run has reached its target already.

    Raises:
        EctypeError: a supervisor has the run, a job is under way, or the submission failed.
    """
    what.state.path.mkdir(parents=True, exist_ok=True)
    busy = EctypeError(f"a supervisor has {what.state.path}", "none", "it submits jobs by itself; stop it first")
    with lock(what.state.lock, busy):
        asked = what.state.stop.exists()
        memory = _begin(what, asked)
        if memory.job is not None and (report := what.backend.look(memory.job)).state not in ENDED:
            raise EctypeError(
                f"{memory.job} is {report.state}", "no job of this run under way",
                "wait for it, or `stop` it; two jobs must never write one run",
            )  # fmt: skip
        reading = what.read()
        if (completed := reading.completed_updates) is None:
            raise EctypeError(
                f"{what.run} can't be read: {reading.why}", "a run folder, or a place for a new one",
                "check the path, the mount and the credentials",
            )  # fmt: skip
        if completed >= what.target_updates:
            return None
        memory = memory.model_copy(
            update={
                "attempt": memory.attempt + 1, "completed_at_submit": completed, "job_was_listed": False,
                "completed_updates": max(completed, memory.completed_updates or 0),
                "progressed_at": what.now(), "ending_for_size": None, "stop_was_asked": False,
            }
        )  # fmt: skip
        name = submitted_name(what.name, memory)
        write_memory(what.state.memory, memory.model_copy(update={"job": name}))
        what.state.stop.unlink(missing_ok=True)
        fault = what.backend.submit(name, memory.size)
        append_event(what.state.events, "submitted", job=name, fault=fault)
        if fault:
            raise EctypeError(f"{name} could not be submitted: {fault}", "a submission", "see the message above")
        return name


def _begin(what: Supervised, stop_was_asked: bool) -> Memory:
    """What is remembered; a size that this supervisor does not know gives way to the one that is asked for."""
    memory = begun(what.state.memory, what.run, what.target_updates, stop_was_asked=stop_was_asked)
    if memory.size >= what.policy.sizes:
        memory = memory.model_copy(update={"size": 0})
    if (memory.ending_for_size or 0) >= what.policy.sizes:
        memory = memory.model_copy(update={"ending_for_size": 0})
    return memory


def _observe(what: Supervised, report: JobReport) -> Observation:
    """The look as the decision takes it. The run is read after the job, so that an ended job's last save counts."""
    reading = what.read()
    return Observation(
        at=what.now(), job=report.state, completed_updates=reading.completed_updates,
        reached_step=reading.reached_step, error=report.error, tail=report.tail,
        why="; ".join(filter(None, (report.why, reading.why))), stop_asked=what.state.stop.exists(),
        unhealthy=report.unhealthy,
    )  # fmt: skip


def _act(what: Supervised, decision: Decision, memory: Memory, after: Memory) -> Memory:
    """Remember first, act then: a supervisor that dies in between finds a job that may be missing, never an unknown
    one.
    """
    if decision.kind == "submit":
        after = after.model_copy(update={"job": submitted_name(what.name, after)})
    if after != memory:
        write_memory(what.state.memory, after)
    if decision.kind == "submit":
        assert after.job is not None
        fault = what.backend.submit(after.job, after.size)
        append_event(what.state.events, "submitted", job=after.job, size=after.size, fault=fault)
        if fault:
            after = after.model_copy(update={"submit_error": fault})
            write_memory(what.state.memory, after)
    if decision.kind == "cancel" and after.job is not None:
        fault = what.backend.cancel(after.job)
        append_event(what.state.events, "cancelled", job=after.job, fault=fault)
    return after


def _tell(what: Supervised, decision: Decision, after: Memory, report: JobReport, said: str) -> str:
    """One status line; an event when the state of things is another than at the last look."""
    job = after.job or "no job"
    what.show(f"{what.name}: {after.completed_updates}/{what.target_updates} updates  {job}  {decision.reason}")
    # Reasons hold counts that change at every look.
    now = f"{decision.kind} {report.state} {report.why} {after.not_before} {after.completed_updates} {after.outcome}"
    facts = {
        "job": after.job, "job_state": report.state, "why": report.why, "error": report.error,
        "completed_updates": after.completed_updates, "target_updates": what.target_updates, "reason": decision.reason,
    }  # fmt: skip
    if now != said:
        tail = {"log_tail": decision.tail} if decision.tail else {}
        append_event(what.state.events, decision.kind, **facts, **tail)
    if decision.tell is not None and what.webhook is not None:
        news = {"run": what.run, "event": decision.tell, **facts, "log_tail": decision.tail}
        fault = post(what.webhook, news, what.sleep)
        append_event(what.state.events, "webhook", about=decision.tell, fault=fault)
    return now


def _pause(what: Supervised, after: Memory) -> float:
    """Until the next look: sooner when a submission is due."""
    if after.job is not None:
        return what.look_every_seconds
    return min(what.look_every_seconds, max(0.05, after.not_before - what.now()))
