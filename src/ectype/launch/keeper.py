"""The parent of a local job's processes: starts them, ends all when one fails, and writes down how each ended.

    python -m ectype.launch.keeper JOB_FOLDER

It lives apart from the supervisor, whose death it does not notice. Two locks tell others what is alive, since numbers
of processes are used again: `keeper.lock` is held by this process, `job.lock` by it and every process of the job.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ectype.artifacts import write_json
from ectype.errors import EXIT_DONE, EXIT_STOPPED

_LOOK_EVERY_SECONDS = 0.05


@dataclass(frozen=True)
class JobFolder:
    """Where the files of one local job lie."""

    path: Path

    @property
    def plan(self) -> Path:
        """Command, processes and patience."""
        return self.path / "job.json"

    @property
    def end(self) -> Path:
        """How each process ended; there once all have."""
        return self.path / "end.json"

    @property
    def keeper_lock(self) -> Path:
        """Held while the keeper lives."""
        return self.path / "keeper.lock"

    @property
    def job_lock(self) -> Path:
        """Held while any process of the job lives."""
        return self.path / "job.lock"

    @property
    def processes(self) -> Path:
        """Numbers of the keeper and its processes, for `status`."""
        return self.path / "processes.json"

    def log(self, number: int) -> Path:
        """Output of one process."""
        return self.path / f"output-{number}.log"


@dataclass
class _Watched:
    """One process, and whether the keeper itself put an end to it."""

    process: Any
    ended_by_keeper: bool = False
    order: int | None = None


@dataclass
class _Ending:
    """Since when the job is ending, and how patiently."""

    since: float | None = None
    patience_seconds: float = 0.0
    ended: list[int] = field(default_factory=list)

    def begin(self, patience_seconds: float) -> None:
        if self.since is None:
            self.since, self.patience_seconds = time.monotonic(), patience_seconds


def keep(folder: JobFolder) -> None:
    """Run the job to its end."""
    plan = json.loads(folder.plan.read_text())
    keeper_lock = os.open(folder.keeper_lock, os.O_RDWR | os.O_CREAT, 0o666)
    job_lock = os.open(folder.job_lock, os.O_RDWR | os.O_CREAT, 0o666)
    for handle in (keeper_lock, job_lock):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    watched: list[_Watched] = []
    ending = _Ending()

    def asked(number: int, frame: Any) -> None:
        _terminate(watched)
        ending.begin(plan["stop_seconds"])

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before the first process, so that none is ever left whose keeper nobody knows.
    write_json(folder.processes, {"keeper": os.getpid(), "processes": []})
    _start(plan, folder, job_lock, watched)
    write_json(folder.processes, {"keeper": os.getpid(), "processes": [one.process.pid for one in watched]})
    if ending.since is not None:  # Asked while it started them.
        asked(signal.SIGTERM, None)
    while any(one.process.poll() is None for one in watched):
        _look(watched, ending, plan)
        time.sleep(_LOOK_EVERY_SECONDS)
    _look(watched, ending, plan)
    ends = [
        {"code": one.process.returncode, "ended_by_keeper": one.ended_by_keeper, "order": one.order} for one in watched
    ]
    write_json(folder.end, {"at": time.time(), "processes": ends})


def _start(plan: dict[str, Any], folder: JobFolder, job_lock: int, watched: list[_Watched]) -> None:
    count = plan["processes"]
    port = _free_port() if count > 1 else None
    for number in range(count):
        job = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count), "--process", str(number)]
        with folder.log(number).open("ab") as log:
            process = subprocess.Popen(
                [*plan["command"], *(job if count > 1 else [])], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(job_lock,), env={**os.environ, **plan["environment"]},
            )  # fmt: skip
        watched.append(_Watched(process))


def _look(watched: list[_Watched], ending: _Ending, plan: dict[str, Any]) -> None:
    """Note who has ended; once one has failed the others can't go on, so they end too, by force if need be."""
    new = [one for one in watched if one.order is None and one.process.poll() is not None]
    # Of those that ended within one look, a kill from outside is the cause and the others' errors its effects.
    for one in sorted(new, key=lambda one: one.process.returncode >= 0):
        one.order = len(ending.ended)
        ending.ended.append(one.process.returncode)
        if one.process.returncode == EXIT_STOPPED and ending.since is None:
            # One that stopped before it met the others could not tell them.
            _terminate(watched)
        if one.process.returncode != EXIT_DONE:
            ending.begin(plan["stop_seconds"] if one.process.returncode == EXIT_STOPPED else plan["failure_seconds"])
    if ending.since is None or time.monotonic() - ending.since <= ending.patience_seconds:
        return
    for one in watched:
        if one.process.poll() is None and not one.ended_by_keeper:
            one.ended_by_keeper = True
            one.process.kill()


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
    keep(JobFolder(Path(sys.argv[1])))
