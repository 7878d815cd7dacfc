"""Attention on TPUs by JAX's splash kernel (`jax.experimental.pallas.ops.tpu.splash_attention`).

Shapes: B batch, L length, H query heads, G key-value heads, K head dim.

The kernel holds scores of one block of queries and keys at a time and skips blocks that the mask hides whole. It does
not scale scores, so queries are scaled here.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ectype.model.blockwise import RESIDUALS

_LANES = 128
"""The width of a TPU vector register: blocks are multiples of it."""
_BLOCK_TOKENS = 2048
_COMPUTE_TOKENS = 512
"""Keys that one inner step of the kernel takes from its block: scores of [block, this] are held at a time."""


def splash_block_tokens(length: int, block_tokens: int | None = None) -> int | None:
    """The block of queries and keys for sequences of `length`; None when no multiple of 128 divides it."""
    wanted = min(block_tokens or _BLOCK_TOKENS, length)
    fitting = (size for size in range(wanted - wanted % _LANES, 0, -_LANES) if length % size == 0)
    return next(fitting, None)


def splash_attention(
    query_BLHK: jax.Array,
    key_BLGK: jax.Array,
    value_BLGK: jax.Array,
    window_tokens: int | None,
    segment_ids_BL: jax.Array | None = None,
    block_tokens: int | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """What `blockwise_attention` computes, [B, L, H, K] in the query's dtype, in one fused kernel.

    Args:
        block_tokens: the largest block of queries and of keys; None lets this module choose.
        interpret: run the kernel's own steps on any platform, slowly, to check them.

    Raises:
        ValueError: the length is no multiple of 128.
    """
    # The import registers Pallas lowering rules and takes a second: only where the kernel is used.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, length, heads, head_dim = query_BLHK.shape
    block = splash_block_tokens(length, block_tokens)
    if block is None:
        raise ValueError(f"the splash kernel takes lengths that are multiples of {_LANES}, not {length}")
    mask: Any = masks.CausalMask((length, length))
    if window_tokens is not None and window_tokens < length:
        # LocalMask counts keys to the left without the current one.
        mask = masks.LocalMask((length, length), (window_tokens - 1, 0), 0)
    compute = min(_COMPUTE_TOKENS, block) if block % min(_COMPUTE_TOKENS, block) == 0 else _LANES
    sizes = kernels.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=compute,
        block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=compute,
        block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1,
        residual_checkpoint_name=RESIDUALS, interpret=interpret,
    )  # fmt: skip
    scaled = (query_BLHK.astype(jnp.float32) * head_dim**-0.5).astype(query_BLHK.dtype)
    query, key, value = (array.transpose(0, 2, 1, 3) for array in (scaled, key_BLGK, value_BLGK))
    documents = () if segment_ids_BL is None else (kernels.SegmentIds(segment_ids_BL, segment_ids_BL),)
    context_BHLK: Any = jax.vmap(kernel)(query, key, value, *documents)
    return context_BHLK.transpose(0, 2, 1, 3)
