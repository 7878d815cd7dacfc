"""The decoder as NNX modules: OLMo 3 and OLMo 2, and by switches Llama and Qwen3 types.

Shapes: B batch, L length, D model, H query heads, G key-value heads, K head dim, F ffn, V vocabulary rows,
N blocks of the repeating pattern. Linear weights are [out, in], as in Hugging Face files, so conversion copies bytes.

Layers run under one scan over the repeating window pattern: slot j of every block has the same window, so its weights
are stacked as [N, ...]; layers left over after the last whole pattern run one by one.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ectype.model.attention import attention
from ectype.model.norm import rms_norm
from ectype.model.rope import rotary_tables, rotate
from ectype.recipe.spec import Model, Yarn

Tree = dict[str, Any]
Initializer = Callable[[tuple[int, ...]], jax.Array]


def linear(x_I: jax.Array, weight_OI: jax.Array, bias_O: jax.Array | None = None) -> jax.Array:
    """x W^T (+ bias) in the dtype of `x_I`; accumulation is float32."""
    product = jax.lax.dot_general(x_I, weight_OI.astype(x_I.dtype), (((x_I.ndim - 1,), (1,)), ((), ())))
    return product if bias_O is None else product + bias_O.astype(x_I.dtype)


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

    def __call__(
        self, x_BLD: jax.Array, model: Model, window: int | None, segment_ids_BL: jax.Array | None,
        block_tokens: int | None, positions_L: jax.Array,
    ) -> jax.Array:  # fmt: skip
        query, key, value = self.project(x_BLD, model)
        cos, sin = rotary_tables(positions_L, model.rope_theta, model.head_dim, layer_yarn(model, window))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        context = attention(query, key, value, window, segment_ids_BL, block_tokens)
        context = checkpoint_name(context.reshape(*x_BLD.shape[:2], -1), "context")
        return checkpoint_name(linear(context, self.output[...]), "attention_output")

    def project(self, x_BLD: jax.Array, model: Model) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Normalised query [B, L, H, K] and key [B, L, G, K], and value [B, L, G, K], before rotation."""
        bias = {
            name: getattr(self, f"{name}_bias")[...] if model.attention_bias else None
            for name in ("query", "key", "value")
        }
        query = checkpoint_name(linear(x_BLD, self.query[...], bias["query"]), "query")
        key = checkpoint_name(linear(x_BLD, self.key[...], bias["key"]), "key")
        value = checkpoint_name(linear(x_BLD, self.value[...], bias["value"]), "value")
        if model.qk_norm == "projection":
            # The whole projection shares one RMS: OLMo normalises before the split into heads.
            query = rms_norm(query, self.query_norm[...], model.norm_eps)
            key = rms_norm(key, self.key_norm[...], model.norm_eps)
        heads = [z.reshape(*z.shape[:2], -1, model.head_dim) for z in (query, key, value)]
        if model.qk_norm == "head":
            heads[0] = rms_norm(heads[0], self.query_norm[...], model.norm_eps)
            heads[1] = rms_norm(heads[1], self.key_norm[...], model.norm_eps)
        return heads[0], heads[1], heads[2]


class GatedMlp(nnx.Module):
    """SwiGLU: down(silu(gate x) * up x) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, model: Model, draw: Initializer, stack: tuple[int, ...]) -> None:
        self.gate = nnx.Param(draw((*stack, model.d_ffn, model.d_model)))
        self.up = nnx.Param(draw((*stack, model.d_ffn, model.d_model)))
        self.down = nnx.Param(draw((*stack, model.d_model, model.d_ffn)))

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        gate = checkpoint_name(linear(x_BLD, self.gate[...]), "gate")
        up = checkpoint_name(linear(x_BLD, self.up[...]), "up")
        return checkpoint_name(linear(jax.nn.silu(gate) * up, self.down[...]), "mlp_output")


class Layer(nnx.Module):
    """Attention and MLP with residuals; norms after each (OLMo 2 and 3) or before each (Llama, Qwen3)."""

    def __init__(self, model: Model, draw: Initializer, ones: Initializer, stack: tuple[int, ...] = ()) -> None:
        self.attention = Attention(model, draw, ones, stack)
        self.mlp = GatedMlp(model, draw, stack)
        self.attention_norm = nnx.Param(ones((*stack, model.d_model)))
        self.mlp_norm = nnx.Param(ones((*stack, model.d_model)))

    def __call__(
        self, x_BLD: jax.Array, model: Model, window: int | None, segment_ids_BL: jax.Array | None,
        block_tokens: int | None, positions_L: jax.Array,
    ) -> jax.Array:  # fmt: skip
        attend = (model, window, segment_ids_BL, block_tokens, positions_L)
        x_BLD = checkpoint_name(x_BLD, "layer_input")
        if model.norm_placement == "after":
            x_BLD = x_BLD + rms_norm(self.attention(x_BLD, *attend), self.attention_norm[...], model.norm_eps)
            return x_BLD + rms_norm(self.mlp(x_BLD), self.mlp_norm[...], model.norm_eps)
        x_BLD = x_BLD + self.attention(rms_norm(x_BLD, self.attention_norm[...], model.norm_eps), *attend)
        return x_BLD + self.mlp(rms_norm(x_BLD, self.mlp_norm[...], model.norm_eps))


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

    def __call__(
        self, tokens_BL: jax.Array, model: Model, compute_dtype: str, segment_ids_BL: jax.Array | None,
        block_tokens: int | None, positions_L: jax.Array, remat: Callable[[Any], Any],
    ) -> jax.Array:  # fmt: skip
        x_BLD = jnp.take(self.embedding.weight[...], tokens_BL, axis=0).astype(compute_dtype)
        common = (segment_ids_BL, block_tokens, positions_L)
        graphs, states = [], []
        for slot in range(len(self.blocks)):
            graph, state = nnx.split(self.blocks[str(slot)])
            graphs.append(graph)
            states.append(state)

        @remat
        def block(x_BLD: jax.Array, states) -> tuple[jax.Array, None]:
            for slot, (graph, state) in enumerate(zip(graphs, states, strict=True)):
                x_BLD = nnx.merge(graph, state)(x_BLD, model, model.window_pattern[slot], *common)
            return x_BLD, None

        if states:
            x_BLD, _ = jax.lax.scan(block, x_BLD, tuple(states))
        for slot in range(len(self.rest)):
            x_BLD = self.rest[str(slot)](x_BLD, model, model.window_pattern[slot], *common)
        return rms_norm(x_BLD, self.norm.weight[...], model.norm_eps)


def layer_yarn(model: Model, window: int | None) -> Yarn | None:
    """YaRN scales full-attention layers only; sliding layers keep plain rotary positions."""
    return model.yarn if window is None else None


@lru_cache(maxsize=32)
def _structure(model: Model) -> Any:
    """The NNX graph of the decoder and of one lone layer, without any weights."""

    def abstract(shape: tuple[int, ...]) -> Any:
        return jnp.zeros(shape, jnp.float32)

    decoder = nnx.eval_shape(lambda: Decoder(model, abstract, abstract))
    layer = nnx.eval_shape(lambda: Layer(model, abstract, abstract))
    return nnx.split(decoder), nnx.split(layer)


def parameter_shapes(model: Model) -> Tree:
    """The parameter tree with each leaf's shape as a tuple of int."""
    state = _structure(model)[0][1]
    return jax.tree.map(lambda leaf: tuple(leaf.shape), nnx.to_pure_dict(state))


def _merge(graph: Any, state: nnx.State, params: Tree) -> Any:
    """A module of `params`; the abstract `state` says where each leaf belongs."""
    filled = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(filled, params)
    return nnx.merge(graph, filled)


def forward(
    params: Tree,
    tokens_BL: jax.Array,
    model: Model,
    *,
    compute_dtype: str = "float32",
    segment_ids_BL: jax.Array | None = None,
    block_tokens: int | None = None,
    remat: Callable[[Any], Any] = lambda function: function,
) -> jax.Array:
    """Hidden states after the final norm, [B, L, D] in `compute_dtype`, of int32 tokens [B, L].

    `remat` wraps the function of one block of layers, to choose what the backward pass recomputes.
    """
    graph, state = _structure(model)[0]
    positions_L = jnp.arange(tokens_BL.shape[1], dtype=jnp.int32)
    decoder = _merge(graph, state, params)
    return decoder(tokens_BL, model, compute_dtype, segment_ids_BL, block_tokens, positions_L, remat)


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
    graph, state = _structure(model)[1]
    positions_L = jnp.arange(x_BLD.shape[1], dtype=jnp.int32)
    layer = _merge(graph, state, layer_params)
    return layer(x_BLD, model, window, segment_ids_BL, block_tokens, positions_L)


def head_weight(params: Tree, model: Model) -> jax.Array:
    """Rows of the output projection [V, D]: the head's, or the embedding's when tied."""
    return params["embedding" if model.tied_head else "head"]["weight"]


def head_logits(params: Tree, hidden_D: jax.Array, model: Model) -> jax.Array:
    """Logits float32 [..., V] over all trained rows; the real ids are the first `model.vocab_size`."""
    weight = head_weight(params, model).astype(hidden_D.dtype)
    contract = (((hidden_D.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(hidden_D, weight, contract, preferred_element_type=jnp.float32)
