"""A thread that says every few seconds what its process does. The loop only sets numbers that the thread reads."""

import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ectype.errors import Stopped, UnhealthyError
from ectype.recipe.placement import Health
from ectype.run.health import End
from ectype.run.heartbeats import Heartbeat, write_heartbeat
from ectype.train.watchdog import Watchdog

_PROBES = 5


def end_of(fault: BaseException) -> End:
    """How a session ended that was left by `fault`."""
    if isinstance(fault, Stopped):
        return "stopped"
    return "unhealthy" if isinstance(fault, UnhealthyError) else "failed"


class Pulse:
    """This process's numbers, and the thread that writes them into the run folder."""

    def __init__(self, run_dir: Path, watchdog: Watchdog, policy: Health, process: int, processes: int) -> None:
        self._run_dir, self._watchdog, self._policy = run_dir, watchdog, policy
        self._process, self._processes, self._began = process, processes, time.monotonic()
        self._own_seconds: deque[float] = deque(maxlen=policy.recent_updates)
        self._probe_seconds: deque[float] = deque(maxlen=_PROBES)
        self._updating_seconds, self._step = 0.0, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def at(self, step: int) -> None:
        """The session goes on from `step` finished updates."""
        self._step = step

    def updated(self, step: int, compute_seconds: float, own_seconds: float | None) -> None:
        """Update `step` is done; before it the process did something alone for `own_seconds`, where this is known."""
        self._step = step
        self._updating_seconds += compute_seconds
        if own_seconds is not None:
            self._own_seconds.append(own_seconds)

    def probed(self, seconds: float) -> None:
        """A probe of this process's devices took `seconds`."""
        self._probe_seconds.append(seconds)

    @contextmanager
    def beating(self) -> Iterator["Pulse"]:
        """Write heartbeats within the block, and at its end how it ended."""
        self._thread.start()
        ended, error = "failed", None
        try:
            yield self
            ended = "done"
        except BaseException as fault:
            ended = end_of(fault)
            error = None if ended == "stopped" else str(fault) or repr(fault)
            raise
        finally:
            self._done.set()
            self._thread.join(timeout=self._policy.heartbeat_seconds)
            self.write(ended, error)

    def _beat(self) -> None:
        while True:
            self.write()
            if self._done.wait(self._policy.heartbeat_seconds):
                return

    def write(self, ended: End | None = None, error: str | None = None) -> None:
        """Write one heartbeat, as the thread does every few seconds."""
        name, activity, since = self._watchdog.current
        now = time.monotonic()
        # As tuples, which are taken at once: the loop's thread appends meanwhile.
        own, probes = tuple(self._own_seconds), tuple(self._probe_seconds)
        heartbeat = Heartbeat(
            process=self._process, processes=self._processes, host=socket.gethostname(), at_unix_seconds=time.time(),
            phase=name, phase_seconds=now - since, activity=activity, step=self._step,
            own_seconds=statistics.median(own) if own else None,
            probe_seconds=statistics.median(probes) if probes else None,
            updating_seconds=self._updating_seconds, session_seconds=now - self._began, ended=ended, error=error,
        )  # fmt: skip
        write_heartbeat(self._run_dir, heartbeat)
