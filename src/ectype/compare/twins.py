"""Twins of a run: where they lie, which are finished, and the noise that they show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.compare.noise import Noise, measure_noise, read_noise
from ectype.errors import EctypeError
from ectype.evaluate.landmarks import find_landmarks
from ectype.evaluate.record import Evaluation
from ectype.evaluate.runner import default_settings, evaluate_pair, run_texts
from ectype.progress import Progress, silent
from ectype.recipe.held_out_sets import MAIN_SET
from ectype.recipe.load import recipe_hash
from ectype.recipe.reference import LandmarkWeights, Reference
from ectype.recipe.spec import Recipe
from ectype.run.manifest import Manifest, Perturbation, load_run_recipe, read_manifest
from ectype.run.metrics import read_metrics
from ectype.run.paths import RunFolder

PERTURBATION = 1e-6
"""Relative size of a twin's change to the step-0 weights."""


@dataclass(frozen=True)
class MeasuredNoise:
    """A noise record and where it came from; `record` is None when there is none."""

    record: Noise | None
    is_of_this_run: bool
    source: str


def twin_perturbation(number: int) -> Perturbation:
    """The change that makes twin `number`."""
    return Perturbation(scale=PERTURBATION, seed=number)


def twin_recipe(recipe: Recipe, number: int, reseeded: bool) -> Recipe:
    """The recipe of twin `number`: the run's own, or with another data seed, which gives another order.

    Raises:
        EctypeError: its order has no seed.
    """
    if not reseeded:
        return recipe
    order = recipe.data.order
    if order.kind == "sequential":
        raise EctypeError("twins of other data seeds, and a sequential order", "an order with a seed", "see data.order")
    data = recipe.data.model_copy(update={"order": order.model_copy(update={"seed": order.seed + number})})
    return recipe.model_copy(update={"data": data})


def twin_folder(run: RunFolder, number: int, reseeded: bool) -> RunFolder:
    """Run folder of a twin of either kind."""
    return run.reseeded_twin(number) if reseeded else run.twin(number)


def finished_twins(run_dir: Path, recipe: Recipe, reseeded: bool = False) -> list[int]:
    """Numbers of the twins of this recipe that ran to the end.

    Args:
        reseeded: those of other data seeds, instead of those of other step-0 weights.

    Raises:
        EctypeError: a twin's folder belongs to another recipe, or to no twin of this run.
    """
    run, finished = RunFolder(run_dir), []
    for number in run.reseeded_twin_numbers() if reseeded else run.twin_numbers():
        twin = twin_folder(run, number, reseeded)
        if not twin.metrics.is_file():
            continue
        _refuse_other(run, twin, number, recipe, reseeded)
        if read_metrics(twin.path).steps[-1] >= recipe.duration_steps:
            finished.append(number)
    return finished


def _refuse_other(run: RunFolder, twin: RunFolder, number: int, recipe: Recipe, reseeded: bool) -> None:
    """A folder that holds no twin of this run would widen what the run is judged by."""
    mend = "delete that twin's folder; `ectype compare` trains it anew"
    if recipe_hash(load_run_recipe(twin.path)) != recipe_hash(twin_recipe(recipe, number, reseeded)):
        raise EctypeError(f"{twin.path} ran another recipe than {run.path}", "one recipe", mend)
    found, due = read_manifest(twin.path), None if reseeded else twin_perturbation(number)
    if found.perturbation != due:
        shown, wanted = ("none" if each is None else each.words for each in (found.perturbation, due))
        raise EctypeError(f"{twin.path} is no twin: its step-0 weights were changed by {shown}", wanted, mend)
    own = read_manifest(run.path)
    if found.index_fingerprint != own.index_fingerprint:
        raise EctypeError(
            f"{twin.path} read the index {found.index_fingerprint[:16]}", f"{own.index_fingerprint[:16]}, as its run",
            mend,
        )  # fmt: skip
    if _origin(found) != _origin(own):
        raise EctypeError(f"{twin.path} took over other state than {run.path}", "one source, as it was then", mend)


def _origin(manifest: Manifest) -> dict[str, Any] | None:
    """What a stage took over, wherever it lay."""
    record = manifest.hand_over
    return None if record is None else record.model_dump(exclude={"given", "source"})


def twins_noise(
    run_dir: Path, reference: Reference, twins: Sequence[int], progress: Progress = silent, reseeded: bool = False
) -> MeasuredNoise:
    """Evaluate finished twins against their run at every landmark, and make the noise record.

    Raises:
        EctypeError: the run or a twin lacks a checkpoint that is due, or a log lacks steps.
    """
    recipe, run = load_run_recipe(run_dir), RunFolder(run_dir)
    landmarks = find_landmarks(run_dir, recipe, reference).available
    texts = run_texts(recipe, reference)
    further = [name for name in texts if name != MAIN_SET]
    settings = default_settings(run_dir)
    evaluations: dict[int, list[Evaluation]] = {step: [] for step in landmarks}
    sets: dict[int, dict[str, list[Evaluation]]] = {step: {name: [] for name in further} for step in landmarks}
    for step in landmarks:
        for number in twins:
            twin = twin_folder(run, number, reseeded)
            ours, theirs = (LandmarkWeights(weights=each.checkpoint(step)) for each in (run, twin))
            outs = [twin.against_run(step), *(twin.against_run_set(name, step) for name in further)]
            wanted = list(zip([texts[MAIN_SET], *(texts[name] for name in further)], outs, strict=True))
            main, *others = evaluate_pair(step, ours, theirs, wanted, settings)
            evaluations[step].append(main)
            for name, found in zip(further, others, strict=True):
                sets[step][name].append(found)
            progress("evaluate twins", sum(map(len, evaluations.values())), len(landmarks) * len(twins))
    logs = [read_metrics(twin_folder(run, number, reseeded).path) for number in twins]
    record = measure_noise(
        recipe_hash(recipe), 0.0 if reseeded else PERTURBATION, recipe.duration_steps, read_metrics(run_dir), logs,
        evaluations, reseeded, sets,
    )  # fmt: skip
    kind = " with other data seeds" if reseeded else ""
    return MeasuredNoise(record, True, f"{len(twins)} twins of this run{kind}")


def reference_noise(reference: Reference, recipe: Recipe, reseeded: bool = False) -> MeasuredNoise | None:
    """The reference's own noise record, if it has one of this kind for this very recipe; None otherwise."""
    if reference.noise is None:
        return None
    record = read_noise(reference.noise)
    if record.recipe_hash != recipe_hash(recipe) or record.reseeded != reseeded:
        return None
    return MeasuredNoise(record, False, f"noise record of the reference: {record.twins} twins of the same recipe")


def no_noise() -> MeasuredNoise:
    """What is known of the noise when there are no twins."""
    return MeasuredNoise(None, False, "none")
