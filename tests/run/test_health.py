"""The judgement over made-up numbers: what is a spike, a slow-down, a straggler, a stall, and what is none."""

from dataclasses import replace

import numpy as np
import pytest

from ectype.recipe.placement import Health
from ectype.run.health import (
    Sign,
    Updates,
    data_wait_share,
    is_finite,
    is_spike,
    judge_signs,
    judge_state,
    judge_updates,
    left_seconds,
    recent_seconds,
    session_goodput,
    settled_seconds,
    skipped_share,
    spike_threshold,
)

POLICY = Health(spike_window_updates=32, recent_updates=8)


def updates(count=100, **changes):
    noise = np.random.default_rng(0)
    values = {
        "steps": np.arange(1, count + 1), "loss": 2 + 0.01 * noise.standard_normal(count),
        "grad_norm": np.ones(count), "skipped": np.zeros(count), "step_seconds": 1 + 0.01 * noise.random(count),
        "data_wait_seconds": np.full(count, 0.01),
    }  # fmt: skip
    for name, places in changes.items():
        for place, value in places.items():
            values[name][place] = value
    return Updates(**values)


def kinds(run, session=None):
    return [finding.kind for finding in judge_updates(run, run if session is None else session, POLICY)]


def sign(process, **changes):
    values = {"host": f"host{process}", "step": 40, "phase": "step 41", "phase_seconds": 1.0, "activity": "update"}
    return Sign(process, **values | {"age_seconds": 2.0, "own_seconds": 0.01, "probe_seconds": 0.002} | changes)


def test_a_well_run_has_no_findings():
    assert kinds(updates()) == []
    assert kinds(updates(0)) == []
    assert judge_signs([sign(0), sign(1), sign(2)], 1.0, POLICY) == []


def test_the_threshold_is_a_robust_one():
    """Nine values 1..9: median 5, median absolute deviation 2; a value of a million moves neither."""
    policy = Health(spike_window_updates=9, spike_deviations=3, spike_least_nats=0)
    values = np.arange(1.0, 10)
    assert spike_threshold(values, policy) == pytest.approx(5 + 3 * 1.4826 * 2)
    assert spike_threshold(np.where(values == 9, 1e6, values), policy) == pytest.approx(5 + 3 * 1.4826 * 2)
    assert spike_threshold(values, policy.model_copy(update={"spike_least_nats": 100.0})) == 105
    with_nan = np.concatenate([[np.nan], values, [np.nan, np.inf]])
    assert spike_threshold(with_nan, policy.model_copy(update={"spike_window_updates": 12})) == pytest.approx(13.8956)
    assert spike_threshold(values[:3], policy) is None
    assert spike_threshold(np.array([]), policy) is None


def test_a_spike_is_found_with_its_step_and_a_falling_loss_is_none():
    assert kinds(updates(loss={97: 2.7})) == ["spike"]
    assert judge_updates(updates(loss={97: 2.7}), updates(), POLICY)[0].step == 98
    assert kinds(updates(loss={97: 2.4})) == []  # below the least that counts
    assert kinds(updates(loss={80: 9.0})) == []  # long ago
    falling = updates()
    falling.loss[:] = np.linspace(11, 2, 100)
    assert kinds(falling) == []


@pytest.mark.parametrize("change", [{"loss": {99: np.nan}}, {"grad_norm": {95: np.inf}}])
def test_what_is_not_finite_is_found(change):
    assert kinds(updates(**change)) == ["not_finite"]


def test_a_slow_down_is_told_from_the_settled_time_and_from_waiting():
    slow = updates(step_seconds=dict.fromkeys(range(90, 100), 1.6))
    assert settled_seconds(slow.compute_seconds, POLICY) == pytest.approx(0.995, abs=0.01)
    assert recent_seconds(slow.compute_seconds, POLICY) == pytest.approx(1.59)
    assert kinds(slow) == ["slow"]
    # It stays a finding however long it lasts, while the settled time is in sight.
    assert kinds(updates(step_seconds=dict.fromkeys(range(40, 100), 1.6))) == ["slow"]
    # The first updates of a session, slow as they are, are no measure.
    assert kinds(updates(step_seconds=dict.fromkeys(range(4), 9.0))) == []
    waiting = updates(
        step_seconds=dict.fromkeys(range(90, 100), 1.6), data_wait_seconds=dict.fromkeys(range(90, 100), 0.6)
    )
    assert kinds(waiting) == ["data_wait"]
    assert settled_seconds(np.ones(23), POLICY) is None


def test_skipped_updates_are_counted():
    assert kinds(updates(skipped={99: 1, 98: 1})) == ["skipped"]
    assert kinds(updates(skipped={80: 1, 81: 1})) == []


def test_shares_are_of_as_many_updates_as_the_policy_looks_at():
    run = updates(8, skipped={7: 1}, step_seconds=dict.fromkeys(range(8), 2.0), data_wait_seconds={0: 0.93})
    assert (skipped_share(run, POLICY), data_wait_share(run, POLICY)) == (0.125, pytest.approx((0.93 + 0.07) / 16))
    assert (skipped_share(updates(7), POLICY), data_wait_share(updates(7), POLICY)) == (None, None)
    # Of a log that does not tell of skipped updates nothing is known, and nothing found.
    silent = updates(skipped=dict.fromkeys(range(100), np.nan))
    assert (skipped_share(silent, POLICY), kinds(silent)) == (None, [])


def test_the_time_left_is_at_the_pace_of_the_session():
    assert (session_goodput(30.0, 40.0), session_goodput(0.0, 40.0), session_goodput(41.0, 40.0)) == (0.75, None, 1.0)
    assert left_seconds(100, 1.5, 0.75) == 200
    assert (left_seconds(100, None, 0.75), left_seconds(100, 1.5, None)) == (None, None)


def test_a_loss_that_is_not_finite_is_no_spike():
    assert [is_spike(loss, 3.0) for loss in (3.0, 3.1, np.inf, np.nan)] == [False, True, False, False]
    assert not is_spike(9.0, None)
    found = is_finite(np.array([1.0, np.nan, 1.0]), np.array([1.0, 1.0, np.inf]))
    assert found.tolist() == [True, False, False]


def test_a_straggler_is_named():
    [found] = judge_signs([sign(0), sign(1), sign(2, own_seconds=0.2)], 1.0, POLICY)
    assert (found.kind, found.process) == ("straggler", 2)
    assert "process 2 on host2" in found.text
    [found] = judge_signs([sign(0), sign(1, probe_seconds=0.003), sign(2)], 1.0, POLICY)
    assert (found.kind, found.process, "1.50 times" in found.text) == ("straggler", 1, True)
    # Two processes: each beside the other.
    assert [f.process for f in judge_signs([sign(0, own_seconds=0.5), sign(1)], 1.0, POLICY)] == [0]
    assert judge_signs([sign(0, own_seconds=0.5)], 1.0, POLICY) == []
    assert judge_signs([sign(0, own_seconds=0.5), sign(1, own_seconds=None)], None, POLICY) == []


def test_the_process_that_the_others_wait_for_is_named():
    """0 and 1 sit in update 41; 2 still waits for its data, so that the collective never ends."""
    still = {"phase_seconds": 100.0}
    late = sign(2, phase="waiting for the data of step 41", activity="data", **still)
    [found] = judge_signs([sign(0, **still), sign(1, **still), late], 1.0, POLICY)
    assert (found.kind, found.process) == ("stalled", 2)
    assert "3 processes stand still" in found.text
    behind = sign(1, step=39, phase="step 40", **still)
    assert [f.process for f in judge_signs([sign(0, **still), behind], 1.0, POLICY)] == [1]
    # All in the same update: nobody in particular.
    assert [f.process for f in judge_signs([sign(0, **still), sign(1, **still)], 1.0, POLICY)] == [0, 1]
    # What takes long by its nature is left to the watchdog, and a long update is no stall.
    assert judge_signs([sign(0, activity="other", phase="compiling", **still)], 1.0, POLICY) == []
    assert judge_signs([sign(0, **still)], 12.0, POLICY) == []


def test_a_silent_process_is_lost_unless_it_said_goodbye():
    [found] = judge_signs([sign(0), sign(1, age_seconds=200.0)], 1.0, POLICY)
    assert (found.kind, found.process) == ("lost", 1)
    assert judge_signs([sign(0, age_seconds=9e5, ended="done")], 1.0, POLICY) == []


def test_a_process_that_never_gave_a_sign_is_lost_once_it_had_time_to():
    def there(session_seconds, **changes):
        return [sign(number, processes=4, session_seconds=session_seconds, **changes) for number in (0, 1, 3)]

    limit = POLICY.lost_after_seconds
    assert judge_signs(there(limit), 1.0, POLICY) == []
    [found] = judge_signs(there(limit + 1), 1.0, POLICY)
    assert (found.kind, found.process, found.text) == ("lost", 2, "process 2 never gave a sign")
    assert judge_state(there(limit + 1), [found], 40, 100, POLICY) == "stalled"
    assert judge_signs(there(limit + 1, ended="done"), 1.0, POLICY) == []


@pytest.mark.parametrize(
    ("signs", "saved", "state"),
    [
        ([sign(0)], 40, "training"),
        ([sign(0, activity="other", phase="saving step 40")], 40, "training"),
        ([sign(0, activity="other", phase="compiling", own_seconds=None)], 0, "starting"),
        ([sign(0), sign(1, age_seconds=100.0)], 40, "stalled"),
        ([sign(0, phase_seconds=100.0)], 40, "stalled"),
        ([sign(0, age_seconds=100.0)], 40, "lost"),
        ([sign(0, age_seconds=100.0, ended="stopped")], 40, "stopped"),
        ([sign(0, ended="done")], 40, "stopped"),  # --until
        ([sign(0, ended="done")], 100, "finished"),
        ([sign(0, age_seconds=100.0)], 100, "finished"),
        ([sign(0, ended="unhealthy"), sign(1, age_seconds=100.0)], 40, "unhealthy"),
        ([sign(0, ended="stopped"), sign(1, ended="failed")], 40, "failed"),
        ([], 40, "stopped"),
    ],
)
def test_the_state_of_a_run(signs, saved, state):
    assert judge_state(signs, judge_signs(signs, 1.0, POLICY), saved, 100, POLICY) == state


def test_thresholds_come_from_the_policy():
    strict = POLICY.model_copy(update={"slow_factor": 1.001, "data_wait_share": 0.001, "spike_least_nats": 0.0})
    slow = updates(step_seconds=dict.fromkeys(range(90, 100), 1.02))
    found = judge_updates(replace(slow, loss=updates(loss={99: 2.2}).loss), slow, strict)
    assert [finding.kind for finding in found] == ["spike", "slow", "data_wait"]
