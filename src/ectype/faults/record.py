"""The record of a fault matrix: what each measure said of each fault, and of honest runs."""

from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.compare.verdict import Answer
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.manifest import Environment
from ectype.run.paths import RunFolder

COMMAND = "ectype faults OUT"
Said = Literal["broken", "unclear", "holds"]
TRAINING_LOSS, READ_ONCE = "training loss", "exactly once"
MEASURES = (
    TRAINING_LOSS, "gradient norm", "z-loss", "learning rate", "skipped steps", "data order", "held-out loss",
    "loss by domain", "loss by set", "token KL", "top-1 agreement", READ_ONCE,
)  # fmt: skip
"""Columns of the matrix, in their order. `exactly once` is the audit of the ledger."""


class Finding(Section):
    """What one measure said of one run; of several criteria the gravest."""

    said: Said
    step: int | None = None
    """Of a broken one, the first update or landmark at which it is; the last one where it speaks of the whole run."""


class Reading(Section):
    """How often one pass of the loader would read the corpus."""

    windows: int
    unread: int
    read_again: int
    """Windows that are read more than once."""

    @property
    def shares(self) -> tuple[float, float]:
        """Of all windows, those never read and those read again."""
        return self.unread / self.windows, self.read_again / self.windows


class Seconds(Section):
    """What a run took that is no row of the matrix, or what all calls took together."""

    format: Literal[1] = 1
    seconds: float


class Row(Section):
    """One run with a fault, or an honest one."""

    name: str
    title: str
    what: str
    area: str
    seed: int
    devices: int
    verdict: Answer
    findings: dict[str, Finding]
    """By measure, in the order of `MEASURES`; those that the regime cannot judge are absent."""
    refused_by: str | None = None
    """The check of Ectype that refuses the fault before anything is trained; it was silenced for this run."""
    weights_differ: bool | None = None
    """From the reference's at the end, in any bit; null where the two read other orders."""
    reading: Reading | None = None
    """Null where the run did not finish a pass of another order than the planned one."""
    training_loss_last_quarter: float | None
    """Mean of run less reference over the last quarter, nats."""
    held_out_loss_last: float | None
    """Run less reference at the last landmark, nats."""
    kl_last: float | None
    repeated_data_warning: bool
    tokens_that_catch: int | None = None
    """The least held-out text, of the sizes tried, on which a held-out criterion is broken there and on all larger
    ones."""
    tokens_estimated: int | None = None
    """Where none is: text that would settle a criterion whose estimate lies beyond its bound, if it stayed there."""
    seconds: float

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Measures that are broken."""
        return tuple(name for name, finding in self.findings.items() if finding.said == "broken")


class RegimeRecord(Section):
    """All runs of one regime."""

    name: str
    what: str
    duration_steps: int
    landmarks: tuple[int, ...]
    twins: int
    faults: tuple[Row, ...]
    honest: tuple[Row, ...]

    @property
    def measures(self) -> tuple[str, ...]:
        """Those that can be judged here."""
        found = {name for row in (*self.faults, *self.honest) for name in row.findings}
        return tuple(name for name in MEASURES if name in found)

    @property
    def unmade(self) -> tuple[str, ...]:
        """Titles of faults that changed no bit of the weights: nothing was made that a measure could see."""
        return tuple(row.title for row in self.faults if row.weights_differ is False)

    @property
    def false_alarms(self) -> tuple[Row, ...]:
        """Honest runs that some measure calls broken."""
        return tuple(row for row in self.honest if row.caught_by)


class FaultMatrix(Section):
    """Faults by measures, in each regime."""

    format: Literal[1] = 1
    recipe: str
    overrides: tuple[str, ...]
    held_out_tokens: int
    """Targets of the held-out text."""
    regimes: tuple[RegimeRecord, ...]
    environment: Environment
    cores: int
    jobs: int
    run_seconds: float
    """Sum over all runs, twins, noise and evaluations included."""
    wall_seconds: float
    """Of all calls that made the matrix together."""


def write_matrix(folder: Path, matrix: FaultMatrix) -> None:
    """Write `faults.json` in a folder atomically."""
    write_json(RunFolder(folder).faults, matrix.model_dump(mode="json"))


def read_matrix(folder: Path) -> FaultMatrix:
    """Read the `faults.json` of a folder strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    return read_record(RunFolder(folder).faults, FaultMatrix, "fault matrix", COMMAND, f"make it anew: `{COMMAND}`")
