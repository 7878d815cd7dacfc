"""Signs of life: one small file for each process of a run, written anew every few seconds."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Literal

from ectype.errors import EctypeError
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.health import Activity, End, Sign
from ectype.run.paths import RunFolder

_UNKNOWN_HOST = "a host"


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

    A clock that is ahead makes nobody younger than the file, and a file that a crash cut or another version wrote still
    says of whom and when it is.
    """
    found = [read for path in RunFolder(run_dir).heartbeat_files() if (read := _read(path)) is not None]
    readable = [beat for beat in found if beat.host != _UNKNOWN_HOST]
    # Of a session whose other processes all said how they ended, a sign that can't be read tells nothing.
    return readable if readable and all(beat.ended is not None for beat in readable) else found


def _read(path: Path) -> Heartbeat | None:
    """None where it vanished, as when a session begins, or is no file."""
    try:
        if not path.is_file():
            return None
        written = path.stat().st_mtime
        beat = read_record(path, Heartbeat, "heartbeat", "ectype train", "it is written anew")
    except OSError:
        return None
    except EctypeError:
        return _unreadable(path, written) if path.exists() else None
    return beat.model_copy(update={"at_unix_seconds": min(beat.at_unix_seconds, written)})


def _unreadable(path: Path, written: float) -> Heartbeat:
    process = RunFolder.process_of_heartbeat(path)
    return Heartbeat(
        process=process, processes=1, host=_UNKNOWN_HOST, at_unix_seconds=written,
        phase=f"{path.name} not readable", phase_seconds=0.0, activity="other", step=0, own_seconds=None,
        probe_seconds=None, updating_seconds=0.0, session_seconds=0.0, ended=None, error=None,
    )  # fmt: skip
