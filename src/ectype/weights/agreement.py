"""How far two models' logits agree, position by position. Shapes: L positions, V vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Per position, float64 [L]: KL(reference || ours) in nats, largest and mean |Δlogit|, 1 where top ids agree."""

    kl: np.ndarray
    largest: np.ndarray
    mean: np.ndarray
    same_top: np.ndarray


def compare_logits(reference_LV: np.ndarray, ours_LV: np.ndarray) -> Agreement:
    """Compare two arrays of logits [L, V]; softmax and KL are taken in float64. NaN anywhere stays NaN in its row."""
    reference, ours = reference_LV.astype(np.float64), ours_LV.astype(np.float64)
    log_p, log_q = log_softmax(reference), log_softmax(ours)
    difference = np.abs(reference - ours)
    return Agreement(
        np.sum(np.exp(log_p) * (log_p - log_q), axis=-1),
        difference.max(axis=-1),
        difference.mean(axis=-1),
        (reference.argmax(axis=-1) == ours.argmax(axis=-1)).astype(np.float64),
    )


def log_softmax(logits_V: np.ndarray) -> np.ndarray:
    """Logits less their log-sum-exp over the last axis, without overflow."""
    shifted = logits_V - logits_V.max(axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def summarise(parts: Sequence[Agreement]) -> dict[str, Any]:
    """Figures over all positions of `parts`; a figure that NaN spoils is None, and `nan` says so."""
    kl, largest, mean, same = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("kl", "largest", "mean", "same_top")
    )
    values = {
        "kl_mean": kl.mean(), "kl_p99": np.quantile(kl, 0.99), "kl_max": kl.max(),
        "logit_difference_max": largest.max(), "logit_difference_mean": mean.mean(), "top1_agreement": same.mean(),
    }  # fmt: skip
    finite = {name: float(value) if np.isfinite(value) else None for name, value in values.items()}
    return {"positions": len(kl), "nan": None in finite.values(), **finite}


def relative_error(reference: np.ndarray, ours: np.ndarray) -> float:
    """Largest |Δ| over the largest |reference|; NaN when either holds one."""
    scale = float(np.abs(reference).max())
    return float(np.abs(reference.astype(np.float64) - ours.astype(np.float64)).max()) / (scale or 1.0)


def largest_row_error(reference: np.ndarray, ours: np.ndarray) -> float:
    """Largest of the rows' largest |Δ|, each over its own largest |reference|; NaN when either holds one.

    Some models keep values in the thousands at one position: beside those, a fault elsewhere would not show.
    """
    scale = np.abs(reference).max(axis=-1).astype(np.float64)
    largest = np.abs(reference.astype(np.float64) - ours.astype(np.float64)).max(axis=-1)
    return float((largest / np.where(scale == 0, 1.0, scale)).max())
