"""Learning rate as a function of the update's number, in float64. Formulas: OLMo-core `optim/scheduler.py`."""

import math

from ectype.recipe.spec import Schedule


def with_known_horizon(schedule: Schedule, steps_per_epoch: int) -> Schedule:
    """The schedule with its horizon in steps, where the recipe has the end of the epoch."""
    return (
        schedule.model_copy(update={"horizon_steps": steps_per_epoch})
        if schedule.horizon_steps == "epoch"
        else schedule
    )


def learning_rate(schedule: Schedule, update: int) -> float:
    """The rate of update `update` (1-based), float64. The trainer counts the step before it takes it.

    Every kind warms up linearly; after it, all but `constant` fall to the final fraction of the peak at the horizon,
    which must be known in steps.
    """
    warmup, horizon, peak = schedule.warmup_steps, schedule.horizon_steps, schedule.peak
    assert horizon != "epoch"
    final = peak * schedule.final_fraction
    if update < warmup:
        return peak * update / warmup
    if schedule.kind == "constant":
        return peak
    if update >= horizon:
        return final
    done, span = update - warmup, horizon - warmup
    if schedule.kind == "linear":
        # The fraction first, as the reference has it: near the end the two roundings differ by 1e-11.
        return peak - (peak - final) * (done / span)
    if schedule.kind == "cosine":
        return final + (peak - final) * (1 + math.cos(math.pi * done / span)) / 2
    # half_cosine: the second half of a cosine twice as long. With `warmup_steps` equal to the step of a hand-over it
    # continues a cosine that is half done there.
    return final + (peak - final) * (1 + math.cos(math.pi * (done + span) / (2 * span))) / 2
