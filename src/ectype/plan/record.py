"""The record of a plan: what `ectype plan` prints as JSON and keeps in a run folder."""

from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.plan.collective_cost import Collective
from ectype.plan.predict import Band
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.paths import RunFolder

COMMAND = "ectype plan RECIPE --topology CHIP:SHAPE --placement P --run RUN"


class MemoryRecord(Section):
    """Bytes of one device. `peak` is the compiler's own and holds all the others."""

    fits: bool
    limit: int
    peak: int | None
    """None: the compiler refused the program."""
    refused_at: int | None
    """What the refused program wanted."""
    parameters: int
    moments: int
    kept_activations: int
    """By name, of all layers; 0 where all are kept or none by name."""
    code: int | None

    @property
    def margin(self) -> int:
        """Bytes left; negative where it does not fit."""
        return self.limit - (self.peak or self.refused_at or 0)


class StepRecord(Section):
    """Predicted cost of one step."""

    seconds: Band
    compute_seconds: float
    attention_seconds: Band
    exposed_collective_seconds: Band
    compute_cycles: int
    unknown_cycles: int
    attention_kernels: dict[str, int]
    collectives: tuple[Collective, ...]
    executed_over_model_flops: float
    tokens_per_second: Band
    model_tflops_per_device: Band
    mfu: Band
    mfu_full_causal: float
    """At the expected step time, with all layers counted as full causal attention, as published figures often are."""
    dearest_lines: tuple[tuple[str, float], ...]
    """Source lines and their seconds of compute."""


class PlanRecord(Section):
    """What a recipe costs on a slice."""

    format: Literal[1] = 1
    recipe: str
    placement: str
    topology: str
    devices: int
    mesh: dict[str, int]
    tokens_per_step: int
    memory: MemoryRecord
    step: StepRecord | None
    """None: the program does not fit."""
    steps: int
    """Of the whole recipe."""
    chip_hours: Band | None
    days: Band | None
    compile_seconds: float | None
    compile_peak_bytes: int | None
    flags: str | None


def write_plan(run_dir: Path, record: PlanRecord) -> None:
    """Write `plan.json` of a run atomically."""
    write_json(RunFolder(run_dir).plan, record.model_dump(mode="json"))


def read_plan(run_dir: Path) -> PlanRecord:
    """Read `plan.json` of a run strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    return read_record(RunFolder(run_dir).plan, PlanRecord, "plan", COMMAND, f"plan again: `{COMMAND}`")
