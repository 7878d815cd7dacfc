"""The decoder one token at a time: keys and values of earlier tokens are kept, and only the new token is computed.

Shapes: B batch, L length, D model, H query heads, G key-value heads, R = H/G, K head dim, S slots of a layer's cache,
N blocks of the repeating pattern.

A row's key of position p lies in slot p mod S. A layer with a window keeps as many slots as the window sees, so a new
key takes the place of the one that has just left the window; other layers keep every position. The rows of a batch
stand at positions of their own.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ectype.model.attention import attention
from ectype.model.decoder import Layer, layer_module, layer_rotary
from ectype.model.norm import rms_norm
from ectype.recipe.spec import Model

Tree = dict[str, Any]
Kept = tuple[jax.Array, jax.Array]
"""Keys and values of one layer, [B, S, G, K] each."""
Cache = dict[str, Any]
"""`blocks` and `rest` as in the parameter tree, a `Kept` for each layer; those of `blocks` are stacked, [N, ...]."""


def prefill(
    params: Tree, tokens_BL: jax.Array, lengths_B: jax.Array, model: Model, *, cache_tokens: int, compute_dtype: str
) -> tuple[jax.Array, Cache]:
    """Read prompts of any lengths.

    Args:
        tokens_BL: prompts, int32, filled up behind their ends with any ids.
        lengths_B: tokens of each prompt, int32, at least 1.
        cache_tokens: positions that prompts and what follows them will take, at least L.

    Returns:
        The hidden state of each prompt's last token after the final norm, [B, D] in `compute_dtype`, and the cache.
    """
    rotary = layer_rotary(model, jnp.arange(tokens_BL.shape[1], dtype=jnp.int32))

    def apply(layer: Layer, window: int | None, x_BLD: jax.Array, _: None) -> tuple[jax.Array, Kept]:
        kept = []

        def attend(x_BLD: jax.Array) -> jax.Array:
            query, key, value = layer.attention.rotated(x_BLD, model, rotary[window is None])
            slots = min(window or cache_tokens, cache_tokens)
            kept.extend(_newest(each, lengths_B, slots) for each in (key, value))
            return layer.attention.leave(attention(query, key, value, window))

        x_BLD = layer.wrap(x_BLD, model, attend)
        return x_BLD, (kept[0], kept[1])

    x_BLD, cache = _through_layers(params, _embedded(params, tokens_BL, compute_dtype), {}, model, apply)
    last_BD = jnp.take_along_axis(x_BLD, (lengths_B - 1)[:, None, None], axis=1)[:, 0]
    return _final_norm(params, last_BD, model), cache


def decode_step(
    params: Tree, cache: Cache, tokens_B: jax.Array, positions_B: jax.Array, model: Model, *, compute_dtype: str
) -> tuple[jax.Array, Cache]:
    """Read one more token of each row.

    Args:
        cache: of the tokens before.
        tokens_B: the new tokens, int32.
        positions_B: their places in their rows, int32, counted from 0.

    Returns:
        Hidden states after the final norm, [B, D] in `compute_dtype`, and the cache with the new tokens in it.
    """
    # One column of tables per row, [B, 1, R]: every row stands at a position of its own.
    rotary = layer_rotary(model, positions_B[:, None])
    rows_B = jnp.arange(len(tokens_B))

    def apply(layer: Layer, window: int | None, x_BLD: jax.Array, kept: Kept) -> tuple[jax.Array, Kept]:
        renewed = []

        def attend(x_BLD: jax.Array) -> jax.Array:
            query, key, value = layer.attention.rotated(x_BLD, model, rotary[window is None])
            slot_B = positions_B % kept[0].shape[1]
            renewed.extend(old.at[rows_B, slot_B].set(new[:, 0]) for old, new in zip(kept, (key, value), strict=True))
            return layer.attention.leave(attend_kept(query[:, 0], renewed[0], renewed[1], positions_B)[:, None])

        x_BLD = layer.wrap(x_BLD, model, attend)
        return x_BLD, (renewed[0], renewed[1])

    embedded = _embedded(params, tokens_B[:, None], compute_dtype)
    x_BLD, cache = _through_layers(params, embedded, cache, model, apply)
    return _final_norm(params, x_BLD[:, 0], model), cache


def attend_kept(query_BHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, positions_B: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v over the slots that hold a position; scores and softmax are float32.

    At position p slot s holds position p - ((p - s) mod S), which is negative where nothing was written yet.
    """
    batch, heads, head_dim = query_BHK.shape
    slots, groups = key_BSGK.shape[1:3]
    query = query_BHK.reshape(batch, groups, heads // groups, head_dim)
    scores = jnp.einsum("bgrk,bsgk->bgrs", query, key_BSGK, preferred_element_type=jnp.float32)
    written_BS = _position_in_slot(positions_B, slots) >= 0
    scores = jnp.where(written_BS[:, None, None], scores * head_dim**-0.5, -jnp.inf)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    mixed = jnp.einsum(
        "bgrs,bsgk->bgrk", weights.astype(value_BSGK.dtype), value_BSGK, preferred_element_type=jnp.float32
    )
    return (mixed / total).astype(query_BHK.dtype).reshape(batch, heads, head_dim)


def _position_in_slot(newest_B: jax.Array, slots: int) -> jax.Array:
    """Positions [B, S] that the slots hold when `newest_B` is the newest; negative: none yet."""
    newest = newest_B[:, None]
    return newest - (newest - jnp.arange(slots)) % slots


def _newest(each_BLGK: jax.Array, lengths_B: jax.Array, slots: int) -> jax.Array:
    """The newest `slots` positions of each row in their slots, [B, S, G, K]; others hold what the mask hides."""
    held_BS = jnp.clip(_position_in_slot(lengths_B - 1, slots), 0, each_BLGK.shape[1] - 1)
    return jnp.take_along_axis(each_BLGK, held_BS[:, :, None, None], axis=1)


def _embedded(params: Tree, tokens: jax.Array, compute_dtype: str) -> jax.Array:
    return jnp.take(params["embedding"]["weight"], tokens, axis=0).astype(compute_dtype)


def _final_norm(params: Tree, x_D: jax.Array, model: Model) -> jax.Array:
    return rms_norm(x_D, params["norm"]["weight"], model.norm_eps)


def _through_layers(
    params: Tree, x_BLD: jax.Array, cache: Cache, model: Model, apply: Callable[..., tuple[jax.Array, Kept]]
) -> tuple[jax.Array, Cache]:
    """All layers in order: `apply(layer, window, x, its cache)` gives x and the cache that follows."""

    def layers(x_BLD: jax.Array, part: tuple[Tree, Tree | None]) -> tuple[jax.Array, Tree]:
        slots, kept = part
        renewed = {}
        for slot in map(str, range(len(slots))):
            layer, window = layer_module(slots[slot], model), model.window_pattern[int(slot)]
            x_BLD, renewed[slot] = apply(layer, window, x_BLD, None if kept is None else kept[slot])
        return x_BLD, renewed

    renewed: Cache = {}
    if "blocks" in params:
        x_BLD, renewed["blocks"] = jax.lax.scan(layers, x_BLD, (params["blocks"], cache.get("blocks")))
    if "rest" in params:
        x_BLD, renewed["rest"] = layers(x_BLD, (params["rest"], cache.get("rest")))
    return x_BLD, renewed
