"""Exit codes, and the ways a verb ends early: bad input (2), an unhealthy run (65), stopped but resumable (75)."""

from collections.abc import Sequence

EXIT_DONE = 0
EXIT_NEGATIVE = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_ENOUGH_EVIDENCE = 3
EXIT_UNHEALTHY = 65
EXIT_HUNG = 70
EXIT_STOPPED = 75


class EctypeError(Exception):
    """Bad input: says what was found, what was expected, and how to mend it.

    Args:
        found: what Ectype met, with the offending value and place.
        expected: what would have been right.
        mend: the action that gets the user past this.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, found: str, expected: str, mend: str) -> None:
        super().__init__(f"{found}\n  expected: {expected}\n  to mend:  {mend}")
        self.found = found
        self.expected = expected
        self.mend = mend

    def __reduce__(self) -> tuple[type["EctypeError"], tuple[str, str, str]]:
        """Made again from its three parts where it travels from a worker process; by default the text would be one."""
        return type(self), (self.found, self.expected, self.mend)


def first_of(lines: Sequence[str], most: int = 12) -> str:
    """The first `most` lines in one sentence, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])


class DamagedCheckpointError(EctypeError):
    """A checkpoint that can't be read in full: an older one may still be good."""


class UnhealthyError(EctypeError):
    """Training stopped itself by the placement's health policy. From the same checkpoint it would come to it again."""

    exit_code = EXIT_UNHEALTHY


class Stopped(Exception):  # noqa: N818 - it is no error
    """The work was interrupted after its state was saved; the same command resumes it."""

    exit_code = EXIT_STOPPED
