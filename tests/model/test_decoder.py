"""The decoder against OLMo-core's own logits, Hugging Face's, and properties of its parts."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.decoder import forward, head_logits, layer_forward, layer_module, parameter_shapes
from ectype.model.norm import rms_norm
from ectype.model.parameters import init_parameters, parameter_count
from ectype.model.rope import attention_factor, inverse_frequencies
from ectype.recipe.load import load_recipe
from ectype.recipe.spec import Model, Yarn
from ectype.weights.load import load_any_weights

TOY = load_recipe("toy-calm").model


@pytest.mark.parametrize(("run", "step"), [("calm", s) for s in (0, 80, 640)] + [("tiny", s) for s in (40, 640)])
def test_logits_equal_olmo_core(shared, run, step):
    """OLMo-core's logits of all 1024 rows at every 16th position of five held-out windows."""
    folder = shared / f"reference/olmocore_{run}"
    params, _, _ = load_any_weights(
        folder / f"hf/step{step}", folder / f"padded_rows/step{step}.safetensors", model=TOY
    )
    probe = np.load(folder / f"probe_logits/step{step}.npz")
    tokens = jnp.asarray(probe["input_ids"], jnp.int32)
    logits = jax.jit(lambda p, t: head_logits(p, forward(p, t, TOY), TOY))(params, tokens)
    np.testing.assert_allclose(logits[:, ::16], probe["core_logits"], atol=2e-5)


def test_query_norm_spans_all_heads():
    """C05: scaling one head's query by 100 shrinks every other head's normalised values."""
    layer = jax.tree.map(lambda s: s[0], init_parameters(TOY, 0)["blocks"]["0"])
    x = jax.random.normal(jax.random.key(0), (1, 5, TOY.d_model))
    before, _, _ = layer_module(layer, TOY).attention.project(x, TOY)
    layer["attention"]["query"] = layer["attention"]["query"].at[: TOY.head_dim].multiply(100)
    after, _, _ = layer_module(layer, TOY).attention.project(x, TOY)
    ratio = np.abs(np.asarray(after[..., 1:, :])).mean() / np.abs(np.asarray(before[..., 1:, :])).mean()
    assert ratio < 0.05


@pytest.mark.parametrize("layers", [2, 4, 6, 9])
def test_scan_equals_layer_by_layer(layers):
    """C07: slot j of block b is layer 4b + j, leftovers included."""
    model = TOY.model_copy(update={"n_layers": layers, "window_pattern": (4, 8, 2, None)})
    params = init_parameters(model, 0)
    tokens = jax.random.randint(jax.random.key(1), (2, 24), 0, 1000)
    x = params["embedding"]["weight"][tokens]
    for layer in range(layers):
        block, slot = divmod(layer, 4)
        part = params.get("blocks", {}).get(str(slot)) if block < layers // 4 else None
        one = params["rest"][str(slot)] if part is None else jax.tree.map(lambda leaf, b=block: leaf[b], part)
        x = layer_forward(one, x, model, model.layer_window(layer))
    expected = rms_norm(x, params["norm"]["weight"], model.norm_eps)
    np.testing.assert_allclose(forward(params, tokens, model), expected, atol=1e-5)


def test_rms_norm_is_float32_and_multiplies_the_weight_before_the_cast():
    x = (jax.random.normal(jax.random.key(0), (3, 64)) * 7).astype(jnp.bfloat16)
    weight = jnp.full((64,), 1.001953125)
    wide = np.asarray(x, np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * 1.001953125
    np.testing.assert_array_equal(rms_norm(x, weight, 1e-6), jnp.asarray(expected, jnp.float32).astype(jnp.bfloat16))


def test_rotary_tables_equal_olmo_core(shared):
    stored = json.loads((shared / "reference/olmocore_tiny/components/rope.json").read_text())
    yarn = Yarn(factor=8, original_length_tokens=8192)
    np.testing.assert_array_equal(inverse_frequencies(5e5, 128), np.float32(stored["inv_freq"]))
    np.testing.assert_array_equal(inverse_frequencies(5e5, 128, yarn), np.float32(stored["yarn_inv_freq"]))
    assert attention_factor(yarn) == stored["yarn_attention_factor"] == 1.2079441541679836


def test_initial_parameters_follow_the_reference_distribution():
    params = init_parameters(TOY, 3)
    weight = np.asarray(params["blocks"]["1"]["mlp"]["gate"])
    assert np.abs(weight).max() <= TOY.init_cut * TOY.init_std
    assert weight.std() == pytest.approx(0.02 * 0.9866, rel=0.02)  # deviation of a normal cut at 3 deviations
    assert (np.asarray(params["blocks"]["1"]["attention"]["query_norm"]) == 1).all()
    other = init_parameters(TOY, 4)["blocks"]["1"]["mlp"]["gate"]
    assert not np.array_equal(weight, other)


def test_parameter_count_of_olmo3_7b():
    """7,298,011,136 at the 100,278 real rows, 7,298,617,344 with OLMo-core's padded ones."""
    model = Model(
        d_model=4096, n_layers=32, n_heads=32, n_kv_heads=32, head_dim=128, d_ffn=11008, vocab_size=100278,
        window_pattern=(4096, 4096, 4096, None), rope_theta=5e5,
    )  # fmt: skip
    assert parameter_count(model) == 7_298_011_136
    assert parameter_count(model.model_copy(update={"trained_rows": 100352})) == 7_298_617_344
    assert parameter_shapes(model)["blocks"]["3"]["mlp"]["gate"] == (8, 11008, 4096)


def test_bfloat16_compute_keeps_parameters_and_returns_bfloat16():
    params = init_parameters(TOY, 0)
    tokens = jax.random.randint(jax.random.key(1), (1, 64), 0, 1000)
    hidden = forward(params, tokens, TOY, compute_dtype="bfloat16")
    assert hidden.dtype == jnp.bfloat16
    exact = forward(params, tokens, TOY)
    assert float(jnp.abs(hidden.astype(jnp.float32) - exact).mean()) < 0.02 * float(jnp.abs(exact).mean())
