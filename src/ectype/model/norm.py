"""RMS normalisation. Shapes: ... any leading axes, D normalised axis."""

import jax
import jax.numpy as jnp


def rms_norm(x_D: jax.Array, weight_D: jax.Array, epsilon: float) -> jax.Array:
    """x / rms(x) * weight over the last axis (Zhang & Sennrich 2019, arXiv:1910.07467).

    Computed in float32, weight included, then cast back to the dtype of `x_D`, as OLMo-core does.
    """
    x32 = x_D.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)
    return (x32 * scale * weight_D.astype(jnp.float32)).astype(x_D.dtype)
