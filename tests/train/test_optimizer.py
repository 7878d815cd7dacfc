"""AdamW and the skip rule against OLMo-core's own trace, torch's clipping, and C38."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from ectype.recipe.spec import Optimizer, SkipStep
from ectype.train import optimizer as optim

RULE = Optimizer(skip_step=SkipStep(window_steps=128, sigma=6))


def update(params, gradients, state, recipe, rate, loss, norm):
    """One whole update: rule, AdamW, memory. Returns (params, state, accepted)."""
    loss, norm = jnp.float32(loss), jnp.float32(norm)
    accepted = optim.accepts(state.history, loss, norm, recipe.skip_step)
    new, after = optim.adamw(params, gradients, state, recipe, jnp.float32(rate), jnp.float32(1), accepted)
    return new, replace(after, history=optim.remember(state.history, loss, norm)), bool(accepted)


@pytest.mark.parametrize("form", ["foreach", "single"])
def test_follows_olmo_core_trace(shared, form):
    """60 updates with spikes in loss and norm; group `q` (here the embedding) is not decayed. Tolerance 2e-7."""
    trace = json.loads((shared / "reference/olmocore_tiny/components/skipstep_adamw_trace.json").read_text())[form]
    recipe = Optimizer(skip_step=SkipStep(window_steps=16, sigma=6))
    params = {"embedding": jnp.linspace(0.5, 2, 4), "rest": jnp.linspace(-1, 1, 8)}
    state = optim.init_optimizer(params, recipe, "float32")
    for row in trace:
        gradients = {"embedding": jnp.float32(row["grad_q"]), "rest": jnp.float32(row["grad_p"])}
        params, state, accepted = update(params, gradients, state, recipe, 1e-2, row["loss"], row["grad_norm"])
        assert accepted == (row["skipped"] == 0), row["i"]
        assert float(state.count) == row["adam_step"]
        np.testing.assert_allclose(params["rest"], row["p"], atol=2e-7)
        np.testing.assert_allclose(params["embedding"], row["q"], atol=2e-7)


def test_skipped_steps_of_the_real_run(shared):
    """The decisions that OLMo-core took, from its logged losses and norms alone."""
    lines = (shared / "reference/olmocore_tiny/log.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    history = optim.init_optimizer({"rest": jnp.zeros(1)}, RULE, "float32").history
    skipped = []
    for row in rows:
        loss, norm = jnp.float32(row["ce_loss"]), jnp.float32(row["grad_norm"])
        if not optim.accepts(history, loss, norm, RULE.skip_step):
            skipped.append(int(row["step"]))
        history = optim.remember(history, loss, norm)
    assert skipped == [238, 282]


def quiet_history(values=70, seed=0):
    params = {"rest": jnp.ones(3)}
    state = optim.init_optimizer(params, RULE, "float32")
    losses = 2 + 0.01 * np.random.default_rng(seed).standard_normal(values)
    for loss in losses:
        params, state, accepted = update(params, {"rest": jnp.ones(3)}, state, RULE, 1e-3, loss, 1.0 + loss / 100)
        assert accepted
    return params, state


def test_spike_then_nan_then_normal():
    """C38: the spike and the NaN are skipped and leave parameters, moments and count as they were; then all goes on."""
    params, state = quiet_history()
    for loss, norm in ((50.0, 1.02), (float("nan"), 1.02), (2.0, float("nan")), (2.0, float("inf")), (2.0, 90.0)):
        bad = {"rest": jnp.full(3, float("nan") if not np.isfinite(loss + norm) else 7.0)}
        new, after, accepted = update(params, bad, state, RULE, 1e-3, loss, norm)
        assert not accepted
        for old, kept in (
            (params, new),
            (state.first_moment, after.first_moment),
            (state.second_moment, after.second_moment),
        ):
            assert np.array_equal(old["rest"], kept["rest"])
        assert after.count == state.count
        state = after
    new, _, accepted = update(params, {"rest": jnp.ones(3)}, state, RULE, 1e-3, 2.0, 1.02)
    assert accepted
    assert np.isfinite(np.asarray(new["rest"])).all()


def test_values_that_are_not_finite_never_enter_the_history():
    _, state = quiet_history()
    after = optim.remember(state.history, jnp.float32("nan"), jnp.float32(1))
    assert after.count == state.history.count
    assert np.array_equal(after.losses, state.history.losses)


def test_finite_spikes_stay_in_the_history():
    """As in the reference: a skipped finite value widens what counts as typical."""
    _, state = quiet_history()
    after = optim.remember(state.history, jnp.float32(50), jnp.float32(1))
    assert after.count == state.history.count + 1
    assert 50 in np.asarray(after.losses)


def test_rule_is_off_before_half_a_window_and_compares_with_earlier_values_only():
    params, state = quiet_history(values=62)
    assert update(params, {"rest": jnp.ones(3)}, state, RULE, 1e-3, 50.0, 1.0)[2]
    params, state = quiet_history(values=63)
    assert not update(params, {"rest": jnp.ones(3)}, state, RULE, 1e-3, 50.0, 1.0)[2]


def test_without_a_rule_only_finiteness_counts():
    params, state = quiet_history()
    free = Optimizer(skip_step=None)
    assert update(params, {"rest": jnp.ones(3)}, state, free, 1e-3, 50.0, 1.0)[2]
    assert not update(params, {"rest": jnp.ones(3)}, state, free, 1e-3, float("nan"), 1.0)[2]


def test_count_starts_ahead_where_step_zero_was_checkpointed():
    """The first update of such a run is 0.735 of the rate: sqrt(1 - b2^2) / (1 - b1^2) * (1 - b1) / sqrt(1 - b2)."""
    ahead = Optimizer(count_starts_at=1, weight_decay=0.0, skip_step=None)
    params = {"rest": jnp.zeros(1)}
    state = optim.init_optimizer(params, ahead, "float32")
    new, after, _ = update(params, {"rest": jnp.ones(1)}, state, ahead, 1.0, 2.0, 1.0)
    expected = 0.1 / (1 - 0.9**2) / np.sqrt(0.05 / (1 - 0.95**2))
    assert float(new["rest"][0]) == pytest.approx(-expected, rel=1e-6)
    assert expected == pytest.approx(0.735, abs=1e-3)
    assert float(after.count) == 2


def test_step_increment_switch():
    frozen = Optimizer(step_increment_bugfix=False, skip_step=None)
    params = {"rest": jnp.zeros(1)}
    state = optim.init_optimizer(params, frozen, "float32")
    assert float(update(params, params, state, frozen, 1.0, 2.0, 1.0)[1].count) == 0


@pytest.mark.reference
def test_clipping_is_torchs():
    torch = pytest.importorskip("torch")
    gradients = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for factor in (1e-3, 1.0, 40.0):
        tensor = torch.nn.Parameter(torch.zeros(100))
        tensor.grad = torch.tensor(gradients * np.float32(factor))
        norm = torch.nn.utils.clip_grad_norm_([tensor], 1.0)
        ours = jnp.sqrt(optim.squared_norm({"a": jnp.asarray(gradients * np.float32(factor))}))
        assert float(ours) == pytest.approx(norm.item(), rel=1e-6)
        clipped = gradients * np.float32(factor) * np.float32(optim.clip_scale(ours, 1.0))
        np.testing.assert_allclose(clipped, tensor.grad.numpy(), rtol=1e-6)


def test_bfloat16_moments_stay_bfloat16():
    params = {"rest": jnp.ones(4)}
    state = optim.init_optimizer(params, RULE, "bfloat16")
    new, after, _ = update(params, params, state, RULE, 1e-3, 2.0, 1.0)
    assert after.first_moment["rest"].dtype == after.second_moment["rest"].dtype == jnp.bfloat16
    assert new["rest"].dtype == jnp.float32
