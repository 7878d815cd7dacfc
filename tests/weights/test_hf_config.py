"""Hugging Face configurations: both rotary forms, windows, and refusal by name of what is not computed."""

import json

import pytest
from hf_toys import OLMO3, olmo_model

from ectype.errors import EctypeError
from ectype.recipe.spec import Model, Yarn
from ectype.weights.hf_config import build_config, family_of, parse_config, read_config, shortest_pattern

YARN = Yarn(factor=8.0, original_length_tokens=8192, attention_factor=1.2079441541679836)
YARN_VALUES = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
    "attention_factor": 1.2079441541679836,
}  # fmt: skip
BEFORE = {"norm_placement": "before", "qk_norm": "none", "window_pattern": (None,)}
MODELS = {
    "olmo3": olmo_model(),
    "olmo3 with YaRN": olmo_model(yarn=YARN),
    "olmo3 with another theta": olmo_model(rope_theta=1e4, yarn=YARN.model_copy(update={"truncate": False})),
    "olmo2": olmo_model(window_pattern=(None,), head_dim=8),
    "llama": olmo_model(**BEFORE, tied_head=True, norm_eps=1e-5),
    "llama with YaRN": olmo_model(**BEFORE, yarn=YARN),
    "qwen2": olmo_model(**BEFORE, attention_bias=True),
    "qwen3": olmo_model(**BEFORE | {"qk_norm": "head"}, head_dim=6),
    "qwen3 with windows": olmo_model(**BEFORE | {"qk_norm": "head", "window_pattern": (None, None, None, 8, 8, 8)}),
}


def _build(model: Model) -> dict:
    return build_config(model, family_of(model), "float32", 128, {"eos_token_id": 3})


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_model_survives_the_round_trip(model):
    values = json.loads(json.dumps(_build(model)))
    assert parse_config(values, "config.json").model == model
    assert values["rope_theta"] == model.rope_theta


@pytest.mark.parametrize("name", MODELS)
def test_family_is_found(name):
    assert family_of(MODELS[name]) == name.split(" ")[0]


def test_family_of_the_source_is_kept_where_it_computes_the_model():
    plain = olmo_model(window_pattern=(None,))
    assert family_of(plain) == "olmo2"
    assert family_of(plain, "olmo3") == "olmo3"
    assert family_of(olmo_model(), "olmo2") == "olmo3"


def test_combination_that_no_family_computes():
    with pytest.raises(EctypeError, match="q/k norm projection"):
        family_of(olmo_model(norm_placement="before"))


def test_reference_configuration(shared):
    """The nested form of transformers 5, as OLMo-core's converter wrote it."""
    config = read_config(shared / "reference/olmocore_tiny/hf/step0")
    expected = Model(
        d_model=128, n_layers=4, n_heads=4, n_kv_heads=4, head_dim=32, d_ffn=344, vocab_size=1000,
        window_pattern=(64, 64, 64, None), rope_theta=5e5,
    )  # fmt: skip
    assert (config.model, config.family, config.dtype) == (expected, "olmo3", "float32")


FORMS = {
    "flat": {"rope_theta": 5e5, "rope_scaling": YARN_VALUES},
    "flat, legacy type key": {
        "rope_theta": 5e5, "rope_scaling": {"type" if k == "rope_type" else k: v for k, v in YARN_VALUES.items()},
    },
    "nested": {
        "rope_parameters": {
            "full_attention": YARN_VALUES | {"rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_all_rotary_forms_mean_the_same(form):
    values = {key: value for key, value in OLMO3.items() if not key.startswith("rope")} | form
    assert parse_config(values, "config.json").model == olmo_model(yarn=YARN)


def test_yarn_defaults_are_those_of_the_reference():
    """`truncate` absent means True; absent betas are 32 and 1; an absent attention factor is derived (C02, C03)."""
    values = OLMO3 | {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}}
    assert parse_config(values, "").model.yarn == Yarn(factor=8.0, original_length_tokens=8192)
    yarn = parse_config(values | {"rope_scaling": values["rope_scaling"] | {"attention_factor": 1.0}}, "").model.yarn
    assert yarn is not None
    assert (yarn.attention_factor, yarn.truncate) == (1.0, True)


REFUSED = {
    "model_type": {"model_type": "gemma3"},
    "clip_qkv": {"clip_qkv": 8.0},
    "attention_bias": {"attention_bias": True},
    "hidden_act": {"hidden_act": "gelu"},
    "attention_dropout": {"attention_dropout": 0.1},
    "rms_norm_eps": {"rms_norm_eps": None},
    "embedding_multiplier": {"embedding_multiplier": 12.0},
    "quantization_config": {"quantization_config": {"bits": 4}},
    "'llama3'": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "'linear'": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "mscale": {"rope_scaling": YARN_VALUES | {"mscale": 0.7}},
    "short_factor": {"rope_scaling": YARN_VALUES | {"short_factor": [1.0]}},
    "yarn without factor": {"rope_scaling": {"rope_type": "yarn"}},
    "rope_theta": {"rope_theta": None},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
    "'chunked_attention'": {"layer_types": ["chunked_attention"] * 6},
    "layer_types names 5 layers of 6": {"layer_types": ["full_attention"] * 5},
    "sliding_window is None": {"sliding_window": None},
    "10000.0 in sliding layers": {
        "rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}
    },
    "'yarn' in sliding layers": {
        "rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": YARN_VALUES}
    },
    "not a multiple": {"num_key_value_heads": 3},
}


@pytest.mark.parametrize(("named", "changes"), REFUSED.items(), ids=REFUSED)
def test_refused_by_name(named, changes):
    with pytest.raises(EctypeError) as caught:
        parse_config(OLMO3 | changes, "config.json")
    assert named in caught.value.found


def test_windows_in_families_without_them():
    values = _build(olmo_model(**BEFORE))
    with pytest.raises(EctypeError, match="which llama does not compute"):
        parse_config(values | {"layer_types": ["sliding_attention"] * 6}, "config.json")
    with pytest.raises(EctypeError, match="sliding_window: 4096"):
        parse_config(values | {"sliding_window": 4096}, "config.json")


def test_qwen_windows_follow_its_own_switches():
    values = _build(MODELS["qwen3 with windows"])
    del values["layer_types"]
    assert parse_config(values | {"max_window_layers": 4}, "").model.window_pattern == (None, None, None, None, 8, 8)
    assert parse_config(values | {"use_sliding_window": False}, "").model.window_pattern == (None,)


def test_default_layer_types_of_olmo3():
    assert parse_config(OLMO3 | {"num_hidden_layers": 32}, "").model.window_pattern == (8, 8, 8, None)


@pytest.mark.parametrize(
    ("windows", "pattern"),
    [
        ([8, 8, 8, None, 8, 8], (8, 8, 8, None)),
        ([8, 8, 8], (8,)),
        ([None], (None,)),
        ([8, None, None], (8, None, None)),
    ],
)
def test_shortest_pattern(windows, pattern):
    assert shortest_pattern(windows) == pattern


def test_two_window_sizes_cannot_be_exported():
    with pytest.raises(EctypeError, match=r"windows of \[4, 8\]"):
        _build(olmo_model(window_pattern=(8, 4, None)))
