"""The cache of keys and values against the whole forward pass, for every family and for windows of all sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.cache import decode_step, prefill
from ectype.model.decoder import forward
from ectype.model.parameters import init_parameters
from ectype.recipe.spec import Model, Yarn

OLMO = {
    "d_model": 16, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "d_ffn": 24, "vocab_size": 50,
    "window_pattern": (4, 7, None), "rope_theta": 5e5, "init_std": 0.4,
}  # fmt: skip
BEFORE = OLMO | {"norm_placement": "before"}
MODELS = {
    "olmo with a leftover layer": Model(**OLMO, yarn=Yarn(factor=8, original_length_tokens=8)),
    "llama, its window beyond the cache": Model(**BEFORE | {"window_pattern": (64, None)}, qk_norm="none"),
    "qwen3": Model(**BEFORE | {"window_pattern": (3,)}, qk_norm="head", attention_bias=True, tied_head=True),
}  # fmt: skip
PROMPTS, LENGTH, CACHE = np.array([1, 3, 9, 12]), 26, 32


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_equal_the_whole_forward_pass(name):
    """Prompts of 1 to 12 tokens in one batch, then 14 tokens one by one: past every window and around the cache."""
    model = MODELS[name]
    params = init_parameters(model, 1)
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (len(PROMPTS), LENGTH), np.int32)
    whole = jax.jit(lambda tokens: forward(params, tokens, model))(tokens)
    filled = np.where(np.arange(12) < PROMPTS[:, None], tokens[:, :12], 7)
    hidden, cache = jax.jit(
        lambda tokens, lengths: prefill(params, tokens, lengths, model, cache_tokens=CACHE, compute_dtype="float32")
    )(filled, jnp.asarray(PROMPTS, jnp.int32))
    rows = np.arange(len(PROMPTS))
    np.testing.assert_allclose(hidden, whole[rows, PROMPTS - 1], atol=2e-5)
    step = jax.jit(lambda *arguments: decode_step(params, *arguments, model, compute_dtype="float32"))
    for position in (PROMPTS + new for new in range(14)):
        hidden, cache = step(cache, tokens[rows, position], jnp.asarray(position, jnp.int32))
        np.testing.assert_allclose(hidden, whole[rows, position], atol=2e-5, err_msg=str(position))


def test_a_layer_with_a_window_keeps_no_more_than_the_window():
    model = MODELS["olmo with a leftover layer"]
    shapes = jax.eval_shape(
        lambda: prefill(
            init_parameters(model, 0), jnp.zeros((2, 8), jnp.int32), jnp.array([8, 3]), model, cache_tokens=CACHE,
            compute_dtype="bfloat16",
        )
    )[1]  # fmt: skip
    kept = {slot: leaf[0].shape for slot, leaf in shapes["blocks"].items()}
    assert kept == {"0": (1, 2, 4, 2, 8), "1": (1, 2, 7, 2, 8), "2": (1, 2, CACHE, 2, 8)}
    assert shapes["rest"]["0"][1].shape == (2, 4, 2, 8)
    assert shapes["rest"]["0"][1].dtype == jnp.bfloat16
