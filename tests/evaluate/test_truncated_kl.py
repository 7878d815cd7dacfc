"""KL against the top ids of a reference, by a float64 computation of its definition and of the whole divergence."""

import jax.numpy as jnp
import numpy as np
import pytest

from ectype.evaluate.truncated_kl import top_of_reference, truncated_measures

TOKENS, ROWS = 48, 300


def log_softmax64(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def logits(seed: int, scale: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((TOKENS, ROWS)) * scale).astype(np.float32)


def found_for(reference: np.ndarray, ours: np.ndarray, top: int, vocab_size: int = ROWS) -> dict[str, np.ndarray]:
    targets = jnp.arange(TOKENS, dtype=jnp.int32)
    stored = top_of_reference(jnp.asarray(reference), targets, top, vocab_size)
    found = truncated_measures(
        jnp.asarray(ours), stored["ids"], stored["log_probabilities"], stored["log_tail"], targets, vocab_size
    )
    return {name: np.asarray(values) for name, values in found.items()}


def expected_for(reference: np.ndarray, ours: np.ndarray, top: int) -> dict[str, np.ndarray]:
    p, q = log_softmax64(reference), log_softmax64(ours)
    lower, upper, full, mass = [], [], (np.exp(p) * (p - q)).sum(axis=1), []
    for p_V, q_V in zip(p, q, strict=True):
        order = np.argsort(-p_V, kind="stable")
        head, tail = order[:top], order[top:]
        p_tail, q_tail = np.exp(p_V[tail]).sum(), np.exp(q_V[tail]).sum()
        known = (np.exp(p_V[head]) * (p_V[head] - q_V[head])).sum()
        lower.append(known + (p_tail * np.log(p_tail / q_tail) if len(tail) else 0.0))
        bound = p_tail * (p_V[head[-1]] - q_V[tail].min()) if len(tail) else 0.0
        upper.append(known + bound)
        mass.append(p_tail)
    return {"lower": np.array(lower), "upper": np.array(upper), "full": full, "mass": np.array(mass)}


def assert_as_good_as_float32_allows(found: np.ndarray, expected: np.ndarray) -> None:
    """A log-probability of -16 is stored to 1e-6. A divergence K is half the mean square of differences of such
    numbers, so that errors e in them make one of at most e sqrt(2 K) + e^2 / 2 in it."""
    assert (np.abs(found - expected) <= 2e-5 * expected + 1e-6 * np.sqrt(2 * expected) + 5e-13).all()


@pytest.mark.parametrize("top", [1, 8, 64, ROWS])
@pytest.mark.parametrize("change", [0.03, 1.0, 8.0])
def test_bounds_are_those_of_their_definition_and_hold_the_full_divergence(top: int, change: float) -> None:
    reference = logits(0, 3.0)
    ours = reference + logits(1, change)
    found, expected = found_for(reference, ours, top), expected_for(reference, ours, top)
    assert_as_good_as_float32_allows(found["kl"], expected["lower"])
    np.testing.assert_allclose(found["kl_upper"], expected["upper"], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found["tail_mass"], expected["mass"], rtol=1e-5, atol=1e-7)
    assert (expected["lower"] <= expected["full"] + 1e-12).all()
    assert (expected["full"] <= expected["upper"] + 1e-12).all()
    if top == ROWS:
        assert_as_good_as_float32_allows(found["kl"], expected["full"])


def test_small_divergences_keep_their_digits() -> None:
    reference = logits(0, 3.0)
    ours = reference + logits(1, 1e-4)
    found, expected = found_for(reference, ours, 64), expected_for(reference, ours, 64)
    assert 1e-10 < expected["lower"].mean() < 1e-7
    assert_as_good_as_float32_allows(found["kl"], expected["lower"])
    assert found_for(reference, reference, 64)["kl"].max() < 1e-12


def test_padded_rows_are_no_part_of_it() -> None:
    reference, ours = logits(0, 3.0), logits(1, 3.0)
    found = found_for(reference, ours, 16, vocab_size=200)
    expected = expected_for(reference[:, :200], ours[:, :200], 16)
    np.testing.assert_allclose(found["kl"], expected["lower"], rtol=2e-5)
    assert (found["loss_all_rows"] > found["loss"]).all()
    choices = [values[:, :200].argmax(axis=1) for values in (ours, reference)]
    np.testing.assert_array_equal(found["agree"], choices[0] == choices[1])
