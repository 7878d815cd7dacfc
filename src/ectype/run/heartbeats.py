"""Signs of life: one small file for each process of a run, written anew every few seconds."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Literal

from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.health import Activity, End, Sign
from ectype.run.paths import RunFolder


class Heartbeat(Section):
    """What a process says of itself. Medians are over recent updates."""

    format: Literal[1] = 1
    process: int
    processes: int
    host: str
    at_unix_seconds: float
    """By the clock of its host."""
    phase: str
    phase_seconds: float
    activity: Activity
    step: int
    own_seconds: float | None
    probe_seconds: float | None
    updating_seconds: float
    """Spent in updates since the session began, without waits for data."""
    session_seconds: float
    ended: End | None
    error: str | None
    """Why it ended, where it did not end as asked."""

    def sign(self, now_unix_seconds: float) -> Sign:
        """Seen at a time. Clocks of hosts may differ a little: nothing is younger than now."""
        age = max(0.0, now_unix_seconds - self.at_unix_seconds)
        return Sign(
            self.process, self.host, self.step, self.phase, self.phase_seconds + age, self.activity, age,
            self.own_seconds, self.probe_seconds, self.ended, self.processes, self.session_seconds + age,
        )  # fmt: skip


def write_heartbeat(run_dir: Path, heartbeat: Heartbeat) -> None:
    """Replace the process's file. A heartbeat that can't be written is left out: training must not end for it."""
    path = RunFolder(run_dir).heartbeat(heartbeat.process)
    # No other process writes this name, and what a crash leaves of it the next heartbeat replaces.
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        temporary.write_text(heartbeat.model_dump_json(), encoding="utf-8")
        os.replace(temporary, path)


def remove_heartbeats(run_dir: Path) -> None:
    """Forget the processes of earlier sessions."""
    shutil.rmtree(RunFolder(run_dir).heartbeats, ignore_errors=True)


def read_heartbeats(run_dir: Path) -> list[Heartbeat]:
    """All processes' last signs, by number; none of a run that never had any.

    Raises:
        EctypeError: a file that no process of this version wrote.
    """
    run = RunFolder(run_dir)
    mend = f"delete {run.heartbeats}: the next start of the run makes it anew"
    return [read_record(path, Heartbeat, "heartbeat", "ectype train", mend) for path in run.heartbeat_files()]
