"""Hugging Face and OLMo-core tensor names beside our tree paths: one table, one row per kind of tensor.

Linear weights are [out, in] everywhere, so every row is a byte copy: no transpose, no permutation of heads.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ectype.model.parameters import parameter_shapes
from ectype.recipe.spec import Model
from ectype.weights.tree import LeafPath, flatten

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One kind of tensor. `{layer}` in a name stands for the layer's number; `path` is then relative to the layer."""

    path: LeafPath
    hugging_face: str
    olmo_core: str | None
    when: Callable[[Model], bool] = lambda model: True

    @property
    def in_layer(self) -> bool:
        return "{layer}" in self.hugging_face


def _normed(model: Model) -> bool:
    return model.qk_norm != "none"


def _biased(model: Model) -> bool:
    return model.attention_bias


def _norm_after(model: Model) -> bool:
    return model.norm_placement == "after"


def _norm_before(model: Model) -> bool:
    return model.norm_placement == "before"


_HF, _CORE = "model.layers.{layer}.", "blocks.{layer}."
TABLE: tuple[Row, ...] = (
    Row(("embedding", "weight"), "model.embed_tokens.weight", "embeddings.weight"),
    Row(("attention", "query"), _HF + "self_attn.q_proj.weight", _CORE + "attention.w_q.weight"),
    Row(("attention", "key"), _HF + "self_attn.k_proj.weight", _CORE + "attention.w_k.weight"),
    Row(("attention", "value"), _HF + "self_attn.v_proj.weight", _CORE + "attention.w_v.weight"),
    Row(("attention", "output"), _HF + "self_attn.o_proj.weight", _CORE + "attention.w_out.weight"),
    Row(("attention", "query_norm"), _HF + "self_attn.q_norm.weight", _CORE + "attention.q_norm.weight", _normed),
    Row(("attention", "key_norm"), _HF + "self_attn.k_norm.weight", _CORE + "attention.k_norm.weight", _normed),
    Row(("attention", "query_bias"), _HF + "self_attn.q_proj.bias", None, _biased),
    Row(("attention", "key_bias"), _HF + "self_attn.k_proj.bias", None, _biased),
    Row(("attention", "value_bias"), _HF + "self_attn.v_proj.bias", None, _biased),
    Row(("mlp", "gate"), _HF + "mlp.gate_proj.weight", _CORE + "feed_forward.w1.weight"),
    Row(("mlp", "up"), _HF + "mlp.up_proj.weight", _CORE + "feed_forward.w3.weight"),
    Row(("mlp", "down"), _HF + "mlp.down_proj.weight", _CORE + "feed_forward.w2.weight"),
    # The same Hugging Face name is the norm after attention in OLMo and the norm before the MLP in Llama and Qwen.
    Row(("attention_norm",), _HF + "post_attention_layernorm.weight", _CORE + "attention_norm.weight", _norm_after),
    Row(("mlp_norm",), _HF + "post_feedforward_layernorm.weight", _CORE + "feed_forward_norm.weight", _norm_after),
    Row(("attention_norm",), _HF + "input_layernorm.weight", None, _norm_before),
    Row(("mlp_norm",), _HF + "post_attention_layernorm.weight", None, _norm_before),
    Row(("norm", "weight"), "model.norm.weight", "lm_head.norm.weight"),
    Row(("head", "weight"), "lm_head.weight", "lm_head.w_out.weight", lambda model: not model.tied_head),
)
VOCABULARY_PATHS: tuple[LeafPath, ...] = (("embedding", "weight"), ("head", "weight"))
"""Leaves whose rows are vocabulary ids: the file holds `vocab_size` of them, the tree `model.rows`."""


@dataclass(frozen=True)
class Place:
    """Where one named tensor lies in the tree: a leaf, and its index on the leading axis when the leaf is stacked."""

    path: LeafPath
    block: int | None
    shape: Shape
    """Shape of the named tensor, vocabulary rows trimmed to the real ids."""
    layer: int | None


def layer_place(model: Model, layer: int) -> tuple[LeafPath, int | None]:
    """Prefix of the tree path of `layer`, and its index on the stacked axis (None for a leftover layer)."""
    period = len(model.window_pattern)
    n_blocks = model.n_layers // period
    if layer < n_blocks * period:
        return ("blocks", str(layer % period)), layer // period
    return ("rest", str(layer - n_blocks * period)), None


def hugging_face_tensors(model: Model) -> dict[str, Place]:
    """Every tensor of the model's Hugging Face checkpoint by name, with its place; layers ascend."""
    return _tensors(model, lambda row: row.hugging_face)


def olmo_core_tensors(model: Model) -> dict[str, Place]:
    """As `hugging_face_tensors`, by OLMo-core's parameter names; tensors that OLMo-core's models lack are left out."""
    return _tensors(model, lambda row: row.olmo_core)


def _tensors(model: Model, name_of: Callable[[Row], str | None]) -> dict[str, Place]:
    shapes = flatten(parameter_shapes(model))
    rows = [(row, name) for row in TABLE if row.when(model) and (name := name_of(row)) is not None]
    tensors: dict[str, Place] = {}
    for row, name in rows:
        if not row.in_layer:
            shape = shapes[row.path]
            trimmed = (model.vocab_size, *shape[1:]) if row.path in VOCABULARY_PATHS else shape
            tensors[name] = Place(row.path, None, trimmed, None)
    for layer in range(model.n_layers):
        prefix, block = layer_place(model, layer)
        for row, name in rows:
            if row.in_layer:
                path = prefix + row.path
                shape = shapes[path] if block is None else shapes[path][1:]
                tensors[name.format(layer=layer)] = Place(path, block, shape, layer)
    return tensors
