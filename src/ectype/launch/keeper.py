"""The parent of a local job's processes: starts them, ends all when one fails, and writes down how each ended.

    python -m ectype.launch.keeper JOB_FOLDER LOCK

It lives apart from the supervisor, whose death it does not notice. Two locks tell others what is alive, since numbers
of processes are used again: `keeper.lock` is held by this process, `job.lock` by it and every process of the job.
LOCK is the open `keeper.lock`, locked: the one who started the keeper hands it over, so that at no moment it is free.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ectype.errors import EXIT_DONE, EXIT_STOPPED
from ectype.launch.command import process_arguments
from ectype.launch.exits import taken_away
from ectype.launch.job_folder import End, JobFolder, Living, Plan, ProcessEnd

_LOOK_EVERY_SECONDS = 0.05


@dataclass
class _Watched:
    """One process, and whether the keeper itself put an end to it."""

    process: Any
    ended_by_keeper: bool = False


@dataclass
class _Ending:
    """Since when the job is ending, and how patiently."""

    since: float | None = None
    patience_seconds: float = 0.0
    ended: list[int] = field(default_factory=list)
    """Processes that have ended, in that order."""

    def begin(self, patience_seconds: float) -> None:
        if self.since is None:
            self.since, self.patience_seconds = time.monotonic(), patience_seconds


def keep(folder: JobFolder) -> None:
    """Run the job to its end, under a `keeper.lock` that this process holds already."""
    plan = folder.read(Plan)
    job_lock = os.open(folder.job_lock, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(job_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    watched: list[_Watched] = []
    ending = _Ending()

    def asked(number: int, frame: Any) -> None:
        _terminate(watched)
        ending.begin(plan.stop_seconds)

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before the first process, so that none is ever left whose keeper nobody knows.
    folder.write(Living(keeper=os.getpid()))
    _start(plan, folder, job_lock, watched)
    folder.write(Living(keeper=os.getpid(), processes=tuple(one.process.pid for one in watched)))
    if ending.since is not None:  # Asked while it started them.
        asked(signal.SIGTERM, None)
    while any(one.process.poll() is None for one in watched):
        _look(watched, ending, plan)
        time.sleep(_LOOK_EVERY_SECONDS)
    _look(watched, ending, plan)
    ends = tuple(ProcessEnd(code=one.process.returncode, ended_by_keeper=one.ended_by_keeper) for one in watched)
    os.close(job_lock)  # The record says that the job is over, and another may begin.
    folder.write(End(at=time.time(), processes=ends, order=tuple(ending.ended)))


def _start(plan: Plan, folder: JobFolder, job_lock: int, watched: list[_Watched]) -> None:
    where = f"127.0.0.1:{_free_port()}"
    for number in range(plan.processes):
        with folder.log(number).open("ab") as log:
            process = subprocess.Popen(
                [*plan.command, *process_arguments(number, plan.processes, where)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=(job_lock,), env={**os.environ, **plan.environment},
            )  # fmt: skip
        watched.append(_Watched(process))


def _look(watched: list[_Watched], ending: _Ending, plan: Plan) -> None:
    """Note who has ended; once one has failed the others can't go on, so they end too, by force if need be."""
    codes = {number: one.process.poll() for number, one in enumerate(watched) if number not in ending.ended}
    new = {number: code for number, code in codes.items() if code is not None}
    for number, code in sorted(new.items(), key=lambda pair: _rank_as_cause(pair[1])):
        ending.ended.append(number)
        if code == EXIT_STOPPED and ending.since is None:
            # One that stopped before it met the others could not tell them.
            _terminate(watched)
        if code != EXIT_DONE:
            ending.begin(plan.stop_seconds if code == EXIT_STOPPED else plan.failure_seconds)
    if ending.since is None or time.monotonic() - ending.since <= ending.patience_seconds:
        return
    for one in watched:
        if one.process.poll() is None and not one.ended_by_keeper:
            one.ended_by_keeper = True
            one.process.kill()


def _rank_as_cause(code: int) -> int:
    """Of those that ended within one look: a kill or a stop from outside is the cause and the others' errors its
    effects; so is a crash in compiled code; but JAX aborts the processes that one left without a farewell.
    """
    if taken_away(code):
        return 0
    return 3 if code == -signal.SIGABRT else 1 if code < 0 else 2


def _terminate(watched: list[_Watched]) -> None:
    """Ask all that live to save and end; a second request changes nothing."""
    for one in watched:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[2]), False)
    keep(JobFolder(Path(sys.argv[1])))
