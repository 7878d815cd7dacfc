"""An XProf trace of some updates of a session."""

from dataclasses import dataclass
from pathlib import Path

import jax

from ectype.errors import EctypeError


@dataclass(frozen=True)
class ProfiledSteps:
    """Updates `first` to `last`, both included."""

    first: int
    last: int

    def check(self, start: int, end: int) -> None:
        """Refuse steps that a session from `start` finished updates to `end` does not take.

        Raises:
            EctypeError: some of them lie outside.
        """
        if not start < self.first <= self.last <= end:
            raise EctypeError(
                f"--profile {self.first}-{self.last}", f"steps within {start + 1}-{end}, which this session takes",
                "name others, or roll back with --from-step",
            )  # fmt: skip


def parse_profiled_steps(text: str) -> ProfiledSteps:
    """`10-12`, or `10` for one step.

    Raises:
        EctypeError: anything else.
    """
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else not last) and int(first) >= 1):
        raise EctypeError(f"--profile {text}", "two step numbers, as 10-12, or one", "count steps from 1")
    return ProfiledSteps(int(first), int(last or first))


class Tracer:
    """Writes the trace below `folder`; without steps it does nothing."""

    def __init__(self, folder: Path, steps: ProfiledSteps | None) -> None:
        self._folder, self._steps, self._running = folder, steps, False

    def before(self, step: int) -> None:
        """Call it as `step` begins."""
        if self._steps is not None and step == self._steps.first:
            jax.profiler.start_trace(self._folder)
            self._running = True

    def after(self, step: int) -> None:
        """Call it when the results of `step` are there."""
        if self._steps is not None and step == self._steps.last:
            self.close()

    def close(self) -> None:
        """End a trace that is still running, and write it."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
