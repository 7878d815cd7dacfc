"""The table has sources, and the rules for few twins keep what they promise, by simulation."""

import math

import numpy as np
import pytest

from ectype.compare.tolerances import (
    Level,
    Levels,
    family_half_width,
    family_upper_bound,
    load_floors,
    multiple_tolerance,
    student_quantile,
    symmetric_tolerance,
    upper_tolerance,
)

FLOORS = load_floors()
LEVELS = Levels(Level(0.05, 3.0), Level(0.005, 10.0))


def test_every_number_of_the_table_says_where_it_comes_from() -> None:
    table = [
        *FLOORS.floors.values(),
        *FLOORS.ceilings.values(),
        FLOORS.hold_error,
        FLOORS.reject_error,
        FLOORS.hold_factor,
        FLOORS.reject_factor,
    ]
    assert all(len(number.source) > 20 and number.unit for number in table)
    assert {name: number.value for name, number in FLOORS.floors.items()} == {
        "step_loss": 1e-5, "grad_norm": 2e-4, "learning_rate": 1e-6, "held_out_loss": 1e-5, "kl_mean": 1e-6,
        "top1_agreement": 0.999,
    }  # fmt: skip


def test_student_quantiles_are_the_tabulated_ones() -> None:
    assert student_quantile(2, 0.975) == pytest.approx(4.3027, abs=1e-4)
    assert student_quantile(10, 0.95) == pytest.approx(1.8125, abs=1e-4)


@pytest.mark.parametrize("twins", [1, 3, 8])
@pytest.mark.parametrize("member", [True, False])
def test_an_honest_reference_stays_within_the_family_bound(twins: int, member: bool) -> None:
    generator = np.random.default_rng(twins)
    inside = 0
    for draws in generator.normal(3.0, 0.2, (2000, twins + 3)):
        run, other, reference = draws[:3]
        judged = run if member else other
        inside += abs(judged - reference) <= family_half_width(draws[3:] - run, member, 0.1)
    assert inside / 2000 > 0.9 - 0.02


@pytest.mark.parametrize("twins", [2, 3, 8])
def test_an_honest_distance_stays_within_the_upper_bound(twins: int) -> None:
    draws = np.random.default_rng(twins).lognormal(-18, 0.3, (2000, twins + 1))
    inside = [row[0] <= family_upper_bound(row[1:], Level(0.1, 100.0)) for row in draws]
    assert np.mean(inside) > 0.9 - 0.02


def test_more_twins_make_the_bound_tighter_and_smaller_errors_make_it_wider() -> None:
    values = np.tile([1.0, -1.0], 8)
    assert family_half_width(values, True, 0.01) < family_half_width(values[:2], True, 0.01)
    assert family_half_width(values, True, 0.001) > family_half_width(values, True, 0.01)


def test_one_twin_gives_a_multiple_of_itself() -> None:
    assert family_upper_bound([2e-9], Level(0.01, 3.0)) == pytest.approx(6e-9)
    assert family_upper_bound([0.0, 2e-9], Level(0.01, 3.0)) == pytest.approx(6e-9)


def test_the_floor_rules_where_noise_is_smaller_and_noise_where_it_is_larger() -> None:
    floor = FLOORS.floors["held_out_loss"]
    small = symmetric_tolerance([1e-8, -1e-8, 2e-8], True, floor, None, LEVELS)
    assert (small.within, small.beyond) == (1e-5, 1e-5)
    assert small.source.startswith("floor: ")
    large = symmetric_tolerance([1e-3, -1e-3, 2e-3], True, floor, None, LEVELS)
    assert 1e-3 < large.within < large.beyond
    assert "3 twins" in large.source


def test_unknown_noise_can_confirm_and_never_reject() -> None:
    assert math.isinf(upper_tolerance(None, FLOORS.floors["kl_mean"], None, LEVELS).beyond)
    found = symmetric_tolerance(None, True, None, None, LEVELS)
    assert (found.within, found.beyond) == (0.0, math.inf)
    assert math.isinf(symmetric_tolerance([math.nan], True, None, None, LEVELS).beyond)


def test_noise_above_the_ceiling_widens_rejection_only() -> None:
    ceiling = FLOORS.ceilings["held_out_loss"]
    found = symmetric_tolerance([1.0, -1.0], True, None, ceiling, LEVELS)
    assert found.within == ceiling.value < found.beyond
    assert "ceiling" in found.source


def test_before_the_horizon_noise_counts_threefold_and_never_statistically() -> None:
    floor, factor = FLOORS.floors["kl_mean"], FLOORS.hold_factor
    scattered = [1.3e-9, 5.5e-10, 1.7e-10]
    small = multiple_tolerance(scattered, floor, factor)
    assert (small.within, small.beyond) == (1e-6, 1e-6)
    large = multiple_tolerance([-1e-6, 2e-6], floor, factor)
    assert (large.within, large.beyond) == pytest.approx((6e-6, 6e-6))
    assert math.isinf(multiple_tolerance([math.nan, 2e-6], floor, factor).beyond)


def test_scattered_twins_bound_no_more_than_a_multiple_of_the_largest() -> None:
    assert family_upper_bound([1e-9, 1e-7], Level(0.004, 3.0)) == pytest.approx(3e-7)
