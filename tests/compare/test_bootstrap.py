"""Bootstrap intervals: coverage by simulation, pairing, strata, and an independent computation."""

import math

import numpy as np
import pytest

from ectype.compare.bootstrap import Interval, Sample, mean_interval, tokens_needed
from ectype.compare.tolerances import Tolerance, student_quantile


def sample(values: np.ndarray, weights: np.ndarray | float = 1.0) -> Sample:
    return Sample(values, np.broadcast_to(np.asarray(weights, np.float64), values.shape))


@pytest.mark.parametrize(("kind", "windows"), [("normal", 14), ("skewed", 14), ("skewed", 60)])
def test_the_interval_covers_the_mean_as_often_as_it_says(kind: str, windows: int) -> None:
    generator = np.random.default_rng(windows)
    hits = 0
    for trial in range(400):
        values = generator.normal(1, 1, windows) if kind == "normal" else generator.gamma(1.0, 1.0, windows)
        found = mean_interval([sample(values)], comparisons=1, resamples=400, seed=trial)
        hits += found.low <= 1 <= found.high
    # Two standard errors of 400 trials at 95 % are 2.2 points; too wide an interval would fail, too.
    assert 0.925 <= hits / 400 <= 0.995


def test_strata_are_fixed_and_only_their_windows_vary() -> None:
    generator = np.random.default_rng(0)
    apart = [sample(generator.normal(level, 0.1, 40)) for level in (0.0, 10.0)]
    pooled = Sample(np.concatenate([s.values for s in apart]), np.ones(80))
    stratified, mixed = (mean_interval(strata, 1, 500) for strata in (apart, [pooled]))
    assert stratified.estimate == pytest.approx(mixed.estimate)
    assert (stratified.high - stratified.low) * 20 < mixed.high - mixed.low


def test_windows_weigh_by_their_targets() -> None:
    found = mean_interval([Sample(np.array([2.0, 90.0]), np.array([2.0, 10.0]))], 1, 100)
    assert found.estimate == pytest.approx(92 / 12)


def test_normal_data_give_students_interval() -> None:
    values = np.random.default_rng(1).normal(0, 1, 400)
    found = mean_interval([sample(values)], 1, 4000)
    half = student_quantile(399, 0.975) * values.std(ddof=1) / math.sqrt(400)
    assert found.high - found.estimate == pytest.approx(half, rel=0.1)
    assert found.high - found.estimate >= half


def test_pivots_equal_an_independent_resampling() -> None:
    values = np.random.default_rng(2).gamma(0.5, 1.0, 30)
    found = mean_interval([sample(values)], 1, 1000, seed=5)
    draws = np.random.Generator(np.random.PCG64(5)).integers(0, 30, (1000, 30))
    pivots = []
    for draw in draws:
        again = values[draw]
        pivots.append((again.mean() - values.mean()) / (again.std(ddof=1) / math.sqrt(30)))
    error = values.std(ddof=1) / math.sqrt(30)
    upper = max(student_quantile(29, 0.975), -np.quantile(pivots, 0.025))
    assert found.high == pytest.approx(values.mean() + upper * error, rel=1e-9)


def test_a_family_is_judged_by_a_wider_interval() -> None:
    values = np.random.default_rng(3).normal(0, 1, 50)
    alone, together = (mean_interval([sample(values)], count, 500) for count in (1, 30))
    assert (alone.low, alone.high) == (together.low, together.high)
    assert (alone.family_low, alone.family_high) == pytest.approx((alone.low, alone.high))
    assert together.family_low < together.low
    assert together.family_high > together.high


def test_equal_windows_have_no_spread_one_window_has_no_end_and_nan_has_none() -> None:
    assert mean_interval([sample(np.full(20, 0.5))], 9, 100) == Interval(0.5, 0.5, 0.5, 0.5, 0.5)
    lone = mean_interval([sample(np.arange(20.0)), sample(np.array([1.0]))], 1, 100)
    assert (lone.low, lone.high) == (-math.inf, math.inf)
    assert math.isnan(mean_interval([sample(np.array([1.0, math.nan]))], 1, 100).high)


def test_results_repeat() -> None:
    values = np.random.default_rng(4).gamma(1, 1, 30)
    assert mean_interval([sample(values)], 1, 200) == mean_interval([sample(values)], 1, 200)


def test_tokens_needed_follow_the_square_root() -> None:
    interval = Interval(1.0, -3.0, 5.0, -3.0, 5.0)
    assert tokens_needed(interval, Tolerance(3.0, 3.0, ""), 1000) == 4000
    assert tokens_needed(interval, Tolerance(1.0, 1.0, ""), 1000) is None
    assert tokens_needed(Interval(1.0, -math.inf, math.inf, 0, 0), Tolerance(3.0, 3.0, ""), 1000) is None


def test_tokens_needed_to_reject_count_from_what_rejects_and_none_help_in_between() -> None:
    """Family intervals of 6 about 4: they leave 2 once they are a third, those of 5 about 4 never."""
    interval = Interval(4.0, 0.0, 8.0, -2.0, 10.0)
    assert tokens_needed(interval, Tolerance(1.0, 2.0, ""), 1000) == 9000
    assert tokens_needed(interval, Tolerance(1.0, 5.0, ""), 1000) is None
    assert tokens_needed(interval, Tolerance(1.0, math.inf, ""), 1000) is None
