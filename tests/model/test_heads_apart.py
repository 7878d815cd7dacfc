"""The way to attention that suits TPUs, with heads apart from the products on, computes what the other way does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model import attention as dispatch
from ectype.model.decoder import forward
from ectype.model.linear import linear, linear_from_heads, linear_to_heads
from ectype.model.parameters import init_parameters
from ectype.model.rope import rotary_tables, rotate, rotate_by_product
from ectype.model.splash import splash_attention
from ectype.recipe.load import load_recipe

LENGTH = 128
FAMILIES = {
    "projection norm, shared heads": ["model.n_kv_heads=2"],
    "head norm, biases, tied": ["model.qk_norm=head", "model.attention_bias=true", "model.tied_head=true"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_is_the_same(family, monkeypatch):
    monkeypatch.setattr(dispatch, "splash_attention", partial(splash_attention, interpret=True))
    sizes = ["model.d_model=64", "model.n_heads=4", "model.n_kv_heads=4", "model.head_dim=16", "model.d_ffn=48"]
    windows = ["model.n_layers=2", "model.window_pattern=[40, null]"]
    model = load_recipe("toy-calm", [*sizes, *windows, *FAMILIES[family]]).model
    params = init_parameters(model, 3)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, model.vocab_size, (2, LENGTH)), jnp.int32)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((2, LENGTH, 64)), jnp.float32)

    def total(params, kernel):
        hidden = forward(params, tokens, model, kernel=kernel)
        return jnp.sum(hidden * weight), hidden

    (gradients, hidden), (expected, expected_hidden) = (
        jax.jit(jax.grad(partial(total, kernel=kernel), has_aux=True))(params) for kernel in ("splash", "blockwise")
    )
    np.testing.assert_allclose(hidden, expected_hidden, atol=2e-5)
    for mine, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5 * max(1, float(jnp.max(jnp.abs(theirs)))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rotation_by_a_product_rounds_nothing_more(dtype):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 8, 3, 32)), dtype)
    cos, sin = rotary_tables(jnp.arange(8, dtype=jnp.int32), 5e5, 32, None)
    ours, theirs = rotate_by_product(x, cos, sin), rotate(x, cos, sin)
    assert ours.dtype == x.dtype
    spacing = jnp.finfo(dtype).eps
    np.testing.assert_allclose(ours.astype(jnp.float32), theirs.astype(jnp.float32), rtol=spacing, atol=spacing)


def test_products_with_heads_apart_equal_linear_and_its_gradients():
    draw = np.random.default_rng(0)
    x, weight = jnp.asarray(draw.standard_normal((2, 5, 24))), jnp.asarray(draw.standard_normal((32, 24)))
    back, by = jnp.asarray(draw.standard_normal((24, 32))), jnp.asarray(draw.standard_normal((2, 5, 24)))

    def apart(x, weight, back):
        heads = linear_to_heads(x, weight, 8)
        assert heads.shape == (2, 5, 4, 8)
        return jnp.sum(linear_from_heads(heads, back) * by)

    def flat(x, weight, back):
        return jnp.sum(linear(linear(x, weight), back) * by)

    ours = jax.value_and_grad(apart, argnums=(0, 1, 2))(x, weight, back)
    theirs = jax.value_and_grad(flat, argnums=(0, 1, 2))(x, weight, back)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
