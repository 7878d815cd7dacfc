"""The noise record: what twins of a run differ from it by, at every landmark and at every step.

A twin is the same run from step-0 weights changed by one part in a million, or the same run of other data seeds. All
differences are twin less run.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from ectype.artifacts import write_json
from ectype.compare.trajectory import difference
from ectype.errors import EctypeError
from ectype.evaluate.record import Evaluation, Number, array, number
from ectype.recipe.parse import read_record
from ectype.recipe.reference import TrainingLog
from ectype.recipe.spec import Section


class LandmarkNoise(Section):
    """What the twins differ from the run by at one landmark, one entry per twin."""

    held_out_loss: tuple[Number, ...]
    """Nats per token over all domains."""
    held_out_loss_domains: dict[str, tuple[Number, ...]]
    kl_mean: tuple[Number, ...]
    """KL(twin || run), nats per token."""
    top1_agreement: tuple[Number, ...]
    held_out_loss_sets: dict[str, tuple[Number, ...]] = Field(default_factory=dict)
    """Nats per token over all of each further set; empty in records of versions that measured none."""


class Noise(Section):
    """The record, as stored in a reference's `noise.json`."""

    format: Literal[1] = 1
    recipe_hash: str
    """Of the run and of its twins: noise of another recipe says nothing."""
    perturbation: float
    """Relative change of the step-0 weights; 0 for twins of other data seeds."""
    reseeded: bool = False
    """The twins read the data in other orders."""
    twins: int
    steps: tuple[int, ...]
    loss: tuple[tuple[Number, ...], ...]
    """Per twin, per step: difference of training loss, nats, to four digits."""
    grad_norm: tuple[tuple[Number, ...], ...]
    """Per twin, per step: relative difference of the gradient norm, to four digits; empty when it was not logged."""
    landmarks: dict[int, LandmarkNoise]

    def loss_differences(self) -> list[np.ndarray]:
        """Per twin, float64 [steps]."""
        return [array(values) for values in self.loss]

    def grad_norm_differences(self) -> list[np.ndarray]:
        """Per twin, float64 [steps]; empty when it was not logged."""
        return [array(values) for values in self.grad_norm]


def measure_noise(
    recipe_hash: str,
    perturbation: float,
    duration_steps: int,
    run: TrainingLog,
    twins: Sequence[TrainingLog],
    evaluations: Mapping[int, Sequence[Evaluation]],
    reseeded: bool = False,
    sets: Mapping[int, Mapping[str, Sequence[Evaluation]]] | None = None,
) -> Noise:
    """Compare finished twins with their run.

    Args:
        recipe_hash: of the run.
        perturbation: relative size of the twins' change.
        duration_steps: planned length of all of them.
        run: the run's own log.
        twins: one log per twin.
        evaluations: landmark -> one evaluation per twin, in the same order, with the twin as the reference.
        reseeded: the twins are of other data seeds.
        sets: landmark -> further set -> evaluations as above.

    Raises:
        EctypeError: a twin's log lacks steps of the run, or a landmark lacks a twin.
    """
    differences = [difference(twin, run, duration_steps) for twin in twins]
    short = [i for i, found in enumerate(differences) if found.absent]
    if short or not twins or any(len(found) != len(twins) for found in evaluations.values()):
        raise EctypeError(
            f"{len(twins)} twins, of which {short or 'none'} stopped early, and landmarks "
            f"{[step for step, found in evaluations.items() if len(found) != len(twins)]} not evaluated for all",
            "twins as long as the run, each evaluated at every landmark",
            "let `ectype compare` finish them, or ask for fewer with --twins",
        )
    grad_norms = [
        found.grad_norm
        for twin, found in zip(twins, differences, strict=True)
        if twin.grad_norm is not None and found.grad_norm is not None
    ]
    return Noise(
        recipe_hash=recipe_hash,
        perturbation=perturbation,
        reseeded=reseeded,
        twins=len(twins),
        steps=tuple(differences[0].steps.tolist()),
        loss=tuple(_compact(found.loss) for found in differences),
        grad_norm=tuple(map(_compact, grad_norms)) if len(grad_norms) == len(twins) else (),
        landmarks={step: landmark_noise(found, (sets or {}).get(step)) for step, found in evaluations.items()},
    )


def landmark_noise(
    evaluations: Sequence[Evaluation], sets: Mapping[str, Sequence[Evaluation]] | None = None
) -> LandmarkNoise:
    """Noise at one landmark, of one evaluation per twin with the run as `ours` and the twin as `reference`."""
    return LandmarkNoise(
        held_out_loss=_overall_differences(evaluations),
        held_out_loss_sets={name: _overall_differences(found) for name, found in (sets or {}).items()},
        held_out_loss_domains={
            name: tuple(
                _minus(e.domains[name].summary.loss.reference, e.domains[name].summary.loss.ours) for e in evaluations
            )
            for name in evaluations[0].domains
        },
        kl_mean=tuple(e.overall.kl_mean for e in evaluations),
        top1_agreement=tuple(e.overall.top1_agreement for e in evaluations),
    )


def _overall_differences(evaluations: Sequence[Evaluation]) -> tuple[Number, ...]:
    return tuple(_minus(e.overall.loss.reference, e.overall.loss.ours) for e in evaluations)


def write_noise(path: Path, noise: Noise) -> None:
    """Write the record atomically."""
    write_json(path, noise.model_dump(mode="json"))


def read_noise(path: Path) -> Noise:
    """Read a record strictly.

    Raises:
        EctypeError: no such file, or no noise record of this format.
    """
    mend = "make it anew, or set `noise` to null in the reference"
    return read_record(path, Noise, "noise record", "ectype compare --write-noise", mend)


def _minus(left: Number, right: Number) -> Number:
    return None if left is None or right is None else left - right


def _compact(values: np.ndarray) -> tuple[Number, ...]:
    return tuple(number(float(f"{value:.3e}")) if math.isfinite(value) else None for value in values.tolist())
