"""Lay a run's training log over any CSV file, with what the run folder knows of noise and held-out text."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ectype.artifacts import write_bytes_atomic
from ectype.compare.held_out_criteria import held_out_interval
from ectype.compare.overlay import Band, Overlay, deviation_band, overlay
from ectype.compare.record import finite_overlay, read_verdict
from ectype.compare.tolerances import load_floors
from ectype.compare.trajectory import Differences, difference
from ectype.errors import EctypeError
from ectype.evaluate.record import read_evaluations
from ectype.recipe.reference import Log, TrainingLog, load_reference, read_training_log
from ectype.recipe.spec import Recipe
from ectype.run.manifest import first_step, load_run_recipe
from ectype.run.metrics import read_metrics
from ectype.run.paths import RunFolder


@dataclass(frozen=True)
class LaidOver:
    """Facts, and the curves behind them."""

    facts: Overlay
    reference: TrainingLog
    differences: Differences
    band: Band


_WANDB_LOSS = "train/CE loss"
"""OLMo-core's name of the training loss at W&B."""
_COLUMNS_MEND = "name its columns: --loss COLUMN, and --step COLUMN"


def overlay_on_csv(run_dir: Path, path: Path, step: str | None = None, loss: str | None = None) -> LaidOver:
    """Compare a run's training loss with a CSV file's.

    The threshold of the trailing mean is that of the run's verdict where there is one, and the held-out difference that
    of its last evaluated landmark.

    Args:
        path: the log.
        step, loss: its columns; None: as the run's reference names them where the log is the reference's or has such a
            column, else `step` and W&B's name of the loss.

    Raises:
        EctypeError: no run folder, a log that can't be read, or no step in common.
    """
    recipe, run, first = load_run_recipe(run_dir), RunFolder(run_dir), first_step(run_dir)
    known = _known_columns(recipe, path)
    log = Log(path=path, step=step or known.step, loss=loss or known.loss)
    reference = read_training_log(log, _COLUMNS_MEND)
    differences = difference(read_metrics(run_dir), reference, recipe.duration_steps, first)
    evaluations = {step: found for step, found in read_evaluations(run_dir).items() if step > first}
    stored = read_verdict(run_dir).overlay if run.verdict.is_file() else None
    run_steps = recipe.duration_steps - first
    facts = overlay(
        differences, run_steps, load_floors().floors["step_loss"].value, stored.smoothed_threshold if stored else None,
        held_out_interval(evaluations, recipe.evaluation.bootstrap_samples), reference.aggregated_rows,
    )  # fmt: skip
    found = finite_overlay(facts)
    if found is None:
        raise EctypeError(
            f"{log.path} and {run.metrics} share no step", "a log of the same steps, counted from 1", "check --step"
        )
    return LaidOver(found, reference, differences, deviation_band(differences, run_steps))


def _known_columns(recipe: Recipe, path: Path) -> Log:
    """The log at `path` with the column names that nobody gave."""
    usual = Log(path=path, loss=_WANDB_LOSS)
    try:
        theirs = None if recipe.inputs.reference is None else load_reference(recipe.inputs.reference).log
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header = next(csv.reader(stream), [])
    except (EctypeError, OSError, UnicodeDecodeError, csv.Error):
        # A log that can't be read is told of where it is read; a reference that is gone is no matter here.
        return usual
    if theirs is None or usual.loss in header:
        return usual
    if path.resolve() == theirs.path.resolve() or theirs.loss in header:
        return theirs
    return usual


def write_curves(path: Path, laid: LaidOver) -> None:
    """Write a CSV file with a row for each step: both losses, their difference, its trailing mean and the band."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step", "loss", "reference", "difference", "smoothed_difference", "band"))
    writer.writerows(_rows(laid))
    write_bytes_atomic(path, text.getvalue().encode())


def _rows(laid: LaidOver) -> Iterator[tuple[str, ...]]:
    steps, loss = laid.differences.steps, laid.differences.loss
    theirs = laid.reference.loss[np.isin(laid.reference.steps, steps)]
    means = dict(zip(laid.band.steps.tolist(), zip(laid.band.smoothed, laid.band.half_width, strict=True), strict=True))
    for step, gap, reference in zip(steps.tolist(), loss, theirs, strict=True):
        smoothed = means.get(step)
        later = ("", "") if smoothed is None else (f"{smoothed[0]:.6g}", f"{smoothed[1]:.6g}")
        yield f"{step}", f"{reference + gap:.9g}", f"{reference:.9g}", f"{gap:.6g}", *later
