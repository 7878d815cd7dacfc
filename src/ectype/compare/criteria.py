"""One criterion: a measured value against a tolerance, and what follows. Numbers in, records out."""

import math
from dataclasses import dataclass
from enum import StrEnum

from ectype.compare.bootstrap import Interval
from ectype.compare.noise import LandmarkNoise, Noise
from ectype.compare.tolerances import Floors, Level, Levels, SourcedNumber, Tolerance


class Outcome(StrEnum):
    """What follows for a criterion; `UNCLEAR` speaks neither for nor against."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Criterion:
    """What was measured, what it was judged by, and the outcome.

    `tolerance` is what the value must keep to count as the same; `rejects_beyond` is what it must pass to count as
    different (null: nothing measured here could, as the noise is unknown). `interval` is the 95 % interval of the
    measured mean over held-out windows, null for values that are no sample. Every number is null when not finite.
    """

    name: str
    landmark: int | None
    domain: str | None
    measured: float | None
    unit: str
    tolerance: float | None
    rejects_beyond: float | None
    tolerance_from: str
    interval: tuple[float | None, float | None] | None
    outcome: Outcome
    note: str = ""
    tokens_needed: int | None = None
    """Held-out tokens that would settle an unclear outcome, if the estimate stayed as it is."""


@dataclass(frozen=True)
class Grounds:
    """What a comparison stands on.

    Args:
        floors: the table.
        float32: the run and the reference are both float32 throughout, so that the table's floors apply.
        noise: what twins showed; None when there are none.
        noise_is_of_this_run: the twins are this run's own, not those of an earlier run of the same recipe.
        horizon_step: first step that can't be compared one by one; None when all can, or nobody knows.
        first_step: that a stage counts on from; 0 for a run from the beginning.
        duration_steps: planned length of the run, `first_step` included.
        resamples: bootstrap draws.
    """

    floors: Floors
    float32: bool
    noise: Noise | None
    noise_is_of_this_run: bool
    horizon_step: int | None
    duration_steps: int
    resamples: int
    first_step: int = 0

    @property
    def run_steps(self) -> int:
        """Steps that are the run's own."""
        return self.duration_steps - self.first_step

    def floor(self, name: str) -> SourcedNumber | None:
        """The floor of a measure, where floors apply."""
        return self.floors.floors[name] if self.float32 else None

    def ceiling(self, name: str) -> SourcedNumber | None:
        """The widest tolerance that a measure may have."""
        return self.floors.ceilings.get(name)

    def landmark_noise(self, step: int) -> LandmarkNoise | None:
        """What the twins showed at one landmark."""
        return self.noise.landmarks.get(step) if self.noise else None

    def levels(self, comparisons: int) -> Levels:
        """Levels of each of `comparisons` that are judged together: they share out the error (Bonferroni)."""
        table, count = self.floors, max(1, comparisons)
        return Levels(
            Level(table.hold_error.value / count, table.hold_factor.value),
            Level(table.reject_error.value / count, table.reject_factor.value),
        )

    def follows(self, step: int) -> bool:
        """Whether twins show that the run can be followed step by step up to `step`."""
        before = self.horizon_step is None or step < self.horizon_step
        return self.float32 and self.noise is not None and before


def finite(value: float) -> float | None:
    """A float for JSON: None when it is not finite."""
    return float(value) if math.isfinite(value) else None


def judge_difference(interval: Interval, tolerance: Tolerance) -> Outcome:
    """A difference that should be near zero: its interval must lie within, or its family interval beyond, +-tolerance.

    NaN never holds.
    """
    if max(abs(interval.low), abs(interval.high)) <= tolerance.within:
        return Outcome.HOLDS
    if interval.family_low > tolerance.beyond or interval.family_high < -tolerance.beyond:
        return Outcome.BROKEN
    return Outcome.UNCLEAR


def judge_distance(interval: Interval, tolerance: Tolerance) -> Outcome:
    """A non-negative distance that should be small, judged by the ends of its intervals. NaN never holds."""
    if interval.high <= tolerance.within:
        return Outcome.HOLDS
    return Outcome.BROKEN if interval.family_low > tolerance.beyond else Outcome.UNCLEAR


def judge_value(value: float, tolerance: Tolerance) -> Outcome:
    """A value that is no sample: |value| within the tolerance, beyond it, or between. NaN is unclear."""
    return judge_distance(Interval(abs(value), *[abs(value)] * 4), tolerance)


def sampled(
    name: str, landmark: int, domain: str | None, unit: str, interval: Interval, tolerance: Tolerance, outcome: Outcome,
    needed: int | None,
) -> Criterion:  # fmt: skip
    """A criterion over held-out windows; when it is unclear, with the reason and the `needed` tokens to settle it."""
    note = unclear_reason(tolerance, interval, needed) if outcome is Outcome.UNCLEAR else ""
    return Criterion(
        name=name, landmark=landmark, domain=domain, measured=finite(interval.estimate), unit=unit,
        tolerance=finite(tolerance.within), rejects_beyond=finite(tolerance.beyond), tolerance_from=tolerance.source,
        interval=(finite(interval.low), finite(interval.high)), outcome=outcome, note=note,
        tokens_needed=needed if outcome is Outcome.UNCLEAR else None,
    )  # fmt: skip


def unclear_reason(tolerance: Tolerance, interval: Interval, needed: int | None) -> str:
    """Why a sampled criterion is unclear, in words."""
    if math.isnan(interval.estimate):
        return "the measured value is not a number"
    if math.isinf(tolerance.beyond):
        return "outside the floor, and no twin says how far rounding alone carries this run"
    if abs(interval.estimate) > tolerance.within and needed is None:
        return "outside the tolerance, but not so far that it counts as different"
    return f"the interval is too wide: about {needed:,} held-out tokens are needed" if needed else "too few windows"


def exact(
    name: str, unit: str, value: float, tolerance: Tolerance, note: str = "", outcome: Outcome | None = None
) -> Criterion:
    """A criterion on a value that is no sample; `outcome` replaces the judgement where more than the value decides."""
    judged = outcome or judge_value(value, tolerance)
    if outcome is None and judged is Outcome.UNCLEAR:
        note = f"{note}; {unclear_reason(tolerance, Interval(value, *[value] * 4), None)}"
    return Criterion(
        name=name, landmark=None, domain=None, measured=finite(value), unit=unit, tolerance=finite(tolerance.within),
        rejects_beyond=finite(tolerance.beyond), tolerance_from=tolerance.source, interval=None,
        outcome=judged, note=note,
    )  # fmt: skip
