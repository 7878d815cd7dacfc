"""Products with weights and the gated activation, with backward passes that keep few arrays and few transposes.

Shapes: ... leading axes, N their product, I inputs, O outputs, F ffn. Weights are [out, in].
"""

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
