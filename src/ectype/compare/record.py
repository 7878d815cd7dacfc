"""The record of a comparison: what `ectype compare` prints, and `verdict.json` in a run folder."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ectype.artifacts import sha256_of_file, write_json
from ectype.compare.criteria import Criterion, Grounds, finite
from ectype.compare.held_out_criteria import LOSS_BY_SET
from ectype.compare.judged import JudgedFile, changed_inputs
from ectype.compare.overlay import Overlay
from ectype.compare.verdict import Answer
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.paths import RunFolder

_MAY_BE_INFINITE = ("largest", "largest_smoothed", "smoothed_threshold", "mean_last_quarter", "band")
"""Numbers of an overlay, where a loss is not finite."""


class ReferenceNames(Section):
    """The run that was compared with."""

    name: str
    framework: str


class LandmarkSteps(Section):
    """Landmarks that the recipe names and the reference has, and what became of them."""

    due: tuple[int, ...]
    evaluated: tuple[int, ...]
    stale: tuple[int, ...]
    """Evaluated on inputs that are no longer those on disk."""
    missing: tuple[int, ...]


class Horizon(Section):
    """How far the trajectory can be compared step by step."""

    first_step_beyond: int | None
    """Null when all steps can be compared, or nobody knows."""
    floor: float
    """Nats; a twin that differs by more ends the comparison step by step."""
    twins: int
    perturbation: float | None
    noise_source: str
    text: str
    """The same in words."""


class VerdictRecord(Section):
    """The answer, and everything that it rests on."""

    format: Literal[4] = 4
    verdict: Answer
    reason: str
    decided_by: tuple[str, ...]
    tokens_needed: int | None = None
    """As in a `Verdict`."""
    reference: ReferenceNames
    recipe: str
    recipe_hash: str
    landmarks: LandmarkSteps
    horizon: Horizon
    criteria: tuple[Criterion, ...]
    overlay: Overlay | None
    evidence: dict[str, str]
    """SHA-256 of each record of the run that was judged, by its path within the run folder."""
    inputs: dict[str, JudgedFile]
    """Weights, held-out text and what the reference published, by path."""


def judged_files(
    run_dir: Path, landmarks: Iterable[int], sets: Mapping[str, Iterable[int]] | None = None
) -> dict[str, str]:
    """SHA-256 of the run's own log, of its record of consumed windows and of its evaluations of `landmarks`.

    Args:
        sets: further sets, and the landmarks at which they were judged.
    """
    run = RunFolder(run_dir)
    ledgers = [run.process_ledger(process) for process in run.ledger_processes()]
    further = [run.set_evaluation(name, step) for name, steps in (sets or {}).items() for step in steps]
    files = [run.metrics, *ledgers, *(run.evaluation(step) for step in landmarks), *further]
    return {str(path.relative_to(run_dir)): sha256_of_file(path) for path in files if path.is_file()}


def changed_since(run_dir: Path, record: VerdictRecord, recipe_hash: str) -> tuple[str, ...]:
    """What is no longer as it was judged: names of files; empty for a verdict that still stands.

    Args:
        recipe_hash: of the recipe that the run folder holds now.
    """
    sets: dict[str, list[int]] = {}
    for criterion in record.criteria:
        if criterion.name == LOSS_BY_SET and criterion.domain is not None and criterion.landmark is not None:
            sets.setdefault(criterion.domain, []).append(criterion.landmark)
    now = judged_files(run_dir, record.landmarks.evaluated, sets)
    names = sorted(now.keys() | record.evidence.keys())
    recipe = [RunFolder(run_dir).recipe.name] if recipe_hash != record.recipe_hash else []
    records = [name for name in names if now.get(name) != record.evidence.get(name)]
    return (*recipe, *records, *changed_inputs(run_dir, record.inputs))


def horizon_record(grounds: Grounds, noise_source: str) -> Horizon:
    """How far the trajectory can be compared step by step, as a number and in words."""
    noise, floor = grounds.noise, grounds.floors.floors["step_loss"]
    whose = "of this run" if grounds.noise_is_of_this_run else "of the reference's noise record"
    if noise is None:
        text = "unknown, as no twins were trained: only agreement within the floors can be proven"
    elif noise.reseeded:
        text = (
            f"not at all, as {noise.twins} twins {whose} that read the data in other orders set the tolerances: only "
            "statistics are compared, and the data order is not"
        )
    elif not grounds.float32:
        text = "not at all, as the run or the reference is not float32: only statistics are compared"
    elif grounds.horizon_step is None:
        text = (
            f"the whole run, as {noise.twins} twins {whose}, changed by {noise.perturbation:g} at step "
            f"{grounds.first_step}, stay within {floor.value:g} {floor.unit} at every step"
        )
    else:
        text = (
            f"before step {grounds.horizon_step}, as from there on {noise.twins} twins {whose}, changed by "
            f"{noise.perturbation:g} at step {grounds.first_step}, differ by more than {floor.value:g} {floor.unit}; "
            "later steps are compared by statistics"
        )
    return Horizon(
        first_step_beyond=grounds.horizon_step,
        floor=floor.value,
        twins=0 if noise is None else noise.twins,
        perturbation=None if noise is None else noise.perturbation,
        noise_source=noise_source,
        text=text,
    )


def finite_overlay(overlay: Overlay | None) -> Overlay | None:
    """The overlay for JSON: null where a number is not finite."""
    if overlay is None:
        return None
    numbers = {name: getattr(overlay, name) for name in _MAY_BE_INFINITE}
    return replace(overlay, **{name: None if value is None else finite(value) for name, value in numbers.items()})


def write_verdict(run_dir: Path, record: VerdictRecord) -> None:
    """Write `verdict.json` of a run atomically."""
    write_json(RunFolder(run_dir).verdict, record.model_dump(mode="json"))


def read_verdict(run_dir: Path) -> VerdictRecord:
    """Read `verdict.json` of a run strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    path, command = RunFolder(run_dir).verdict, "ectype compare RUN"
    return read_record(path, VerdictRecord, "verdict", command, f"compare again: `{command}`")
