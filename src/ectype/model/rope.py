"""Rotary position embedding with optional YaRN.

Shapes: B batch, L length, H heads, K head dim, R = K/2 rotary pairs.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from ectype.recipe.spec import Yarn


def inverse_frequencies(theta: float, head_dim: int, yarn: Yarn | None = None) -> np.ndarray:
    """theta^(-2i/K) in float32 [R] (Su et al. 2021, arXiv:2104.09864), interpolated by YaRN where given.

    YaRN (arXiv:2309.00071, section 3.2): dimensions that turn more than `beta_fast` times over the original
    length keep their frequency, those that turn less than `beta_slow` times are divided by `factor`, and a
    linear ramp joins the two. `truncate` rounds the ramp's ends outwards to whole dimensions.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # The power is taken in float64 and rounded once: within half a unit in the last place of any float32 library.
    frequencies = (1.0 / np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)).astype(np.float32)
    if yarn is None:
        return frequencies

    def turning_dimension(turns: float) -> float:
        return head_dim * math.log(yarn.original_length_tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning_dimension(yarn.beta_fast), turning_dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # A step instead of a ramp, without dividing by zero.
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
    return (frequencies / np.float32(yarn.factor) * ramp + frequencies * (1 - ramp)).astype(np.float32)


def attention_factor(yarn: Yarn | None) -> float:
    """What multiplies cos and sin: 1 without YaRN, else the given factor or 0.1 ln(factor) + 1."""
    if yarn is None:
        return 1.0
    return 0.1 * math.log(yarn.factor) + 1.0 if yarn.attention_factor is None else yarn.attention_factor


def rotary_tables(
    positions_L: jax.Array, theta: float, head_dim: int, yarn: Yarn | None
) -> tuple[jax.Array, jax.Array]:
    """cos and sin, float32 [..., L, R], of positions int32 [..., L]."""
    angles = positions_L.astype(jnp.float32)[..., None] * inverse_frequencies(theta, head_dim, yarn)
    factor = attention_factor(yarn)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate_by_product(x_BLHK: jax.Array, cos_LR: jax.Array, sin_LR: jax.Array) -> jax.Array:
    """What `rotate` computes, with a product where it exchanges the halves of a head.

    A TPU's vector registers are as wide as a head, so halves of one are costly to take apart; its matrix units exchange
    them for next to nothing. Each sum holds one element times 1 or -1, so the product is exact.
    """
    half = x_BLHK.shape[-1] // 2
    exchange_KK = np.zeros((2 * half, 2 * half), np.float32)
    exchange_KK[half:, :half], exchange_KK[:half, half:] = -np.eye(half), np.eye(half)
    exchanged = jax.lax.dot_general(
        x_BLHK, jnp.asarray(exchange_KK, x_BLHK.dtype), (((3,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if x_BLHK.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    cos, sin = (jnp.concatenate((table, table), axis=-1)[..., None, :] for table in (cos_LR, sin_LR))
    return (x_BLHK.astype(jnp.float32) * cos + exchanged * sin).astype(x_BLHK.dtype)


def rotate(x_BLHK: jax.Array, cos_LR: jax.Array, sin_LR: jax.Array) -> jax.Array:
    """Rotate pairs (x_i, x_{i+K/2}) by their angle, in float32, cast back to the input's dtype.

    The half-rotation layout of GPT-NeoX and Hugging Face: pair i is channels i and i + K/2. Tables may carry
    leading batch axes.
    """
    first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_LR[..., None, :], sin_LR[..., None, :]
    rotated = jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
    return rotated.astype(x_BLHK.dtype)
