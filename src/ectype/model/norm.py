"""RMS normalisation. Shapes: ... any leading axes, D normalised axis or axes."""

import jax
import jax.numpy as jnp

from ectype.model.parallel import Split


def rms_norm(x_D: jax.Array, weight_D: jax.Array, epsilon: float, split: Split | None = None) -> jax.Array:
    """x / rms(x) * weight over the last axes, as many as the weight has (Zhang & Sennrich 2019, arXiv:1910.07467).

    Computed in float32, weight included, then cast back to the dtype of `x_D`, as OLMo-core does. With `split`, tensor
    devices hold equal parts of the axis, and the RMS is over all of them.
    """
    x32 = x_D.astype(jnp.float32)
    mean_square = jnp.mean(x32 * x32, axis=tuple(range(-weight_D.ndim, 0)), keepdims=True)
    if split is not None:
        mean_square = split.mean(mean_square)
    scale = jax.lax.rsqrt(mean_square + epsilon)
    return (x32 * scale * weight_D.astype(jnp.float32)).astype(x_D.dtype)
