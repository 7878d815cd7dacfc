"""No silent hang: a thread that ends the process, naming host and phase, when nothing moves for too long."""

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ectype.errors import EXIT_HUNG
from ectype.run.health import Activity

Phase = tuple[str, Activity, float]


class Watchdog:
    """Told of each phase as it begins; ends the process when one lasts longer than `limit_seconds`."""

    def __init__(self, limit_seconds: float, process: int, processes: int) -> None:
        self._limit_seconds = limit_seconds
        self._who = f"host {socket.gethostname()}, process {process} of {processes}"
        self._phase: Phase = ("start", "other", time.monotonic())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def phase(self, name: str, activity: Activity = "other") -> None:
        """What the process does from now on."""
        self._phase = (name, activity, time.monotonic())

    @property
    def current(self) -> Phase:
        """What it does now: name, activity, and since when by `time.monotonic`."""
        return self._phase

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self._limit_seconds / 4)):
            name, _, since = self._phase
            waited = time.monotonic() - since
            if waited > self._limit_seconds:
                message = f"hung: {self._who}: {name} for {waited:.0f} s, limit {self._limit_seconds:.0f} s"
                print(message, file=sys.stderr, flush=True)
                faulthandler.dump_traceback(all_threads=True)
                # Not an exception: the main thread may sit in a collective that will never return.
                os._exit(EXIT_HUNG)

    @contextmanager
    def running(self) -> Iterator["Watchdog"]:
        """Watch within the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._done.set()
