"""Everything that a run folder holds for the report, read strictly; what is not there is None, never made up."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.artifacts import read_json
from ectype.compare.criteria import Criterion
from ectype.compare.tolerances import load_floors
from ectype.compare.trajectory import Differences, Overlay, difference, overlay
from ectype.errors import EctypeError
from ectype.evaluate.record import Evaluation, read_evaluation
from ectype.recipe.reference import Reference, TrainingLog, load_reference, read_training_log
from ectype.recipe.spec import Recipe
from ectype.run.manifest import load_run_recipe
from ectype.run.metrics import read_metrics
from ectype.run.paths import RunFolder


@dataclass(frozen=True)
class VerdictRecord:
    """`verdict.json`, as `ectype compare` wrote it."""

    answer: str
    reason: str
    decided_by: tuple[str, ...]
    criteria: tuple[Criterion, ...]
    overlay: Overlay | None
    horizon: str
    horizon_step: int | None
    landmarks_missing: tuple[int, ...]
    landmarks_stale: tuple[int, ...]


@dataclass(frozen=True)
class RunRecords:
    """A run folder and the reference it names."""

    run_dir: Path
    recipe: Recipe
    run: Mapping[str, Any] | None
    """run.json"""
    metrics: TrainingLog | None
    evaluations: Mapping[int, Evaluation]
    verdict: VerdictRecord | None
    reference: Reference | None
    reference_problem: str | None
    """Why the reference that the recipe names can't be read here; None when it can, or when it names none."""
    reference_log: TrainingLog | None
    differences: Differences | None
    overlay: Overlay | None
    audit: Mapping[str, Any] | None
    """audit.json, from `ectype data audit`."""
    parity: Mapping[str, Any] | None
    """parity.json, from `ectype weights parity`."""


def load_records(run_dir: Path, reference_path: str | None = None) -> RunRecords:
    """Read a run folder.

    Args:
        run_dir: holds at least recipe.yaml.
        reference_path: the reference to lay the log over; None takes the one that the recipe names.

    Raises:
        EctypeError: no run folder, a file in it that is there but can't be read, or no reference at `reference_path`.
    """
    recipe, run = load_run_recipe(run_dir), RunFolder(run_dir)
    reference, problem = _reference(recipe, reference_path)
    metrics = read_metrics(run_dir) if run.metrics.is_file() else None
    verdict = _read_verdict(run_dir)
    log = read_training_log(reference.log) if reference and reference.log else None
    differences = difference(metrics, log, recipe.duration_steps) if metrics and log else None
    return RunRecords(
        run_dir=run_dir,
        recipe=recipe,
        run=_optional(run.manifest),
        metrics=metrics,
        evaluations=_read_evaluations(run_dir),
        verdict=verdict,
        reference=reference,
        reference_problem=problem,
        reference_log=log,
        differences=differences,
        overlay=verdict.overlay if verdict else _overlay(differences, recipe),
        audit=_optional(run.audit),
        parity=_optional(run.parity),
    )


def _reference(recipe: Recipe, path: str | None) -> tuple[Reference | None, str | None]:
    """The reference, or why there is none. A run may be looked at on a machine that does not hold its reference."""
    if path is not None:
        return load_reference(path), None
    if recipe.inputs.reference is None:
        return None, None
    try:
        return load_reference(recipe.inputs.reference), None
    except EctypeError as error:
        return None, error.found


def _overlay(differences: Differences | None, recipe: Recipe) -> Overlay | None:
    """The overlay of a run that was not compared yet, against the floor of one step's loss."""
    floor = load_floors().floors["step_loss"].value
    return overlay(differences, recipe.duration_steps, floor, None, None) if differences else None


def _optional(path: Path) -> Any:
    return read_json(path, path.name) if path.is_file() else None


def _read_evaluations(run_dir: Path) -> dict[int, Evaluation]:
    found = [read_evaluation(path) for path in RunFolder(run_dir).evaluations()]
    return {evaluation.step: evaluation for evaluation in found}


def _read_verdict(run_dir: Path) -> VerdictRecord | None:
    path = RunFolder(run_dir).verdict
    values = _optional(path)
    if values is None:
        return None
    try:
        return VerdictRecord(
            answer=values["verdict"],
            reason=values["reason"],
            decided_by=tuple(values["decided_by"]),
            criteria=tuple(Criterion(**criterion) for criterion in values["criteria"]),
            overlay=Overlay(**values["overlay"]) if values["overlay"] else None,
            horizon=values["horizon"]["text"],
            horizon_step=values["horizon"]["first_step_beyond"],
            landmarks_missing=tuple(values["landmarks"]["missing"]),
            landmarks_stale=tuple(values["landmarks"]["stale"]),
        )
    except (KeyError, TypeError) as error:
        raise EctypeError(
            f"verdict {path}: {error!r}", "a record of this version's `ectype compare`", "compare again"
        ) from None
