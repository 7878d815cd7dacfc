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

FEW_TWINS_FACTOR = 3.0
"""Times the largest twin value, where a spread can't be estimated (one twin, or a value of zero)."""


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
    trajectory_factor: SourcedNumber


@dataclass(frozen=True)
class Errors:
    """Probabilities with which an honest reference may fall outside `within`, and outside `beyond`."""

    hold: float
    reject: float


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


def family_upper_bound(twin_values: Values, error: float) -> float:
    """Upper bound on a positive distance (a KL, a largest deviation) that the reference keeps with 1 - `error`.

    One-sided Student-t prediction bound on the logarithm, n - 1 degrees of freedom, and at least the twins' largest
    value; with one twin, or a twin at zero, `FEW_TWINS_FACTOR` times the largest.
    """
    values = np.array(twin_values, np.float64)
    largest = float(values.max())
    if len(values) < 2 or values.min() <= 0 or not np.isfinite(values).all():
        return FEW_TWINS_FACTOR * largest
    logs = np.log(values)
    quantile = student_quantile(len(values) - 1, 1 - error)
    exponent = float(logs.mean()) + quantile * float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / len(values))
    return max(largest, math.exp(min(exponent, 700.0)))


def symmetric_tolerance(
    noise: Values | None,
    run_is_member: bool,
    floor: SourcedNumber | None,
    ceiling: SourcedNumber | None,
    errors: Errors,
) -> Tolerance:
    """Tolerance on |difference|: the larger of the floor and the twins' family bound.

    Args:
        noise: signed twin - run differences; None when no twin was measured.
        run_is_member: the twins are of this very run.
        floor: None where float32 floors do not apply.
        ceiling: None for a measure without one.
        errors: how often an honest reference may fall outside.
    """
    if noise is None:
        return _floor_alone(floor)
    bounds = [family_half_width(noise, run_is_member, error) for error in (errors.hold, errors.reject)]
    rule = f"Student-t prediction bound for one more member of a run and its {len(noise)} twins"
    return _combine(bounds, rule, floor, ceiling)


def upper_tolerance(
    noise: Values | None, floor: SourcedNumber | None, ceiling: SourcedNumber | None, errors: Errors
) -> Tolerance:
    """Tolerance on a non-negative distance: the larger of the floor and the twins' upper bound. Arguments as above."""
    if noise is None:
        return _floor_alone(floor)
    bounds = [family_upper_bound(noise, error) for error in (errors.hold, errors.reject)]
    rule = f"Student-t prediction bound (logarithmic) over the distances of {len(noise)} twins from their run"
    return _combine(bounds, rule, floor, ceiling)


def disagreement_tolerance(
    agreement: Values | None, floor: SourcedNumber | None, ceiling: SourcedNumber | None, errors: Errors
) -> Tolerance:
    """Tolerance on 1 - agreement; noise, floor and ceiling are agreement rates. Other arguments as above."""

    def turned(number: SourcedNumber | None) -> SourcedNumber | None:
        return None if number is None else number.model_copy(update={"value": 1 - number.value})

    disagreement = None if agreement is None else [1 - value for value in agreement]
    return upper_tolerance(disagreement, turned(floor), turned(ceiling), errors)


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
