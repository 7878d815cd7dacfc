"""Two training logs side by side: differences, smoothing, the horizon. Arrays in, records out.

Shapes: S steps that both logs hold.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ectype.recipe.reference import TrainingLog


@dataclass(frozen=True)
class Series:
    """Differences at the steps at which the reference logged a number: int64 and float64, [s]."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Differences:
    """Run less reference at every step that both logs hold, float64 [S]; None where the reference lacks the series.

    NaN where the run lacks what the reference has.
    """

    steps: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray | None
    """Relative to the reference's."""
    skipped: tuple[np.ndarray, np.ndarray] | None
    """Steps, int64, that the run and the reference skipped."""
    absent: int
    """Steps of the reference within the run's planned length that the run's log lacks."""
    broken: tuple[np.ndarray, np.ndarray]
    """Steps, int64, at which the run's loss alone is not finite, and at which the reference's is not."""
    z_loss: Series | None = None
    learning_rate: Series | None = None
    """Relative to the reference's."""
    skips_unknown: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Steps, int64, at which the reference logged whether it skipped and the run did not."""


def difference(run: TrainingLog, reference: TrainingLog, duration_steps: int, first_step: int = 0) -> Differences:
    """Align two logs by step and subtract. Steps up to `first_step` and beyond `duration_steps` are left out.

    Args:
        first_step: that a stage counts on from; the updates before it are another run's.
    """
    planned = np.flatnonzero((reference.steps > first_step) & (reference.steps <= duration_steps))
    steps, ours, places = np.intersect1d(run.steps, reference.steps[planned], assume_unique=True, return_indices=True)
    theirs = planned[places]
    # What the reference logged and the run did not is unknown: NaN, which never holds.
    unknown = np.full(len(run.steps), math.nan)
    norms, penalties, rates, skips = (
        unknown if series is None else series for series in (run.grad_norm, run.z_loss, run.learning_rate, run.skipped)
    )
    grad_norm = None
    if reference.grad_norm is not None:
        grad_norm = _relative(norms[ours], reference.grad_norm[theirs])
    z_loss, learning_rate = (
        None if right is None else _where_logged(steps, left[ours], right[theirs], subtract)
        for left, right, subtract in (
            (penalties, reference.z_loss, np.subtract),
            (rates, reference.learning_rate, _relative),
        )
    )
    skipped, skips_unknown = None, steps[:0]
    if reference.skipped is not None:
        told = np.isfinite(reference.skipped[theirs])
        skipped = (steps[told & _flagged(skips[ours])], steps[told & _flagged(reference.skipped[theirs])])
        skips_unknown = steps[told & np.isnan(skips[ours])]
    good = np.isfinite(run.loss[ours]), np.isfinite(reference.loss[theirs])
    with np.errstate(invalid="ignore"):
        loss = run.loss[ours] - reference.loss[theirs]
    broken = (steps[~good[0] & good[1]], steps[~good[1]])
    return Differences(
        steps, loss, grad_norm, skipped, len(planned) - len(steps), broken, z_loss, learning_rate, skips_unknown
    )


def _flagged(values: np.ndarray) -> np.ndarray:
    return ~np.isnan(values) & (values != 0)


def _relative(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(left - right) / |right|; 0 where both are equal, zero included."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left == right, 0.0, (left - right) / np.abs(right))


def _where_logged(
    steps: np.ndarray, ours: np.ndarray, theirs: np.ndarray, subtract: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Series | None:
    """Differences where the reference has a number; None where it has none at all: exports leave cells empty."""
    logged = np.isfinite(theirs)
    return Series(steps[logged], subtract(ours[logged], theirs[logged])) if logged.any() else None


def smoothing_steps(run_steps: int) -> int:
    """Width of the trailing mean: a thirty-second of the run's own steps, between 10 and 1,000 of them."""
    return min(1000, max(10, run_steps // 32))


def smooth(values_S: np.ndarray, width: int) -> np.ndarray:
    """Trailing mean over `width` steps, float64 [S - width + 1]; empty when there are fewer. NaN spoils its windows."""
    if len(values_S) < width:
        return np.empty(0)
    return np.convolve(values_S, np.full(width, 1 / width), mode="valid")


def horizon(steps_S: np.ndarray, twin_differences: Sequence[np.ndarray], floor: float) -> int | None:
    """First step at which any twin's loss differs from the run's by more than `floor`; None when none ever does.

    From there on rounding alone moves the loss, so no implementation can be followed step by step. NaN is a departure.
    """
    departed = [steps_S[~(np.abs(values) <= floor)] for values in twin_differences]
    firsts = [int(found[0]) for found in departed if len(found)]
    return min(firsts, default=None)
