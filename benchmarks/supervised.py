"""Kill a supervised run of several processes, in every way that comes to mind. Used by the benchmark and a test.

The run is `ectype launch local resume-until-done` on the tiny recipe of `kills.py`. What is killed: one process of the
job, all of them, or the supervisor itself; by SIGKILL or SIGTERM; at a random moment or while a save is under way. A
crash that comes at the same update each time is injected through a `sitecustomize` module on PYTHONPATH.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kills import Trainer

from ectype.errors import EXIT_STOPPED
from ectype.launch.events import read_events
from ectype.launch.job_folder import End, JobFolder, Living
from ectype.launch.memory import read_memory
from ectype.launch.supervise import StateFolder
from ectype.run.checkpoints import newest_step

WAIT_SECONDS = 240.0
MOST_UPDATES = 12
CRASH = """
import os
import ectype.run.metrics as metrics

_write = metrics.MetricsFile.write

def write(self, row):
    if row["step"] == {step} and os.path.exists({flag!r}):
        raise ValueError("injected at update {step}")
    _write(self, row)

metrics.MetricsFile.write = write
"""


@dataclass(frozen=True)
class Disturbance:
    """One kill, or the injected crash."""

    what: str
    """`one`, `all` or `supervisor`."""
    signal: str
    """`KILL` or `TERM`."""
    in_save: bool = False


@dataclass(frozen=True)
class Stage:
    """A run folder, how it is trained, and where a crash can be switched on."""

    trainer: Trainer
    run: Path
    processes: int
    crash_step: int | None = None

    @property
    def state(self) -> Path:
        """The supervisor's folder."""
        return self.run.with_name(f"{self.run.name}.launch")

    @property
    def crash_flag(self) -> Path:
        """While this file is there, the program crashes at `crash_step`."""
        return self.run.with_name("crash")

    def supervise(self) -> Any:
        """Start a supervisor; its process."""
        command = [
            sys.executable, "-m", "ectype.cli", "launch", "local", "resume-until-done", "toy-calm", "--run",
            str(self.run), "--processes", str(self.processes), "--placement", "cpu-one",
            "--look-every-seconds", "0.1", "--first-pause-seconds", "0.2",
        ]  # fmt: skip
        command += [part for value in self.trainer.settings for part in ("--set", value)]
        where = (
            "mesh.data=-1", f"compilation_cache={self.trainer.cache}/programs", "checkpoints.keep_last=3",
            "checkpoints.every_steps=3",
        )  # fmt: skip
        command += [part for value in where for part in ("--placement-set", value)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {
            "PYTHONPYCACHEPREFIX": str(self.trainer.cache / "bytecode"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"
        }  # fmt: skip
        if self.crash_step is not None:
            module = self.trainer.cache / "crash"
            module.mkdir(parents=True, exist_ok=True)
            (module / "sitecustomize.py").write_text(CRASH.format(step=self.crash_step, flag=str(self.crash_flag)))
            environment["PYTHONPATH"] = f"{module}:{environment.get('PYTHONPATH', '')}"
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def processes_of_job(self) -> list[int]:
        """Numbers of the job's processes; empty while none is known to run."""
        memory = read_memory(self.state / "supervisor.json") if self.state.is_dir() else None
        if memory is None or memory.job is None:
            return []
        job = JobFolder(StateFolder(self.state).jobs / memory.job)
        if job.file(End).is_file() or not job.file(Living).is_file():
            return []
        return list(job.read(Living).processes)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Lines of the event log of one kind."""
        return [row for row in read_events(self.state / "events.jsonl") if row["event"] == kind]


def disturb(stage: Stage, supervisor: Any, kill: Disturbance, draw: random.Random, longest_seconds: float) -> Any:
    """Wait for the moment and strike; the supervisor's process, a new one when the old was killed.

    Half of the kills outside saves come within `longest_seconds` of the start, the others after some updates.

    Raises:
        RuntimeError: the supervisor ended by itself, or as none may.
    """
    submitted = len(stage.events("submitted"))
    _await(lambda: stage.processes_of_job(), supervisor)
    if kill.in_save:
        old = _unfinished(stage.run)
        _await(lambda: _unfinished(stage.run) - old, supervisor, every_seconds=0.002)
    elif draw.random() < 0.5:
        time.sleep(draw.uniform(0, longest_seconds))
    else:
        start, more = newest_step(stage.run), draw.randint(1, MOST_UPDATES)
        _await(lambda: newest_step(stage.run) >= start + more, supervisor, every_seconds=0.01)
    if kill.what == "supervisor":
        return _replace(stage, supervisor, kill)
    numbers = stage.processes_of_job()
    for number in [draw.choice(numbers)] if kill.what == "one" and numbers else numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.Signals[f"SIG{kill.signal}"])
    _await(lambda: len(stage.events("submitted")) > submitted, supervisor)
    return supervisor


def _replace(stage: Stage, supervisor: Any, kill: Disturbance) -> Any:
    supervisor.send_signal(signal.Signals[f"SIG{kill.signal}"])
    _, errors = supervisor.communicate(timeout=60)
    if supervisor.returncode != (-signal.SIGKILL if kill.signal == "KILL" else EXIT_STOPPED):
        raise RuntimeError(f"{kill}: exit {supervisor.returncode}\n{errors}")
    before = len(stage.events("supervising"))
    supervisor = stage.supervise()
    _await(lambda: len(stage.events("supervising")) > before, supervisor)
    return supervisor


def finish(stage: Stage, supervisor: Any, seconds: float = 600.0) -> tuple[int, str]:
    """Let the supervisor end by itself; exit code, and its output."""
    output, errors = supervisor.communicate(timeout=seconds)
    return supervisor.returncode, f"{output}\n{errors}"


def crash_until_it_stops(stage: Stage, supervisor: Any) -> tuple[Any, dict[str, Any]]:
    """Switch the crash on until the supervisor gives up, then off; a new supervisor, and what the old one said.

    Raises:
        RuntimeError: it did not give up.
    """
    stage.crash_flag.touch()
    code, output = finish(stage, supervisor)
    stage.crash_flag.unlink()
    crashes = sum("injected at update" in row["error"] for row in stage.events("wait") + stage.events("stop"))
    facts = {"code": code, "output": output, "tries": crashes, "completed_updates": newest_step(stage.run)}
    return stage.supervise(), facts


def _unfinished(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("*tmp*")}


def _await(true: Any, supervisor: Any, every_seconds: float = 0.05) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        if supervisor.poll() is not None:
            raise RuntimeError(f"the supervisor ended with {supervisor.returncode}: {supervisor.communicate()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing for {WAIT_SECONDS} s")
        time.sleep(every_seconds)
