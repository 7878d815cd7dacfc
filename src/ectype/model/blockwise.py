"""Causal attention with windows and document masks in plain JAX, in blocks of queries.

Shapes: B batch, L length, S keys of one block's span, Q queries of one block, H query heads, G key-value heads,
R = H/G heads that share a key-value head, K head dim.

Memory is linear in length: one block of scores at a time, recomputed in the backward pass from the saved
log-sum-exp (Dao et al. 2022, arXiv:2205.14135). Spans start at the first visible key, so masked blocks are never
computed; scores inside a span that the window, the future or another document hides are masked.
"""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

Span = tuple[int, int, int]
"""First query, end query, first visible key of one block of queries; the keys end where the queries do."""

RESIDUALS = "attention_residuals"
"""A kernel's output and log-sum-exp by this name: kept, the backward pass does not run the forward kernel again."""

_MOST_BLOCKS = 32
_BLOCK_RANGE_TOKENS = (64, 512)


def blockwise_attention(
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
    # Head-major once, outside the blocks: every product below is then a plain batched one.
    query = query_BLHK.transpose(0, 2, 1, 3)
    query = query.reshape(batch, groups, heads // groups, length, head_dim)
    key, value = key_BLGK.transpose(0, 2, 1, 3), value_BLGK.transpose(0, 2, 1, 3)
    window = length if window_tokens is None else min(window_tokens, length)
    spans = block_spans(length, window, block_tokens or default_block_tokens(length))
    mixed = cast(jax.Array, _attend(query, key, value, segment_ids_BL, tuple(spans), window))
    context = mixed.reshape(batch, heads, length, head_dim)
    return context.transpose(0, 2, 1, 3)


def default_block_tokens(length: int) -> int:
    """Block length that keeps the count of blocks moderate: 64 for short windows, 512 at most."""
    low, high = _BLOCK_RANGE_TOKENS
    return min(high, max(low, 1 << (max(length // _MOST_BLOCKS, 1) - 1).bit_length()))


def block_spans(length: int, window: int, block: int) -> list[Span]:
    """The spans of all blocks of queries.

    Spans are aligned to 8 keys so that vector loads stay aligned; the few extra keys are masked.
    """
    starts = range(0, length, block)
    return [(start, min(start + block, length), max(0, start - window + 1) // 8 * 8) for start in starts]


def _visible(queries: int, keys: int, offset: int, window: int) -> np.ndarray:
    """Static mask: query row i stands at key column `offset` + i."""
    distance = offset + np.arange(queries)[:, None] - np.arange(keys)[None, :]
    return (distance >= 0) & (distance < window)


def _masked_scores(query, key, segments, span: Span, window: int) -> jax.Array:
    start, stop, first = span
    scores = jnp.einsum(
        "bgrqk,bgsk->bgrqs", query[:, :, :, start:stop], key[:, :, first:stop], preferred_element_type=jnp.float32
    )
    visible = jnp.asarray(_visible(stop - start, stop - first, start - first, window))
    if segments is not None:
        same_document = segments[:, start:stop, None] == segments[:, None, first:stop]
        visible = (visible & same_document)[:, None, None]
    # Scaled in float32: in bfloat16 a scaled query would be rounded twice.
    return jnp.where(visible, scores * query.shape[-1] ** -0.5, -jnp.inf)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(query_BGRLK, key_BGLK, value_BGLK, segments_BL, spans: tuple[Span, ...], window: int) -> jax.Array:
    return _attend_forward(query_BGRLK, key_BGLK, value_BGLK, segments_BL, spans, window)[0]


def _attend_forward(query, key, value, segments, spans, window):
    outputs, log_totals = [], []
    for span in spans:
        scores = _masked_scores(query, key, segments, span, window)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        mixed = jnp.einsum(
            "bgrqs,bgsk->bgrqk",
            weights.astype(value.dtype), value[:, :, span[2] : span[1]], preferred_element_type=jnp.float32,
        )  # fmt: skip
        outputs.append((mixed / total).astype(query.dtype))
        log_totals.append(highest + jnp.log(total))
    output = checkpoint_name(jnp.concatenate(outputs, axis=3), RESIDUALS)
    log_total = checkpoint_name(jnp.concatenate(log_totals, axis=3), RESIDUALS)
    return output, (query, key, value, segments, output, log_total)


def _attend_backward(spans, window, residuals, grad_output):
    query, key, value, segments, output, log_total = residuals
    mean_grad = jnp.sum(grad_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1, keepdims=True)
    grad_queries = []
    grad_key, grad_value = jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32)
    for span in spans:
        start, stop, first = span
        rows = (slice(None), slice(None), slice(None), slice(start, stop))
        columns = (slice(None), slice(None), slice(first, stop))
        weights = jnp.exp(_masked_scores(query, key, segments, span, window) - log_total[rows])
        grad_weights = jnp.einsum(
            "bgrqk,bgsk->bgrqs", grad_output[rows], value[columns], preferred_element_type=jnp.float32
        )
        grad_scores = (weights * (grad_weights - mean_grad[rows]) * query.shape[-1] ** -0.5).astype(query.dtype)
        grad_queries.append(jnp.einsum("bgrqs,bgsk->bgrqk", grad_scores, key[columns]))
        add_to_key = jnp.einsum("bgrqs,bgrqk->bgsk", grad_scores, query[rows], preferred_element_type=jnp.float32)
        add_to_value = jnp.einsum(
            "bgrqs,bgrqk->bgsk", weights.astype(value.dtype), grad_output[rows], preferred_element_type=jnp.float32
        )
        grad_key, grad_value = grad_key.at[columns].add(add_to_key), grad_value.at[columns].add(add_to_value)
    grad_query = jnp.concatenate(grad_queries, axis=3)
    return grad_query, grad_key.astype(key.dtype), grad_value.astype(value.dtype), None


_attend.defvjp(_attend_forward, _attend_backward)
