"""Compare a run with its reference: read what both left behind, judge it, write `RUN/verdict.json`.

This file reads and writes; what is computed lies in the other files of this folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ectype.compare.bootstrap import Interval
from ectype.compare.criteria import Criterion, Grounds
from ectype.compare.held_out_criteria import held_out_criteria, held_out_interval, set_criteria
from ectype.compare.inputs import (
    consumed_digests,
    due_landmarks,
    read_evaluations,
    read_set_evaluations,
    reference_digests,
)
from ectype.compare.judged import judged_inputs
from ectype.compare.overlay import Overlay, overlay
from ectype.compare.record import (
    LandmarkSteps,
    ReferenceNames,
    VerdictRecord,
    finite_overlay,
    horizon_record,
    judged_files,
    write_verdict,
)
from ectype.compare.tolerances import load_floors
from ectype.compare.trajectory import difference, horizon
from ectype.compare.trajectory_criteria import data_identity, smoothed_tolerance, trajectory_criteria
from ectype.compare.twins import MeasuredNoise
from ectype.compare.verdict import Verdict, decide
from ectype.evaluate.record import Evaluation
from ectype.recipe.load import recipe_hash
from ectype.recipe.reference import Log, Reference, read_training_log
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import finished_steps
from ectype.run.manifest import first_step, load_run_recipe
from ectype.run.metrics import read_metrics


def compare_run(run_dir: Path, reference: Reference, noise: MeasuredNoise) -> tuple[Verdict, VerdictRecord]:
    """Judge a run and write `RUN/verdict.json`.

    Args:
        run_dir: the run folder; its landmarks were evaluated by `ectype evaluate`.
        reference: the run to compare with.
        noise: from `twins_noise` or `reference_noise`, or `no_noise()`.

    Returns:
        The verdict, and the record that was written.
    """
    recipe = load_run_recipe(run_dir)
    due = due_landmarks(run_dir, recipe, reference)
    evaluations = read_evaluations(run_dir, recipe, reference, due)
    grounds = grounds_of(recipe, reference, noise, evaluations.current, first_step(run_dir))
    sets = read_set_evaluations(run_dir, recipe, reference, due)
    criteria = held_out_criteria(evaluations.current, grounds) + set_criteria(sets, due, grounds)
    over = None
    if reference.log is not None:
        found, over = _judge_log(
            run_dir, reference.log, grounds, held_out_interval(evaluations.current, grounds.resamples)
        )
        criteria += found
    if reference.batches is not None and not (noise.record and noise.record.reseeded):
        consumed = consumed_digests(run_dir, recipe.data.global_batch_windows)
        wanted = reference_digests(reference)
        criteria.append(data_identity(consumed, wanted, recipe.duration_steps, grounds.first_step))
    missing = tuple(step for step in due if step not in evaluations.current)
    verdict = decide(criteria, due, grounds.first_step, next_action(run_dir, missing, evaluations.stale))
    record = VerdictRecord(
        verdict=verdict.answer,
        reason=verdict.reason,
        decided_by=verdict.decided_by,
        tokens_needed=verdict.tokens_needed,
        reference=ReferenceNames(name=reference.name, framework=reference.framework),
        recipe=recipe.name,
        recipe_hash=recipe_hash(recipe),
        landmarks=LandmarkSteps(
            due=due,
            evaluated=tuple(sorted(evaluations.current)),
            stale=tuple(evaluations.stale),
            missing=missing,
        ),
        horizon=horizon_record(grounds, noise.source),
        criteria=tuple(criteria),
        overlay=finite_overlay(over),
        evidence=judged_files(
            run_dir, sorted(evaluations.current), {name: tuple(found) for name, found in sets.items()}
        ),
        inputs=judged_inputs(
            run_dir,
            recipe,
            reference,
            evaluations.current,
            its_noise=noise.record is not None and not noise.is_of_this_run,
        ),
    )
    write_verdict(run_dir, record)
    return verdict, record


def next_action(run_dir: Path, missing: Sequence[int], stale: Mapping[int, str]) -> str:
    """What would bring the evidence of `missing` landmarks: evaluation where the checkpoint is there, else training.

    Args:
        stale: landmarks whose record does not count, and why.
    """
    saved = set(finished_steps(run_dir)).intersection(missing)
    unsaved = [step for step in missing if step not in saved]
    words = [f"the record of landmark {step} does not count: {why}" for step, why in stale.items()]
    if saved:
        words.append(f"`ectype evaluate {run_dir}` measures landmark {', '.join(map(str, sorted(saved)))}")
    if unsaved:
        words.append(f"the run has no checkpoint of landmark {', '.join(map(str, unsaved))}: train it further")
    return "; ".join(words)


def _judge_log(
    run_dir: Path, log: Log, grounds: Grounds, held_out: Interval | None
) -> tuple[list[Criterion], Overlay | None]:
    """The criteria of the training log, and its overlay."""
    ours, theirs = read_metrics(run_dir), read_training_log(log)
    differences = difference(ours, theirs, grounds.duration_steps, grounds.first_step)
    tolerance = smoothed_tolerance(differences, grounds)
    floor = grounds.floors.floors["step_loss"].value
    smoothed = floor if tolerance is None else tolerance.within
    over = overlay(differences, grounds.run_steps, floor, smoothed, held_out, theirs.aggregated_rows)
    return trajectory_criteria(differences, grounds), over


def grounds_of(
    recipe: Recipe, reference: Reference, noise: MeasuredNoise, evaluations: Mapping[int, Evaluation], first: int
) -> Grounds:
    """What a comparison of a run of `recipe` stands on.

    Args:
        evaluations: of the run, by landmark.
        first: step that a stage counts on from; 0 for a run from the beginning.
    """
    numerics = recipe.numerics.model_dump()
    dtypes = {*numerics.values(), reference.dtype, *(e.protocol.compute_dtype for e in evaluations.values())}
    float32 = dtypes == {"float32"}
    floors = load_floors()
    step = None
    if noise.record is not None:
        floor = floors.floors["step_loss"].value
        steps = np.array(noise.record.steps)
        step = horizon(steps, noise.record.loss_differences(), floor) if float32 else 1
        if noise.record.reseeded:
            step = first + 1
    return Grounds(
        floors=floors,
        float32=float32,
        noise=noise.record,
        noise_is_of_this_run=noise.is_of_this_run,
        horizon_step=step,
        first_step=first,
        duration_steps=recipe.duration_steps,
        resamples=recipe.evaluation.bootstrap_samples,
    )
