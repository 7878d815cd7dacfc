"""How far two models' logits agree, position by position. Shapes: L positions, V vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Per position, float64 [L]: KL(reference || ours) in nats, largest and mean |Δlogit|, the largest |logit| of the
    reference, 1 where top ids agree."""

    kl: np.ndarray
    largest: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    same_top: np.ndarray


@dataclass(frozen=True)
class AgreementPart:
    """What some ids of the vocabulary, R of them, give to an `Agreement`; per position, float64 [L] unless said.

    `mass` is the sum of exp(logit - `max`), `excess` the sum of the reference's exp(logit - `max`) * Δlogit. `top` are
    ids, int64.
    """

    reference_max: np.ndarray
    reference_mass: np.ndarray
    reference_top: np.ndarray
    ours_max: np.ndarray
    ours_mass: np.ndarray
    ours_top: np.ndarray
    excess: np.ndarray
    largest: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    ids: int


def compare_logits(reference_LR: np.ndarray, ours_LR: np.ndarray, first_id: int = 0) -> AgreementPart:
    """Compare the logits [L, R] of the ids from `first_id` on, in float64. NaN anywhere stays NaN in its row."""
    reference, ours = reference_LR.astype(np.float64), ours_LR.astype(np.float64)
    difference = reference - ours
    reference_max, ours_max = reference.max(axis=-1), ours.max(axis=-1)
    weight = np.exp(reference - reference_max[:, None])
    return AgreementPart(
        reference_max, weight.sum(axis=-1), first_id + reference.argmax(axis=-1),
        ours_max, np.exp(ours - ours_max[:, None]).sum(axis=-1), first_id + ours.argmax(axis=-1),
        (weight * difference).sum(axis=-1), np.abs(difference).max(axis=-1), np.abs(difference).mean(axis=-1),
        np.abs(reference).max(axis=-1), reference.shape[-1],
    )  # fmt: skip


def join_parts(parts: Sequence[AgreementPart]) -> Agreement:
    """The agreement over all ids, from parts for the same positions in the order of their ids.

    KL(p || q) = sum of p * Δlogit - (log-sum-exp of the reference) + (log-sum-exp of ours), p the reference's softmax.
    """
    part = {field.name: np.stack([getattr(part, field.name) for part in parts]) for field in fields(AgreementPart)}
    share = np.exp(part["reference_max"] - part["reference_max"].max(axis=0))
    mass, excess = (share * part["reference_mass"]).sum(axis=0), (share * part["excess"]).sum(axis=0)
    ours_max = part["ours_max"].max(axis=0)
    ours_mass = (np.exp(part["ours_max"] - ours_max) * part["ours_mass"]).sum(axis=0)
    kl = excess / mass - (part["reference_max"].max(axis=0) + np.log(mass)) + (ours_max + np.log(ours_mass))
    tops = [
        np.take_along_axis(part[f"{side}_top"], part[f"{side}_max"].argmax(axis=0)[None], axis=0)
        for side in ("reference", "ours")
    ]
    return Agreement(
        kl, part["largest"].max(axis=0), np.average(part["mean"], axis=0, weights=part["ids"]),
        part["scale"].max(axis=0), (tops[0] == tops[1])[0].astype(np.float64),
    )  # fmt: skip


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


def largest_error_of(agreement: Agreement) -> float:
    """`largest_row_error` of the logits that were compared."""
    return float((agreement.largest / np.where(agreement.scale == 0, 1.0, agreement.scale)).max())
