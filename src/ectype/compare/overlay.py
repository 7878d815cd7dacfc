"""A run's training loss laid over the reference's: how far, from where on, and what a low loss means. Arrays in,
records out.

Shapes: S steps that both logs hold, W = S - width + 1 trailing means.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from ectype.compare.bootstrap import Interval
from ectype.compare.trajectory import Differences, smooth, smoothing_steps

_BAND_ERROR = 0.01
"""With which the noise of single steps alone would leave the band anywhere in a run."""
_BAND_WIDTHS = 8
"""Widths of the trailing mean over which the noise of single steps is estimated."""
_BLOCKS = 8
"""Into which the last quarter of a run is cut to see how far its mean wanders."""


@dataclass(frozen=True)
class Overlay:
    """How the training loss lies over the reference's."""

    steps_compared: int
    largest: float | None
    """Null, in a record, when not finite; so is the mean."""
    largest_step: int
    largest_smoothed: float | None
    smoothing_steps: int
    raw_threshold: float
    first_raw_departure_step: int | None
    smoothed_threshold: float | None
    first_smoothed_departure_step: int | None
    mean_last_quarter: float | None
    warning: str | None
    band: float | None = None
    """Median half-width of the deviation band of the trailing mean, nats."""
    first_band_departure_step: int | None = None
    """First step whose trailing mean leaves the band, the single step's threshold and the smoothed one."""
    aggregated_rows: int = 0
    """Rows of the reference's log that are means of several steps, and were left out."""


@dataclass(frozen=True)
class Band:
    """The trailing mean of the differences and the half-width within which single steps' noise keeps it, nats."""

    steps: np.ndarray
    """int64 [W]."""
    smoothed: np.ndarray
    half_width: np.ndarray


def deviation_band(differences: Differences, run_steps: int) -> Band:
    """The trailing mean, and t s / sqrt(width) around zero.

    s is the deviation of a single step's difference over the last eight widths, from successive ones (von Neumann
    1941), which a slow drift does not widen. n such pairs have about 2 n / 3 degrees of freedom; t is Student's
    quantile that leaves the probability `_BAND_ERROR` to all means of a run together (Bonferroni).
    """
    width = smoothing_steps(run_steps)
    smoothed = smooth(differences.loss, width)
    if not len(smoothed):
        empty = np.empty(0)
        return Band(np.empty(0, np.int64), empty, empty)
    # What is no number departs by itself; here it would spoil the noise of the steps behind it.
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(np.diff(differences.loss) ** 2 / 2, posinf=0.0))])
    last = np.arange(width - 1, len(differences.loss))
    pairs = np.minimum(last, _BAND_WIDTHS * width)
    deviation = np.sqrt((sums[last] - sums[last - pairs]) / pairs)
    quantiles = stdtrit(2 * pairs / 3, 1 - _BAND_ERROR / 2 / len(smoothed))
    return Band(differences.steps[width - 1 :], smoothed, quantiles * deviation / math.sqrt(width))


def overlay(
    differences: Differences,
    run_steps: int,
    raw_threshold: float,
    smoothed_threshold: float | None,
    held_out: Interval | None,
    aggregated_rows: int = 0,
) -> Overlay | None:
    """Lay the run's loss over the reference's; None when they share no step.

    Args:
        differences: from `difference`.
        run_steps: the run's own steps as planned, which set the smoothing.
        raw_threshold: a step whose loss differs by more has departed, nats.
        smoothed_threshold: the same for the trailing mean; None when no noise is known to set it.
        held_out: run less reference at the last landmark, nats; it decides what a low loss means.
        aggregated_rows: of the reference's log that were left out.
    """
    if len(differences.steps) == 0:
        return None
    band = deviation_band(differences, run_steps)
    sizes = np.where(np.isnan(differences.loss), np.inf, np.abs(differences.loss))
    worst = int(np.argmax(sizes))
    last_quarter = differences.loss[-max(1, len(differences.loss) // 4) :]
    limit = np.maximum(band.half_width, max(raw_threshold, smoothed_threshold or 0.0))
    return Overlay(
        steps_compared=len(differences.steps),
        largest=float(differences.loss[worst]),
        largest_step=int(differences.steps[worst]),
        largest_smoothed=float(band.smoothed[np.argmax(np.abs(band.smoothed))]) if len(band.smoothed) else None,
        smoothing_steps=smoothing_steps(run_steps),
        raw_threshold=raw_threshold,
        first_raw_departure_step=_first_beyond(differences.steps, differences.loss, np.array(raw_threshold)),
        smoothed_threshold=smoothed_threshold,
        first_smoothed_departure_step=(
            None
            if smoothed_threshold is None
            else _first_beyond(band.steps, band.smoothed, np.array(smoothed_threshold))
        ),
        mean_last_quarter=float(np.mean(last_quarter)),
        warning=repeated_data_warning(last_quarter, held_out, max(raw_threshold, smoothed_threshold or 0.0)),
        band=float(np.median(band.half_width)) if len(band.half_width) else None,
        first_band_departure_step=_first_beyond(band.steps, band.smoothed, limit),
        aggregated_rows=aggregated_rows,
    )


def repeated_data_warning(last_differences: np.ndarray, held_out: Interval | None, threshold: float) -> str | None:
    """The published reproduction's lesson: a loss below the reference that held-out text does not share.

    Given when and only when both are beyond doubt: the mean training loss over the last steps lies below the
    reference's by more than `threshold` and by more than its own noise, and the whole interval of the held-out
    difference shows less than half of that gain.

    Args:
        last_differences: training loss, run less reference, float64 [s].
        held_out: the same on held-out text; None, or an interval without ends, is no evidence.
        threshold: nats that rounding alone may make.
    """
    training = float(np.mean(last_differences))
    if held_out is None or not math.isfinite(held_out.low) or not math.isfinite(training):
        return None
    if training >= -max(threshold, _noise_of_mean(last_differences)) or held_out.low <= training / 2:
        return None
    return (
        f"training loss lies {-training:.2g} nats below the reference over the last quarter, yet held-out loss differs "
        f"by {held_out.estimate:+.2g} ({held_out.low:+.2g} to {held_out.high:+.2g}): data was probably read more than "
        "once. `ectype data audit --run RUN` tells."
    )


def _noise_of_mean(values: np.ndarray) -> float:
    """How far the mean of these steps may lie from zero by their noise: that of single steps, or of whole stretches."""
    if len(values) < 2 * _BLOCKS:
        return math.inf
    single = math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2 / len(values))
    blocks = [float(block.mean()) for block in np.array_split(values, _BLOCKS)]
    stretches = float(np.std(blocks, ddof=1)) / math.sqrt(_BLOCKS)
    return float(ndtri(1 - _BAND_ERROR / 2)) * max(single, stretches)


def _first_beyond(steps: np.ndarray, values: np.ndarray, threshold: np.ndarray) -> int | None:
    beyond = steps[~(np.abs(values) <= threshold)]
    return int(beyond[0]) if len(beyond) else None
