"""Tolerances: floors from a table, noise from twins, and the Student-t rules that turn few twins into a bound.

A twin is the same run from step-0 weights changed by one part in a million. Under the hypothesis that the reference
is one more member of that family, its distance from the run follows the same law as the twins' distances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from ectype.artifacts import read_json
from ectype.recipe.spec import Section

Values = Sequence[float] | np.ndarray


class SourcedNumber(Section):
    """A number of the table, its unit, and where it comes from."""

    value: float
    unit: str
    source: str


class Floors(Section):
    """The table `floors.json`."""

    format: Literal[1]
    floors: dict[str, SourcedNumber]
    """What float32 arithmetic alone makes two frameworks differ by."""
    ceilings: dict[str, SourcedNumber]
    """The widest tolerance under which a measure can still speak for `same model`."""
    hold_error: SourcedNumber
    reject_error: SourcedNumber
    """Families are the same criterion at several landmarks and in several domains; each shares its error out."""
    hold_factor: SourcedNumber
    reject_factor: SourcedNumber


@dataclass(frozen=True)
class Level:
    """How sure a bound is: `error`, the probability with which an honest reference exceeds it, and `factor`, the most
    that it may be of the twins' largest distance."""

    error: float
    factor: float


@dataclass(frozen=True)
class Levels:
    """Of the bound within which a criterion holds, and of the one beyond which it is broken."""

    hold: Level
    reject: Level


@dataclass(frozen=True)
class Tolerance:
    """What a measured value is judged by.

    `within` supports `same model` and never exceeds the ceiling; only a value past `beyond` speaks against it. Both are
    the floor where that rules. Where noise does, `beyond` is the wider bound, and infinite when the noise is unknown:
    in between, nothing is decided.
    """

    within: float
    beyond: float
    source: str


@cache
def load_floors() -> Floors:
    """The table that ships with the package."""
    return Floors.model_validate(read_json(Path(__file__).parent / "floors.json", "table of floors"))


def student_quantile(degrees: int, probability: float) -> float:
    """Quantile of Student's t distribution."""
    return float(stdtrit(degrees, probability))


def family_half_width(twin_minus_run: Values, run_is_member: bool, error: float) -> float:
    """Bound on |reference - run| that holds with probability 1 - `error` when both are of the twins' family.

    With n twins the family {run, twins} has n + 1 members and n degrees of freedom. If the run is a member, the
    two-sided Student-t prediction interval for one more member is centred on the family's mean, and its far end, seen
    from the run, is the bound. If the twins are of another run of the same recipe, run and reference are two fresh
    members, whose difference has twice the variance of one. NaN when a twin's value is NaN.
    """
    members = np.array([0.0, *twin_minus_run], np.float64)
    twins = len(members) - 1
    spread = float(np.std(members, ddof=1))
    quantile = student_quantile(twins, 1 - error / 2)
    if not run_is_member:
        return quantile * spread * math.sqrt(2)
    return abs(float(members.mean())) + quantile * spread * math.sqrt(1 + 1 / (twins + 1))


def family_upper_bound(twin_values: Values, level: Level) -> float:
    """Upper bound on a positive distance (a KL, a largest deviation) between the reference and the run.

    One-sided Student-t prediction bound on the logarithm with n - 1 degrees of freedom, and at least the twins' largest
    value. It is capped at `level.factor` times that: two twins whose distances differ by an order of magnitude would
    else bound nothing. One twin, or one at zero, gives the cap. NaN when a twin's value is NaN.
    """
    values = np.array(twin_values, np.float64)
    largest = float(values.max())
    most = level.factor * largest
    if len(values) < 2 or values.min() <= 0 or not np.isfinite(values).all():
        return most
    logs = np.log(values)
    quantile = student_quantile(len(values) - 1, 1 - level.error)
    exponent = float(logs.mean()) + quantile * float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / len(values))
    return max(largest, min(most, math.exp(min(exponent, 700.0))))


def multiple_tolerance(noise: Values, floor: SourcedNumber, factor: SourcedNumber) -> Tolerance:
    """Tolerance where the run can be followed step by step: the larger of the floor and a multiple of the noise.

    Args:
        noise: the twins' distances from the run; signs do not matter.
        floor: of the measure, in float32.
        factor: the table's `hold_factor`.
    """
    largest = float(np.max(np.abs(noise)))
    if math.isnan(largest):
        return _floor_alone(floor)
    value = factor.value * largest
    if value <= floor.value:
        return Tolerance(floor.value, floor.value, f"floor: {floor.source}")
    return Tolerance(value, value, f"{factor.value:g} {factor.unit} of {largest:.2g} ({factor.source})")


def symmetric_tolerance(
    noise: Values | None,
    run_is_member: bool,
    floor: SourcedNumber | None,
    ceiling: SourcedNumber | None,
    levels: Levels,
) -> Tolerance:
    """Tolerance on |difference|: the larger of the floor and the twins' family bound.

    Args:
        noise: signed twin - run differences; None when no twin was measured.
        run_is_member: the twins are of this very run.
        floor: None where float32 floors do not apply.
        ceiling: None for a measure without one.
        levels: of the two bounds.
    """
    if noise is None:
        return _floor_alone(floor)
    bounds = [family_half_width(noise, run_is_member, level.error) for level in (levels.hold, levels.reject)]
    rule = f"Student-t prediction bound for one more member of a run and its {len(noise)} twins"
    return _combine(bounds, rule, floor, ceiling)


def upper_tolerance(
    noise: Values | None, floor: SourcedNumber | None, ceiling: SourcedNumber | None, levels: Levels
) -> Tolerance:
    """Tolerance on a non-negative distance: the larger of the floor and the twins' upper bound. Arguments as above."""
    if noise is None:
        return _floor_alone(floor)
    bounds = [family_upper_bound(noise, level) for level in (levels.hold, levels.reject)]
    rule = f"Student-t prediction bound (logarithmic) over the distances of {len(noise)} twins from their run"
    return _combine(bounds, rule, floor, ceiling)


def _floor_alone(floor: SourcedNumber | None) -> Tolerance:
    """What can be said without noise: agreement within the floor proves sameness, and nothing proves difference."""
    if floor is None:
        return Tolerance(0.0, math.inf, "no floor applies and no twin was measured")
    return Tolerance(floor.value, math.inf, f"floor: {floor.source}")


def _combine(
    bounds: Sequence[float], rule: str, floor: SourcedNumber | None, ceiling: SourcedNumber | None
) -> Tolerance:
    """The larger of floor and bound, to hold and to reject; the ceiling caps what may hold."""
    if any(map(math.isnan, bounds)):
        return _floor_alone(floor)
    floor_value = 0.0 if floor is None else floor.value
    within, beyond = (max(floor_value, bound) for bound in bounds)
    source = f"floor: {floor.source}" if floor is not None and floor_value >= bounds[0] else rule
    if ceiling is None or within <= ceiling.value:
        return Tolerance(within, beyond, source)
    return Tolerance(ceiling.value, beyond, f"ceiling ({ceiling.source}), as the twins' noise exceeds it: {rule}")
