"""The noise to judge a run by: its own twins, the reference's record, or twins that are trained now."""

from pathlib import Path

from ectype.compare.inputs import require_evaluation
from ectype.compare.twins import (
    MeasuredNoise,
    finished_twins,
    no_noise,
    reference_noise,
    twin_folder,
    twin_perturbation,
    twin_recipe,
    twins_noise,
)
from ectype.progress import Progress, silent
from ectype.recipe.load import with_inputs
from ectype.recipe.reference import Reference
from ectype.recipe.spec import Recipe
from ectype.run.manifest import load_run_recipe, read_manifest
from ectype.run.metrics import seconds_of
from ectype.run.paths import RunFolder
from ectype.train import loop

DEFAULT_TWINS = 3
LONGEST_UNASKED_SECONDS = 1800
"""Twins cost a whole run each, so they are trained unasked only where all of them take less than half an hour."""


def ensure_noise(
    run_dir: Path,
    reference: Reference,
    asked: int | None = None,
    *,
    reseeded: bool = False,
    train: bool = True,
    progress: Progress = silent,
) -> MeasuredNoise:
    """The noise of the run's own finished twins, else of the reference's record, else of twins trained now.

    Args:
        asked: twins to have in any case; None: those that exist, else the reference's record, else a few if the run
            was short.
        reseeded: twins of other data seeds, for a reference that read the data in another order.
        train: False trains none.

    Raises:
        EctypeError: a twin can't be trained or evaluated, or belongs to another recipe; or one was to be trained for a
            run that was never evaluated.
    """
    recipe = load_run_recipe(run_dir)
    finished = finished_twins(run_dir, recipe, reseeded)
    wanted = (asked or 0) if train else 0
    if train and not finished and not asked:
        known = reference_noise(reference, recipe, reseeded)
        if known is not None:
            return known
        wanted = DEFAULT_TWINS if seconds_of(run_dir) * DEFAULT_TWINS < LONGEST_UNASKED_SECONDS else 0
    untrained = [seed for seed in range(1, wanted + 1) if seed not in finished]
    if untrained:
        require_evaluation(run_dir, recipe, reference)
    for seed in untrained:
        _train_twin(run_dir, recipe, seed, reseeded, progress)
    twins = finished_twins(run_dir, recipe, reseeded)
    if twins:
        return twins_noise(run_dir, reference, twins, progress, reseeded)
    return reference_noise(reference, recipe, reseeded) or no_noise()


def _train_twin(run_dir: Path, recipe: Recipe, seed: int, reseeded: bool, progress: Progress) -> None:
    """Train one twin where the run was trained, from what it began from, or go on with one that was stopped."""
    manifest, twin = read_manifest(run_dir), twin_folder(RunFolder(run_dir), seed, reseeded)
    recipe, perturb = twin_recipe(recipe, seed, reseeded), None if reseeded else twin_perturbation(seed)
    if manifest.hand_over is not None:
        # The source may have been trained further since: the very checkpoint, not the newest one.
        recipe = with_inputs(recipe, source=manifest.hand_over.source)
    loop.train_run(recipe, manifest.placement, twin.path, perturb=perturb, progress=progress)
