"""Small checkpoints, and Hugging Face folders that the safetensors library writes, not the code under test."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import safetensors
from safetensors.numpy import save_file

from ectype.recipe.spec import Model
from ectype.run.checkpoints import META_ITEM, WEIGHTS_ITEM
from ectype.weights.checkpoint import save_arguments

NAMES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
OLMO3 = {
    "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "dtype": "float32", "hidden_size": 16,
    "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6,
    "vocab_size": 40, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "max_position_embeddings": 128, "rope_theta": 500000.0, "rope_scaling": None,
    "sliding_window": 8, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 3, "pad_token_id": 1,
    "use_cache": True, "transformers_version": "4.57.0",
}  # fmt: skip
"""Six layers: one whole pattern of four, and two left over."""


def olmo_model(**changes: Any) -> Model:
    """The Model that `OLMO3` describes."""
    values: dict[str, Any] = {
        "d_model": 16, "n_layers": 6, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "d_ffn": 24, "vocab_size": 40,
        "window_pattern": (8, 8, 8, None), "rope_theta": 5e5,
    }  # fmt: skip
    return Model(**(values | changes))


def olmo_shapes(config: Mapping[str, Any] = OLMO3) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an OLMo 3 folder, spelled out here once more."""
    width, ffn, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = width // config["num_attention_heads"]
    narrow = head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, width)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (width, width), prefix + "self_attn.k_proj.weight": (narrow, width),
            prefix + "self_attn.v_proj.weight": (narrow, width), prefix + "self_attn.o_proj.weight": (width, width),
            prefix + "self_attn.q_norm.weight": (width,), prefix + "self_attn.k_norm.weight": (narrow,),
            prefix + "mlp.gate_proj.weight": (ffn, width), prefix + "mlp.up_proj.weight": (ffn, width),
            prefix + "mlp.down_proj.weight": (width, ffn), prefix + "post_attention_layernorm.weight": (width,),
            prefix + "post_feedforward_layernorm.weight": (width,),
        }  # fmt: skip
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (rows, width)}


def random_tensors(dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    """Random values for every tensor of `OLMO3`."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape).astype(NAMES[dtype]) for name, shape in olmo_shapes().items()}


def write_file(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """One safetensors file."""
    save_file(dict(tensors), path, {"format": "pt"})


def write_folder(
    folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any] = OLMO3, shards: int = 1
) -> Path:
    """A Hugging Face folder; with several shards, tensors are dealt out in order and an index lists them."""
    folder.mkdir(parents=True)
    dtype = next(iter(tensors.values())).dtype.name
    (folder / "config.json").write_text(json.dumps(dict(config) | {"dtype": dtype}))
    if shards == 1:
        write_file(folder / "model.safetensors", tensors)
        return folder
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        write_file(folder / file_name, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def read_file(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of each tensor, by the safetensors library."""
    found = safetensors.deserialize(path.read_bytes())
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in found}


def read_all(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """As `read_file`, over every file of a folder."""
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= read_file(path)
    return found


def save_weights(path: Path, params: Any, meta: Mapping[str, Any]) -> None:
    """A checkpoint of just these leaves and this description, whether or not they belong together."""
    weights = ocp.args.StandardSave(params, save_args=save_arguments(params))
    items = ocp.args.Composite(**{WEIGHTS_ITEM: weights, META_ITEM: ocp.args.JsonSave(dict(meta))})
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path.absolute(), args=items)
