"""Parameters that `fsdp` splits, made whole for use; the transpose sums and splits their gradients.

On a torus of three axes one gather goes in steps along fewer axes each: as many bytes reach each device as in one.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

Stages = tuple[int, ...]
"""Sizes of the steps, outermost first; their product is the size of `fsdp`."""


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def gather_leaf(leaf: jax.Array, axis: int, wire_dtype: str, reduction_dtype: str, stages: Stages) -> jax.Array:
    """The whole leaf in its own dtype, rounded to `wire_dtype`; its gradient is summed in `reduction_dtype`.

    It travels with the split axis first: of the last axis a device may hold less than the 128 columns of a TPU's tile.
    """
    whole = jnp.moveaxis(leaf.astype(wire_dtype), axis, 0)
    for stage in reversed(range(len(stages))):
        whole = jax.lax.all_gather(whole, "fsdp", axis=0, tiled=True, axis_index_groups=_groups(stages, stage))
    return jnp.moveaxis(whole, 0, axis).astype(leaf.dtype)


def _forward(leaf, axis, wire_dtype, reduction_dtype, stages):
    return gather_leaf(leaf, axis, wire_dtype, reduction_dtype, stages), None


def _backward(axis, wire_dtype, reduction_dtype, stages, _, gradient):
    part = jnp.moveaxis(gradient.astype(reduction_dtype), axis, 0)
    for stage in range(len(stages)):
        part = jax.lax.psum_scatter(
            part, "fsdp", scatter_dimension=0, tiled=True, axis_index_groups=_groups(stages, stage)
        )
    return (jnp.moveaxis(part, 0, axis).astype(gradient.dtype),)


gather_leaf.defvjp(_forward, _backward)


def _groups(stages: Stages, stage: int) -> list[list[int]] | None:
    """Devices of `fsdp` that talk to each other in one step; None: all of them."""
    if len(stages) == 1:
        return None
    places = np.arange(math.prod(stages)).reshape(stages)
    return np.moveaxis(places, stage, -1).reshape(-1, stages[stage]).tolist()
