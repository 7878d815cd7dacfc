"""Our decoder one layer at a time, weights read from a checkpoint when needed: memory holds one layer.

Shapes: B batch, L length, D model, V vocabulary.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ectype.model.attention import attention
from ectype.model.decoder import head_logits, layer_forward, layer_rotary
from ectype.model.linear import linear
from ectype.model.norm import rms_norm
from ectype.model.parameters import parameter_shapes
from ectype.model.rope import rotate
from ectype.recipe.spec import Model
from ectype.weights import store, tree
from ectype.weights.mapping import layer_place
from ectype.weights.tree import LeafPath, Tree


def read_leaf(weights: Path, path: LeafPath, rows: Any = slice(None)) -> np.ndarray:
    """Rows of one leaf of a checkpoint's `weights` folder; `rows` is any index of the leading axis."""
    return store.read_region(weights, store.open_array(weights, path)[rows])


def read_layer(weights: Path, model: Model, layer: int) -> Tree:
    """Parameters of one layer, without leading axis."""
    prefix, block = layer_place(model, layer)
    node: Any = parameter_shapes(model)
    for key in prefix:
        node = node[key]
    flat = {
        path: read_leaf(weights, prefix + path, slice(None) if block is None else block) for path in tree.flatten(node)
    }
    return tree.unflatten(flat)


def embed(weights: Path, tokens_BL: np.ndarray, compute_dtype: str) -> jax.Array:
    """Embedding rows of the tokens, [B, L, D]; only those rows are read."""
    ids, places = np.unique(tokens_BL, return_inverse=True)
    rows = read_leaf(weights, ("embedding", "weight"), ids)
    return jnp.asarray(rows[places.reshape(tokens_BL.shape)]).astype(compute_dtype)


@partial(jax.jit, static_argnames=("model", "window"))
def apply_layer(layer_params: Tree, x_BLD: jax.Array, model: Model, window: int | None) -> jax.Array:
    """One layer on hidden states, compiled once per window."""
    return layer_forward(layer_params, x_BLD, model, window)


def final_norm(weights: Path, x_BLD: jax.Array, model: Model) -> jax.Array:
    """Hidden states after the final norm."""
    return rms_norm(x_BLD, jnp.asarray(read_leaf(weights, ("norm", "weight"))), model.norm_eps)


def head_rows_at_once(weights: Path, model: Model, least: int) -> int:
    """At least `least` rows of the output projection, in whole chunks of the checkpoint: none is read twice."""
    rows = store.read_chunk(store.open_array(weights, _head_path(model)))[0]
    return -(-least // rows) * rows


def head_logits_of(weights: Path, model: Model, hidden_LD: jax.Array, first: int, end: int) -> np.ndarray:
    """Logits of the ids [first, end), float32 [L, end - first]; only those rows of the projection are read."""
    group, leaf = path = _head_path(model)
    return np.asarray(_apply_head({group: {leaf: read_leaf(weights, path, slice(first, end))}}, hidden_LD, model))


def _head_path(model: Model) -> tuple[str, str]:
    return "embedding" if model.tied_head else "head", "weight"


_apply_head = jax.jit(head_logits, static_argnames=("model",))


def apply_tensor(layer_params: Tree, path: LeafPath, value: jax.Array, model: Model) -> jax.Array:
    """What the one tensor at `path` of a layer does to its input: a projection, with its bias, or a norm."""
    node, name = (layer_params if len(path) == 1 else layer_params[path[0]]), path[-1]
    if name.endswith("norm"):
        return rms_norm(value, jnp.asarray(node[name]), model.norm_eps)
    product = linear(value, jnp.asarray(node[name]))
    return product + jnp.asarray(node[f"{name}_bias"]) if f"{name}_bias" in node else product


def attend(
    query_BLN: jax.Array, key_BLN: jax.Array, value_BLN: jax.Array, model: Model, window: int | None
) -> jax.Array:
    """Attention of normalised projections [B, L, heads * K], rotation included, before the output projection."""
    query, key, value = (
        array.reshape(*array.shape[:2], -1, model.head_dim) for array in (query_BLN, key_BLN, value_BLN)
    )
    cos, sin = layer_rotary(model, jnp.arange(query.shape[1], dtype=jnp.int32))[window is None]
    context = attention(rotate(query, cos, sin), rotate(key, cos, sin), value, window)
    return context.reshape(*query_BLN.shape[:2], -1)


def rotary(length: int, model: Model, window: int | None) -> list[np.ndarray]:
    """cos and sin [L, K], each half repeated as Hugging Face keeps them."""
    tables = layer_rotary(model, jnp.arange(length, dtype=jnp.int32))[window is None]
    return [np.concatenate((table, table), -1) for table in tables]
