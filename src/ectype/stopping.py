"""SIGTERM and SIGINT: the program ends at once where nothing can be lost, else at the next safe point; exit code 75."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ectype.errors import EXIT_STOPPED, Stopped

GRACE_SECONDS = 5.0
"""How long a library's call, as a compilation, may keep a program from ending that ends at once."""
FAREWELL_SECONDS = 10.0
"""How long a process of a job that has stopped or failed waits for the others to end with it."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _EndedAtOnceError(BaseException):
    """Raised in the main thread by a signal. No library takes it for an error of its own."""


class StopSignals:
    """Takes both signals over within `with`. The first one is remembered; later ones change nothing.

    Use it in the main thread. Blocks may nest: the inner one has the signals while it lasts, and knows of one that came
    before it.
    """

    def __init__(self, *, ends_program: bool = False) -> None:
        """`ends_program`: after a signal nothing but the program's end follows, which a further one leaves alone."""
        self.asked = False
        """Whether a signal came."""
        self._ends_program = ends_program
        self._interrupted = False
        """Whether the main thread was interrupted by an exception."""
        self._words: str | None = None
        """Said at the end of a program that ends at once; None where it must go on to a safe point."""
        self._finish: Callable[[], None] = lambda: None
        self._outer: StopSignals | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-signals", daemon=True)

    def __enter__(self) -> "StopSignals":
        self._old_handlers = {number: signal.signal(number, self._came) for number in _SIGNALS}
        outer = getattr(self._old_handlers[signal.SIGTERM], "__self__", None)
        if isinstance(outer, StopSignals):
            # The outer block's watch must not end the process while this one lasts.
            self._outer, self._outer_words, outer._words = outer, outer._words, None
            self.asked |= outer.asked
        # Python runs a handler only between two bytecodes of the main thread, which a long call never reaches. The
        # bytes that the interpreter writes here come at once.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._old_descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        signal.set_wakeup_fd(self._old_descriptor)
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_IGN if self._ends_program and self.asked else handler)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)
        if self._outer is not None:
            self._outer._words = self._outer_words

    @contextmanager
    def at_once(self, words: str, finish: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Within it nothing can be lost: a signal, one that came before included, ends the block.

        Args:
            words: say why nothing is lost.
            finish: awaits background work that must not be cut off, should a library's call not come back in
                `GRACE_SECONDS` and the process have to be ended from outside the main thread.

        Raises:
            Stopped: a signal came.
        """
        self._finish = finish
        try:
            self._words = words
            if self.asked:
                raise _EndedAtOnceError
            yield
            self._words = None
        except _EndedAtOnceError:
            raise Stopped(words) from None
        except Exception:
            # Compiled code turns what interrupts it into errors of its own, as an import of NumPy does.
            if not self._interrupted:
                raise
            raise Stopped(words) from None
        finally:
            self._words = None
        # A signal's exception may have been lost in a callback that ignores all of them.
        if self.asked:
            raise Stopped(words)

    def _came(self, number: int, frame: Any) -> None:
        self.asked = True
        if self._words is not None and not self._interrupted and not _is_importing(frame):
            self._interrupted = True
            raise _EndedAtOnceError

    def _watch(self) -> None:
        while (byte := os.read(self._reader, 1)) and not self._ended.is_set():
            deadline = time.monotonic() + GRACE_SECONDS
            while byte[0] in _SIGNALS and (words := self._words) is not None:
                if self._ended.wait(0.05):
                    return
                if not self._interrupted:  # The main thread was importing: ask it again.
                    signal.pthread_kill(threading.main_thread().ident or 0, byte[0])
                if time.monotonic() > deadline:
                    self._end_from_here(words)

    def _end_from_here(self, words: str) -> None:
        try:
            self._finish()
        finally:
            print(f"stopped: {words}", file=sys.stderr, flush=True)
            os._exit(EXIT_STOPPED)


def _is_importing(frame: Any) -> bool:
    """Whether `frame` stands inside an import, where compiled modules abort the process on a foreign exception."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def ignore_further_signals() -> None:
    """For a program that has stopped and only has to end: a second signal does not change its exit code."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def leave_at_once(code: int) -> None:
    """End the process without taking the interpreter apart: a library's thread that still runs then crashes in it.

    All that must be closed has been, on the way here. In a job of several processes JAX tells the others and waits
    until they end too. Those who wait for this one elsewhere never do, so it stays no longer than `FAREWELL_SECONDS`.
    """
    ignore_further_signals()
    if in_a_job():
        farewell = threading.Thread(target=_take_leave, name="farewell", daemon=True)
        farewell.start()
        farewell.join(FAREWELL_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # It may be closed, or never have been there.
            stream.flush()
    os._exit(code)


def in_a_job() -> bool:
    """Whether this is one of several processes that JAX has joined."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _take_leave() -> None:
    with suppress(Exception):  # Whatever it says, the process ends.
        sys.modules["jax"].distributed.shutdown()
