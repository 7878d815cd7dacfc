"""Jobs on this machine: several processes over loopback, under a keeper that outlives the supervisor."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.artifacts import read_json, write_json
from ectype.errors import EXIT_DONE, EXIT_STOPPED, EXIT_UNHEALTHY, EctypeError
from ectype.launch.backend import Backend, JobReport
from ectype.launch.command import Training, tail_of
from ectype.launch.keeper import JobFolder
from ectype.launch.log_text import last_error, last_lines

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a program does not send itself, as it does when it crashes."""
_TAKEN_AWAY = (EXIT_STOPPED, *(-number for number in _FROM_OUTSIDE), *(128 + number for number in _FROM_OUTSIDE))
_START_SECONDS = 10.0
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

    def plan(self) -> dict[str, Any]:
        """What the keeper reads."""
        return {
            "command": self.command(), "processes": self.processes, "failure_seconds": self.failure_seconds,
            "stop_seconds": self.stop_seconds, "environment": self.environment or {},
        }  # fmt: skip


def local_backend(jobs: LocalJobs) -> Backend:
    """Jobs of `jobs` as a backend; there is one size."""
    return Backend(
        submit=lambda name, size: _submit(jobs, name),
        look=lambda name: look(JobFolder(jobs.folder / name)),
        cancel=lambda name: cancel(JobFolder(jobs.folder / name)),
        commands=lambda name, size: [_with_number(jobs, number) for number in range(jobs.processes)],
    )


def _with_number(jobs: LocalJobs, number: int) -> list[str]:
    count = jobs.processes
    more = ["--coordinator", "127.0.0.1:PORT", "--processes", str(count), "--process", str(number)]
    return [*jobs.command(), *(more if count > 1 else [])]


def _submit(jobs: LocalJobs, name: str) -> str:
    folder = JobFolder(jobs.folder / name)
    alive = [path.parent.name for path in jobs.folder.glob("*/job.lock") if _held(path)]
    if alive:
        return f"{', '.join(alive)} still has living processes"
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_json(folder.plan, jobs.plan())
        subprocess.Popen(
            [sys.executable, "-m", "ectype.launch.keeper", str(folder.path)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=folder.path.joinpath("keeper.log").open("ab"), start_new_session=True,
        )  # fmt: skip
    except (OSError, EctypeError) as error:
        return str(error)
    return ""


def look(folder: JobFolder) -> JobReport:
    """How a job stands. One whose keeper was killed is put out of its misery: nobody would end it as one."""
    if not folder.plan.is_file():
        return JobReport("deleted", "no such job on this machine")
    if folder.end.is_file():
        return _ended(folder)
    if _held(folder.keeper_lock):
        return JobReport("running")
    if folder.end.is_file():  # It ended between the two looks.
        return _ended(folder)
    # The keeper writes `processes` once it has its locks; before, nothing tells a slow start from a dead keeper.
    if not folder.processes.is_file() and time.time() - folder.plan.stat().st_mtime < _START_SECONDS:
        return JobReport("pending", "starting")
    if _held(folder.job_lock):
        _kill_orphans(folder)
    return JobReport("preempted", "its keeper was killed", tail=_tail(folder, 0))


def cancel(folder: JobFolder) -> str:
    """Ask all processes to save and end."""
    if not _held(folder.keeper_lock):
        return ""
    try:
        os.kill(_keeper(folder), signal.SIGTERM)
    except (OSError, EctypeError) as error:
        return str(error)
    return ""


def _keeper(folder: JobFolder) -> int:
    return int(read_json(folder.processes, "processes of a local job")["keeper"])


def _held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _kill_orphans(folder: JobFolder) -> None:
    """End the processes of a dead keeper. Their group keeps its number while one of them lives."""
    try:
        os.killpg(_keeper(folder), signal.SIGKILL)
    except (OSError, EctypeError):
        return
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while _held(folder.job_lock) and time.monotonic() < deadline:
        time.sleep(0.05)


def _ended(folder: JobFolder) -> JobReport:
    try:
        ends = json.loads(folder.end.read_text())["processes"]
    except (OSError, ValueError, KeyError) as error:
        return JobReport("unknown", f"{folder.end}: {error}")
    if all(end["code"] == EXIT_DONE for end in ends):
        return JobReport("succeeded")
    failed = [number for number, end in enumerate(ends) if end["code"] != EXIT_DONE and not end["ended_by_keeper"]]
    if not failed:
        return JobReport("preempted", "ended by force, since it did not stop in time", tail=_tail(folder, 0))
    first = min(failed, key=lambda number: ends[number]["order"])
    code, tail = ends[first]["code"], _tail(folder, first)
    how = f"process {first}: {f'killed by {signal.Signals(-code).name}' if code < 0 else f'exit {code}'}"
    if code in _TAKEN_AWAY:
        return JobReport("preempted", how, tail=tail)
    return JobReport("failed", how, last_error(tail_of(folder.log(first))), tail, code == EXIT_UNHEALTHY)


def _tail(folder: JobFolder, number: int) -> str:
    return last_lines(tail_of(folder.log(number)))
