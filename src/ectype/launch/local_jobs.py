"""Jobs on this machine: several processes over loopback, under a keeper that outlives the supervisor."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ectype.errors import EXIT_DONE, EXIT_UNHEALTHY, EctypeError
from ectype.launch.backend import Backend, JobReport
from ectype.launch.command import Training, process_arguments, tail_of
from ectype.launch.exits import in_words, taken_away
from ectype.launch.job_folder import End, JobFolder, Living, Plan, jobs_in
from ectype.launch.log_text import last_error, last_lines

_START_SECONDS = 30.0
_ORPHAN_SECONDS = 10.0


@dataclass(frozen=True)
class LocalJobs:
    """What is the same for all jobs of one run on this machine."""

    folder: Path
    """Where each job gets a folder of its own."""
    training: Training
    processes: int
    failure_seconds: float = 5.0
    """How long the other processes may take to end once one has failed."""
    stop_seconds: float = 120.0
    """How long all may take to save once they were asked to stop."""
    environment: dict[str, str] | None = None

    def command(self) -> list[str]:
        """The command of each process, without what tells the processes apart."""
        return [sys.executable, "-m", "ectype.cli", *self.training.arguments()]

    def plan(self) -> Plan:
        """What the keeper reads."""
        return Plan(
            command=tuple(self.command()), processes=self.processes, failure_seconds=self.failure_seconds,
            stop_seconds=self.stop_seconds, environment=self.environment or {},
        )  # fmt: skip


def local_backend(jobs: LocalJobs) -> Backend:
    """Jobs of `jobs` as a backend; there is one size."""
    return Backend(
        submit=lambda name, size: _submit(jobs, name),
        look=lambda name: look(JobFolder(jobs.folder / name)),
        cancel=lambda name: cancel(JobFolder(jobs.folder / name)),
        commands=lambda name, size: [
            [*jobs.command(), *process_arguments(number, jobs.processes, "127.0.0.1:PORT")]
            for number in range(jobs.processes)
        ],
    )


def _submit(jobs: LocalJobs, name: str) -> str:
    folder = JobFolder(jobs.folder / name)
    try:
        alive = [job.path.name for job in jobs_in(jobs.folder) if _held(job.job_lock)]
        if alive:
            return f"{', '.join(alive)} still has living processes"
        folder.path.mkdir(parents=True, exist_ok=True)
        _start_keeper(folder, jobs.plan())
    except (OSError, EctypeError) as error:
        return _words(error)
    return ""


def _start_keeper(folder: JobFolder, plan: Plan) -> None:
    """Start it with its lock locked already: a keeper that starts slowly is never taken for a dead one."""
    handle = os.open(folder.keeper_lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.forget_an_earlier_job()
        folder.write(plan)
        with folder.keeper_log.open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "ectype.launch.keeper", str(folder.path), str(handle)], pass_fds=(handle,),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
            )  # fmt: skip
    finally:
        os.close(handle)


def look(folder: JobFolder) -> JobReport:
    """How a job stands. One whose keeper was killed is put out of its misery: nobody would end it as one."""
    try:
        return _look(folder)
    except (OSError, EctypeError) as error:
        return JobReport("unknown", _words(error))


def _look(folder: JobFolder) -> JobReport:
    if not folder.file(Plan).is_file():
        return JobReport("deleted", "no such job on this machine")
    if _held(folder.keeper_lock):
        return JobReport("running")
    if folder.file(End).is_file():
        return _ended(folder)
    if _held(folder.job_lock):
        _kill_orphans(folder)
    tail = _tail(folder, 0) or last_lines(tail_of(folder.keeper_log))
    return JobReport("preempted", "its keeper was killed", tail=tail)


def cancel(folder: JobFolder) -> str:
    """Ask all processes to save and end; in words, why none could be asked."""
    try:
        # A keeper that has just been started can't be told yet.
        deadline = time.monotonic() + _START_SECONDS
        while _held(folder.keeper_lock) and not folder.file(Living).is_file() and time.monotonic() < deadline:
            time.sleep(0.05)
        if not _held(folder.keeper_lock):
            return "none of its processes runs"
        os.kill(folder.read(Living).keeper, signal.SIGTERM)
    except (OSError, EctypeError) as error:
        return _words(error)
    return ""


def _words(error: OSError | EctypeError) -> str:
    """An error in one line."""
    return error.found if isinstance(error, EctypeError) else str(error)


def _held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # so that two who look don't see each other
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _kill_orphans(folder: JobFolder) -> None:
    """End the processes of a dead keeper. Their group keeps its number while one of them lives."""
    try:
        os.killpg(folder.read(Living).keeper, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while _held(folder.job_lock) and time.monotonic() < deadline:
        time.sleep(0.05)


def _ended(folder: JobFolder) -> JobReport:
    end = folder.read(End)
    ends = end.processes
    if all(one.code == EXIT_DONE for one in ends):
        return JobReport("succeeded")
    failed = [number for number in end.order if ends[number].code != EXIT_DONE and not ends[number].ended_by_keeper]
    if not failed:
        return JobReport("preempted", "ended by force, since it did not stop in time", tail=_tail(folder, 0))
    first = failed[0]
    code, tail = ends[first].code, _tail(folder, first)
    why = f"process {first}: {in_words(code)}"
    if taken_away(code):
        return JobReport("preempted", why, tail=tail)
    return JobReport("failed", why, last_error(tail_of(folder.log(first))), tail, code == EXIT_UNHEALTHY)


def _tail(folder: JobFolder, number: int) -> str:
    return last_lines(tail_of(folder.log(number)))
