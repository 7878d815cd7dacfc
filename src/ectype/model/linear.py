"""Products with weights and the gated activation, with backward passes that keep few arrays and few transposes.

Shapes: ... leading axes, N their product, I inputs, O outputs, F ffn; B batch, L length, H heads, K head dim. Weights
are [out, in].
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def linear(x_I: jax.Array, weight_OI: jax.Array) -> jax.Array:
    """x W^T in the dtype of `x_I`, whatever the weight's; the weight's gradient is accumulated in float32."""
    return _product(x_I, weight_OI)


def _product(x_I: jax.Array, weight_OI: jax.Array) -> jax.Array:
    return jax.lax.dot_general(x_I, weight_OI.astype(x_I.dtype), (((x_I.ndim - 1,), (1,)), ((), ())))


def _linear_forward(x_I, weight_OI):
    return _product(x_I, weight_OI), (x_I, weight_OI)


def _linear_backward(residuals, grad_O):
    x_I, weight_OI = residuals
    grad_x_I = jax.lax.dot_general(grad_O, weight_OI.astype(grad_O.dtype), (((grad_O.ndim - 1,), (0,)), ((), ())))
    flat_x_NI, flat_grad_NO = x_I.reshape(-1, x_I.shape[-1]), grad_O.reshape(-1, grad_O.shape[-1])
    return grad_x_I, product_over_rows(flat_grad_NO, flat_x_NI).astype(weight_OI.dtype)


linear.defvjp(_linear_forward, _linear_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear_to_heads(x_BLI: jax.Array, weight_OI: jax.Array, head_dim: int) -> jax.Array:
    """`linear` with its outputs apart as heads, [B, L, H, K].

    The weight is reshaped, not the result: on a TPU, taking heads apart afterwards moves every element to another tile.
    """
    return jnp.einsum("bli,hki->blhk", x_BLI, _by_head(weight_OI, head_dim, x_BLI.dtype))


def _by_head(weight_OI: jax.Array, head_dim: int, dtype: Any) -> jax.Array:
    return weight_OI.astype(dtype).reshape(-1, head_dim, weight_OI.shape[1])


def _to_heads_forward(x_BLI, weight_OI, head_dim):
    return linear_to_heads(x_BLI, weight_OI, head_dim), (x_BLI, weight_OI)


def _to_heads_backward(head_dim, residuals, grad_BLHK):
    x_BLI, weight_OI = residuals
    grad_x_BLI = jnp.einsum("blhk,hki->bli", grad_BLHK, _by_head(weight_OI, head_dim, grad_BLHK.dtype))
    grad_HKI = jnp.einsum("blhk,bli->hki", grad_BLHK, x_BLI, preferred_element_type=jnp.float32)
    return grad_x_BLI, grad_HKI.reshape(weight_OI.shape).astype(weight_OI.dtype)


linear_to_heads.defvjp(_to_heads_forward, _to_heads_backward)


@jax.custom_vjp
def linear_from_heads(x_BLHK: jax.Array, weight_OI: jax.Array) -> jax.Array:
    """`linear` of inputs that are apart as heads, [B, L, O]; I = H K."""
    return jnp.einsum("blhk,ohk->blo", x_BLHK, _of_heads(weight_OI, x_BLHK))


def _of_heads(weight_OI: jax.Array, x_BLHK: jax.Array) -> jax.Array:
    return weight_OI.astype(x_BLHK.dtype).reshape(-1, *x_BLHK.shape[2:])


def _from_heads_forward(x_BLHK, weight_OI):
    return linear_from_heads(x_BLHK, weight_OI), (x_BLHK, weight_OI)


def _from_heads_backward(residuals, grad_BLO):
    x_BLHK, weight_OI = residuals
    grad_x_BLHK = jnp.einsum("blo,ohk->blhk", grad_BLO, _of_heads(weight_OI, x_BLHK))
    grad_OHK = jnp.einsum("blo,blhk->ohk", grad_BLO, x_BLHK, preferred_element_type=jnp.float32)
    return grad_x_BLHK, grad_OHK.reshape(weight_OI.shape).astype(weight_OI.dtype)


linear_from_heads.defvjp(_from_heads_forward, _from_heads_backward)


def product_over_rows(left_NO: jax.Array, right_NI: jax.Array) -> jax.Array:
    """left^T right [O, I] in float32.

    Matrix kernels want the summed axis last on the left, so the left operand gets transposed: make it the narrow one.
    """
    contract = (((0,), (0,)), ((), ()))
    if left_NO.shape[1] <= right_NI.shape[1]:
        return jax.lax.dot_general(left_NO, right_NI, contract, preferred_element_type=jnp.float32)
    return jax.lax.dot_general(right_NI, left_NO, contract, preferred_element_type=jnp.float32).T


@jax.custom_vjp
def gated_silu(gate_F: jax.Array, up_F: jax.Array) -> jax.Array:
    """silu(gate) * up (Shazeer 2020, arXiv:2002.05202). Only the two inputs are kept for the backward pass."""
    return gate_F * jax.nn.sigmoid(gate_F) * up_F


def _gated_silu_forward(gate_F, up_F):
    return gated_silu(gate_F, up_F), (gate_F, up_F)


def _gated_silu_backward(residuals, grad_F):
    gate_F, up_F = residuals
    sigmoid_F = jax.nn.sigmoid(gate_F)
    grad_gate_F = grad_F * up_F * sigmoid_F * (1 + gate_F * (1 - sigmoid_F))
    return grad_gate_F, grad_F * gate_F * sigmoid_F


gated_silu.defvjp(_gated_silu_forward, _gated_silu_backward)
