"""Bootstrap intervals for token-weighted means over windows.

A mean over tokens is a ratio of sums over windows. Windows are drawn again with replacement within each stratum (a
domain), because the domains are fixed and the windows are the sample. The interval is the studentised one (Efron and
Tibshirani 1993, chapter 12): it keeps its coverage with tens of windows and skewed values, where percentiles do not.

Shapes: N windows, R resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ectype.compare.tolerances import Tolerance, student_quantile

CONFIDENCE = 0.95
_LEAST_WINDOWS_TO_RESAMPLE = 8
_CHUNK_DRAWS = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A mean and two intervals around it.

    `low`..`high` covers the population mean with 95 %; `family_low`..`family_high` is stretched so that all the
    comparisons of its family cover together. Infinite ends mean that too few windows exist to say.
    """

    estimate: float
    low: float
    high: float
    family_low: float
    family_high: float


@dataclass(frozen=True)
class Sample:
    """Per-window sums of one stratum: `values` and `weights` (targets), float64 [N]."""

    values: np.ndarray
    weights: np.ndarray


def mean_interval(strata: Sequence[Sample], comparisons: int, resamples: int, seed: int = 0) -> Interval:
    """Interval of sum(values) / sum(weights) over all strata.

    Args:
        strata: one sample per domain; windows are exchangeable within each.
        comparisons: size of the family that is judged together (Bonferroni).
        resamples: number of bootstrap draws.
        seed: of the generator; results are reproducible.

    Returns:
        The interval; NaN values give NaN, and a stratum with a single window infinite ends.
    """
    estimate, error = _ratio_and_error([s.values for s in strata], [s.weights for s in strata])
    if math.isnan(estimate):
        return Interval(estimate, math.nan, math.nan, math.nan, math.nan)
    windows = sum(len(s.values) for s in strata)
    degrees = windows - len(strata)
    if any(len(s.values) < 2 for s in strata):
        return Interval(estimate, -math.inf, math.inf, -math.inf, math.inf)
    if error == 0:
        return Interval(estimate, estimate, estimate, estimate, estimate)
    tail = (1 - CONFIDENCE) / 2
    plain = student_quantile(degrees, 1 - tail)
    lower, upper = plain, plain
    if windows >= _LEAST_WINDOWS_TO_RESAMPLE:
        pivots = _pivots(strata, estimate, resamples, seed)
        # Never narrower than Student's t: a few hundred resamples of alike windows can hide the sample's own error.
        lower, upper = max(plain, float(np.quantile(pivots, 1 - tail))), max(plain, -float(np.quantile(pivots, tail)))
    stretch = student_quantile(degrees, 1 - tail / max(1, comparisons)) / plain
    return Interval(
        estimate,
        estimate - lower * error,
        estimate + upper * error,
        estimate - lower * stretch * error,
        estimate + upper * stretch * error,
    )


def _ratio_and_error(values: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> tuple[float, float]:
    """The ratio of sums, and its linearised standard error with strata."""
    total = sum(float(w.sum()) for w in weights)
    ratio = sum(float(v.sum()) for v in values) / total
    variance = 0.0
    for value, weight in zip(values, weights, strict=True):
        if len(value) > 1:
            residual = value - ratio * weight
            variance += len(value) * float(np.var(residual, ddof=1))
    return ratio, math.sqrt(variance) / total


def _pivots(strata: Sequence[Sample], estimate: float, resamples: int, seed: int) -> np.ndarray:
    """Studentised deviations (resampled ratio - ratio) / (its own standard error), float64 [R]."""
    generator = np.random.Generator(np.random.PCG64(seed))
    windows = max(len(s.values) for s in strata)
    at_once = max(1, _CHUNK_DRAWS // windows)
    pivots = []
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        draws = [generator.integers(0, len(s.values), (count, len(s.values))) for s in strata]
        values = [s.values[draw] for s, draw in zip(strata, draws, strict=True)]
        weights = [s.weights[draw] for s, draw in zip(strata, draws, strict=True)]
        total = np.asarray(sum(w.sum(axis=1) for w in weights))
        ratio = np.asarray(sum(v.sum(axis=1) for v in values)) / total
        variance = sum(
            v.shape[1] * np.var(v - ratio[:, None] * w, axis=1, ddof=1) for v, w in zip(values, weights, strict=True)
        )
        error = np.sqrt(variance) / total
        with np.errstate(divide="ignore", invalid="ignore"):
            pivots.append(np.where(error > 0, (ratio - estimate) / error, 0.0))
    return np.concatenate(pivots)


def tokens_needed(interval: Interval, tolerance: Tolerance, tokens: int) -> int | None:
    """Held-out tokens at which the interval would settle the question, if the estimate stayed as it is.

    An interval's width falls with the square root of the tokens. An estimate within the tolerance holds once its
    interval lies within, too; one beyond what rejects is broken once its family interval lies beyond. None when no
    number of tokens helps: the estimate lies between the two, or an end of the interval is unknown.
    """
    size = abs(interval.estimate)
    if size < tolerance.within:
        low, high, gap = interval.low, interval.high, tolerance.within - size
    else:
        low, high, gap = interval.family_low, interval.family_high, size - tolerance.beyond
    reach = max(high - interval.estimate, interval.estimate - low)
    if not math.isfinite(reach) or not gap > 0 or not math.isfinite(gap):
        return None
    return math.ceil(tokens * (reach / gap) ** 2)
