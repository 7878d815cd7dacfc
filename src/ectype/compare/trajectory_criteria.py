"""Criteria over the training log and the data order. Arrays in, records out.

Before the horizon every step is compared. Beyond it rounding alone moves the loss, so only statistics are, with
tolerances from what our own twins' statistics show.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ectype.compare.criteria import Criterion, Grounds, Outcome, exact
from ectype.compare.tolerances import Tolerance, multiple_tolerance, symmetric_tolerance, upper_tolerance
from ectype.compare.trajectory import Differences, Series, smooth, smoothing_steps

STEP_LOSS, SMOOTHED_LOSS, MEAN_LOSS = "training loss, each step", "training loss, smoothed", "training loss, mean"
STEP_GRAD_NORM, MEAN_GRAD_NORM = "gradient norm, each step", "gradient norm, mean"
STEP_Z_LOSS, LEARNING_RATE = "z-loss, each step", "learning rate, each step"
SKIPPED, SKIPPED_LATER, DATA = "skipped steps", "skipped steps beyond the horizon", "data order"
NAMES = (
    STEP_LOSS, SMOOTHED_LOSS, MEAN_LOSS, STEP_GRAD_NORM, MEAN_GRAD_NORM, STEP_Z_LOSS, LEARNING_RATE, SKIPPED,
    SKIPPED_LATER, DATA,
)  # fmt: skip
"""Of all criteria of this file."""
_UNIT = "nats per token"
_POISSON_QUANTILE = 3.29
"""Two-sided 0.1 % of a standard normal: honest runs skip other steps, but about as many."""


def trajectory_criteria(differences: Differences, grounds: Grounds) -> list[Criterion]:
    """All criteria that the two training logs allow."""
    before = _before_horizon(differences.steps, grounds)
    criteria = []
    if before.any() or grounds.noise is None or not len(before):
        criteria.append(_each_step(differences, before, grounds))
        if differences.grad_norm is not None:
            criteria.append(_each_grad_norm(differences.grad_norm, differences, before, grounds))
        if differences.z_loss is not None:
            criteria.append(_each_z_loss(differences.z_loss, grounds))
        if differences.skipped is not None:
            criteria.append(_skipped(differences, grounds))
    if differences.learning_rate is not None:
        criteria.append(_learning_rate(differences.learning_rate, grounds))
    if grounds.noise is not None and not before.all():
        criteria += _beyond_horizon(differences, ~before, grounds)
    return [_with_gaps(criterion, differences) for criterion in criteria]


def data_identity(
    run_batches: Mapping[int, np.ndarray] | None,
    reference_batches: Mapping[int, np.ndarray],
    duration_steps: int,
    first_step: int = 0,
) -> Criterion:
    """Whether each of the run's global batches held the reference's window ids, in order.

    Args:
        run_batches: step -> window ids that the run consumed, or their digest; None when it kept no record.
        reference_batches: step -> the same of the reference.
        duration_steps: planned length; later batches of the reference are left out.
        first_step: that a stage counts on from; earlier ones are left out too.
    """
    tolerance = Tolerance(0.0, 0.0, "exact: the order is a function of the recipe")
    wanted = {step: ids for step, ids in reference_batches.items() if first_step < step <= duration_steps}
    found = run_batches or {}
    absent = [step for step in wanted if step not in found]
    differing = sorted(step for step in wanted if step in found and not np.array_equal(wanted[step], found[step]))
    note = f"{len(wanted) - len(absent)} batches compared"
    outcome = Outcome.HOLDS
    if differing:
        outcome, note = Outcome.BROKEN, f"{note}; first difference at step {differing[0]}"
    elif absent or not wanted:
        outcome, note = Outcome.UNCLEAR, f"{note}; the run's record lacks {len(absent)} of {len(wanted)}"
    return exact(DATA, "differing batches", float(len(differing)), tolerance, note, outcome)


def smoothed_tolerance(differences: Differences, grounds: Grounds) -> Tolerance | None:
    """Tolerance on the largest smoothed loss difference beyond the horizon; None when nothing lies beyond it."""
    width = smoothing_steps(grounds.run_steps)
    beyond = ~_before_horizon(differences.steps, grounds)
    if grounds.noise is None or beyond.sum() < width:
        return None
    statistics = [_largest_smoothed(values, width) for values in _twin_losses(grounds)]
    return upper_tolerance(statistics, None, grounds.ceiling("smoothed_loss"), grounds.levels(1))


def _before_horizon(steps: np.ndarray, grounds: Grounds) -> np.ndarray:
    return steps < (math.inf if grounds.horizon_step is None else grounds.horizon_step)


def _step_tolerance(name: str, twins: list[np.ndarray], grounds: Grounds) -> Tolerance:
    """The floor, or a multiple of the twins' largest difference before the horizon; open-ended without twins."""
    floor = grounds.floor(name)
    if floor is None or grounds.noise is None or not twins:
        return symmetric_tolerance(None, True, floor, None, grounds.levels(1))
    before = _before_horizon(np.array(grounds.noise.steps), grounds)
    largest = [float(np.max(np.abs(values[before]), initial=0.0)) for values in twins]
    return multiple_tolerance(largest, floor, grounds.floors.hold_factor)


def _each_step(differences: Differences, before: np.ndarray, grounds: Grounds) -> Criterion:
    twins = grounds.noise.loss_differences() if grounds.noise else []
    tolerance = _step_tolerance("step_loss", twins, grounds)
    return _largest(STEP_LOSS, _UNIT, differences.loss, differences.steps, before, tolerance)


def _each_grad_norm(values: np.ndarray, differences: Differences, before: np.ndarray, grounds: Grounds) -> Criterion:
    twins = grounds.noise.grad_norm_differences() if grounds.noise else []
    tolerance = _step_tolerance("grad_norm", twins, grounds)
    return _largest(STEP_GRAD_NORM, "relative", values, differences.steps, before, tolerance)


def _each_z_loss(series: Series, grounds: Grounds) -> Criterion:
    """By the tolerance of the loss that it is part of."""
    twins = grounds.noise.loss_differences() if grounds.noise else []
    before = _before_horizon(series.steps, grounds)
    return _largest(
        STEP_Z_LOSS, _UNIT, series.values, series.steps, before, _step_tolerance("step_loss", twins, grounds)
    )


def _learning_rate(series: Series, grounds: Grounds) -> Criterion:
    """At every step, beyond the horizon too: no rounding of the run moves it, in whatever element type."""
    floor = grounds.floors.floors["learning_rate"]
    tolerance = Tolerance(floor.value, floor.value, f"floor: {floor.source}")
    return _largest(LEARNING_RATE, "relative", series.values, series.steps, np.ones(len(series.steps), bool), tolerance)


def _largest(
    name: str, unit: str, values: np.ndarray, steps: np.ndarray, before: np.ndarray, tolerance: Tolerance
) -> Criterion:
    """The largest size among the steps before the horizon, NaN if any is NaN."""
    sizes = np.abs(values[before])
    if len(sizes) == 0:
        return exact(name, unit, math.nan, tolerance, "no step in common with the reference's log", Outcome.UNCLEAR)
    worst = int(np.argmax(np.where(np.isnan(sizes), np.inf, sizes)))
    note = (
        f"largest of {len(sizes)} steps, at step {int(steps[before][worst])}"
        if sizes[worst] != 0
        else f"equal at all {len(sizes)} steps"
    )
    return exact(name, unit, float(sizes[worst]), tolerance, note)


def _skipped(differences: Differences, grounds: Grounds) -> Criterion:
    ours, theirs = (
        set(steps[_before_horizon(steps, grounds)].tolist()) for steps in differences.skipped or (np.empty(0),) * 2
    )
    tolerance = Tolerance(0.0, 0.0 if grounds.noise else math.inf, "exact before the horizon")
    note = f"run: {sorted(ours) or 'none'}; reference: {sorted(theirs) or 'none'}"
    return exact(SKIPPED, "steps skipped by one alone", float(len(ours ^ theirs)), tolerance, note)


def _beyond_horizon(differences: Differences, beyond: np.ndarray, grounds: Grounds) -> list[Criterion]:
    """Statistics over the steps that can't be compared one by one."""
    criteria = []
    count = int(beyond.sum())
    member, levels = grounds.noise_is_of_this_run, grounds.levels(1)
    tolerance = smoothed_tolerance(differences, grounds)
    if tolerance is not None:
        width = smoothing_steps(grounds.run_steps)
        value = _largest_smoothed(differences.loss[beyond], width)
        criteria.append(exact(SMOOTHED_LOSS, _UNIT, value, tolerance, f"trailing mean of {width} steps, {count} steps"))
    means = [float(np.mean(values)) for values in _twin_losses(grounds)]
    tolerance = symmetric_tolerance(means, member, None, grounds.ceiling("smoothed_loss"), levels)
    value = float(np.mean(differences.loss[beyond]))
    criteria.append(exact(MEAN_LOSS, _UNIT, value, tolerance, f"mean of {count} steps beyond the horizon"))
    twins = grounds.noise.grad_norm_differences() if grounds.noise else []
    if differences.grad_norm is not None and twins:
        means = [float(np.mean(values)) for values in _beyond(twins, grounds)]
        tolerance = symmetric_tolerance(means, member, None, None, levels)
        value = float(np.mean(differences.grad_norm[beyond]))
        criteria.append(exact(MEAN_GRAD_NORM, "relative", value, tolerance, f"mean of {count} steps"))
    if differences.skipped is not None:
        ours, theirs = (int((~_before_horizon(steps, grounds)).sum()) for steps in differences.skipped)
        bound = _POISSON_QUANTILE * math.sqrt(ours + theirs)
        source = f"{_POISSON_QUANTILE} standard deviations of the difference of two counts (Poisson)"
        note = f"run: {ours}; reference: {theirs}"
        criteria.append(exact(SKIPPED_LATER, "steps", float(ours - theirs), Tolerance(bound, bound, source), note))
    return criteria


def _twin_losses(grounds: Grounds) -> list[np.ndarray]:
    return _beyond(grounds.noise.loss_differences() if grounds.noise else [], grounds)


def _beyond(twins: list[np.ndarray], grounds: Grounds) -> list[np.ndarray]:
    """The part of each twin's series that lies beyond the horizon."""
    steps = np.array(grounds.noise.steps if grounds.noise else ())
    return [values[~_before_horizon(steps, grounds)] for values in twins]


def _largest_smoothed(values: np.ndarray, width: int) -> float:
    return float(np.max(np.abs(smooth(values, width))))


def _with_gaps(criterion: Criterion, differences: Differences) -> Criterion:
    """What missing steps and broken numbers make of an outcome: broken for a loss only we lost, else never `HOLDS`."""
    about_loss = criterion.name in (STEP_LOSS, SMOOTHED_LOSS, MEAN_LOSS)
    ours, reference = differences.broken
    if about_loss and len(ours):
        return replace(criterion, outcome=Outcome.BROKEN, note=f"our loss is not finite at step {int(ours[0])}")
    if about_loss and len(reference):
        return replace(
            criterion, outcome=Outcome.UNCLEAR, note=f"the reference's loss is no number at step {int(reference[0])}"
        )
    skips = criterion.name in (SKIPPED, SKIPPED_LATER)
    if skips and len(differences.skips_unknown) and criterion.outcome is Outcome.HOLDS:
        note = f"{criterion.note}; the run's log does not say whether step {int(differences.skips_unknown[0])} was"
        return replace(criterion, outcome=Outcome.UNCLEAR, note=note)
    if differences.absent and criterion.outcome is Outcome.HOLDS:
        planned = len(differences.steps) + differences.absent
        note = f"{criterion.note}; the run's log lacks {differences.absent} of {planned} steps"
        return replace(criterion, outcome=Outcome.UNCLEAR, note=note)
    return criterion
