"""Cross-entropy with z-loss, in chunks of tokens, so that full logits are never held.

Shapes: N tokens of one device, C tokens of a chunk, D model, V vocabulary rows.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ectype.model.linear import product_over_rows
from ectype.model.parallel import UNSPLIT, Split


def next_token_targets(tokens_BL: jax.Array, keep_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Targets int32 [B, L] and mask float32 [B, L]: each token's successor inside its own window.

    The last position of a window has no target, and a rejected window (`keep_B` False) has none at all.
    """
    targets = jnp.roll(tokens_BL, -1, axis=1)
    has_target_L = jnp.arange(tokens_BL.shape[1]) < tokens_BL.shape[1] - 1
    return targets, (keep_B[:, None] & has_target_L).astype(jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def summed_loss(
    hidden_ND: jax.Array,
    head_VD: jax.Array,
    targets_N: jax.Array,
    mask_N: jax.Array,
    z_loss: float,
    chunk_tokens: int,
    split: Split = UNSPLIT,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """objective, (cross-entropy, z-loss): float32 sums over the masked-in tokens, in nats.

    objective = sum over tokens of -log softmax(logits)[target] + z_loss * logsumexp(logits)^2, the loss of
    OLMo-core's `nn/cross_entropy_loss.py` before its division, and the sum of the other two, which are for the record:
    only the objective is differentiable. Logits are float32 over all V rows. Under differentiation the gradient is
    computed together with the value, chunk by chunk, so the head's product is not recomputed.

    With `split`, each tensor device holds its rows of the head, all of them the hidden states, and each gets the whole
    sums and the whole gradient of the hidden states.
    """
    return _over_chunks(hidden_ND, head_VD, targets_N, mask_N, z_loss, chunk_tokens, split, with_gradient=False)[0]


def _forward(hidden_ND, head_VD, targets_N, mask_N, z_loss, chunk_tokens, split):
    sums, (grad_hidden_ND, grad_head_VD) = _over_chunks(
        hidden_ND, head_VD, targets_N, mask_N, z_loss, chunk_tokens, split, with_gradient=True
    )
    return sums, (split.plain_sum(grad_hidden_ND), grad_head_VD)


def _backward(z_loss, chunk_tokens, split, gradients, cotangents):
    objective_cotangent, _ = cotangents
    grad_hidden_ND, grad_head_VD = (gradient * objective_cotangent.astype(gradient.dtype) for gradient in gradients)
    return grad_hidden_ND, grad_head_VD, None, None


summed_loss.defvjp(_forward, _backward)


def _over_chunks(
    hidden_ND, head_VD, targets_N, mask_N, z_loss, chunk_tokens, split, with_gradient
) -> tuple[Any, tuple[Any, ...]]:
    """((objective, (cross-entropy, z-loss)), (grad_hidden [N, D], grad_head [V, D]) or ())."""
    tokens, width = hidden_ND.shape
    chunk = partial(_chunk, head_VD=head_VD, z_loss=z_loss, split=split, with_gradient=with_gradient)
    if tokens <= chunk_tokens:
        return chunk(hidden_ND, targets_N, mask_N)
    missing = -tokens % chunk_tokens  # The last chunk is filled up with masked tokens.
    rows = tuple(
        jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1))).reshape(-1, chunk_tokens, *array.shape[1:])
        for array in (hidden_ND, targets_N, mask_N)
    )

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        sums, gradients = chunk(*row)
        grad_hidden, grad_head = (gradients[0], gradients[1:]) if with_gradient else ((), ())
        return jax.tree.map(jnp.add, carry, (sums, grad_head)), grad_hidden

    zero = jnp.zeros((), jnp.float32)
    grad_head = (jnp.zeros_like(head_VD),) if with_gradient else ()
    (sums, grad_head), grad_hidden = jax.lax.scan(step, ((zero, (zero, zero)), grad_head), rows)
    if not with_gradient:
        return sums, ()
    return sums, (grad_hidden.reshape(-1, width)[:tokens], grad_head[0])


def _chunk(hidden_CD, targets_C, mask_C, *, head_VD, z_loss, split, with_gradient) -> tuple[Any, tuple[Any, ...]]:
    head = head_VD.astype(hidden_CD.dtype)
    logits_CV = jax.lax.dot_general(hidden_CD, head, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    highest_C1 = split.plain_max(jnp.max(logits_CV, axis=1, keepdims=True))
    powers_CV = jnp.exp(logits_CV - highest_C1)
    total_C1 = split.plain_sum(jnp.sum(powers_CV, axis=1, keepdims=True))
    log_total_C = (highest_C1 + jnp.log(total_C1))[:, 0]
    targets_C = split.own_ids(targets_C, head.shape[0])
    target_logit_C = _target_logits(logits_CV, targets_C, split)
    cross_entropy = jnp.sum((log_total_C - target_logit_C) * mask_C)
    penalty = z_loss * jnp.sum(log_total_C * log_total_C * mask_C)
    sums = cross_entropy + penalty, (cross_entropy, penalty)
    if not with_gradient:
        return sums, ()
    # d/dlogits: mask * (softmax * (1 + 2 z logsumexp) - onehot(target)).
    factor_C1 = (mask_C * (1 + 2 * z_loss * log_total_C))[:, None] / total_C1
    is_target_CV = targets_C[:, None] == jnp.arange(logits_CV.shape[1], dtype=targets_C.dtype)
    grad_logits_CV = powers_CV * factor_C1 - jnp.where(is_target_CV, mask_C[:, None], 0)
    grad_logits_CV = grad_logits_CV.astype(hidden_CD.dtype)
    grad_hidden_CD = jax.lax.dot_general(grad_logits_CV, head, (((1,), (0,)), ((), ())))
    grad_head_VD = product_over_rows(grad_logits_CV, hidden_CD)
    return sums, (grad_hidden_CD, grad_head_VD.astype(head_VD.dtype))


def _target_logits(logits_CV: jax.Array, targets_C: jax.Array, split: Split) -> jax.Array:
    """The logit of each target; a target outside [0, V) is in another tensor device's rows."""
    if split.tensor == 1:
        return jnp.take_along_axis(logits_CV, targets_C[:, None], axis=1)[:, 0]
    rows = logits_CV.shape[1]
    own_C = jnp.take_along_axis(logits_CV, jnp.clip(targets_C, 0, rows - 1)[:, None], axis=1)[:, 0]
    return split.plain_sum(jnp.where((targets_C >= 0) & (targets_C < rows), own_C, 0))
