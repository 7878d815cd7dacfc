"""One copy of the model on several devices: the part that each holds, and the sums and exchanges that join the parts.

For use inside `jax.shard_map`, where each device sees its own arrays. Tensor parallelism splits heads, ffn channels and
vocabulary rows (Shoeybi et al. 2019, arXiv:1909.08053); context parallelism splits the sequence, and exchanges it for
heads around attention (Jacobs et al. 2023, arXiv:2309.14509), so that every attention kernel sees whole sequences.

Shapes: B batch, L whole length, l = L / context, H heads of this device, h = H / context, K head dim.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp

TENSOR, CONTEXT = "tensor", "context"
"""The names of the two mesh axes."""


# Inside `shard_map` autodiff takes the transpose of a sum over devices to be another sum. That is right where each
# device goes on with something of its own, and counts a cotangent once per device where all go on with the same. So
# both directions are written down here.


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _summed_forward(x: jax.Array, axis: str) -> jax.Array:
    return jax.lax.psum(x, axis)


_summed_forward.defvjp(lambda x, axis: (jax.lax.psum(x, axis), None), lambda axis, _, grad: (grad,))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _summed_backward(x: jax.Array, axis: str) -> jax.Array:
    return x


_summed_backward.defvjp(lambda x, axis: (x, None), lambda axis, _, grad: (jax.lax.psum(grad, axis),))


@dataclass(frozen=True)
class Split:
    """Into how many parts one copy of the model is split. With 1 and 1 every method returns what it is given."""

    tensor: int = 1
    context: int = 1

    def enter(self, x: jax.Array) -> jax.Array:
        """An array that all tensor devices hold, on its way into their own parts: its gradient is summed over them."""
        return x if self.tensor == 1 else cast(jax.Array, _summed_backward(x, TENSOR))

    def leave(self, part: jax.Array) -> jax.Array:
        """The sum over tensor devices of their parts, which all of them then hold."""
        return part if self.tensor == 1 else cast(jax.Array, _summed_forward(part, TENSOR))

    def mean(self, x: jax.Array) -> jax.Array:
        """The mean over tensor devices, of which each makes its own use."""
        return x if self.tensor == 1 else self.enter(self.leave(x)) / self.tensor

    def plain_sum(self, x: jax.Array) -> jax.Array:
        """The sum over tensor devices, not to be differentiated."""
        return x if self.tensor == 1 else jax.lax.psum(x, TENSOR)

    def plain_max(self, x: jax.Array) -> jax.Array:
        """The maximum over tensor devices, not to be differentiated."""
        return x if self.tensor == 1 else jax.lax.pmax(x, TENSOR)

    def own_ids(self, ids: jax.Array, rows: int) -> jax.Array:
        """Ids counted from the first of this device's `rows` vocabulary rows; other devices' lie outside [0, rows)."""
        return ids if self.tensor == 1 else ids - jax.lax.axis_index(TENSOR) * rows

    def shares_keys(self, kv_heads: int) -> bool:
        """Whether every tensor device holds all key-value heads, because they do not divide among the devices."""
        return kv_heads % self.tensor != 0

    def own_keys(self, x_BlGK: jax.Array) -> jax.Array:
        """Of key-value heads that all tensor devices hold, those that this device's query heads use.

        Each head is repeated until they divide; query heads in order then find their own key-value head.
        """
        heads = _repeated(self.enter(x_BlGK), self.tensor)
        own = heads.shape[2] // self.tensor
        return jax.lax.dynamic_slice_in_dim(heads, jax.lax.axis_index(TENSOR) * own, own, axis=2)

    def own_sequence(self, x_BL: jax.Array) -> jax.Array:
        """This device's stretch of whole sequences [B, L, ...]."""
        if self.context == 1:
            return x_BL
        own = x_BL.shape[1] // self.context
        return jax.lax.dynamic_slice_in_dim(x_BL, jax.lax.axis_index(CONTEXT) * own, own, axis=1)

    def positions(self, own: int) -> jax.Array:
        """int32 [own]: where in the whole sequence the `own` tokens of this device stand."""
        counted = jnp.arange(own, dtype=jnp.int32)
        return counted if self.context == 1 else counted + jax.lax.axis_index(CONTEXT) * own

    def to_heads(self, x_BlHK: jax.Array) -> jax.Array:
        """[B, l, H, K] to [B, L, h, K]: a stretch of all heads for whole sequences of some.

        Key-value heads that do not divide among the context devices are repeated until they do.
        """
        if self.context == 1:
            return x_BlHK
        return jax.lax.all_to_all(_repeated(x_BlHK, self.context), CONTEXT, split_axis=2, concat_axis=1, tiled=True)

    def to_sequence(self, x_BLhK: jax.Array) -> jax.Array:
        """[B, L, h, K] to [B, l, H, K], the inverse of `to_heads`."""
        if self.context == 1:
            return x_BLhK
        return jax.lax.all_to_all(x_BLhK, CONTEXT, split_axis=1, concat_axis=2, tiled=True)


UNSPLIT = Split()
"""A whole copy of the model on each device."""


def _repeated(x_BLGK: jax.Array, parts: int) -> jax.Array:
    """Each head so often in a row that their count becomes the least that `parts` divides."""
    times = parts // math.gcd(x_BLGK.shape[2], parts)
    return x_BLGK if times == 1 else jnp.repeat(x_BLGK, times, axis=2)
