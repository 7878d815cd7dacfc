"""The folder of one local job: where its files lie, and the records that its keeper and its supervisor exchange."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from ectype.artifacts import write_json
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Positive, Section

ProcessNumber = Annotated[int, Field(gt=1, lt=2**31)]
"""Of a living process other than init: a signal to 0, 1 or below would reach many more than one."""
Seconds = Annotated[float, Field(ge=0)]


class Plan(Section):
    """What the keeper starts, and how patient it is."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Of each process, without what tells the processes apart."""
    processes: Positive
    failure_seconds: Seconds
    """How long the other processes may take to end once one has failed."""
    stop_seconds: Seconds
    """How long all may take to save once they were asked to stop."""
    environment: dict[str, str]
    """Added to the keeper's own."""


class Living(Section):
    """Numbers of the keeper and of the processes that it has started."""

    keeper: ProcessNumber
    processes: tuple[ProcessNumber, ...] = ()


class ProcessEnd(Section):
    """How one process ended."""

    code: int
    """Exit code; a signal's number below 0."""
    ended_by_keeper: bool


class End(Section):
    """How a job ended; there once all its processes have."""

    at: Seconds
    """Seconds since the epoch."""
    processes: Annotated[tuple[ProcessEnd, ...], Field(min_length=1)]
    order: tuple[int, ...]
    """The processes in the order in which they ended."""

    @model_validator(mode="after")
    def _each_once(self) -> "End":
        if sorted(self.order) != list(range(len(self.processes))):
            raise ValueError(f"order {self.order} is none of {len(self.processes)} processes")
        return self


Record = TypeVar("Record", Plan, Living, End)
_FILES: dict[type[Section], str] = {Plan: "job.json", Living: "processes.json", End: "end.json"}


@dataclass(frozen=True)
class JobFolder:
    """Where the files of one local job lie."""

    path: Path

    def file(self, kind: type[Section]) -> Path:
        """Where the record of this kind lies."""
        return self.path / _FILES[kind]

    def read(self, kind: type[Record]) -> Record:
        """The record of this kind.

        Raises:
            EctypeError: it is not there, or is no such record.
        """
        mend = "stop what still runs of this job, and move its folder away"
        return read_record(self.file(kind), kind, "record of a local job", "ectype launch local", mend)

    def write(self, record: Plan | Living | End) -> None:
        """Write it atomically.

        Raises:
            EctypeError: the folder is not writable, or its disk is full.
        """
        write_json(self.file(type(record)), record.model_dump(mode="json"))

    def forget_an_earlier_job(self) -> None:
        """Take away what one of the same name left, as when the supervisor's memory was moved away."""
        for kind in (End, Living):
            self.file(kind).unlink(missing_ok=True)

    @property
    def keeper_lock(self) -> Path:
        """Held while the keeper lives, and before by who starts it."""
        return self.path / "keeper.lock"

    @property
    def keeper_log(self) -> Path:
        """What the keeper itself had to say: nothing, if all went well."""
        return self.path / "keeper.log"

    @property
    def job_lock(self) -> Path:
        """Held while any process of the job lives."""
        return self.path / "job.lock"

    def log(self, number: int) -> Path:
        """Output of one process."""
        return self.path / f"output-{number}.log"

    def logs(self) -> list[Path]:
        """Outputs of all processes that were started, by number."""
        found = {path.stem.removeprefix("output-"): path for path in self.path.glob("output-*.log")}
        return [found[number] for number in sorted((name for name in found if name.isdecimal()), key=int)]


def jobs_in(folder: Path) -> list[JobFolder]:
    """The jobs in a folder of jobs, the oldest first."""
    plans = sorted(folder.glob(f"*/{_FILES[Plan]}"), key=lambda path: path.stat().st_mtime)
    return [JobFolder(plan.parent) for plan in plans]
