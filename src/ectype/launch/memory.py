"""What a supervisor remembers between two looks, kept in one file so that another supervisor can take over."""

from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.errors import EctypeError
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section

Outcome = Literal["done", "stopped"]


class SeenError(Section):
    """An error that ended a job: its text without what changes from run to run, and how far the run had come."""

    text: str
    step: int


class Memory(Section):
    """The content of `supervisor.json`. Times are seconds since the epoch."""

    format: Literal[1] = 1
    run: str
    target_updates: int
    job: str | None = None
    """The job under way; None between two."""
    job_was_listed: bool = False
    attempt: int = 0
    """Jobs submitted so far."""
    size: int = 0
    """Which of the policy's sizes the job has; 0 is the one that was asked for."""
    completed_updates: int | None = None
    """The highest count that the run's own record has shown; None: it was never read."""
    completed_at_submit: int = 0
    progressed_at: float = 0.0
    """When that count last rose, or a job last began to run."""
    waiting_since: float | None = None
    """Since when the job waits for machines."""
    unknown_since: float | None = None
    """Since when jobs or run could not be read."""
    not_before: float = 0.0
    """No job is submitted before."""
    failures_without_progress: int = 0
    preemptions_without_progress: int = 0
    failures: int = 0
    preemptions: int = 0
    missing_listings: int = 0
    """Sound listings in a row that lacked the job."""
    errors: tuple[SeenError, ...] = ()
    submit_error: str = ""
    ending_for_size: int | None = None
    """The job was asked to end, and the next one has this size."""
    ending_asked_at: float = 0.0
    resized_at: float = 0.0
    failed_growths: int = 0
    stop_was_asked: bool = False
    """A person asked the job under way to end, and no supervisor was there to see it end."""
    stalled: bool = False
    """A stall was told and has not ended."""
    outcome: Outcome | None = None
    reason: str = ""


def read_memory(path: Path) -> Memory | None:
    """The memory that an earlier supervisor left; None where there is none.

    Raises:
        EctypeError: the file holds something else.
    """
    if not path.is_file():
        return None
    mend = "move it away; a supervisor without memory takes up no job that is under way, so stop that one first"
    return read_record(path, Memory, "supervisor's memory", "ectype launch", mend)


def write_memory(path: Path, memory: Memory) -> None:
    """Write it atomically."""
    write_json(path, memory.model_dump(mode="json"))


def _whole(run: str) -> str:
    """A run's place, however its path was spelled."""
    return run.rstrip("/") if run.startswith("gs://") else str(Path(run).resolve())


def begun(path: Path, run: str, target_updates: int, *, stop_was_asked: bool) -> Memory:
    """The memory with which a supervisor starts: what is on file, with the budgets anew if that one had stopped.

    Args:
        stop_was_asked: whether a stop was asked for that no supervisor has carried out.

    Raises:
        EctypeError: the file belongs to another run.
    """
    stored = read_memory(path)
    if stored is None:
        return Memory(run=run, target_updates=target_updates)
    if _whole(stored.run) != _whole(run):
        raise EctypeError(
            f"{path} is of run {stored.run}", f"the supervisor's memory of {run}", "choose another --state folder"
        )
    changes = {"target_updates": target_updates, "outcome": None, "reason": ""}
    if stop_was_asked and stored.job is not None:
        changes["stop_was_asked"] = True
    if stored.outcome is not None or stop_was_asked:
        changes |= {
            "failures_without_progress": 0, "preemptions_without_progress": 0, "errors": (), "not_before": 0.0,
            "submit_error": "", "stalled": False,
        }  # fmt: skip
    return stored.model_copy(update=changes)
