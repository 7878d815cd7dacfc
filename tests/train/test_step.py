"""One update: the same for every split over devices and micro-batches, and normalised by the global count."""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.decoder import forward, head_logits
from ectype.model.parameters import init_parameters
from ectype.recipe.load import load_placement, load_recipe
from ectype.train.sharding import make_mesh
from ectype.train.state import fresh_state
from ectype.train.step import DeviceBatch, build_train_step

SMALL = [
    "model.d_model=32", "model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=8", "model.d_ffn=48",
    "model.n_layers=3", "model.vocab_size=60", "model.trained_rows=64", "model.window_pattern=[4, null]",
    "data.sequence_length_tokens=16", "data.order.max_target_length_tokens=16",
]  # fmt: skip


@lru_cache(maxsize=2)
def weights(model):
    """Step-0 weights; drawing them compiles more programs than the rest of a test."""
    return jax.device_get(init_parameters(model, 0))


def one_update(*placement, extra=()):
    recipe = load_recipe("toy-calm", [*SMALL, *extra])
    where = load_placement("cpu-one", placement)
    mesh = make_mesh(where)
    state = fresh_state(weights(recipe.model), recipe, mesh)
    tokens = np.random.default_rng(0).integers(0, 60, (8, 16)).astype(np.int32)
    keep = np.ones(8, bool)
    keep[[1, 6, 7]] = False
    segments = np.sort(np.random.default_rng(1).integers(0, 3, (8, 16)), axis=1).astype(np.int32)
    batch = DeviceBatch(jnp.asarray(tokens), jnp.asarray(keep), jnp.zeros(8, bool), jnp.asarray(segments))
    step = jax.jit(build_train_step(recipe, where, mesh))
    state, metrics = step(state, batch, np.float32(1e-3))
    return recipe, batch, state, jax.device_get(metrics)


@pytest.fixture(scope="module")
def whole():
    return one_update()


@pytest.mark.parametrize(("devices", "micro"), [(1, 2), (2, 1), (8, 1)])
def test_same_update_however_it_is_split(whole, devices, micro):
    """C34: 1e-5 relative, masked windows and documents included. Other meshes are tested in test_meshes."""
    _, _, state, metrics = one_update(f"devices={devices}", f"micro_batch_windows={micro}")
    _, _, expected, reference = whole
    for name in ("loss", "z_loss", "grad_norm", "loss_tokens"):
        assert getattr(metrics, name) == pytest.approx(getattr(reference, name), rel=1e-5), name
    moments = zip(*(jax.tree.leaves(s.optimizer.first_moment) for s in (state, expected)), strict=True)
    for ours, theirs in moments:
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-5 * scale)


def test_loss_is_the_sum_over_the_count(whole):
    """C34: summed cross-entropy over counted tokens; a rejected window adds its whole length to the count."""
    recipe, batch, _, metrics = whole
    params = weights(recipe.model)
    logits = head_logits(
        params, forward(params, batch.tokens, recipe.model, segment_ids_BL=batch.segment_ids), recipe.model
    )
    logits = np.asarray(logits, np.float64)[:, :-1]
    lse = np.log(np.exp(logits).sum(-1))
    losses = lse - np.take_along_axis(logits, np.asarray(batch.tokens)[:, 1:, None], -1)[..., 0]
    kept = np.asarray(batch.keep)
    count = 5 * 15 + 3 * 16
    assert metrics.loss_tokens == count
    assert metrics.loss == pytest.approx(losses[kept].sum() / count, rel=1e-6)
    assert metrics.z_loss == pytest.approx(1e-5 * (lse[kept] ** 2).sum() / count, rel=1e-3)


def test_rejected_windows_may_count_for_nothing():
    _, _, _, metrics = one_update(extra=["loss.rejected_windows_count=none"])
    assert metrics.loss_tokens == 5 * 15


def test_fully_rejected_batch_is_zero_and_no_nan(whole):
    recipe, batch, _, _ = whole
    mesh = make_mesh(load_placement("cpu-one", ["devices=2"]))
    state = fresh_state(weights(recipe.model), recipe, mesh)
    empty = replace(batch, keep=jnp.zeros(8, bool))
    state, metrics = jax.jit(build_train_step(recipe, load_placement("cpu-one"), mesh))(state, empty, np.float32(1e-3))
    assert float(metrics.loss) == 0
    assert float(metrics.grad_norm) == 0
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state))


def test_padding_is_no_target(whole):
    recipe, batch, _, _ = whole
    batch = replace(batch, keep=jnp.ones(8, bool))
    mesh = make_mesh(load_placement("cpu-one"))
    state = fresh_state(weights(recipe.model), recipe, mesh)
    real = np.ones((8, 16), bool)
    real[2, 10:] = False
    padded = replace(batch, target_mask=jnp.asarray(real))
    _, metrics = jax.jit(build_train_step(recipe, load_placement("cpu-one"), mesh))(state, padded, np.float32(1e-3))
    assert metrics.loss_tokens == 8 * 15 - 6


@pytest.mark.parametrize("remat", ["full", "[query, key, value, context, gate]"])
def test_rematerialisation_changes_nothing(whole, remat):
    *_, metrics = one_update(f"remat={remat}")
    assert metrics.loss == whole[3].loss
    assert metrics.grad_norm == pytest.approx(whole[3].grad_norm, rel=1e-6)


def test_chunked_loss_changes_nothing(whole):
    _, _, _, metrics = one_update("loss_chunk_tokens=24")
    assert metrics.loss == pytest.approx(whole[3].loss, rel=1e-6)
    assert metrics.grad_norm == pytest.approx(whole[3].grad_norm, rel=1e-6)
