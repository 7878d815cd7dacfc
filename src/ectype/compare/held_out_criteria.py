"""Criteria over held-out text: loss of all domains and of each, token KL, first choices. Records in, records out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ectype.compare.bootstrap import Interval, Sample, mean_interval, tokens_needed
from ectype.compare.criteria import Criterion, Grounds, Outcome, finite, judge_difference, judge_distance, sampled
from ectype.compare.tolerances import (
    SourcedNumber,
    Tolerance,
    multiple_tolerance,
    symmetric_tolerance,
    upper_tolerance,
)
from ectype.evaluate.record import DomainEvaluation, Evaluation, Summary, array

LOSS, LOSS_BY_DOMAIN, KL, TOP1 = "held-out loss", "held-out loss by domain", "token KL", "top-1 agreement"
LOSS_BY_SET = "held-out loss by set"
"""Of further sets that recipe or reference name; such a criterion's `domain` is the set's name."""
NAMES = (LOSS, LOSS_BY_DOMAIN, LOSS_BY_SET, KL, TOP1)
"""Of all criteria of this file."""
_UNIT = "nats per token"


def held_out_criteria(evaluations: Mapping[int, Evaluation], grounds: Grounds) -> list[Criterion]:
    """All held-out criteria of all evaluated landmarks.

    The same criterion at different landmarks (and in different domains) is one family: its error probability is
    shared out among them, so that more landmarks do not mean more false alarms.
    """
    criteria = []
    for step, evaluation in sorted(evaluations.items()):
        found = [
            _loss(step, evaluation, grounds, len(evaluations)),
            *_domain_losses(step, evaluation, grounds, len(evaluations) * len(evaluation.domains)),
            _kl(step, evaluation, grounds, len(evaluations)),
            _top1(step, evaluation, grounds, len(evaluations)),
        ]
        for criterion in found:
            domain = evaluation.domains.get(criterion.domain or "")
            criteria.append(_with_broken_numbers(criterion, domain.summary if domain else evaluation.overall))
    return criteria


def set_criteria(
    sets: Mapping[str, Mapping[int, Evaluation]], due_landmarks: Sequence[int], grounds: Grounds
) -> list[Criterion]:
    """The loss on each further set at each landmark that is due, run less reference, in pairs.

    All sets at all landmarks are one family. What was not evaluated is unclear: a set that is named is evidence that
    the verdict waits for.
    """
    comparisons = len(sets) * len(due_landmarks)
    criteria = []
    for name, evaluations in sets.items():
        for step in due_landmarks:
            noise = grounds.landmark_noise(step)
            found = None if noise is None else noise.held_out_loss_sets.get(name)
            measured = None if found is None else array(found)
            tolerance = _difference_tolerance(step, measured, "held_out_loss", grounds, comparisons)
            if step not in evaluations:
                criteria.append(_not_evaluated(step, name, tolerance))
                continue
            evaluation = evaluations[step]
            samples = [_loss_sample(domain) for domain in evaluation.domains.values()]
            interval = mean_interval(samples, comparisons, grounds.resamples)
            needed = tokens_needed(interval, tolerance, evaluation.overall.targets)
            outcome = judge_difference(interval, tolerance)
            criterion = sampled(LOSS_BY_SET, step, name, _UNIT, interval, tolerance, outcome, needed)
            criteria.append(_with_broken_numbers(criterion, evaluation.overall))
    return criteria


def _not_evaluated(step: int, name: str, tolerance: Tolerance) -> Criterion:
    note = f"not evaluated on {name} as it is now: `ectype evaluate RUN`, where the reference's weights are"
    return Criterion(
        name=LOSS_BY_SET, landmark=step, domain=name, measured=None, unit=_UNIT, tolerance=finite(tolerance.within),
        rejects_beyond=finite(tolerance.beyond), tolerance_from=tolerance.source, interval=None,
        outcome=Outcome.UNCLEAR, note=note,
    )  # fmt: skip


def held_out_interval(evaluations: Mapping[int, Evaluation], resamples: int) -> Interval | None:
    """Held-out loss, run less reference, at the last landmark that was evaluated; None without any."""
    if not evaluations:
        return None
    last = evaluations[max(evaluations)]
    return mean_interval([_loss_sample(domain) for domain in last.domains.values()], 1, resamples)


def _loss(step: int, evaluation: Evaluation, grounds: Grounds, comparisons: int) -> Criterion:
    noise = grounds.landmark_noise(step)
    measured = None if noise is None else array(noise.held_out_loss)
    tolerance = _difference_tolerance(step, measured, "held_out_loss", grounds, comparisons)
    interval = mean_interval([_loss_sample(d) for d in evaluation.domains.values()], comparisons, grounds.resamples)
    outcome = judge_difference(interval, tolerance)
    needed = tokens_needed(interval, tolerance, evaluation.overall.targets)
    return sampled(LOSS, step, None, _UNIT, interval, tolerance, outcome, needed)


def _domain_losses(step: int, evaluation: Evaluation, grounds: Grounds, comparisons: int) -> list[Criterion]:
    noise = grounds.landmark_noise(step)
    criteria = []
    for name, domain in evaluation.domains.items():
        found = None if noise is None else noise.held_out_loss_domains.get(name)
        measured = None if found is None else array(found)
        tolerance = _difference_tolerance(step, measured, "held_out_loss_domain", grounds, comparisons)
        interval = mean_interval([_loss_sample(domain)], comparisons, grounds.resamples)
        outcome = judge_difference(interval, tolerance)
        needed = tokens_needed(interval, tolerance, domain.summary.targets)
        criteria.append(sampled(LOSS_BY_DOMAIN, step, name, _UNIT, interval, tolerance, outcome, needed))
    return criteria


def _difference_tolerance(
    step: int, noise: np.ndarray | None, ceiling: str, grounds: Grounds, comparisons: int
) -> Tolerance:
    """Before the horizon a multiple of the twins' largest difference; beyond it what their spread allows."""
    floor = grounds.floor("held_out_loss")
    if noise is not None and floor is not None and grounds.follows(step):
        return multiple_tolerance(noise, floor, grounds.floors.hold_factor)
    return symmetric_tolerance(
        noise, grounds.noise_is_of_this_run, floor, grounds.ceiling(ceiling), grounds.levels(comparisons)
    )


def _distance_tolerance(
    step: int, noise: np.ndarray | None, floor: SourcedNumber | None, ceiling: SourcedNumber | None, grounds: Grounds,
    comparisons: int,
) -> Tolerance:  # fmt: skip
    """The same for a distance that is never negative."""
    if noise is not None and floor is not None and grounds.follows(step):
        return multiple_tolerance(noise, floor, grounds.floors.hold_factor)
    return upper_tolerance(noise, floor, ceiling, grounds.levels(comparisons))


def _kl(step: int, evaluation: Evaluation, grounds: Grounds, comparisons: int) -> Criterion:
    noise = grounds.landmark_noise(step)
    measured = None if noise is None else array(noise.kl_mean)
    floor, ceiling = grounds.floor("kl_mean"), grounds.ceiling("kl_mean")
    tolerance = _distance_tolerance(step, measured, floor, ceiling, grounds, comparisons)
    strata = [Sample(array(d.windows.kl), _targets(d)) for d in evaluation.domains.values()]
    interval = mean_interval(strata, comparisons, grounds.resamples)
    if evaluation.protocol.top_ids is not None:
        return _bounded_kl(step, evaluation, grounds, comparisons, interval, tolerance)
    outcome = judge_distance(interval, tolerance)
    needed = tokens_needed(interval, tolerance, evaluation.overall.targets)
    return sampled(KL, step, None, _UNIT, interval, tolerance, outcome, needed)


def _bounded_kl(
    step: int, evaluation: Evaluation, grounds: Grounds, comparisons: int, lower: Interval, tolerance: Tolerance
) -> Criterion:
    """The KL against a stored reference lies between two bounds: the upper one must hold, the lower one can break.

    Where the bounds alone leave it open no number of tokens decides, and the criterion says so.
    """
    domains, top_ids = evaluation.domains.values(), evaluation.protocol.top_ids
    known = all(len(d.windows.kl_upper) == len(d.windows.kl) for d in domains)
    strata = [Sample(array(d.windows.kl_upper), _targets(d)) for d in domains] if known else []
    upper = mean_interval(strata, comparisons, grounds.resamples) if known else Interval(*[math.inf] * 5)
    between = Interval(lower.estimate, lower.low, upper.high, lower.family_low, upper.family_high)
    outcome = judge_distance(between, tolerance)
    needed, tokens = None, evaluation.overall.targets
    if upper.estimate <= tolerance.within:
        needed = tokens_needed(upper, tolerance, tokens)
    elif lower.estimate > tolerance.beyond:
        needed = tokens_needed(lower, tolerance, tokens)
    found = sampled(KL, step, None, _UNIT, between, tolerance, outcome, needed)
    if outcome is not Outcome.UNCLEAR or needed is not None or math.isnan(lower.estimate):
        return found
    note = (
        f"the reference's stored record holds its {top_ids:,} top ids, which leave the mean KL anywhere from "
        f"{lower.estimate:.2g} to {upper.estimate:.2g}; its weights, or a record of more ids, are needed"
    )
    return replace(found, note=note)


def _top1(step: int, evaluation: Evaluation, grounds: Grounds, comparisons: int) -> Criterion:
    noise = grounds.landmark_noise(step)
    # Judged as a disagreement, which like KL should be small; shown as the agreement that people read.
    measured = None if noise is None else 1 - array(noise.top1_agreement)
    floor, ceiling = (
        _turned(number) for number in (grounds.floor("top1_agreement"), grounds.ceiling("top1_agreement"))
    )
    disagreement = _distance_tolerance(step, measured, floor, ceiling, grounds, comparisons)
    strata = [Sample(_targets(d) - array(d.windows.agree), _targets(d)) for d in evaluation.domains.values()]
    interval = mean_interval(strata, comparisons, grounds.resamples)
    tokens = evaluation.overall.targets
    needed = tokens_needed(interval, disagreement, tokens)
    if interval.estimate == 0:
        # Without a single disagreement the sample shows no spread; the rule of three bounds the rate it may have.
        interval = Interval(0.0, 0.0, 3 / tokens, 0.0, 3 / tokens)
        needed = math.ceil(3 / disagreement.within - 1e-6) if disagreement.within > 0 else None
    outcome = judge_distance(interval, disagreement)
    found = sampled(TOP1, step, None, "fraction", interval, disagreement, outcome, needed)
    low, high = found.interval or (None, None)
    return replace(
        found,
        measured=_complement(found.measured),
        tolerance=_complement(found.tolerance),
        rejects_beyond=_complement(found.rejects_beyond),
        interval=(_complement(high), _complement(low)),
    )


def _with_broken_numbers(criterion: Criterion, summary: Summary) -> Criterion:
    """A loss that is not finite speaks against the run when it is ours alone, and for nothing when it is both's."""
    counts = summary.nonfinite_targets
    ours, reference = counts.ours or 0, counts.reference or 0
    if not ours and not reference:
        return criterion
    note = f"not finite: our loss on {ours:.0f} targets, the reference's on {reference:.0f}"
    outcome = Outcome.UNCLEAR if reference else Outcome.BROKEN
    return replace(criterion, outcome=outcome, note=note, tokens_needed=None)


def _loss_sample(domain: DomainEvaluation) -> Sample:
    return Sample(array(domain.windows.loss) - array(domain.windows.reference_loss), _targets(domain))


def _targets(domain: DomainEvaluation) -> np.ndarray:
    return np.array(domain.windows.targets, np.float64)


def _turned(agreement: SourcedNumber | None) -> SourcedNumber | None:
    """A rate of agreement as one of disagreement."""
    return None if agreement is None else agreement.model_copy(update={"value": 1 - agreement.value})


def _complement(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else 1 - value
