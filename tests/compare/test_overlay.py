"""The overlay of two training logs, its band, and the warning of repeated data."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_up_evidence import STEPS, log

from ectype.compare.bootstrap import Interval
from ectype.compare.overlay import deviation_band, overlay, repeated_data_warning
from ectype.compare.tolerances import student_quantile
from ectype.compare.trajectory import Differences, difference


def interval(estimate: float, half_width: float = 0.001) -> Interval:
    low, high = estimate - half_width, estimate + half_width
    return Interval(estimate, low, high, low, high)


def noisy(steps: int, deviation: float, seed: int = 0) -> Differences:
    """Differences of two honest runs that read other data: noise of single steps about zero."""
    values = np.random.default_rng(seed).normal(0, deviation, steps)
    none = np.empty(0, np.int64)
    return Differences(np.arange(1, steps + 1), values, None, None, 0, (none, none))


def test_the_overlay_names_the_largest_deviation_and_the_first_departures() -> None:
    run = log()
    run.loss[60] += 3e-5
    run.loss[80:] -= 2e-5
    found = overlay(difference(run, log(), STEPS), STEPS, 1e-5, 1.5e-5, interval(0.0))
    assert found is not None
    assert (found.largest_step, found.first_raw_departure_step) == (61, 61)
    assert found.largest == pytest.approx(3e-5)
    # Ten steps are averaged; 7.5 of the last twenty must be off by 2e-5 for the mean to pass 1.5e-5.
    assert found.first_smoothed_departure_step == 88
    assert found.steps_compared == 100


def test_the_overlay_of_equal_logs_departs_nowhere() -> None:
    found = overlay(difference(log(), log(), STEPS), STEPS, 1e-5, None, None)
    assert found is not None
    assert (found.largest, found.first_raw_departure_step, found.first_smoothed_departure_step) == (0.0, None, None)
    assert (found.band, found.first_band_departure_step, found.warning) == (0.0, None, None)


def test_logs_without_a_common_step_have_no_overlay() -> None:
    run = replace(log(), steps=np.arange(1001, 1101))
    assert overlay(difference(run, log(), STEPS), STEPS, 1e-5, None, None) is None


def test_the_band_is_what_its_definition_says() -> None:
    """In plain float64: a trailing mean of 20 steps, and the deviation from up to 160 successive differences."""
    differences = noisy(640, 0.05)
    band, d = deviation_band(differences, 640), differences.loss
    assert (len(band.steps), band.steps[0]) == (621, 20)
    for place in (0, 50, 620):
        window, last = d[place : place + 20], place + 19
        assert band.smoothed[place] == pytest.approx(sum(window) / 20, rel=1e-9)
        pairs = [(d[i] - d[i - 1]) ** 2 / 2 for i in range(max(0, last - 160) + 1, last + 1)]
        quantile = student_quantile(2 * len(pairs) / 3, 1 - 0.005 / 621)  # type: ignore[arg-type]
        expected = quantile * math.sqrt(sum(pairs) / len(pairs) / 20)
        assert band.half_width[place] == pytest.approx(expected, rel=1e-6)
    # With many pairs the quantile is nearly the normal one, 4.31.
    assert band.half_width[-1] == pytest.approx(4.31 * 0.05 / math.sqrt(20), rel=0.2)


def test_honest_noise_stays_in_its_band_and_a_drift_leaves_it_where_it_begins() -> None:
    left = 0
    for seed in range(100):
        found = overlay(noisy(2000, 0.03, seed), 2000, 1e-5, None, None)
        assert found is not None
        left += found.first_band_departure_step is not None
    # One run of a hundred may.
    assert left <= 2
    drifting = noisy(2000, 0.03)
    drifting.loss[1200:] -= 0.05
    found = overlay(drifting, 2000, 1e-5, None, None)
    assert found is not None
    assert found.first_band_departure_step is not None
    assert 1200 < found.first_band_departure_step < 1262


@pytest.mark.parametrize(
    ("training", "held_out", "warned"),
    [(-0.02, 0.0, True), (-0.02, 0.01, True), (-0.02, -0.018, False), (-0.005, 0.0, False), (0.02, 0.0, False)],
)
def test_a_gain_that_held_out_text_does_not_share_is_warned_of(training: float, held_out: float, warned: bool) -> None:
    found = repeated_data_warning(np.full(100, training), interval(held_out), 0.01)
    assert (found is not None) == warned
    assert found is None or "read more than once" in found


def test_numbers_that_do_not_say_so_give_no_warning() -> None:
    """The same means, but a held-out interval that reaches the gain, a training mean within its noise, or neither."""
    values = np.random.default_rng(0).normal(-0.02, 0.03, 400)
    assert repeated_data_warning(values, interval(0.0, 0.005), 1e-5) is not None
    assert repeated_data_warning(values, interval(0.0, 0.02), 1e-5) is None
    assert repeated_data_warning(np.random.default_rng(0).normal(-0.002, 0.03, 400), interval(0.0), 1e-5) is None
    wandering = -0.02 + 0.05 * np.sin(np.arange(400) / 60)
    assert repeated_data_warning(wandering, interval(0.0), 1e-5) is None
    for nothing in (None, interval(math.nan), interval(0.0, math.inf)):
        assert repeated_data_warning(np.full(100, -1.0), nothing, 0.01) is None
    assert repeated_data_warning(np.full(10, -1.0), interval(0.0), 0.01) is None
    assert repeated_data_warning(np.array([-1.0, math.nan] * 50), interval(0.0), 0.01) is None


def test_the_case_study_is_warned_of() -> None:
    """Doubled data: training loss some 0.012 nats below with noise of 0.02 a step, held-out loss as it was."""
    values = np.random.default_rng(1).normal(-0.012, 0.02, 4000)
    found = repeated_data_warning(values, interval(-0.0004, 0.002), 1e-3)
    assert found is not None
    assert found.startswith("training loss lies 0.012 nats below")
