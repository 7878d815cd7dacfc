"""Everything that a run folder holds for the report, read strictly; what is not there is None, never made up."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ectype.compare.overlay import Band, Overlay, deviation_band, overlay
from ectype.compare.record import VerdictRecord, changed_since, read_verdict
from ectype.compare.tolerances import load_floors
from ectype.compare.trajectory import Differences, difference
from ectype.data.audit_record import AuditRecord, read_audit
from ectype.errors import EctypeError
from ectype.evaluate.disjointness import Disjointness, read_disjointness
from ectype.evaluate.record import Evaluation, read_evaluation, read_evaluations
from ectype.faults.record import FaultMatrix, read_matrix
from ectype.plan.record import PlanRecord, read_plan
from ectype.recipe.load import recipe_hash
from ectype.recipe.reference import Reference, TrainingLog, load_reference, read_training_log
from ectype.recipe.spec import Recipe
from ectype.run.manifest import Manifest, first_step, load_run_recipe, read_manifest
from ectype.run.metrics import read_metrics
from ectype.run.paths import RunFolder
from ectype.tasks.record import TaskEvaluation, read_tasks
from ectype.weights.parity_record import ParityRecord, read_parity


@dataclass(frozen=True)
class RunRecords:
    """A run folder and the reference it names."""

    run_dir: Path
    recipe: Recipe
    run: Manifest | None
    metrics: TrainingLog | None
    evaluations: Mapping[int, Evaluation]
    sets: Mapping[str, Mapping[int, Evaluation]]
    """Evaluations on further held-out sets, by name."""
    tasks: Mapping[int, TaskEvaluation]
    """Downstream tasks by step."""
    disjoint: Disjointness | None
    verdict: VerdictRecord | None
    changed_since_verdict: tuple[str, ...]
    """Files that are no longer as they were judged."""
    reference: Reference | None
    reference_problem: str | None
    """Why the reference that the recipe names can't be read here; None when it can, or when it names none."""
    reference_log: TrainingLog | None
    differences: Differences | None
    overlay: Overlay | None
    band: Band | None
    """Trailing means of the differences, and what the noise of single updates allows them."""
    audit: AuditRecord | None
    parity: ParityRecord | None
    plan: PlanRecord | None
    faults: FaultMatrix | None

    def command(self, verb: str) -> str:
        """A verb of `ectype` on this run and its reference, to copy into a shell."""
        reference = self.recipe.inputs.reference
        return shlex.join(["ectype", verb, str(self.run_dir), *(("--reference", reference) if reference else ())])


def load_records(run_dir: Path, reference_path: str | None = None) -> RunRecords:
    """Read a run folder.

    Args:
        run_dir: holds at least recipe.yaml.
        reference_path: the reference to lay the log over; None takes the one that the recipe names.

    Raises:
        EctypeError: no run folder, a file in it that is there but can't be read, or no reference at `reference_path`.
    """
    recipe, run, first = load_run_recipe(run_dir), RunFolder(run_dir), first_step(run_dir)
    reference, problem = _reference(recipe, reference_path)
    metrics = read_metrics(run_dir) if run.metrics.is_file() else None
    verdict = read_verdict(run_dir) if run.verdict.is_file() else None
    log = read_training_log(reference.log) if reference and reference.log else None
    differences = difference(metrics, log, recipe.duration_steps, first) if metrics and log else None
    return RunRecords(
        run_dir=run_dir,
        recipe=recipe,
        run=read_manifest(run_dir) if run.manifest.is_file() else None,
        metrics=metrics,
        evaluations=read_evaluations(run_dir),
        sets=_read_sets(run_dir),
        tasks=_read_tasks(run_dir),
        disjoint=read_disjointness(run_dir) if run.disjoint.is_file() else None,
        verdict=verdict,
        changed_since_verdict=() if verdict is None else changed_since(run_dir, verdict, recipe_hash(recipe)),
        reference=reference,
        reference_problem=problem,
        reference_log=log,
        differences=differences,
        overlay=verdict.overlay if verdict else _overlay(differences, recipe.duration_steps - first),
        band=deviation_band(differences, recipe.duration_steps - first) if differences else None,
        audit=read_audit(run_dir) if run.audit.is_file() else None,
        parity=read_parity(run_dir) if run.parity.is_file() else None,
        plan=read_plan(run_dir) if run.plan.is_file() else None,
        faults=read_matrix(run_dir) if run.faults.is_file() else None,
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


def _overlay(differences: Differences | None, run_steps: int) -> Overlay | None:
    """The overlay of a run that was not compared yet, against the floor of one step's loss."""
    floor = load_floors().floors["step_loss"].value
    return overlay(differences, run_steps, floor, None, None) if differences else None


def _read_sets(run_dir: Path) -> dict[str, dict[int, Evaluation]]:
    sets: dict[str, dict[int, Evaluation]] = {}
    for path in RunFolder(run_dir).set_evaluations():
        found, name = read_evaluation(path), RunFolder.name_of_set(path)
        if found.step is not None:
            sets.setdefault(name, {})[found.step] = found
    return sets


def _read_tasks(run_dir: Path) -> dict[int, TaskEvaluation]:
    found = [read_tasks(path) for path in RunFolder(run_dir).task_evaluations()]
    return {evaluation.step: evaluation for evaluation in found if evaluation.step is not None}
