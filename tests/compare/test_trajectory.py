"""Differences of two logs: alignment, smoothing, the horizon."""

import math
from dataclasses import replace

import numpy as np
from made_up_evidence import STEPS, log

from ectype.compare.trajectory import difference, horizon, smooth, smoothing_steps


def test_logs_are_aligned_by_step() -> None:
    run, reference = log(shift=0.5), log(steps=150)
    run = replace(run, steps=run.steps[5:], loss=run.loss[5:], grad_norm=None, skipped=run.skipped[5:])  # type: ignore[index]
    found = difference(run, reference, STEPS)
    assert found.steps.tolist() == list(range(6, 101))
    assert found.absent == 5
    np.testing.assert_allclose(found.loss, 0.5)
    assert found.grad_norm is not None
    assert np.isnan(found.grad_norm).all()
    assert found.skipped is not None
    assert [steps.tolist() for steps in found.skipped] == [[40], [40]]


def test_of_a_stage_that_counts_on_only_its_own_steps_are_asked_for() -> None:
    """An extension's log begins behind step 0; the reference's may hold the whole run, or the extension alone."""
    whole, own = log(), log(shift=0.5)
    cut = {name: getattr(own, name)[60:] for name in ("steps", "loss", "grad_norm", "skipped")}
    run = replace(own, **cut)
    for reference in (whole, replace(whole, **{name: getattr(whole, name)[60:] for name in cut})):
        found = difference(run, reference, STEPS, 60)
        assert (found.steps.tolist(), found.absent) == (list(range(61, 101)), 0)
        assert found.skipped is not None
        assert [steps.tolist() for steps in found.skipped] == [[], []]
    assert difference(run, whole, STEPS, 50).absent == 10


def test_what_the_run_did_not_log_is_unknown() -> None:
    full = replace(log(), z_loss=np.ones(STEPS), learning_rate=np.ones(STEPS))
    bare = replace(full, z_loss=None, grad_norm=None, learning_rate=None, skipped=None)
    found = difference(bare, full, STEPS)
    for series in (found.z_loss, found.learning_rate):
        assert series is not None
        assert np.isnan(series.values).all()
    assert np.isnan(found.grad_norm).all()  # type: ignore[arg-type]
    assert found.skips_unknown.tolist() == full.steps.tolist()
    found = difference(full, bare, STEPS)
    assert (found.z_loss, found.grad_norm, found.learning_rate, found.skipped) == (None, None, None, None)
    assert len(found.skips_unknown) == 0


def test_a_step_of_which_the_reference_does_not_say_whether_it_was_skipped_is_left_out() -> None:
    run, reference = log(), log()
    skips = np.zeros(STEPS)
    skips[39], skips[49] = 1, math.nan
    found = difference(replace(run, skipped=run.steps >= 40), replace(reference, skipped=skips), STEPS)
    assert found.skipped is not None
    assert found.skipped[0].tolist() == [step for step in range(40, 101) if step != 50]
    assert found.skipped[1].tolist() == [40]
    assert len(found.skips_unknown) == 0


def test_the_gradient_norm_differs_relatively() -> None:
    reference = log()
    assert reference.grad_norm is not None
    run = replace(reference, grad_norm=reference.grad_norm * (1 + 1e-4))
    found = difference(run, reference, STEPS)
    np.testing.assert_allclose(found.grad_norm, 1e-4, rtol=1e-6)  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_is_laid_at_its_owners_door() -> None:
    run, reference = log(), log()
    run.loss[10] = math.nan
    reference.loss[[20, 30]] = math.inf
    run.loss[30] = math.nan
    found = difference(run, reference, STEPS)
    assert [steps.tolist() for steps in found.broken] == [[11], [21, 31]]


def test_smoothing_is_a_trailing_mean() -> None:
    assert smooth(np.arange(6.0), 4).tolist() == [1.5, 2.5, 3.5]
    assert len(smooth(np.arange(3.0), 4)) == 0
    assert np.isnan(smooth(np.array([1, math.nan, 1, 1, 1]), 2)).tolist() == [True, True, False, False]
    assert [smoothing_steps(steps) for steps in (40, 640, 1_413_814)] == [10, 20, 1000]


def test_the_horizon_is_the_first_departure_of_any_twin() -> None:
    steps = np.arange(1, 6)
    calm, late, early = np.full(5, 1e-6), np.array([0, 0, 0, 2e-5, 0]), np.array([0, -2e-5, 0, 0, 0])
    assert horizon(steps, [calm], 1e-5) is None
    assert horizon(steps, [calm, late], 1e-5) == 4
    assert horizon(steps, [calm, late, early], 1e-5) == 2
    assert horizon(steps, [np.array([0, 0, math.nan, 0, 0])], 1e-5) == 3
