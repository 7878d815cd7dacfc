"""From criteria to what each measure says, and from which update on. Records and arrays in, records out."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ectype.compare.criteria import Criterion, Grounds, Outcome
from ectype.compare.held_out_criteria import KL, LOSS, LOSS_BY_DOMAIN, LOSS_BY_SET, TOP1, held_out_criteria
from ectype.compare.trajectory import Differences, smooth, smoothing_steps
from ectype.compare.trajectory_criteria import (
    DATA,
    LEARNING_RATE,
    MEAN_GRAD_NORM,
    MEAN_LOSS,
    SKIPPED,
    SKIPPED_LATER,
    SMOOTHED_LOSS,
    STEP_GRAD_NORM,
    STEP_LOSS,
    STEP_Z_LOSS,
)
from ectype.evaluate.record import DomainEvaluation, Evaluation
from ectype.faults.record import MEASURES, TRAINING_LOSS, Finding, Said

MEASURE_OF = {
    STEP_LOSS: TRAINING_LOSS, SMOOTHED_LOSS: TRAINING_LOSS, MEAN_LOSS: TRAINING_LOSS,
    STEP_GRAD_NORM: "gradient norm", MEAN_GRAD_NORM: "gradient norm",
    STEP_Z_LOSS: "z-loss", LEARNING_RATE: "learning rate",
    SKIPPED: "skipped steps", SKIPPED_LATER: "skipped steps", DATA: "data order",
    LOSS: "held-out loss", LOSS_BY_DOMAIN: "loss by domain", LOSS_BY_SET: "loss by set", KL: "token KL",
    TOP1: "top-1 agreement",
}  # fmt: skip
"""Criterion -> column of the matrix."""
HELD_OUT = (LOSS, LOSS_BY_DOMAIN, LOSS_BY_SET, KL, TOP1)
SIZES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Parts of the held-out text on which the held-out criteria are judged."""
_GRAVITY: Sequence[Said] = ("holds", "unclear", "broken")


def findings(
    criteria: Iterable[Criterion], differences: Differences, duration_steps: int, first_other_batch: int | None
) -> dict[str, Finding]:
    """What each measure says, the gravest of its criteria.

    Args:
        differences: of the training logs.
        duration_steps: of the run; what speaks of all of it is found there.
        first_other_batch: first update that was fed otherwise than the reference's.
    """
    found: dict[str, Finding] = {}
    for criterion in criteria:
        said = criterion.outcome.value
        step = None
        if criterion.outcome is Outcome.BROKEN:
            step = criterion.landmark
            if step is None:
                step = _first_step(criterion, differences, first_other_batch) or duration_steps
        measure = MEASURE_OF[criterion.name]
        found[measure] = _graver(found.get(measure), Finding(said=said, step=step))
    return {name: found[name] for name in MEASURES if name in found}


def _graver(known: Finding | None, new: Finding) -> Finding:
    if known is None or _GRAVITY.index(new.said) > _GRAVITY.index(known.said):
        return new
    if new.said == known.said == "broken":
        return min(known, new, key=lambda finding: math.inf if finding.step is None else finding.step)
    return known


def _first_step(criterion: Criterion, differences: Differences, first_other_batch: int | None) -> int | None:
    """First update at which what the criterion speaks of lies beyond its bound."""
    bound = math.inf if criterion.rejects_beyond is None else criterion.rejects_beyond
    if criterion.name == DATA:
        return first_other_batch
    if criterion.name == SKIPPED and differences.skipped is not None:
        ours, theirs = (set(steps.tolist()) for steps in differences.skipped)
        return min(ours ^ theirs, default=None)
    steps, values = _series(criterion.name, differences)
    beyond = steps[~(np.abs(values) <= bound)]
    return int(beyond[0]) if len(beyond) else None


def _series(name: str, differences: Differences) -> tuple[np.ndarray, np.ndarray]:
    none = differences.steps[:0], np.empty(0)
    if name == STEP_LOSS:
        return differences.steps, differences.loss
    if name == SMOOTHED_LOSS:
        width = smoothing_steps(len(differences.steps))
        return differences.steps[width - 1 :], smooth(differences.loss, width)
    if name == STEP_GRAD_NORM and differences.grad_norm is not None:
        return differences.steps, differences.grad_norm
    if name == STEP_Z_LOSS and differences.z_loss is not None:
        return differences.z_loss.steps, differences.z_loss.values
    if name == LEARNING_RATE and differences.learning_rate is not None:
        return differences.learning_rate.steps, differences.learning_rate.values
    return none


def tokens_that_catch(evaluations: Mapping[int, Evaluation], grounds: Grounds) -> int | None:
    """The least of `SIZES`, in tokens, on which a held-out criterion is broken, there and on all larger sizes."""
    least = None
    for size in sorted(SIZES, reverse=True):
        smaller = {step: part_of(evaluation, size) for step, evaluation in evaluations.items()}
        if not any(found.outcome is Outcome.BROKEN for found in held_out_criteria(smaller, grounds)):
            return least
        least = max(evaluation.overall.targets for evaluation in smaller.values())
    return least


def tokens_estimated(criteria: Iterable[Criterion]) -> int | None:
    """The least text that would settle an unclear held-out criterion whose estimate lies beyond its bound."""
    needed = [
        criterion.tokens_needed
        for criterion in criteria
        if criterion.name in HELD_OUT and criterion.outcome is Outcome.UNCLEAR and _lies_beyond(criterion)
    ]
    return min((tokens for tokens in needed if tokens is not None), default=None)


def _lies_beyond(criterion: Criterion) -> bool:
    if criterion.measured is None or criterion.rejects_beyond is None:
        return False
    if criterion.name == TOP1:
        return criterion.measured < criterion.rejects_beyond
    return abs(criterion.measured) > criterion.rejects_beyond


def part_of(evaluation: Evaluation, size: float) -> Evaluation:
    """The evaluation as if each domain had held only its first windows, a `size` of them and at least two."""
    domains = {name: _part_of_domain(domain, size) for name, domain in evaluation.domains.items()}
    targets = sum(domain.summary.targets for domain in domains.values())
    return evaluation.model_copy(
        update={"domains": domains, "overall": evaluation.overall.model_copy(update={"targets": targets})}
    )


def _part_of_domain(domain: DomainEvaluation, size: float) -> DomainEvaluation:
    sums = domain.windows
    count = min(len(sums.targets), max(2, math.ceil(size * len(sums.targets))))
    cut = {name: getattr(sums, name)[:count] for name in type(sums).model_fields}
    windows = sums.model_copy(update=cut)
    summary = domain.summary.model_copy(update={"targets": sum(windows.targets)})
    return domain.model_copy(update={"windows": windows, "summary": summary})
