"""How long work tells of itself: a callable that the command line turns into a bar with an ETA."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""`progress(label, done, total)`; `total` 0 means unknown."""


def silent(label: str, done: int, total: int) -> None:
    """The progress of a caller who does not watch."""
