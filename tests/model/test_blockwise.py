"""Attention against a float64 NumPy reference: windows, document masks, shared heads, gradients, cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.blockwise import block_spans, default_block_tokens
from ectype.model.blockwise import blockwise_attention as attention


def reference_attention(query, key, value, window, segments):
    """softmax attention in float64, one visible-pair matrix at a time; also the count of visible pairs."""
    query, key, value = (np.asarray(a, np.float64) for a in (query, key, value))
    length, repeats = query.shape[1], query.shape[2] // key.shape[2]
    key, value = np.repeat(key, repeats, axis=2), np.repeat(value, repeats, axis=2)
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    visible = (distance >= 0) & (distance < (window or length))
    visible = np.broadcast_to(visible, (query.shape[0], length, length))
    if segments is not None:
        visible = visible & (segments[:, :, None] == segments[:, None])
    scores = np.einsum("blhk,bshk->bhls", query, key) * query.shape[-1] ** -0.5
    scores = np.where(visible[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhls,bshk->blhk", weights / weights.sum(-1, keepdims=True), value)


def random_inputs(length, heads, groups, head_dim=8, batch=2):
    draw = np.random.default_rng(length + heads)
    shapes = [(batch, length, heads, head_dim), *[(batch, length, groups, head_dim)] * 2]
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize(
    ("length", "window", "block"), [(50, None, 16), (50, 7, 16), (64, 64, 64), (33, 20, 8), (9, 4, 64)]
)
def test_equals_float64_reference(length, window, block, heads, groups, documents):
    inputs = random_inputs(length, heads, groups)
    segments = np.sort(np.random.default_rng(1).integers(0, 4, (2, length)), axis=1) if documents else None
    ours = attention(*inputs, window, None if segments is None else jnp.asarray(segments), block)
    np.testing.assert_allclose(ours, reference_attention(*inputs, window, segments), atol=3e-6)


@pytest.mark.parametrize("window", [None, 7])
def test_gradients_equal_dense_autodiff(window):
    inputs = [jnp.asarray(a) for a in random_inputs(40, 4, 2)]
    segments = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 3, (2, 40)), axis=1))
    weight = jnp.asarray(np.random.default_rng(2).standard_normal(inputs[0].shape), jnp.float32)

    def dense(query, key, value):
        distance = jnp.arange(40)[:, None] - jnp.arange(40)[None]
        visible = (distance >= 0) & (distance < (window or 40)) & (segments[:, :, None] == segments[:, None])
        key, value = jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2)
        scores = jnp.einsum("blhk,bshk->bhls", query, key) * 8**-0.5
        weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf))
        return jnp.einsum("bhls,bshk->blhk", weights, value)

    ours = jax.grad(lambda *a: jnp.sum(weight * attention(*a, window, segments, 16)), argnums=(0, 1, 2))(*inputs)
    theirs = jax.grad(lambda *a: jnp.sum(weight * dense(*a)), argnums=(0, 1, 2))(*inputs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-5)


def test_window_counts_the_current_token():
    """C06: S=8, W=4 gives 1,2,3,4,4,4,4,4 visible keys, 26 in all."""
    eye = np.broadcast_to(np.eye(8, dtype=np.float32)[None, :, None], (1, 8, 1, 8))
    # Equal scores give equal weights, and values that are unit vectors show each key's weight.
    context = np.asarray(attention(jnp.zeros((1, 8, 1, 8)), jnp.zeros((1, 8, 1, 8)), jnp.asarray(eye), 4, None, 4))
    assert (context[0, :, 0] > 0).sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("block", [4, 16, 64])
def test_perturbing_a_key_moves_only_queries_in_its_window(block):
    """C06: token i-W must not change output i; token i-W+1 must."""
    query, key, value = random_inputs(40, 2, 1)
    window, moved = 8, 11
    before = np.asarray(attention(query, key, value, window, None, block))
    key[:, moved] += 1
    value[:, moved] += 1
    changed = np.abs(np.asarray(attention(query, key, value, window, None, block)) - before).max((0, 2, 3)) > 0
    assert np.flatnonzero(changed).tolist() == list(range(moved, moved + window))


@pytest.mark.parametrize(("length", "window"), [(8192, 4096), (8192, 8192), (65536, 4096)])
def test_masked_blocks_are_skipped(length, window):
    """Computed scores exceed visible pairs by no more than half a block per query on either side."""
    block = default_block_tokens(length)
    computed = sum((stop - start) * (stop - first) for start, stop, first in block_spans(length, window, block))
    visible = sum(min(i + 1, window) for i in range(length))
    assert visible < computed <= visible + length * (block + 8)


def test_memory_is_linear_in_length():
    def temporary_bytes(length):
        shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        step = jax.jit(jax.grad(lambda q, k, v: jnp.sum(attention(q, k, v, 256, None, 128)), argnums=(0, 1, 2)))
        return step.lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(4096) < 2.2 * temporary_bytes(2048)
