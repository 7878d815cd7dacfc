"""What a place that runs jobs must be able to do, whatever it is."""

from collections.abc import Callable
from dataclasses import dataclass

from ectype.launch.supervisor import JobState


@dataclass(frozen=True)
class JobReport:
    """How a job stands, and what its log says when it is over."""

    state: JobState
    why: str = ""
    error: str = ""
    tail: str = ""
    unhealthy: bool = False
    """The program ended itself over the run's health, and would again from the same checkpoint."""


@dataclass(frozen=True)
class Backend:
    """Four functions over a job's name. None of them raises for a failed call: that is a state, too."""

    submit: Callable[[str, int], str]
    """Name and size of the job; gives "" or, in words, why the submission failed."""
    look: Callable[[str], JobReport]
    cancel: Callable[[str], str]
    """Ask the job to end; gives "" or why that failed."""
    commands: Callable[[str, int], list[list[str]]]
    """What `submit` would run, for a dry run."""
