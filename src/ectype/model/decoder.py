"""The decoder as NNX modules: OLMo 3 and OLMo 2, and by switches Llama and Qwen3 types.

Shapes: B batch, L length, D model, H query heads, G key-value heads, K head dim, F ffn, V vocabulary rows,
N blocks of the repeating pattern. Linear weights are [out, in], as in Hugging Face files, so conversion copies bytes.

Layers run under one scan over the repeating window pattern: slot j of every block has the same window, so its weights
are stacked as [N, ...]; layers left over after the last whole pattern run one by one.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ectype.model.attention import Kernel, attention
from ectype.model.linear import gated_silu, linear, linear_from_heads, linear_to_heads
from ectype.model.norm import rms_norm
from ectype.model.parallel import UNSPLIT, Split
from ectype.model.rope import rotary_tables, rotate, rotate_by_product
from ectype.recipe.spec import Model

Tree = dict[str, Any]
Initializer = Callable[[tuple[int, ...]], jax.Array]
Rotary = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""cos and sin [L, R] of sliding layers, then of full-attention layers."""


class Surroundings(NamedTuple):
    """What every layer of one pass shares: document ids [B, L], the kernel and its block, angles, the split."""

    segment_ids: jax.Array | None
    block_tokens: int | None
    rotary: Rotary
    split: Split = UNSPLIT
    kernel: Kernel = "blockwise"


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions and the family's query/key normalisation."""

    def __init__(self, model: Model, draw: Initializer, ones: Initializer, stack: tuple[int, ...]) -> None:
        query_dim, key_dim = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
        self.query = nnx.Param(draw((*stack, query_dim, model.d_model)))
        self.key = nnx.Param(draw((*stack, key_dim, model.d_model)))
        self.value = nnx.Param(draw((*stack, key_dim, model.d_model)))
        self.output = nnx.Param(draw((*stack, model.d_model, query_dim)))
        if model.qk_norm != "none":
            whole = model.qk_norm == "projection"
            self.query_norm = nnx.Param(ones((*stack, query_dim if whole else model.head_dim)))
            self.key_norm = nnx.Param(ones((*stack, key_dim if whole else model.head_dim)))
        if model.attention_bias:
            self.query_bias = nnx.Param(ones((*stack, query_dim)) * 0)
            self.key_bias = nnx.Param(ones((*stack, key_dim)) * 0)
            self.value_bias = nnx.Param(ones((*stack, key_dim)) * 0)

    def __call__(self, x_BLD: jax.Array, model: Model, window: int | None, around: Surroundings) -> jax.Array:
        split, apart = around.split, around.kernel == "splash"
        query, key, value = self.rotated(x_BLD, model, around.rotary[window is None], split, apart)
        query, key, value = split.to_heads(query), split.to_heads(key), split.to_heads(value)
        context = attention(query, key, value, window, around.segment_ids, around.block_tokens, around.kernel)
        return self.leave(split.to_sequence(context), split, apart)

    def rotated(
        self,
        x_BLD: jax.Array,
        model: Model,
        tables: tuple[jax.Array, jax.Array],
        split: Split = UNSPLIT,
        apart: bool = False,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Query, key and value as `project` gives them, query and key rotated by the layer's cos and sin."""
        query, key, value = self.project(x_BLD, model, split, apart)
        turn = rotate_by_product if apart else rotate
        return turn(query, *tables), turn(key, *tables), value

    def leave(self, context_BLHK: jax.Array, split: Split = UNSPLIT, apart: bool = False) -> jax.Array:
        """The output projection of what the heads read, [B, L, D]; `apart` as in `project`."""
        if apart:
            mixed = linear_from_heads(checkpoint_name(context_BLHK, "context"), self.output[...])
        else:
            context = checkpoint_name(context_BLHK.reshape(*context_BLHK.shape[:2], -1), "context")
            mixed = linear(context, self.output[...])
        return checkpoint_name(split.leave(mixed), "attention_output")

    def project(
        self, x_BLD: jax.Array, model: Model, split: Split = UNSPLIT, apart: bool = False
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Normalised query [B, L, H, K] and key [B, L, G, K], and value [B, L, G, K], before rotation.

        Of a split model: this device's heads. Key-value heads that do not divide among the tensor devices are computed
        by all of them; each then takes those that its query heads use. With `apart`, the products give heads apart,
        which suits TPUs; else heads are taken apart at the end, which suits CPUs.
        """
        shared_keys = split.shares_keys(model.n_kv_heads)
        entered = split.enter(x_BLD)
        to_key = x_BLD if shared_keys else entered

        def product(x_BLD: jax.Array, weight: jax.Array) -> jax.Array:
            return linear_to_heads(x_BLD, weight, model.head_dim) if apart else linear(x_BLD, weight)

        def of_heads(vector: jax.Array) -> jax.Array:
            return vector.reshape(-1, model.head_dim) if apart else vector

        query, key = product(entered, self.query[...]), product(to_key, self.key[...])
        value = product(to_key, self.value[...])
        if model.attention_bias:
            query = query + of_heads(self.query_bias[...]).astype(query.dtype)
            key = key + of_heads(self.key_bias[...]).astype(key.dtype)
            value = value + of_heads(self.value_bias[...]).astype(value.dtype)
        query, key = checkpoint_name(query, "query"), checkpoint_name(key, "key")
        value = checkpoint_name(value, "value")
        if model.qk_norm == "projection":
            # The whole projection shares one RMS: OLMo normalises before the split into heads.
            query = rms_norm(query, of_heads(self.query_norm[...]), model.norm_eps, split)
            key = rms_norm(key, of_heads(self.key_norm[...]), model.norm_eps, None if shared_keys else split)
        heads = [z.reshape(*z.shape[:2], -1, model.head_dim) for z in (query, key, value)]
        if model.qk_norm == "head":
            key_norm = self.key_norm[...] if shared_keys else split.enter(self.key_norm[...])
            heads[0] = rms_norm(heads[0], split.enter(self.query_norm[...]), model.norm_eps)
            heads[1] = rms_norm(heads[1], key_norm, model.norm_eps)
        if shared_keys:
            heads[1:] = split.own_keys(heads[1]), split.own_keys(heads[2])
        return heads[0], heads[1], heads[2]


class GatedMlp(nnx.Module):
    """SwiGLU: down(silu(gate x) * up x) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, model: Model, draw: Initializer, stack: tuple[int, ...]) -> None:
        self.gate = nnx.Param(draw((*stack, model.d_ffn, model.d_model)))
        self.up = nnx.Param(draw((*stack, model.d_ffn, model.d_model)))
        self.down = nnx.Param(draw((*stack, model.d_model, model.d_ffn)))

    def __call__(self, x_BLD: jax.Array, split: Split) -> jax.Array:
        x_BLD = split.enter(x_BLD)
        gate = checkpoint_name(linear(x_BLD, self.gate[...]), "gate")
        up = checkpoint_name(linear(x_BLD, self.up[...]), "up")
        return checkpoint_name(split.leave(linear(gated_silu(gate, up), self.down[...])), "mlp_output")


class Layer(nnx.Module):
    """Attention and MLP with residuals; norms after each (OLMo 2 and 3) or before each (Llama, Qwen3)."""

    def __init__(self, model: Model, draw: Initializer, ones: Initializer, stack: tuple[int, ...] = ()) -> None:
        self.attention = Attention(model, draw, ones, stack)
        self.mlp = GatedMlp(model, draw, stack)
        self.attention_norm = nnx.Param(ones((*stack, model.d_model)))
        self.mlp_norm = nnx.Param(ones((*stack, model.d_model)))

    def __call__(self, x_BLD: jax.Array, model: Model, window: int | None, around: Surroundings) -> jax.Array:
        return self.wrap(x_BLD, model, lambda x_BLD: self.attention(x_BLD, model, window, around), around.split)

    def wrap(
        self, x_BLD: jax.Array, model: Model, attend: Callable[[jax.Array], jax.Array], split: Split = UNSPLIT
    ) -> jax.Array:
        """The layer around `attend`, its attention: norms, residuals and MLP."""
        x_BLD = checkpoint_name(x_BLD, "layer_input")
        if model.norm_placement == "after":
            x_BLD = x_BLD + rms_norm(attend(x_BLD), self.attention_norm[...], model.norm_eps)
            return x_BLD + rms_norm(self.mlp(x_BLD, split), self.mlp_norm[...], model.norm_eps)
        x_BLD = x_BLD + attend(rms_norm(x_BLD, self.attention_norm[...], model.norm_eps))
        return x_BLD + self.mlp(rms_norm(x_BLD, self.mlp_norm[...], model.norm_eps), split)


class Rows(nnx.Module):
    """A matrix of vocabulary rows [V, D]: the embedding, or the head."""

    def __init__(self, weight: jax.Array) -> None:
        self.weight = nnx.Param(weight)


class Decoder(nnx.Module):
    """Embedding, layers, final norm and head. Its state is the parameter tree of every checkpoint."""

    def __init__(self, model: Model, draw: Initializer, ones: Initializer) -> None:
        period = len(model.window_pattern)
        n_blocks = model.n_layers // period
        self.embedding = Rows(draw((model.rows, model.d_model)))
        slots = range(period if n_blocks else 0)
        self.blocks = nnx.Dict({str(slot): Layer(model, draw, ones, (n_blocks,)) for slot in slots})
        self.rest = nnx.Dict({str(i): Layer(model, draw, ones) for i in range(model.n_layers - n_blocks * period)})
        self.norm = Rows(ones((model.d_model,)))
        if not model.tied_head:
            self.head = Rows(draw((model.rows, model.d_model)))

    def __call__(self, tokens_BL: jax.Array, model: Model, **options: Any) -> jax.Array:
        """Hidden states [B, L, D]; `options` are those of `forward`."""
        return forward(nnx.to_pure_dict(nnx.state(self, nnx.Param)), tokens_BL, model, **options)


def layer_rotary(model: Model, positions_L: jax.Array) -> Rotary:
    """cos and sin for sliding layers and for full ones: YaRN scales the full-attention layers only.

    The barrier keeps the compiler from recomputing sines inside every consumer.
    """
    plain = rotary_tables(positions_L, model.rope_theta, model.head_dim, None)
    if model.yarn is None:
        plain = jax.lax.optimization_barrier(plain)
        return plain, plain
    return jax.lax.optimization_barrier(
        (plain, rotary_tables(positions_L, model.rope_theta, model.head_dim, model.yarn))
    )


@lru_cache(maxsize=32)
def _structure(model: Model) -> tuple[Tree, tuple[Any, nnx.State]]:
    """The decoder's tree of abstract leaves, and the NNX graph and abstract state of one lone layer."""

    def abstract(shape: tuple[int, ...]) -> Any:
        return jnp.zeros(shape, jnp.float32)

    decoder = nnx.eval_shape(lambda: Decoder(model, abstract, abstract))
    layer = nnx.eval_shape(lambda: Layer(model, abstract, abstract))
    return nnx.to_pure_dict(nnx.state(decoder, nnx.Param)), nnx.split(layer)


def parameter_shapes(model: Model) -> Tree:
    """The parameter tree with each leaf's shape as a tuple of int."""
    return jax.tree.map(lambda leaf: tuple(leaf.shape), _structure(model)[0])  # pyright: ignore[reportArgumentType] - frozen models hash


def layer_module(layer_params: Tree, model: Model) -> Layer:
    """One layer's parameters (no stack axis) as a module."""
    graph, state = _structure(model)[1]  # pyright: ignore[reportArgumentType] - frozen models hash
    filled = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(filled, layer_params)
    return nnx.merge(graph, filled)


def _same(function: Any, *, prevent_cse: bool) -> Any:
    return function


def _whole(part: str, tree: Tree) -> Tree:
    return tree


def forward(
    params: Tree,
    tokens_BL: jax.Array,
    model: Model,
    *,
    compute_dtype: str = "float32",
    segment_ids_BL: jax.Array | None = None,
    block_tokens: int | None = None,
    kernel: Kernel = "blockwise",
    remat: Callable[..., Any] = _same,
    gather: Callable[[str, Tree], Tree] = _whole,
    split: Split = UNSPLIT,
) -> jax.Array:
    """Hidden states after the final norm, [B, L, D] in `compute_dtype`, of int32 tokens [B, L].

    Args:
        segment_ids_BL: the document of each token of the whole sequence.
        remat: wraps the function of one block of layers, to choose what the backward pass recomputes; takes
            `prevent_cse` as `jax.checkpoint` does.
        gather: makes sharded parameters whole just before use: called with the part's name (`embedding`, `blocks`,
            `rest`, `norm`) and its tree; for `blocks` the tree is one block's, without the stack axis.
        split: how this device's parameters and its stretch of the sequence, `tokens_BL`, are part of whole ones.
    """
    x_BLD = embed(gather("embedding", params["embedding"])["weight"], tokens_BL, compute_dtype, split)
    rotary = layer_rotary(model, split.positions(tokens_BL.shape[1]))
    around = Surroundings(segment_ids_BL, block_tokens, rotary, split, kernel)

    def layers(part: str, x_BLD: jax.Array, slots: Tree) -> jax.Array:
        slots = gather(part, slots)
        for slot in range(len(slots)):
            x_BLD = layer_module(slots[str(slot)], model)(x_BLD, model, model.window_pattern[slot], around)
        return x_BLD

    if "blocks" in params:
        # A loop's backward pass cannot be merged with its forward pass, and the barrier against that would copy what a
        # whole block keeps. A loop that runs once is no loop to a compiler.
        once = jax.tree.leaves(params["blocks"])[0].shape[0] == 1
        block = remat(lambda x_BLD, slots: layers("blocks", x_BLD, slots), prevent_cse=once)
        x_BLD, _ = jax.lax.scan(lambda x_BLD, slots: (block(x_BLD, slots), None), x_BLD, params["blocks"])
    if "rest" in params:
        rest = remat(lambda x_BLD, slots: layers("rest", x_BLD, slots), prevent_cse=True)
        x_BLD = rest(x_BLD, params["rest"])
    return rms_norm(x_BLD, gather("norm", params["norm"])["weight"], model.norm_eps)


def embed(weight_VD: jax.Array, tokens_BL: jax.Array, compute_dtype: str, split: Split) -> jax.Array:
    """Rows of the embedding, [B, L, D] in `compute_dtype`; each tensor device adds those that it holds."""
    if split.tensor == 1:
        return jnp.take(weight_VD, tokens_BL, axis=0).astype(compute_dtype)
    rows = weight_VD.shape[0]
    ids_BL = split.own_ids(tokens_BL, rows)
    held_BL = (ids_BL >= 0) & (ids_BL < rows)
    own_BLD = jnp.take(weight_VD, jnp.where(held_BL, ids_BL, 0), axis=0).astype(compute_dtype)
    return split.leave(jnp.where(held_BL[..., None], own_BLD, 0))


def layer_forward(
    layer_params: Tree,
    x_BLD: jax.Array,
    model: Model,
    window: int | None,
    *,
    segment_ids_BL: jax.Array | None = None,
    block_tokens: int | None = None,
) -> jax.Array:
    """One layer alone, [B, L, D] to [B, L, D], for checks that hold a single layer in memory."""
    rotary = layer_rotary(model, jnp.arange(x_BLD.shape[1], dtype=jnp.int32))
    around = Surroundings(segment_ids_BL, block_tokens, rotary)
    return layer_module(layer_params, model)(x_BLD, model, window, around)


def head_weight(params: Tree, model: Model) -> jax.Array:
    """Rows of the output projection [V, D]: the head's, or the embedding's when tied."""
    return params["embedding" if model.tied_head else "head"]["weight"]


def head_logits(params: Tree, hidden_D: jax.Array, model: Model) -> jax.Array:
    """Logits float32 [..., V] over all trained rows; the real ids are the first `model.vocab_size`."""
    weight = head_weight(params, model).astype(hidden_D.dtype)
    contract = (((hidden_D.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(hidden_D, weight, contract, preferred_element_type=jnp.float32)
