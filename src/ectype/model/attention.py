"""Causal attention with windows and document masks: one function, and the kernel that a platform runs it with.

Shapes: B batch, L length, H query heads, G key-value heads, K head dim.

Query i sees key j when 0 <= i - j < window, the current key included, and both lie in the same document. All kernels
agree on that; they differ in rounding and speed.
"""

from typing import Literal

import jax

from ectype.model.blockwise import blockwise_attention
from ectype.model.splash import splash_attention

Kernel = Literal["blockwise", "splash", "cudnn"]

KERNEL_OF_PLATFORM: dict[str, Kernel] = {"cpu": "blockwise", "gpu": "cudnn", "tpu": "splash"}


def attention(
    query_BLHK: jax.Array,
    key_BLGK: jax.Array,
    value_BLGK: jax.Array,
    window_tokens: int | None,
    segment_ids_BL: jax.Array | None = None,
    block_tokens: int | None = None,
    kernel: Kernel = "blockwise",
) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v over visible keys; returns [B, L, H, K] in the query's dtype.

    Args:
        window_tokens: keys that a query sees, itself included; None: all up to itself.
        segment_ids_BL: the document of each token; None: one document.
        block_tokens: the kernel's block of queries; None lets it choose.

    cuDNN's kernel takes 16-bit arrays without documents; others go to the blockwise kernel there.
    """
    arrays = (query_BLHK, key_BLGK, value_BLGK)
    if kernel == "splash":
        return splash_attention(*arrays, window_tokens, segment_ids_BL, block_tokens)
    if kernel == "cudnn" and segment_ids_BL is None and query_BLHK.dtype.itemsize == 2:
        window = None if window_tokens is None else (window_tokens - 1, 0)
        return jax.nn.dot_product_attention(*arrays, is_causal=True, local_window_size=window, implementation="cudnn")
    return blockwise_attention(*arrays, window_tokens, segment_ids_BL, block_tokens)
