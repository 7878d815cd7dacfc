"""Learning rate as a function of the update's number, in float64. Formulas: OLMo-core `optim/scheduler.py`."""

import math

from ectype.recipe.spec import Schedule


def learning_rate(schedule: Schedule, update: int) -> float:
    """The rate of update `update` (1-based), float64. The trainer counts the step before it takes it."""
    return _KINDS[schedule.kind](schedule, update)


def _cosine(schedule: Schedule, update: int) -> float:
    """Linear warm-up, then half a cosine from the peak to the final fraction at the horizon."""
    warmup, horizon, final = schedule.warmup_steps, schedule.horizon_steps, schedule.peak * schedule.final_fraction
    if update < warmup:
        return schedule.peak * update / warmup
    if update >= horizon:
        return final
    return final + (schedule.peak - final) * (1 + math.cos(math.pi * (update - warmup) / (horizon - warmup))) / 2


def _half_cosine(schedule: Schedule, update: int) -> float:
    """Linear warm-up to the middle of a cosine twice as long, then its second half.

    With `warmup_steps` equal to the step of a hand-over it continues a cosine that is half done there.
    """
    warmup, horizon, final = schedule.warmup_steps, schedule.horizon_steps, schedule.peak * schedule.final_fraction
    if update < warmup:
        return schedule.peak * update / warmup
    if update >= horizon:
        return final
    span = horizon - warmup
    return final + (schedule.peak - final) * (1 + math.cos(math.pi * (update - warmup + span) / (2 * span))) / 2


def _linear(schedule: Schedule, update: int) -> float:
    """Linear warm-up, then a straight line to the final fraction at the horizon."""
    warmup, horizon, final = schedule.warmup_steps, schedule.horizon_steps, schedule.peak * schedule.final_fraction
    if update < warmup:
        return schedule.peak * update / warmup
    if update >= horizon:
        return final
    # The fraction first, as the reference has it: near the end the two roundings differ by 1e-11.
    return schedule.peak - (schedule.peak - final) * ((update - warmup) / (horizon - warmup))


def _constant(schedule: Schedule, update: int) -> float:
    """Linear warm-up, then the peak."""
    return schedule.peak * update / schedule.warmup_steps if update < schedule.warmup_steps else schedule.peak


_KINDS = {"cosine": _cosine, "half_cosine": _half_cosine, "linear": _linear, "constant": _constant}
