"""Hugging Face `config.json` to a Model section and back. A setting that we do not compute is refused by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ectype.artifacts import read_json
from ectype.errors import EctypeError
from ectype.recipe.parse import parse
from ectype.recipe.spec import Model, Yarn


@dataclass(frozen=True)
class Family:
    """What a Hugging Face model type fixes, and what its configuration may leave out."""

    architecture: str
    norm_placement: Literal["after", "before"]
    qk_norm: Literal["projection", "head", "none"]
    attention_bias: bool = False
    windows: bool = False
    """Whether layers of this type may have a sliding window."""
    scales_windowed_layers: bool = False
    """Whether its rotary scaling also reaches layers with a window (OLMo 3 spares them)."""


FAMILIES = {
    "olmo2": Family("Olmo2ForCausalLM", "after", "projection"),
    "olmo3": Family("Olmo3ForCausalLM", "after", "projection", windows=True),
    "llama": Family("LlamaForCausalLM", "before", "none"),
    "qwen2": Family("Qwen2ForCausalLM", "before", "none", True, windows=True, scales_windowed_layers=True),
    "qwen3": Family("Qwen3ForCausalLM", "before", "head", windows=True, scales_windowed_layers=True),
}
_REQUIRED = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "d_ffn", "vocab_size": "vocab_size", "rms_norm_eps": "norm_eps",
}  # fmt: skip
_MUST_EQUAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,), "attention_dropout": (0, None),
    "clip_qkv": (None,), "pretraining_tp": (1, None), "partial_rotary_factor": (1, None), "rope_interleaved": (False,),
    "logit_scale": (None,), "is_encoder_decoder": (False,), "is_decoder": (False,), "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,), "quantization_config": (None,), "auto_map": (None,), "pruned_heads": ({},),
    "tie_encoder_decoder": (False,), "chunk_size_feed_forward": (0,), "mlp_only_layers": ([], None),
}  # fmt: skip
_READ_ELSEWHERE = {
    "num_key_value_heads", "head_dim", "tie_word_embeddings", "initializer_range", "layer_types", "sliding_window",
    "use_sliding_window", "max_window_layers", "rope_theta", "rope_scaling", "rope_parameters", "dtype", "torch_dtype",
    "max_position_embeddings", "model_type",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "transformers_version",
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "id2label", "label2id",
    "is_llama_config", "transformers.js_config", "output_attentions", "output_hidden_states", "return_dict",
    "torchscript", "use_bfloat16", "task_specific_params", "problem_type", "tokenizer_class", "prefix", "sep_token_id",
    "decoder_start_token_id", "unk_token_id",
}  # fmt: skip
_YARN_KEYS = {
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
    "attention_factor", "truncate", "mscale", "mscale_all_dim", "partial_rotary_factor",
}  # fmt: skip
_WIDE, _SLIDING = "full_attention", "sliding_attention"
_MOST = 1 << 31
"""A larger size is a damaged file."""
TRANSFORMERS_DEFAULT_THETA = 500_000.0


@dataclass(frozen=True)
class HuggingFaceConfig:
    """A parsed `config.json`."""

    family: str
    model: Model
    dtype: str | None
    """The element type it declares, if any."""
    values: Mapping[str, Any]
    """All of it, as read."""


def read_config(folder: Path) -> HuggingFaceConfig:
    """Parse `folder/config.json`."""
    values = read_json(folder / "config.json", "Hugging Face configuration")
    if not isinstance(values, dict):
        raise EctypeError(f"{folder / 'config.json'} holds no mapping", "a model configuration", "fetch it again")
    return parse_config(values, str(folder / "config.json"))


def parse_config(values: Mapping[str, Any], source: str) -> HuggingFaceConfig:
    """The Model that a configuration describes.

    Raises:
        EctypeError: naming each setting that is missing, that Ectype does not compute, or that it does not know.
    """
    family_name = values.get("model_type")
    if not isinstance(family_name, str) or family_name not in FAMILIES:
        raise EctypeError(
            f"{source}: model_type {family_name!r}", f"one of {', '.join(FAMILIES)}", "use a decoder of these families"
        )
    family = FAMILIES[family_name]
    problems = [f"{key} is missing or no number" for key in _REQUIRED if not isinstance(values.get(key), (int, float))]
    problems += _of_wrong_kind(values)
    for key, value in values.items():
        if key in _MUST_EQUAL and value not in _MUST_EQUAL[key]:
            problems.append(f"{key}: {value!r} (only {_MUST_EQUAL[key][0]!r} is computed)")
        elif key not in _MUST_EQUAL and key not in _REQUIRED and key not in _READ_ELSEWHERE | _WITHOUT_EFFECT:
            problems.append(f"{key}: {value!r} (unknown setting)")
    _refuse(source, problems)
    heads, width = values["num_attention_heads"], values["hidden_size"]
    windows = _layer_windows(values, family_name, source)
    theta, yarn = _rotary(values, family, windows, source)
    head_dim = values.get("head_dim")
    if head_dim is None and family_name == "qwen3":
        raise EctypeError(f"{source}: head_dim is missing", "qwen3 states it", "add the head_dim it was trained with")
    fields = {ours: values[theirs] for theirs, ours in _REQUIRED.items()} | {
        "n_kv_heads": heads if values.get("num_key_value_heads") is None else values["num_key_value_heads"],
        "head_dim": width // heads if head_dim is None else head_dim, "window_pattern": shortest_pattern(windows),
        "rope_theta": theta, "yarn": yarn, "norm_placement": family.norm_placement, "qk_norm": family.qk_norm,
        "attention_bias": family.attention_bias, "tied_head": bool(values.get("tie_word_embeddings", False)),
        "init_std": values.get("initializer_range", 0.02),
    }  # fmt: skip
    model = parse(Model, fields, source, expected="a usable configuration", mend="correct config.json")
    return HuggingFaceConfig(family_name, model, _declared_dtype(values), dict(values))


def _of_wrong_kind(values: Mapping[str, Any]) -> list[str]:
    """Settings that the code below counts with or looks into, and that are no counts, lists or mappings."""
    counts = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    problems = [
        f"{key}: {values[key]!r} is no count"
        for key in counts
        if isinstance(values.get(key), (int, float)) and not (type(values[key]) is int and 0 < values[key] <= _MOST)
    ]
    types = values.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(isinstance(kind, str) for kind in types)):
        problems.append("layer_types is no list of names")
    first = values.get("max_window_layers")
    if first is not None and not isinstance(first, int):
        problems.append(f"max_window_layers: {first!r} is no count")
    nested = values.get("rope_parameters")
    inner = {f"rope_parameters.{key}": nested.get(key) for key in (_WIDE, _SLIDING)} if isinstance(nested, dict) else {}
    outer = {key: values.get(key) for key in ("rope_parameters", "rope_scaling")}
    for key, setting in (outer | inner).items():
        if setting is not None and not isinstance(setting, dict):
            problems.append(f"{key} is no mapping")
    return problems


def shortest_pattern(windows: Sequence[int | None]) -> tuple[int | None, ...]:
    """The shortest pattern whose repetition, cut at the last layer, gives `windows`."""
    for period in range(1, len(windows)):
        if all(window == windows[layer % period] for layer, window in enumerate(windows)):
            return tuple(windows[:period])
    return tuple(windows)


def family_of(model: Model, preferred: str | None = None) -> str:
    """The Hugging Face model type that computes `model`: `preferred` where it can, else the plainest."""
    windowed = any(model.layer_window(layer) is not None for layer in range(model.n_layers))
    able = [
        name
        for name, family in FAMILIES.items()
        if (family.norm_placement, family.qk_norm, family.attention_bias)
        == (model.norm_placement, model.qk_norm, model.attention_bias)
        and (family.windows or not windowed)
        and not (model.yarn and windowed and family.scales_windowed_layers)
    ]
    if not able:
        raise EctypeError(
            f"a model with norm {model.norm_placement}, q/k norm {model.qk_norm}, attention_bias "
            f"{model.attention_bias}{', windows' if windowed else ''}{', YaRN' if model.yarn else ''}",
            f"a combination that a Hugging Face type computes ({', '.join(FAMILIES)})", "it cannot be exported",
        )  # fmt: skip
    return preferred if preferred in able else able[0]


def build_config(
    model: Model, family_name: str, dtype: str, max_length_tokens: int, token_ids: Mapping[str, Any]
) -> dict[str, Any]:
    """`config.json` for `model`, in the flat rotary form (`rope_theta`, `rope_scaling`) that all versions read.

    `token_ids` holds bos, eos and pad ids as the source had them.
    """
    windows = [model.layer_window(layer) for layer in range(model.n_layers)]
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1:
        raise EctypeError(
            f"windows of {sorted(sizes)} tokens in one model", "one window size: Hugging Face has a single "
            "sliding_window", "it cannot be exported",
        )  # fmt: skip
    family = FAMILIES[family_name]
    values: dict[str, Any] = {
        "architectures": [family.architecture], "model_type": family_name, "dtype": dtype, "torch_dtype": dtype,
        **{theirs: getattr(model, ours) for theirs, ours in _REQUIRED.items()},
        "num_key_value_heads": model.n_kv_heads, "head_dim": model.head_dim, "hidden_act": "silu",
        "attention_dropout": 0.0, "initializer_range": model.init_std, "tie_word_embeddings": model.tied_head,
        "max_position_embeddings": max_length_tokens, "use_cache": True,
        **{key: token_ids.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "rope_theta": model.rope_theta, "rope_scaling": _rope_scaling(model.yarn),
    }  # fmt: skip
    if family_name != "qwen2":
        values["attention_bias"] = False
    if family.windows:
        values["layer_types"] = [_WIDE if window is None else _SLIDING for window in windows]
        values["sliding_window"] = next(iter(sizes), None)
        if family_name in ("qwen2", "qwen3"):
            values |= {"use_sliding_window": bool(sizes), "max_window_layers": model.n_layers}
    if family_name == "olmo3" and model.rope_theta != TRANSFORMERS_DEFAULT_THETA:
        # transformers 5.24 reads a flat theta into the full-attention layers only; the nested form says it for both.
        wide = {"rope_type": "default", "rope_theta": model.rope_theta} | (values["rope_scaling"] or {})
        values["rope_parameters"] = {
            _WIDE: wide, _SLIDING: {"rope_type": "default", "rope_theta": model.rope_theta},
        }  # fmt: skip
    return values


def _refuse(source: str, problems: Sequence[str]) -> None:
    if problems:
        raise EctypeError(
            f"{source}: " + "; ".join(problems), "settings that Ectype computes", "no approximation is made: use a "
            "supported checkpoint, or remove a key that has no effect on the computation",
        )  # fmt: skip


def _declared_dtype(values: Mapping[str, Any]) -> str | None:
    declared = values.get("dtype") or values.get("torch_dtype")
    return None if declared is None else str(declared).removeprefix("torch.")


def _layer_windows(values: Mapping[str, Any], family_name: str, source: str) -> list[int | None]:
    """The window of each layer, as that model type derives it from its configuration."""
    layers, window = values["num_hidden_layers"], values.get("sliding_window")
    if family_name in ("qwen2", "qwen3") and not values.get("use_sliding_window", False):
        window = None
    types = values.get("layer_types")
    if types is None:
        types = [_WIDE] * layers
        if family_name == "olmo3":
            types = [_WIDE if (layer + 1) % 4 == 0 else _SLIDING for layer in range(layers)]
        elif family_name in ("qwen2", "qwen3") and window is not None:
            first = values.get("max_window_layers", 28)
            types = [_SLIDING if layer >= first else _WIDE for layer in range(layers)]
    problems = []
    if len(types) != layers:
        problems.append(f"layer_types names {len(types)} layers of {layers}")
    problems += [f"layer_types holds {kind!r}" for kind in sorted(set(types) - {_WIDE, _SLIDING})]
    if _SLIDING in types and not FAMILIES[family_name].windows:
        problems.append(f"layer_types holds {_SLIDING!r}, which {family_name} does not compute")
    elif _SLIDING in types and not window:
        problems.append(f"layer_types holds {_SLIDING!r} but sliding_window is {window!r}")
    if window is not None and not FAMILIES[family_name].windows:
        problems.append(f"sliding_window: {window!r}, which {family_name} does not compute")
    _refuse(source, problems)
    return [window if kind == _SLIDING else None for kind in types]


def _rotary(
    values: Mapping[str, Any], family: Family, windows: Sequence[int | None], source: str
) -> tuple[float, Yarn | None]:
    """Theta and scaling, from the flat form or from `rope_parameters`, flat or nested by layer type."""
    settings = values.get("rope_parameters") or {}
    nested = bool(settings.keys() & {_WIDE, _SLIDING})
    wide = dict((settings.get(_WIDE) if nested else settings) or {})
    sliding = dict((settings.get(_SLIDING) if nested else {}) or {})
    wide = wide | (values.get("rope_scaling") or {})
    theta = wide.get("rope_theta", values.get("rope_theta"))
    problems = []
    if not isinstance(theta, (int, float)):
        problems.append(f"rope_theta: {theta!r}")
    if sliding.get("rope_theta", theta) != theta and any(window is not None for window in windows):
        problems.append(f"rope_theta {sliding['rope_theta']} in sliding layers and {theta} in full ones")
    if sliding.get("rope_type", "default") != "default":
        problems.append(f"rope_type {sliding['rope_type']!r} in sliding layers")
    kind = wide.get("rope_type", wide.get("type", "default")) or "default"
    if kind not in ("default", "yarn"):
        problems.append(f"rope_type {kind!r} (default and yarn are computed)")
    for key in ("mscale", "mscale_all_dim"):
        if wide.get(key):
            problems.append(f"{key}: {wide[key]!r} in the rotary settings")
    if wide.get("partial_rotary_factor", 1) not in (1, None):
        problems.append(f"partial_rotary_factor: {wide['partial_rotary_factor']!r}")
    problems += [f"{key}: {wide[key]!r} in the rotary settings" for key in sorted(wide.keys() - _YARN_KEYS)]
    if kind == "yarn" and wide.get("factor") is None:
        problems.append("yarn without factor")
    if kind == "yarn" and family.scales_windowed_layers and any(window is not None for window in windows):
        problems.append("yarn with sliding layers, which this model type would scale too")
    _refuse(source, problems)
    theta = float(theta or 0)
    if kind == "default":
        return theta, None
    original = wide.get("original_max_position_embeddings") or values.get("max_position_embeddings")
    if original is None:
        _refuse(source, ["yarn without original_max_position_embeddings"])
    truncate = wide.get("truncate")
    fields = {
        "factor": wide["factor"], "original_length_tokens": original or 0, "beta_fast": wide.get("beta_fast") or 32.0,
        "beta_slow": wide.get("beta_slow") or 1.0, "attention_factor": wide.get("attention_factor"),
        "truncate": True if truncate is None else truncate,
    }  # fmt: skip
    return theta, parse(Yarn, fields, f"{source}: yarn", expected="usable YaRN settings", mend="correct config.json")


def _rope_scaling(yarn: Yarn | None) -> dict[str, Any] | None:
    if yarn is None:
        return None
    values: dict[str, Any] = {
        "rope_type": "yarn", "factor": yarn.factor, "original_max_position_embeddings": yarn.original_length_tokens,
        "beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow,
    }  # fmt: skip
    if yarn.attention_factor is not None:
        values["attention_factor"] = float(yarn.attention_factor)
    if not yarn.truncate:
        values["truncate"] = False
    return values
