"""Causal attention with windows and document masks, in blocks of queries.

Shapes: B batch, L length, S keys of one block's span, Q queries of one block, H query heads, G key-value heads,
R = H/G heads that share a key-value head, K head dim.

Memory is linear in length: one block of scores at a time, recomputed in the backward pass from the saved
log-sum-exp (Dao et al. 2022, arXiv:2205.14135). Spans start at the first visible key, so masked blocks are never
computed; scores inside a span that the window, the future or another document hides are masked.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

_MOST_BLOCKS = 32
_BLOCK_RANGE_TOKENS = (64, 512)


def attention(
    query_BLHK: jax.Array,
    key_BLGK: jax.Array,
    value_BLGK: jax.Array,
    window_tokens: int | None,
    segment_ids_BL: jax.Array | None = None,
    block_tokens: int | None = None,
) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v over visible keys; returns [B, L, H, K] in the query's dtype.

    Query i sees key j when 0 <= i - j < window (all j <= i when `window_tokens` is None) and, with segment ids,
    when both lie in the same document. Scores and softmax are float32.
    """
    batch, length, heads, head_dim = query_BLHK.shape
    groups = key_BLGK.shape[2]
    scale = head_dim**-0.5
    # Head-major once, outside the blocks: every product below is then a plain batched one.
    query = (query_BLHK * jnp.asarray(scale, query_BLHK.dtype)).transpose(0, 2, 1, 3)
    query = query.reshape(batch, groups, heads // groups, length, head_dim)
    key, value = key_BLGK.transpose(0, 2, 1, 3), value_BLGK.transpose(0, 2, 1, 3)
    window = length if window_tokens is None else min(window_tokens, length)
    outputs = []
    for start, stop, first_key in block_spans(length, window, block_tokens or default_block_tokens(length)):
        segments = None
        if segment_ids_BL is not None:
            segments = segment_ids_BL[:, start:stop], segment_ids_BL[:, first_key:stop]
        span = slice(first_key, stop)
        outputs.append(
            _attend_block(
                query[:, :, :, start:stop], key[:, :, span], value[:, :, span], segments, start - first_key, window
            )
        )
    context = jnp.concatenate(outputs, axis=3).reshape(batch, heads, length, head_dim)
    return context.transpose(0, 2, 1, 3)


def default_block_tokens(length: int) -> int:
    """Block length that keeps the count of blocks moderate: 64 for short windows, 512 at most."""
    low, high = _BLOCK_RANGE_TOKENS
    return min(high, max(low, 1 << (max(length // _MOST_BLOCKS, 1) - 1).bit_length()))


def block_spans(length: int, window: int, block: int) -> list[tuple[int, int, int]]:
    """(first query, end query, first visible key) of each block of queries; keys end where the queries do.

    Spans are aligned to 8 keys so that vector loads stay aligned; the few extra keys are masked.
    """
    starts = range(0, length, block)
    return [(start, min(start + block, length), max(0, start - window + 1) // 8 * 8) for start in starts]


def _visible_QS(queries: int, keys: int, offset: int, window: int) -> np.ndarray:
    """Static mask: query row i stands at key column `offset` + i."""
    distance = offset + np.arange(queries)[:, None] - np.arange(keys)[None, :]
    return (distance >= 0) & (distance < window)


def _masked_scores(query, key, segments, offset: int, window: int) -> jax.Array:
    scores = jnp.einsum("bgrqk,bgsk->bgrqs", query, key, preferred_element_type=jnp.float32)
    visible = jnp.asarray(_visible_QS(query.shape[3], key.shape[2], offset, window))
    if segments is not None:
        query_segments_BQ, key_segments_BS = segments
        same = query_segments_BQ[:, :, None] == key_segments_BS[:, None, :]
        visible = (visible & same)[:, None, None]
    return jnp.where(visible, scores, -jnp.inf)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend_block(query_BGRQK, key_BGSK, value_BGSK, segments, offset: int, window: int) -> jax.Array:
    return _attend_block_forward(query_BGRQK, key_BGSK, value_BGSK, segments, offset, window)[0]


def _attend_block_forward(query, key, value, segments, offset: int, window: int):
    scores = _masked_scores(query, key, segments, offset, window)
    highest = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    mixed = jnp.einsum("bgrqs,bgsk->bgrqk", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    output = (mixed / total).astype(query.dtype)
    log_total = highest + jnp.log(total)
    return output, (query, key, value, segments, output, log_total)


def _attend_block_backward(offset: int, window: int, residuals, grad_output):
    query, key, value, segments, output, log_total = residuals
    weights = jnp.exp(_masked_scores(query, key, segments, offset, window) - log_total)
    grad32 = grad_output.astype(jnp.float32)
    mean_grad = jnp.sum(grad32 * output.astype(jnp.float32), axis=-1, keepdims=True)
    grad_weights = jnp.einsum("bgrqk,bgsk->bgrqs", grad_output, value, preferred_element_type=jnp.float32)
    grad_scores = (weights * (grad_weights - mean_grad)).astype(query.dtype)
    grad_query = jnp.einsum("bgrqs,bgsk->bgrqk", grad_scores, key)
    grad_key = jnp.einsum("bgrqs,bgrqk->bgsk", grad_scores, query)
    grad_value = jnp.einsum("bgrqs,bgrqk->bgsk", weights.astype(value.dtype), grad_output)
    return grad_query, grad_key, grad_value, None


_attend_block.defvjp(_attend_block_forward, _attend_block_backward)
