"""The TPU kernel, run step by step in interpret mode, against the blockwise one, which float64 NumPy checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.blockwise import blockwise_attention
from ectype.model.splash import splash_attention, splash_block_tokens

LENGTH = 512


def inputs(heads, groups, head_dim, length=LENGTH, batch=1):
    draw = np.random.default_rng(heads + head_dim)
    shapes = [(batch, length, heads, head_dim), *[(batch, length, groups, head_dim)] * 2]
    return [jnp.asarray(draw.standard_normal(shape), jnp.float32) for shape in shapes]


def documents(batch=1, length=LENGTH):
    return jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 4, (batch, length)), axis=1), jnp.int32)


@pytest.mark.parametrize(
    ("window", "block", "segments", "heads", "groups", "head_dim"),
    [
        (None, 128, False, 2, 2, 128),
        (200, 128, True, 4, 2, 128),
        (256, 256, False, 2, 1, 256),
        (LENGTH, 512, True, 2, 2, 64),
    ],
)
def test_equals_the_blockwise_kernel(window, block, segments, heads, groups, head_dim):
    arrays, ids = inputs(heads, groups, head_dim), documents() if segments else None
    weight = jnp.asarray(np.random.default_rng(2).standard_normal(arrays[0].shape), jnp.float32)

    def value_and_gradients(kernel, **options):
        def total(*arrays):
            context = kernel(*arrays, window, ids, block, **options)
            return jnp.sum(context * weight), context

        gradients, context = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)
        return [context, *gradients]

    ours = value_and_gradients(splash_attention, interpret=True)
    for mine, theirs in zip(ours, value_and_gradients(blockwise_attention), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=3e-5)


@pytest.mark.parametrize("window", [130, 4])
def test_window_counts_the_current_token(window):
    """Equal scores and unit values show each key's weight: query i sees min(i + 1, W) keys."""
    length = 256
    eye = jnp.broadcast_to(jnp.eye(length)[None, :, None], (1, length, 1, length))
    zeros = jnp.zeros((1, length, 1, length))
    context = np.asarray(splash_attention(zeros, zeros, eye, window, None, 128, interpret=True))
    assert (context[0, :, 0] > 0).sum(1).tolist() == [min(i + 1, window) for i in range(length)]


def test_perturbing_a_key_moves_only_queries_in_its_window():
    query, key, value = inputs(1, 1, 128, 256)
    window, moved = 100, 77
    before = np.asarray(splash_attention(query, key, value, window, None, 128, interpret=True))
    key, value = key.at[:, moved].add(1), value.at[:, moved].add(1)
    after = np.asarray(splash_attention(query, key, value, window, None, 128, interpret=True))
    changed = np.flatnonzero(np.abs(after - before).max((0, 2, 3)) > 0)
    assert changed.tolist() == list(range(moved, moved + window))


def test_blocks_divide_the_length_into_whole_vectors():
    assert splash_block_tokens(8192) == 2048
    assert splash_block_tokens(8192, 1000) == 512
    assert splash_block_tokens(384) == 384
    assert splash_block_tokens(640, 512) == 128
    assert splash_block_tokens(200) is None
