"""What a program's exit code says of its end. Codes as Python gives them (-9) or a shell and Kubernetes do (137)."""

import signal

from ectype.errors import EXIT_STOPPED

_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals that a program does not send itself, as it does when it crashes."""
_TAKEN_AWAY = (EXIT_STOPPED, *(-number for number in _FROM_OUTSIDE), *(128 + number for number in _FROM_OUTSIDE))


def taken_away(code: int) -> bool:
    """Whether the program was ended from outside, or saved and stopped as it was asked to: it did not fail."""
    return code in _TAKEN_AWAY


def in_words(code: int) -> str:
    """The code for people, a signal by its name."""
    if code >= 0:
        return f"exit {code}"
    names = {int(known): known.name for known in signal.Signals}
    return f"killed by {names.get(-code, f'signal {-code}')}"
