"""Per-token measures against a float64 computation that shares no code with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.evaluate import measures
from ectype.evaluate.measures import chunk_measures, row_measures
from ectype.model.decoder import forward, head_logits
from ectype.model.parameters import init_parameters
from ectype.recipe.spec import Model

VOCABULARY = 50


def log_softmax64(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def kl64(reference: np.ndarray, ours: np.ndarray) -> np.ndarray:
    left, right = log_softmax64(reference), log_softmax64(ours)
    return (np.exp(left) * (left - right)).sum(axis=-1)


def token_kl(reference: np.ndarray, ours: np.ndarray) -> np.ndarray:
    log_z = jax.nn.logsumexp(reference, axis=-1), jax.nn.logsumexp(ours, axis=-1)
    return np.asarray(measures.token_kl(jnp.asarray(reference), jnp.asarray(ours), log_z))


def logits(seed: int, scale: float = 4.0, rows: int = 1000) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((64, rows)) * scale).astype(np.float32)


@pytest.mark.parametrize("change", [1e-5, 1e-4, 1e-2, 0.3, 3.0, 60.0])
def test_kl_keeps_its_digits_from_rounding_size_to_other_models(change: float) -> None:
    reference = logits(0)
    ours = reference + logits(1, change)
    found, expected = token_kl(reference, ours), kl64(reference, ours)
    # The textbook sum in float64 is itself good to 1e-15 only.
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-15)


def test_kl_is_zero_for_equal_logits_and_blind_to_an_offset() -> None:
    reference = logits(0)
    assert np.all(token_kl(reference, reference) == 0)
    assert token_kl(reference, reference + np.float32(0.5)).max() < 1e-12


def test_kl_has_a_direction() -> None:
    left, right = logits(0, 1.0), logits(1, 3.0)
    np.testing.assert_allclose(token_kl(right, left), kl64(right, left), rtol=1e-5)
    assert not np.allclose(token_kl(left, right), token_kl(right, left), rtol=0.1)


def test_kl_of_broken_logits_is_not_a_number() -> None:
    broken = logits(0)
    broken[3, 7] = np.nan
    found = token_kl(logits(1), broken)
    assert np.isnan(found[3])
    assert np.isfinite(np.delete(found, 3)).all()


def losses(values: np.ndarray, targets: np.ndarray) -> np.ndarray:
    both = jnp.asarray(values)
    return np.asarray(chunk_measures(both, both, jnp.asarray(targets), values.shape[-1])["loss"])


def test_loss_is_the_negative_log_probability() -> None:
    values, targets = logits(2), np.arange(64, dtype=np.int32)
    expected = -log_softmax64(values)[np.arange(64), targets]
    np.testing.assert_allclose(losses(values, targets), expected, rtol=1e-6, atol=2e-6)


def test_a_uniform_model_loses_the_logarithm_of_its_rows() -> None:
    found = losses(np.zeros((10, 8), np.float32), np.zeros(10, np.int32))
    np.testing.assert_allclose(found, np.log(8), rtol=1e-7)


def test_padded_rows_count_only_in_the_all_rows_losses() -> None:
    ours, reference = logits(3, rows=60), logits(4, rows=60)
    targets = np.arange(64, dtype=np.int32) % VOCABULARY
    found = chunk_measures(jnp.asarray(ours), jnp.asarray(reference), jnp.asarray(targets), VOCABULARY)
    at = (np.arange(64), targets)
    np.testing.assert_allclose(found["loss"], -log_softmax64(ours[:, :VOCABULARY])[at], rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(found["loss_all_rows"], -log_softmax64(ours)[at], rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(found["reference_loss_all_rows"], -log_softmax64(reference)[at], rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(found["kl"], kl64(reference[:, :VOCABULARY], ours[:, :VOCABULARY]), rtol=1e-5)
    choices = [values[:, :VOCABULARY].argmax(axis=1) for values in (ours, reference)]
    np.testing.assert_array_equal(found["agree"], choices[0] == choices[1])


MODEL = Model(
    d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, head_dim=8, d_ffn=24, vocab_size=VOCABULARY, trained_rows=64,
    window_pattern=(4, None), rope_theta=1e4,
)  # fmt: skip
WIDE = MODEL.model_copy(update={"d_model": 24, "trained_rows": None})


def test_windows_are_scored_by_what_each_model_says_before_each_token() -> None:
    ours, reference = init_parameters(MODEL, 1), init_parameters(WIDE, 2)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (3, 12), dtype=np.int32)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    found = row_measures(
        (ours, reference), inputs, targets, models=(MODEL, WIDE), compute_dtype="float32", chunk_tokens=7
    )  # fmt: skip
    assert found["loss"].shape == (3, 11)
    alone = row_measures((ours,), inputs, targets, models=(MODEL,), compute_dtype="float32", chunk_tokens=7)
    np.testing.assert_allclose(alone.pop("loss"), found["loss"], atol=1e-6)
    assert list(alone) == ["loss_all_rows"]
    sides = [
        np.asarray(head_logits(params, forward(params, tokens, model), model))[:, :-1]
        for params, model in ((ours, MODEL), (reference, WIDE))
    ]
    expected = -np.take_along_axis(log_softmax64(sides[0][..., :VOCABULARY]), tokens[:, 1:, None], axis=-1)[..., 0]
    np.testing.assert_allclose(found["loss"], expected, atol=2e-6)
    np.testing.assert_allclose(found["kl"], kl64(sides[1], sides[0][..., :VOCABULARY]), rtol=1e-4)


def test_the_chunk_size_changes_nothing_but_rounding() -> None:
    params = init_parameters(MODEL, 1), init_parameters(MODEL, 2)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2, 12), dtype=np.int32)
    one, other = (
        row_measures(params, tokens, tokens, models=(MODEL, MODEL), compute_dtype="float32", chunk_tokens=chunk)
        for chunk in (5, 1024)
    )
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=2e-6)


def test_logits_are_held_for_one_chunk_only() -> None:
    params = init_parameters(MODEL, 1), init_parameters(MODEL, 2)
    tokens = jnp.zeros((8, 64), jnp.int32)
    lowered = row_measures.lower(
        params, tokens, tokens, models=(MODEL, MODEL), compute_dtype="float32", chunk_tokens=32
    ).as_text()  # fmt: skip
    assert f"<32x{MODEL.rows}xf32>" in lowered
    assert f"<512x{MODEL.rows}xf32>" not in lowered
    assert f"<8x64x{MODEL.rows}xf32>" not in lowered


def test_bfloat16_compute_still_scores_in_float32() -> None:
    params = init_parameters(MODEL, 1), init_parameters(MODEL, 1)
    tokens = jnp.zeros((1, 12), jnp.int32)
    shapes = jax.eval_shape(
        lambda: row_measures(params, tokens, tokens, models=(MODEL, MODEL), compute_dtype="bfloat16", chunk_tokens=32)
    )
    assert {value.dtype for value in shapes.values()} == {np.dtype("float32")}
