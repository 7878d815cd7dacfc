"""Order statistics of a stream of float32 numbers in a bounded amount of memory. Arrays in, arrays out.

Shapes: M values, D distinct values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXACT_VALUES = 1 << 18
"""Distinct values up to which nothing is rounded."""
RELATIVE_ERROR = 2.0**-12
"""Of any value beyond that: its last 12 of 23 binary digits become the middle of what they span."""
_LOW_BITS = np.uint32((1 << 12) - 1)
_MIDDLE = np.uint32(1 << 11)


@dataclass(frozen=True)
class Distribution:
    """Distinct values in ascending order, float32 [D], NaN last, how often each occurs, int64 [D], and the largest."""

    values: np.ndarray
    counts: np.ndarray
    largest: float
    """Never rounded; NaN when any value is."""

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Values below which these shares of all lie, interpolated as by `numpy.quantile`; NaN when any value is.

        Exact up to `EXACT_VALUES` distinct values, and within `RELATIVE_ERROR` beyond.
        """
        ends = np.cumsum(self.counts)
        if not len(ends) or np.isnan(self.values[-1]):
            return [float("nan")] * len(shares)
        places = np.array(shares, np.float64) * (ends[-1] - 1)
        low, high = (
            self.values[np.searchsorted(ends, edge, side="right")].astype(np.float64)
            for edge in (np.floor(places), np.ceil(places))
        )
        with np.errstate(invalid="ignore"):
            return np.where(low == high, low, low + (high - low) * (places - np.floor(places))).tolist()


def distribution(values_M: np.ndarray) -> Distribution:
    """The distribution of an array."""
    values = np.asarray(values_M, np.float32)
    return _of(values, np.ones(values.shape, np.int64), float(values.max()) if len(values) else float("-inf"))


def merged(parts: Sequence[Distribution]) -> Distribution:
    """The distribution of all parts together."""
    return _of(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.counts for part in parts]),
        float(np.max([part.largest for part in parts])),
    )


def _of(values: np.ndarray, counts: np.ndarray, largest: float) -> Distribution:
    distinct, weights = _distinct(values, counts)
    if len(distinct) > EXACT_VALUES:
        distinct, weights = _distinct(_rounded(distinct), weights)
    return Distribution(distinct, weights, largest)


def _distinct(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, np.bincount(places, counts, len(distinct)).astype(np.int64)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Finite values to the middle of the 4,096 that share their leading bits; rounding twice is rounding once."""
    middles = ((values.view(np.uint32) & ~_LOW_BITS) | _MIDDLE).view(np.float32)
    return np.where(np.isfinite(values) & (values != 0), middles, values)
